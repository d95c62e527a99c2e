use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use bay_types::ErrorCode;
use bay_types::image::ImageImport;
use rustix::fs::XattrFlags;
use tar::{Builder, EntryType, Header};

use super::{Lab, image_root, import, import_host, write};
use crate::PoolError;

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn the_host_image_holds_what_nobody_may_read_and_nothing_else() {
    let Some(lab) = Lab::new() else { return };
    lab.host_file("etc/secret", "x", 0o600);
    lab.host_file("etc/group-only", "x", 0o640);
    lab.host_file("etc/shadow", "root:hash", 0o640);
    lab.host_file("etc/machine-id", "abc", 0o444);
    lab.host_file("etc/ssh/ssh_host_rsa_key.pub", "abc", 0o644);
    lab.host_file("etc/ssh/ssh_config", "abc", 0o644);
    lab.host_file("usr/lib/private/inside", "x", 0o644);
    lab.host_file("home/ann/file", "x", 0o644);
    lab.host_file("var/lib/app/db", "x", 0o644);
    lab.host_file("var/lib/apt/lists/large", "x", 0o644);
    fs::set_permissions(lab.host().join("usr/lib/private"), PermissionsExt::from_mode(0o700)).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        lab.host().join("usr/pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o644),
        0,
    )
    .unwrap();
    let pool = lab.open();
    let mut stages = Vec::new();
    let image = pool
        .image_import(&import("host"), 1000, &mut |news| {
            if let Some(total) = news.total {
                assert!(news.done <= total);
            }
            stages.push(news.stage);
        })
        .unwrap();
    let root = image_root(&pool, &image);
    for absent in [
        "etc/secret",
        "etc/group-only",
        "etc/machine-id",
        "etc/ssh/ssh_host_rsa_key.pub",
        "usr/lib/private/inside",
        "home/ann",
        "var/lib/app",
        "var/lib/apt/lists/large",
        "usr/pipe",
    ] {
        assert!(fs::symlink_metadata(root.join(absent)).is_err(), "{absent}");
    }
    for present in ["usr/bin/sh", "bin/sh", "etc/passwd", "etc/ssh/ssh_config", "var/lib/dpkg/status"] {
        assert!(root.join(present).exists(), "{present}");
    }
    assert_eq!(mode(&root.join("usr/lib/private")), 0o700, "a shut directory is there, and empty");
    assert_eq!(
        fs::read_to_string(root.join("etc/shadow")).unwrap(),
        "root:*:20000:0:99999:7:::\nann:*:20000:0:99999:7:::\n"
    );
    assert_eq!(mode(&root.join("tmp")), 0o1777);
    assert_eq!(mode(&root.join("root")), 0o700);
    assert_eq!(fs::read_link(root.join("var/run")).unwrap(), Path::new("/run"));
    for dir in [
        "proc",
        "sys",
        "dev",
        "run",
        "workspace",
        ".bay",
        "mnt",
        "srv",
        "media",
        "home",
        "var/tmp",
        "var/log",
    ] {
        assert!(root.join(dir).is_dir(), "{dir}");
    }
    assert!(stages.iter().any(|stage| stage.contains("host")), "{stages:?}");
    assert!(
        image.left_out.contains("not readable") && image.left_out.contains("pipes"),
        "{}",
        image.left_out
    );
    assert!(!image.left_out.contains("/bin/sh"), "{}", image.left_out);
}

