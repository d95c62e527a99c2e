//! Images: from a directory, from an archive, from the host itself. They are shared and read-only, and contain nothing
//! that the importing caller could not read.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use bay_tests::archive::member;
use bay_tests::suite::{self, Lack, Scratch};
use bay_tests::{Daemon, SMALL, image};
use bay_types::ErrorCode;
use serde_json::json;

fn bay_on(daemon: &Daemon, name: &str, image: &str) {
    let body = json!({ "name": name, "source": { "kind": "empty" }, "image": image });
    let answer = daemon.rest("POST", "/v1/bays", &body);
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    assert!(text.lines().last().is_some_and(|line| line.contains("\"done\"")), "{text}\n{}", daemon.log());
}

fn names(daemon: &Daemon) -> Vec<String> {
    let all = daemon.bay(&["images", "ls", "--json"]).ok().json();
    all.as_array().unwrap().iter().map(|image| image["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_directory_becomes_an_image_with_owners_modes_and_links() {
    let daemon = Daemon::setup().own_pool(1024).start();
    let scratch = Scratch::new();
    let tree = scratch.join("tree");
    let _copied = Command::new("cp")
        .args(["-a", image::small().to_str().unwrap(), tree.to_str().unwrap()])
        .status()
        .unwrap();
    fs::write(tree.join("etc/mark"), "v1\n").unwrap();
    fs::write(tree.join("etc/private"), "secret\n").unwrap();
    fs::set_permissions(tree.join("etc/private"), fs::Permissions::from_mode(0o640)).unwrap();
    std::os::unix::fs::chown(tree.join("etc/private"), Some(0), Some(50)).unwrap();
    fs::set_permissions(tree.join("bin/bash"), fs::Permissions::from_mode(0o4755)).unwrap();
    let source = format!("dir:{}", tree.display());
    let view = daemon.bay(&["images", "import", &source, "--name", "tree", "--json"]).ok().json();
    assert_eq!(view["name"], "tree", "{view}");
    assert!(view["files"].as_u64() > Some(100), "{view}");
    bay_on(&daemon, "b", "tree");
    let seen = daemon
        .sh("b", "cat /etc/mark; stat -c '%a %u %g' /etc/private /bin/bash /home/user; readlink /bin/ls")
        .ok()
        .text();
    assert_eq!(seen, "v1\n640 0 50\n4755 0 0\n755 1000 1000\nbusybox");
    // The import made a copy: later changes to the directory do not reach the image.
    fs::write(tree.join("etc/mark"), "v2\n").unwrap();
    assert_eq!(daemon.sh("b", "cat /etc/mark").ok().text(), "v1");
    bay_on(&daemon, "c", "tree");
    assert_eq!(daemon.sh("c", "cat /etc/mark").ok().text(), "v1");
    // If the same name is imported again, new bays get the new tree.
    let _again = daemon.bay(&["images", "import", &source, "--name", "tree", "--force"]).ok();
    bay_on(&daemon, "d", "tree");
    assert_eq!(daemon.sh("d", "cat /etc/mark").ok().text(), "v2");
}

#[test]
fn an_archive_becomes_an_image() {
    let daemon = Daemon::setup().own_pool(1024).start();
    let scratch = Scratch::new();
    let archive = scratch.join("image.tar");
    let made =
        Command::new("tar").arg("-C").arg(image::small()).arg("-cf").arg(&archive).arg(".").status().unwrap();
    assert!(made.success());
    let _imported =
        daemon.bay(&["images", "import", &format!("tar:{}", archive.display()), "--name", "packed"]).ok();
    bay_on(&daemon, "b", "packed");
    assert_eq!(
        daemon.sh("b", "cat /etc/small-image; stat -c %a /tmp; stat -c %u /home/user").ok().text(),
        "made by the tests\n1777\n1000"
    );
}

#[test]
fn an_image_is_shared_and_what_one_bay_changes_no_other_sees() {
    let daemon = Daemon::start();
    daemon.empty_bay("one");
    daemon.empty_bay("two");
    let _changed = daemon.sh("one", "echo changed > /etc/small-image; rm -rf /home/user").ok();
    assert_eq!(
        daemon.sh("two", "cat /etc/small-image; ls -d /home/user").ok().text(),
        "made by the tests\n/home/user"
    );
    daemon.empty_bay("three");
    assert_eq!(daemon.sh("three", "cat /etc/small-image").ok().text(), "made by the tests");
    let images = daemon.bay(&["images", "ls", "--json"]).ok().json();
    let small = images.as_array().unwrap().iter().find(|image| image["name"] == SMALL).unwrap().clone();
    assert!(small["bays"].as_u64() >= Some(3), "{small}");
}

#[test]
fn programs_that_an_image_adds_to_the_path_are_found_by_every_command() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    // The environment that an import of `host` with added directories leaves.
    let prepare = "mkdir -p /home/ann/.cargo/bin; cd /home/ann/.cargo/bin; \
        printf '#!/bin/sh\\necho it runs with $CARGO_HOME\\n' > mytool; chmod 755 mytool; \
        printf 'PATH=\"/home/ann/.cargo/bin:/usr/bin:/bin\"\\nCARGO_HOME=/home/ann/.cargo\\nHOME=/nowhere\\n' > /etc/environment";
    let _prepared = daemon.sh("b", prepare).ok();
    assert_eq!(daemon.bay(&["exec", "b", "--", "mytool"]).ok().text(), "it runs with /home/ann/.cargo");
    assert_eq!(daemon.sh("b", "mytool; echo $HOME").ok().text(), "it runs with /home/ann/.cargo\n/root");
    // The caller's own variable has precedence.
    let own = daemon.bay(&["exec", "-e", "PATH=/bin:/usr/bin", "b", "--", "mytool"]);
    own.fails_as(ErrorCode::CommandNotFound, 127);
}

#[test]
fn the_ids_that_the_list_shows_are_accepted_wherever_an_image_is_named() {
    let daemon = Daemon::setup().own_pool(1024).start();
    let images = daemon.bay(&["images", "ls", "--json"]).ok().json();
    let id = images[0]["id"].as_str().unwrap().to_owned();
    let short = &id[id.len() - 8..];
    assert!(daemon.bay(&["images", "ls"]).ok().text().contains(short));
    let _made = daemon.bay(&["up", "--name", "b", "--image", short]).ok();
    let shown = daemon.show("b");
    assert_eq!((&shown["image"], &shown["image_id"]), (&json!(id), &json!(id)), "the bay keeps the whole id");
    let _replaced = daemon.bay(&["replace", "b"]).ok();
    let (what, _) =
        daemon.bay(&["up", "--name", "c", "--image", "00000000"]).fails_with(ErrorCode::ImageNotFound);
    assert!(what.contains("00000000"), "{what}");
    daemon.bay(&["images", "rm", short]).fails_with(ErrorCode::ImageInUse);
    let _removed = daemon.bay(&["rm", "b", "--yes"]).ok();
    let _gone = daemon.bay(&["images", "rm", short]).ok();
}

#[test]
fn an_image_in_use_is_not_removed_and_an_unused_one_is() {
    let daemon = Daemon::setup().own_pool(1024).start();
    daemon.empty_bay("b");
    daemon.bay(&["images", "rm", SMALL]).fails_with(ErrorCode::ImageInUse);
    let _removed = daemon.bay(&["rm", "b", "--yes"]).ok();
    let _gone = daemon.bay(&["images", "rm", SMALL]).ok();
    daemon.bay(&["images", "rm", SMALL]).fails_with(ErrorCode::ImageNotFound);
    assert_eq!(names(&daemon), Vec::<String>::new());
}

#[test]
fn impossible_images_are_refused_and_leave_nothing() {
    let daemon = Daemon::setup().own_pool(1024).start();
    let scratch = Scratch::new();
    fs::write(scratch.join("not-a-tar"), vec![b'x'; 5000]).unwrap();
    fs::create_dir(scratch.join("empty")).unwrap();
    let at = |name: &str| scratch.join(name).display().to_string();
    let cases = [
        (format!("dir:{}", at("absent")), &[ErrorCode::PathNotFound, ErrorCode::ImageImport][..]),
        (format!("tar:{}", at("absent")), &[ErrorCode::PathNotFound, ErrorCode::ImageImport]),
        (format!("tar:{}", at("not-a-tar")), &[ErrorCode::ImageImport]),
        (format!("dir:{}", at("not-a-tar")), &[ErrorCode::ImageImport, ErrorCode::InvalidInput]),
        (
            "dir:relative/path".to_owned(),
            &[ErrorCode::InvalidInput, ErrorCode::PathNotFound, ErrorCode::ImageImport],
        ),
        ("floppy:a".to_owned(), &[ErrorCode::InvalidInput, ErrorCode::ImageNotFound]),
        ("dir:".to_owned(), &[ErrorCode::InvalidInput, ErrorCode::PathNotFound, ErrorCode::ImageImport]),
    ];
    for (source, codes) in cases {
        let ran = daemon.bay(&["images", "import", &source, "--name", "odd"]);
        let code = codes.iter().find(|code| ran.errors().contains(code.as_str()));
        ran.fails_with(*code.unwrap_or_else(|| panic!("{source}: wanted one of {codes:?}: {ran}")));
    }
    let unknown = daemon.bay(&[
        "up",
        "--name",
        "b",
        "--image",
        "no-such-image",
        &bay_tests::Repository::sample().arg(),
    ]);
    unknown.fails_with(ErrorCode::ImageNotFound);
    assert_eq!(names(&daemon), [SMALL]);
    let subvolumes = fs::read_dir(bay_tests::leaks::pool_root(&daemon.pool).join("images")).unwrap().count();
    assert!(subvolumes <= 3, "{subvolumes} things in images/ for one image");
}

#[test]
fn a_saved_docker_image_and_one_without_a_shell_are_refused_with_what_to_do() {
    let daemon = Daemon::setup().own_pool(1024).start();
    let scratch = Scratch::new();
    let archive = |name: &str, members: &[&str]| {
        let mut bytes: Vec<u8> =
            members.iter().flat_map(|member_name| member(member_name, b'0', "", b"{}")).collect();
        bytes.extend([0; 1024]);
        fs::write(scratch.join(name), bytes).unwrap();
        format!("tar:{}", scratch.join(name).display())
    };
    let saved = archive("saved.tar", &["1f00/layer.tar", "1f00/json", "manifest.json", "repositories"]);
    let oci = archive("oci.tar", &["blobs/sha256/1f00", "index.json", "oci-layout"]);
    for source in [saved, oci] {
        let (what, next) = daemon.bay(&["images", "import", &source]).fails_with(ErrorCode::ImageImport);
        assert!(what.contains("docker save"), "{what}");
        assert!(next.contains("docker export") && next.contains("`bay images import`"), "{next}");
    }
    let bare = archive("bare.tar", &["etc/passwd", "usr/bin/program"]);
    let (what, next) = daemon.bay(&["images", "import", &bare]).fails_with(ErrorCode::ImageImport);
    assert!(what.contains("no shell") && next.contains("bin"), "{what} {next}");
    let repository = bay_tests::Repository::sample();
    daemon.bay(&["up", &repository.arg(), "--image", &bare]).fails_with(ErrorCode::ImageImport);
    assert_eq!(names(&daemon), [SMALL]);
    assert_eq!(daemon.list().len(), 0);
}

#[test]
fn a_hostile_archive_writes_nothing_outside_the_image() {
    let daemon = Daemon::setup().own_pool(1024).start();
    let scratch = Scratch::new();
    let victim = scratch.join("victim");
    fs::create_dir(&victim).unwrap();
    fs::write(victim.join("file"), "the host's own\n").unwrap();
    let v = victim.to_str().unwrap();
    let escape = format!("{}/{}", "../".repeat(20).trim_end_matches('/'), v.trim_start_matches('/'));
    let hostile: &[(&str, Vec<u8>)] = &[
        ("dots", member(&format!("{escape}/new"), b'0', "", b"x")),
        ("absolute", member(&format!("{v}/new"), b'0', "", b"x")),
        ("link and through", [member("l", b'2', v, b""), member("l/new", b'0', "", b"x")].concat()),
        (
            "link and through, twice",
            [
                member("a", b'2', v, b""),
                member("b", b'2', "a", b""),
                member("b/file", b'0', "", b"overwritten"),
            ]
            .concat(),
        ),
        (
            "link replaced by a file",
            [member("f", b'2', &format!("{v}/file"), b""), member("f", b'0', "", b"overwritten")].concat(),
        ),
        (
            "hard link out",
            [member("h", b'1', &format!("{v}/file"), b""), member("h", b'0', "", b"overwritten")].concat(),
        ),
        (
            "hard link through a link",
            [
                member("l", b'2', v, b""),
                member("h", b'1', "l/file", b""),
                member("h", b'0', "", b"overwritten"),
            ]
            .concat(),
        ),
        ("block device", member("disk", b'4', "", b"")),
        ("character device", member("mem", b'3', "", b"")),
        (
            "a file where a directory was",
            [member("d/", b'5', "", b""), member("d", b'0', "", b"x"), member("d/e", b'0', "", b"y")]
                .concat(),
        ),
        ("dot", member(".", b'0', "", b"x")),
        ("cut short", member("big", b'0', "", &[b'x'; 4096])[..1024].to_vec()),
        ("endless size", {
            let mut m = member("huge", b'0', "", b"");
            m[124..136].copy_from_slice(b"777777777777");
            m
        }),
    ];
    for (what, bytes) in hostile {
        // With a shell, so that only what is hostile about it can be a reason to refuse it.
        let mut bytes = [member("bin/sh", b'0', "", b"#!"), bytes.clone()].concat();
        if !what.starts_with("cut") {
            bytes.extend([0; 1024]);
        }
        let archive = scratch.join("hostile.tar");
        fs::write(&archive, &bytes).unwrap();
        let ran = daemon.bay(&[
            "images",
            "import",
            &format!("tar:{}", archive.display()),
            "--name",
            "hostile",
            "--force",
        ]);
        println!("{what}: exit {} {}", ran.code, ran.errors().lines().next().unwrap_or_default());
        assert_eq!(fs::read_to_string(victim.join("file")).unwrap(), "the host's own\n", "{what}");
        assert_eq!(fs::read_dir(&victim).unwrap().count(), 1, "{what}");
        if ran.code != 0 {
            ran.fails_with(ErrorCode::ImageImport);
        }
    }
    assert_eq!(daemon.rest("GET", "/v1/health", &serde_json::Value::Null).status, 200);
}

#[test]
fn links_out_of_an_imported_directory_are_copied_but_not_followed() {
    let daemon = Daemon::setup().own_pool(1024).start();
    let scratch = Scratch::new();
    let tree = scratch.join("tree");
    fs::create_dir_all(tree.join("etc")).unwrap();
    fs::create_dir_all(tree.join("bin")).unwrap();
    fs::copy(image::small().join("bin/busybox"), tree.join("bin/sh")).unwrap();
    fs::write(scratch.join("outside"), "outside\n").unwrap();
    symlink(scratch.join("outside"), tree.join("etc/link")).unwrap();
    symlink(scratch.path(), tree.join("dirlink")).unwrap();
    let made = Command::new("mkfifo").arg(tree.join("etc/fifo")).status().unwrap();
    assert!(made.success());
    let _imported =
        daemon.bay(&["images", "import", &format!("dir:{}", tree.display()), "--name", "links"]).ok();
    let root = newest_image(&daemon);
    let found: BTreeSet<PathBuf> =
        walk(&root).into_iter().filter(|path| path.ends_with("link") || path.ends_with("dirlink")).collect();
    for path in found {
        assert!(fs::symlink_metadata(&path).unwrap().is_symlink(), "{}", path.display());
    }
}

/// The tree of the newest image.
fn newest_image(daemon: &Daemon) -> PathBuf {
    let images = bay_tests::leaks::pool_root(&daemon.pool).join("images");
    let all = fs::read_dir(&images).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir());
    all.max_by_key(|path| {
        fs::metadata(path).map(|meta| (meta.ctime(), meta.ctime_nsec())).unwrap_or_default()
    })
    .unwrap()
}

fn walk(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok) {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.extend(walk(&entry.path()));
        }
        found.push(entry.path());
    }
    found
}

/// Paths of a bay that do not come from its image.
const NOT_OF_THE_IMAGE: &[&str] =
    &["/proc", "/sys", "/dev", "/run", "/tmp", "/workspace", "/.bay", "/var/tmp"];

/// Size of a separate pool with the host's tools.
const HOST_POOL_MIB: u64 = 10 * 1024;
/// Free space to leave for other tests that run concurrently.
const LEFT_MIB: u64 = 2048;

#[test]
fn a_bay_on_the_host_image_reads_only_files_that_nobody_may_read_on_the_host() {
    let stat = rustix::fs::statvfs(suite::dir()).unwrap();
    let free_mib = (stat.f_bavail * stat.f_frsize) >> 20;
    if std::env::var_os("BAY_TEST_HOST_IMAGE").is_some_and(|value| value == "0") {
        return suite::skip(Lack::Host, "BAY_TEST_HOST_IMAGE=0: importing the whole host was switched off");
    }
    if free_mib < HOST_POOL_MIB + suite::DISK_RESERVE_MIB + LEFT_MIB {
        return suite::skip(
            Lack::Host,
            &format!(
                "importing the host needs {HOST_POOL_MIB} MiB of disk beside {LEFT_MIB} for other tests, {free_mib} are free"
            ),
        );
    }
    let daemon = Daemon::setup().own_pool(HOST_POOL_MIB).without_image().start();
    let canary = Canary::new();
    bay_on(&daemon, "b", "host");

    // Everything that the bay's root can read, with a checksum to distinguish a host's file from one made for the bay.
    let skip: Vec<String> = NOT_OF_THE_IMAGE.iter().map(|dir| format!("-path {dir} -prune -o")).collect();
    let find = format!("find / {} -type f -print0 | xargs -0 sha256sum 2>/dev/null", skip.join(" "));
    let listing = daemon.sh("b", &find);
    let inside: BTreeMap<PathBuf, String> = String::from_utf8_lossy(&listing.stdout)
        .lines()
        .filter(|line| !line.starts_with('\\'))
        .filter_map(|line| Some((PathBuf::from(line.get(66..)?), line.get(..64)?.to_owned())))
        .collect();
    assert!(
        inside.len() > 1000,
        "only {} files in a bay on the host image: {}",
        inside.len(),
        listing.errors()
    );
    assert!(inside.keys().any(|path| path.starts_with("/usr/bin")));

    // What `nobody` can read on the host, determined as nobody.
    let nobody = readable_by_nobody(inside.keys());
    let mut stolen = Vec::new();
    for (path, sum) in &inside {
        if !nobody.contains(path) && path.exists() && sum_of(path).is_some_and(|host| host == *sum) {
            stolen.push(path.clone());
        }
    }
    assert!(
        stolen.is_empty(),
        "{} files that nobody cannot read came into the bay: {:?}",
        stolen.len(),
        &stolen[..stolen.len().min(20)]
    );

    // And by name: a secret in a directory that the import reads.
    let hits = daemon.sh(
        "b",
        &format!(
            "grep -rls {} /usr/local /etc /opt 2>/dev/null; ls -A {} 2>/dev/null",
            canary.secret,
            canary.dir.display()
        ),
    );
    assert_eq!(hits.text(), "", "a file only root may read came into the bay");
    for home in ["/root/.ssh", "/root/.cargo", "/root/.config", "/home"] {
        assert_eq!(
            daemon.sh("b", &format!("ls -A {home} 2>/dev/null | head -3")).text(),
            "",
            "{home} came into the bay"
        );
    }
    // The image is useful: the host's own tools run.
    assert_eq!(daemon.sh("b", "git --version | cut -d' ' -f1,2").ok().text(), "git version");
}