#[test]
fn owners_modes_times_attributes_and_links_are_kept() {
    let Some(lab) = Lab::new() else { return };
    let tool = lab.host_file("usr/bin/tool", "tool", 0o755);
    std::os::unix::fs::chown(&tool, Some(7), Some(8)).unwrap();
    fs::set_permissions(&tool, PermissionsExt::from_mode(0o4755)).unwrap();
    // cap_net_raw=ep, as ping has it.
    let capability = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    rustix::fs::setxattr(&tool, "security.capability", &capability, XattrFlags::empty()).unwrap();
    let old = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::new(1_000_000_000, 5);
    File::options().write(true).open(&tool).unwrap().set_modified(old).unwrap();
    fs::create_dir_all(lab.host().join("usr/lib/deep")).unwrap();
    fs::hard_link(&tool, lab.host().join("usr/lib/deep/same")).unwrap();
    std::os::unix::fs::symlink("/nowhere", lab.host().join("usr/lib/link")).unwrap();
    let far = lab.host_file("usr/bin/far", "x", 0o644);
    std::os::unix::fs::chown(&far, Some(1_000_000), Some(1_000_000)).unwrap();
    let sparse = File::create(lab.host().join("usr/lib/sparse")).unwrap();
    sparse.set_len(50 << 20).unwrap();
    fs::set_permissions(lab.host().join("usr/lib/sparse"), PermissionsExt::from_mode(0o644)).unwrap();
    let pool = lab.open();
    let root = image_root(&pool, &import_host(&pool));
    let copy = fs::metadata(root.join("usr/bin/tool")).unwrap();
    assert_eq!((copy.uid(), copy.gid(), copy.permissions().mode() & 0o7777), (7, 8, 0o4755));
    assert_eq!(copy.modified().unwrap(), old);
    assert_eq!(copy.ino(), fs::metadata(root.join("usr/lib/deep/same")).unwrap().ino());
    let mut value = [0_u8; 64];
    let length =
        rustix::fs::getxattr(root.join("usr/bin/tool"), "security.capability", &mut value[..]).unwrap();
    assert_eq!(value[..length], capability);
    assert_eq!(fs::read_link(root.join("usr/lib/link")).unwrap(), Path::new("/nowhere"));
    assert_eq!(fs::metadata(root.join("usr/bin/far")).unwrap().uid(), 65534, "an id no bay has is nobody's");
    let sparse = fs::metadata(root.join("usr/lib/sparse")).unwrap();
    assert_eq!((sparse.len(), sparse.blocks()), (50 << 20, 0));
}

#[test]
fn the_same_host_is_imported_once_and_again_when_its_packages_change() {
    let Some(lab) = Lab::new() else { return };
    let pool = lab.open();
    assert!(pool.image_find("host").unwrap().is_none());
    let first = import_host(&pool);
    assert_eq!(import_host(&pool).id, first.id);
    assert_eq!(pool.image_find("host").unwrap().unwrap().id, first.id);
    lab.host_file("var/lib/dpkg/status", "Package: one\nPackage: two\n", 0o644);
    assert!(pool.image_find("host").unwrap().is_none(), "out of date");
    let second = import_host(&pool);
    assert_ne!(second.id, first.id);
    assert_eq!(pool.image_find("host").unwrap().unwrap().id, second.id);
    assert_eq!(pool.image_find(&first.id.to_string()).unwrap().unwrap().id, first.id, "the old one stays");
    let forced = ImageImport { force: true, ..import("host") };
    assert_ne!(pool.image_import(&forced, 0, &mut |_| {}).unwrap().id, second.id);
    assert_eq!(pool.image_list().unwrap().len(), 3);
}

#[test]
fn added_directories_are_read_with_the_callers_rights_without_credentials_and_stay_on_refresh() {
    let Some(lab) = Lab::new() else { return };
    for (path, mode) in [
        ("home/ann/.cargo/bin/cargo", 0o700),
        ("home/ann/.cargo/credentials.toml", 0o644),
        ("home/ann/.cargo/registry/.netrc", 0o644),
        ("home/ann/.cargo/root-only", 0o600),
    ] {
        let file = lab.host_file(path, "x", mode);
        if mode == 0o700 {
            std::os::unix::fs::chown(&file, Some(1000), Some(1000)).unwrap();
        }
    }
    std::os::unix::fs::chown(lab.host().join("home/ann"), Some(1000), Some(1000)).unwrap();
    fs::set_permissions(lab.host().join("home/ann"), PermissionsExt::from_mode(0o700)).unwrap();
    let pool = lab.open();
    let with = |path: &str| ImageImport { add: vec![path.into()], ..import("host") };
    let image = pool.image_import(&with("/home/ann/.cargo"), 1000, &mut |_| {}).unwrap();
    let root = image_root(&pool, &image);
    assert!(root.join("home/ann/.cargo/bin/cargo").exists());
    for absent in ["credentials.toml", "registry/.netrc", "root-only"] {
        assert!(!root.join("home/ann/.cargo").join(absent).exists(), "{absent}");
    }
    // Its programs are on the path of every command, and the image lists the added directories.
    let settings = fs::read_to_string(root.join("etc/environment")).unwrap();
    assert!(settings.contains("PATH=\"/home/ann/.cargo/bin:/usr/local/sbin:"), "{settings}");
    assert_eq!(image.add, [std::path::PathBuf::from("/home/ann/.cargo")]);
    let parent = fs::metadata(root.join("home/ann")).unwrap();
    assert_eq!((parent.uid(), parent.permissions().mode() & 0o777), (1000, 0o700));

    lab.host_file("var/lib/dpkg/status", "changed", 0o644);
    let refreshed = import_host(&pool);
    assert_ne!(refreshed.id, image.id);
    assert!(image_root(&pool, &refreshed).join("home/ann/.cargo/bin/cargo").exists());

    let another = pool.image_import(&with("/home/ann/.cargo"), 1001, &mut |_| {}).unwrap_err();
    assert_eq!(another.to_api().code, ErrorCode::ImageImport, "{another}");
    for path in ["/home/ann/.ssh", "/proc", "relative", "/"] {
        let refused = pool.image_import(&with(path), 0, &mut |_| {}).unwrap_err();
        assert_eq!(refused.to_api().code, ErrorCode::InvalidInput, "{path}");
    }
}

#[test]
fn the_sweep_removes_an_interrupted_import_unless_one_is_running() {
    let Some(lab) = Lab::new() else { return };
    let pool = lab.open();
    let tmp = lab.mount_point().join("images/tmp-left");
    let make = || {
        fs::create_dir(&tmp).unwrap();
        crate::subvolume::create(&tmp.join("root"), 0o755, None).unwrap();
        write(&tmp.join("root/usr/file"), "x", 0o644);
    };
    make();
    let lock = File::open(lab.mount_point().join("images/import.lock")).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    pool.sweep().unwrap();
    assert!(tmp.exists(), "another daemon's import is left alone");
    drop(lock);
    lab.open();
    assert!(!tmp.exists());
    assert!(pool.image_list().unwrap().is_empty());
}