/// A file and a directory in an imported place of the host that only root may read.
struct Canary {
    dir: PathBuf,
    secret: String,
}

impl Canary {
    fn new() -> Self {
        let secret = format!("CANARY-{}", std::process::id());
        let dir = PathBuf::from(format!("/usr/local/lib/workbay-test-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("open-in-closed"), &secret).unwrap();
        fs::set_permissions(dir.join("open-in-closed"), fs::Permissions::from_mode(0o644)).unwrap();
        fs::write(dir.join("closed"), &secret).unwrap();
        fs::set_permissions(dir.join("closed"), fs::Permissions::from_mode(0o600)).unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).unwrap();
        Self { dir, secret }
    }
}

impl Drop for Canary {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn readable_by_nobody<'a>(paths: impl Iterator<Item = &'a PathBuf>) -> BTreeSet<PathBuf> {
    let mut list = Vec::new();
    for path in paths {
        list.extend_from_slice(path.as_os_str().as_bytes());
        list.push(0);
    }
    let scratch = Scratch::new();
    fs::write(scratch.join("list"), list).unwrap();
    let script = format!(
        "xargs -0 sh -c 'for f; do [ -r \"$f\" ] && printf \"%s\\\\0\" \"$f\"; done' sh < {}",
        scratch.join("list").display()
    );
    let output = Command::new("setpriv")
        .args([
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "--inh-caps=-all",
            "--bounding-set=-all",
            "sh",
            "-c",
            &script,
        ])
        .output()
        .unwrap();
    let text = output.stdout.split(|byte| *byte == 0).filter(|part| !part.is_empty());
    text.map(|part| PathBuf::from(std::ffi::OsStr::from_bytes(part))).collect()
}

fn sum_of(path: &Path) -> Option<String> {
    let output = Command::new("sha256sum").arg("-b").arg("--").arg(path).output().ok()?;
    String::from_utf8_lossy(&output.stdout).get(..64).map(str::to_owned)
}