#[test]
fn a_directory_becomes_an_image_with_the_callers_rights() {
    let Some(lab) = Lab::new() else { return };
    let tree = lab.path().join("tree");
    write(&tree.join("app/file"), "x", 0o644);
    write(&tree.join("app/mine"), "x", 0o600);
    write(&tree.join("bin/sh"), "#!", 0o755);
    let pool = lab.open();
    let source = format!("dir:{}", tree.display());
    let image = pool.image_import(&import(&source), 1000, &mut |_| {}).unwrap();
    assert_eq!(image.name, "tree");
    assert!(image.left_out.contains("1 not readable"), "{}", image.left_out);
    let root = image_root(&pool, &image);
    assert!(
        root.join("app/file").exists() && !root.join("app/mine").exists() && root.join("workspace").is_dir()
    );
    assert_eq!(pool.image_find(&source).unwrap().unwrap().id, image.id);
    assert_eq!(pool.image_import(&import(&source), 1000, &mut |_| {}).unwrap().id, image.id);
    write(&tree.join("app/more"), "x", 0o644);
    assert_ne!(pool.image_import(&import(&source), 1000, &mut |_| {}).unwrap().id, image.id);

    fs::set_permissions(&tree, PermissionsExt::from_mode(0o700)).unwrap();
    for (source, uid, code) in [
        (source.as_str(), 1000, ErrorCode::ImageImport),
        ("dir:/does/not/exist", 0, ErrorCode::ImageImport),
        ("tar:/does/not/exist", 0, ErrorCode::ImageImport),
        ("tar:/", 0, ErrorCode::ImageImport),
        ("dir:relative", 0, ErrorCode::InvalidInput),
        ("oci:x", 0, ErrorCode::InvalidInput),
        ("", 0, ErrorCode::InvalidInput),
    ] {
        let error = pool.image_import(&import(source), uid, &mut |_| {}).unwrap_err();
        assert_eq!(error.to_api().code, code, "{source}: {error}");
    }
    for name in ["host", "img_x", "a/b", "", "-x", "ü"] {
        let named = ImageImport { name: Some(name.to_owned()), ..import("dir:/tmp") };
        let error = pool.image_import(&named, 0, &mut |_| {}).unwrap_err();
        assert_eq!(error.to_api().code, ErrorCode::InvalidInput, "{name}");
    }
    assert!(
        fs::read_dir(lab.mount_point().join("images"))
            .unwrap()
            .all(|entry| { !entry.unwrap().file_name().to_string_lossy().starts_with("tmp-") })
    );
}

/// An executable `bin/sh`, without which nothing is an image.
fn put_shell(archive: &mut Builder<Vec<u8>>) {
    let mut header = Header::new_gnu();
    header.set_mode(0o755);
    header.set_size(2);
    archive.append_data(&mut header, "bin/sh", &b"#!"[..]).unwrap();
}

#[test]
fn what_is_no_root_filesystem_with_a_shell_is_refused_with_the_reason() {
    let Some(lab) = Lab::new() else { return };
    let pool = lab.open();
    let layers: &[&[&str]] = &[
        &["manifest.json", "repositories", "1f00/layer.tar", "1f00/json"],
        &["oci-layout", "index.json", "blobs/sha256/1f00"],
        &["blobs/sha256/1f00", "index.json", "manifest.json", "oci-layout"],
    ];
    let without_shell: &[&[&str]] = &[
        &["etc/passwd", "usr/lib/x"],
        &["bin/sh"],
        &["rootfs/bin/sh"],
        &["index.json"],
        &["app/manifest.json"],
    ];
    let cases =
        layers.iter().map(|names| (names, true)).chain(without_shell.iter().map(|names| (names, false)));
    for (names, in_layers) in cases {
        let mut archive = Builder::new(Vec::new());
        for name in *names {
            // No file is executable, not even the one that is named like a shell.
            put(&mut archive, EntryType::Regular, name, "", "{}");
        }
        let path = lab.path().join("odd.tar");
        fs::write(&path, archive.into_inner().unwrap()).unwrap();
        let error =
            pool.image_import(&import(&format!("tar:{}", path.display())), 0, &mut |_| {}).unwrap_err();
        let api = error.to_api();
        assert_eq!(api.code, ErrorCode::ImageImport, "{names:?}: {error}");
        assert_eq!(error.to_string().contains("docker save"), in_layers, "{names:?}: {error}");
        assert_eq!(error.to_string().contains("no shell"), !in_layers, "{names:?}: {error}");
        let tree = lab.path().join("odd");
        for name in *names {
            write(&tree.join(name), "{}", 0o644);
        }
        let error =
            pool.image_import(&import(&format!("dir:{}", tree.display())), 0, &mut |_| {}).unwrap_err();
        assert_eq!(error.to_api().code, ErrorCode::ImageImport, "{names:?}: {error}");
        fs::remove_dir_all(&tree).unwrap();
    }
    // A shell that is a link within the image counts, and one that only the host has does not.
    for (link, counts) in [("/usr/bin/busybox", true), ("../usr/bin/busybox", true), ("/bin/cat", false)] {
        let tree = lab.path().join("linked");
        write(&tree.join("usr/bin/busybox"), "#!", 0o755);
        fs::create_dir_all(tree.join("bin")).unwrap();
        std::os::unix::fs::symlink(link, tree.join("bin/sh")).unwrap();
        let imported = pool.image_import(&import(&format!("dir:{}", tree.display())), 0, &mut |_| {});
        assert_eq!(imported.is_ok(), counts, "{link}: {imported:?}");
        fs::remove_dir_all(&tree).unwrap();
    }
    let left = fs::read_dir(lab.mount_point().join("images")).unwrap();
    assert!(left.flatten().all(|entry| !entry.file_name().to_string_lossy().starts_with("tmp-")));
}

/// An entry with exactly this name and link, however unusual.
fn put(archive: &mut Builder<Vec<u8>>, kind: EntryType, name: &str, link: &str, contents: &str) {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(0o644);
    header.set_size(contents.len() as u64);
    header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
    header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
    header.set_cksum();
    archive.append(&header, contents.as_bytes()).unwrap();
}

#[test]
fn a_hostile_archive_cannot_leave_the_image() {
    let Some(lab) = Lab::new() else { return };
    let outside = lab.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("victim"), "safe").unwrap();
    let away = outside.to_str().unwrap();
    let mut archive = Builder::new(Vec::new());
    put_shell(&mut archive);
    put(&mut archive, EntryType::Regular, "good/file", "", "fine");
    put(&mut archive, EntryType::Regular, "../escaped", "", "bad");
    put(&mut archive, EntryType::Regular, "good/../../escaped", "", "bad");
    put(&mut archive, EntryType::Regular, "/absolute", "", "inside all the same");
    put(&mut archive, EntryType::Symlink, "link", away, "");
    put(&mut archive, EntryType::Regular, "link/victim", "", "bad");
    put(&mut archive, EntryType::Symlink, "up", "../..", "");
    put(&mut archive, EntryType::Regular, "up/escaped", "", "bad");
    put(&mut archive, EntryType::Link, "hard", &format!("{away}/victim"), "");
    put(&mut archive, EntryType::Link, "hard2", "../../outside/victim", "");
    put(&mut archive, EntryType::Link, "hard3", "link/victim", "");
    put(&mut archive, EntryType::Link, "twin", "good/file", "");
    put(&mut archive, EntryType::Char, "dev/mem", "", "");
    put(&mut archive, EntryType::Regular, "link", "", "replaces the link, not what it points to");
    put(&mut archive, EntryType::Regular, "good", "", "a directory is in the way");
    let long = "n".repeat(90);
    put(&mut archive, EntryType::Directory, &format!("{long}/{}", &long[..5]), "", "");
    let path = lab.path().join("evil.tar");
    fs::write(&path, archive.into_inner().unwrap()).unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();

    let pool = lab.open();
    let image = pool.image_import(&import(&format!("tar:{}", path.display())), 1000, &mut |_| {}).unwrap();
    let root = image_root(&pool, &image);
    assert_eq!(image.name, "evil");
    assert_eq!(fs::read_to_string(root.join("good/file")).unwrap(), "fine");
    assert_eq!(fs::read_to_string(root.join("absolute")).unwrap(), "inside all the same");
    assert_eq!(fs::read_to_string(root.join("link")).unwrap(), "replaces the link, not what it points to");
    assert_eq!(fs::metadata(root.join("twin")).unwrap().nlink(), 2);
    assert_eq!(fs::read_to_string(outside.join("victim")).unwrap(), "safe");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
    for absent in ["hard", "hard2", "hard3", "dev/mem", "escaped"] {
        assert!(fs::symlink_metadata(root.join(absent)).is_err(), "{absent}");
    }
    assert!(!root.parent().unwrap().join("escaped").exists() && !lab.path().join("escaped").exists());
    assert!(image.left_out.contains("1 devices"), "{}", image.left_out);
}

#[test]
fn archives_of_every_compression_are_unpacked_and_broken_ones_refused() {
    let Some(lab) = Lab::new() else { return };
    let tree = lab.path().join("src");
    write(&tree.join("bin/sh"), "#!", 0o755);
    write(&tree.join("d/".repeat(120)).join("deep"), "x", 0o600);
    let run = |arguments: &[&str]| {
        assert!(Command::new("tar").current_dir(lab.path()).args(arguments).status().unwrap().success());
    };
    run(&["-C", "src", "--format=pax", "-cf", "plain.tar", "."]);
    run(&["-C", "src", "--format=gnu", "-czf", "packed.tar.gz", "."]);
    run(&["-C", "src", "--zstd", "-cf", "packed.tar.zst", "."]);
    let pool = lab.open();
    let take = |name: &str| {
        pool.image_import(&import(&format!("tar:{}", lab.path().join(name).display())), 0, &mut |_| {})
    };
    for name in ["plain.tar", "packed.tar.gz", "packed.tar.zst"] {
        let image = take(name).unwrap();
        assert_eq!(image.left_out, "", "{name}");
        let deep = image_root(&pool, &image).join("d/".repeat(120)).join("deep");
        assert_eq!((fs::read_to_string(&deep).unwrap().as_str(), mode(&deep)), ("x", 0o600));
    }
    let whole = fs::read(lab.path().join("packed.tar.gz")).unwrap();
    fs::write(lab.path().join("cut.tar.gz"), &whole[..whole.len() / 2]).unwrap();
    fs::write(lab.path().join("noise.tar"), "this is no archive".repeat(100)).unwrap();
    fs::write(lab.path().join("empty.tar"), "").unwrap();
    let mut endless = Header::new_gnu();
    endless.set_entry_type(EntryType::GNULongName);
    endless.set_size(1 << 40);
    endless.set_cksum();
    File::create(lab.path().join("endless.tar")).unwrap().write_all(endless.as_bytes()).unwrap();
    for name in ["cut.tar.gz", "noise.tar", "empty.tar", "endless.tar"] {
        let error = take(name).unwrap_err();
        assert!(matches!(error, PoolError::ImageImport { .. }), "{name}: {error}");
    }
}

#[test]
fn an_archive_that_was_replaced_is_not_found_as_an_image_until_it_is_imported_again() {
    let Some(lab) = Lab::new() else { return };
    let pool = lab.open();
    let path = lab.path().join("tree.tar");
    let source = format!("tar:{}", path.display());
    let pack = |name: &str| {
        let mut builder = Builder::new(Vec::new());
        put_shell(&mut builder);
        let mut header = Header::new_gnu();
        header.set_path(name).unwrap();
        header.set_size(0);
        header.set_cksum();
        builder.append(&header, &b""[..]).unwrap();
        fs::write(&path, builder.into_inner().unwrap()).unwrap();
    };
    pack("one");
    let named = ImageImport { name: Some("other".to_owned()), ..import(&source) };
    let first = pool.image_import(&named, 0, &mut |_| {}).unwrap();
    assert_eq!(pool.image_find(&source).unwrap().unwrap().id, first.id);
    fs::remove_file(&path).unwrap();
    assert_eq!(pool.image_find(&source).unwrap().unwrap().id, first.id, "what is gone has not changed");
    pack("two");
    assert!(pool.image_find(&source).unwrap().is_none());
    assert_eq!(pool.image_find("other").unwrap().unwrap().id, first.id, "a name is what it was");
    let second = pool.image_import(&import(&source), 0, &mut |_| {}).unwrap();
    assert_eq!(pool.image_find(&source).unwrap().unwrap().id, second.id);
}
