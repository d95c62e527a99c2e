//! The small image that most bays of the suites start from: a static busybox with all its applets. If the host has
//! them, also bash, curl, git with HTTPS, ssh and python3, with their libraries.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::suite::{self, Lack};

/// Directories of Python's library that no test needs.
const PYTHON_LEFT_OUT: &[&str] = &[
    "__pycache__",
    "dist-packages",
    "distutils",
    "ensurepip",
    "idlelib",
    "lib2to3",
    "pydoc_data",
    "site-packages",
    "test",
    "tests",
    "tkinter",
    "turtledemo",
    "unittest",
];

/// The image as a directory. The first caller makes it.
#[must_use]
pub fn small() -> PathBuf {
    let done = suite::dir().join("image");
    if done.exists() {
        return done;
    }
    let _alone = suite::lock("image");
    if !done.exists() {
        let making = suite::dir().join("image.new");
        let _ = fs::remove_dir_all(&making);
        make(&making);
        fs::rename(&making, &done).unwrap();
    }
    done
}

/// The name under which the image with PostgreSQL is imported.
pub const POSTGRES: &str = "postgres";

/// The small image with the host's PostgreSQL below [`postgres_home`]. The first caller makes it. If the host has none,
/// the test counts as skipped.
#[must_use]
pub fn postgres() -> Option<PathBuf> {
    let Some(home) = postgres_home() else {
        suite::skip(Lack::Installable, "there is no PostgreSQL below /usr/lib/postgresql");
        return None;
    };
    Some(enlarged(POSTGRES, |making| {
        let at = |path: &Path| making.join(path.strip_prefix("/").unwrap());
        for (dir, files) in [("bin", &["postgres", "initdb", "psql"][..]), ("lib", &POSTGRES_LIBRARIES)] {
            fs::create_dir_all(at(&home.join(dir))).unwrap();
            for file in files.iter().map(|file| home.join(dir).join(file)) {
                copy(&file, &at(&file));
                libraries_of(&file, making);
            }
        }
        let share = Path::new("/usr/share/postgresql").join(home.file_name().unwrap());
        fs::create_dir_all(at(&share).parent().unwrap()).unwrap();
        let copied = Command::new("cp").arg("-aL").arg(&share).arg(at(&share)).status().unwrap();
        assert!(copied.success(), "cp: {copied}");
    }))
}

/// The small image with additions, made once.
fn enlarged(name: &str, add: impl FnOnce(&Path)) -> PathBuf {
    let done = suite::dir().join(format!("image-{name}"));
    let small = small();
    let _alone = suite::lock(&format!("image-{name}"));
    if !done.exists() {
        let making = suite::dir().join(format!("image-{name}.new"));
        let _ = fs::remove_dir_all(&making);
        let copied = Command::new("cp").arg("-a").arg(&small).arg(&making).status().unwrap();
        assert!(copied.success(), "cp: {copied}");
        add(&making);
        fs::rename(&making, &done).unwrap();
    }
    done
}

/// Libraries that a new database cluster needs.
const POSTGRES_LIBRARIES: [&str; 2] = ["dict_snowball.so", "plpgsql.so"];

/// The name under which the image with Docker is imported.
pub const DOCKER: &str = "docker";

/// Programs of Docker's packages, and their paths in the image.
const DOCKER_PROGRAMS: [&str; 4] =
    ["usr/sbin/dockerd", "usr/bin/docker", "usr/bin/containerd", "usr/sbin/runc"];

/// The small image with Debian's Docker, which `./test` downloads and does not install. The first caller makes it. If
/// it is missing, the test counts as skipped.
#[must_use]
pub fn docker() -> Option<PathBuf> {
    let fetched = std::env::var_os("BAY_TEST_DOCKER").map(PathBuf::from);
    let Some(fetched) = fetched.filter(|dir| dir.join(DOCKER_PROGRAMS[0]).exists()) else {
        suite::skip(Lack::Installable, "Docker is not there: ./test fetches it");
        return None;
    };
    Some(enlarged(DOCKER, |making| {
        for program in DOCKER_PROGRAMS {
            let to = making.join("usr/bin").join(Path::new(program).file_name().unwrap());
            copy(&fetched.join(program), &to);
            libraries_of(&fetched.join(program), making);
        }
    }))
}

/// The directory of the host's newest PostgreSQL; the image has it at the same path.
#[must_use]
pub fn postgres_home() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut whole: Vec<PathBuf> =
        versions.map(|entry| entry.path()).filter(|home| home.join("bin/postgres").is_file()).collect();
    whole.sort_by_key(|home| home.file_name().and_then(|name| name.to_str()?.parse::<u32>().ok()));
    whole.pop()
}

/// Whether bays made from the small image have python3, which probes use for raw system calls.
#[must_use]
pub fn has_python() -> bool {
    small().join("usr/bin/python3").exists()
}

/// Whether the image has Python. If not, the test counts as skipped.
#[must_use]
pub fn with_python() -> bool {
    let there = has_python();
    if !there {
        suite::skip(Lack::Installable, "the small image has no python3: the host's is not below /usr");
    }
    there
}

/// Whether the image has an SSH client. If not, the test counts as skipped.
#[must_use]
pub fn with_ssh() -> bool {
    let there = small().join("usr/bin/ssh").exists();
    if !there {
        suite::skip(Lack::Installable, "the host has no ssh");
    }
    there
}

fn make(root: &Path) {
    base(root);
    let tools =
        [("bash", "bin/bash"), ("git", "usr/bin/git"), ("curl", "usr/bin/curl"), ("ssh", "usr/bin/ssh")];
    for (tool, at) in tools {
        if let Some(found) = which(tool) {
            let _ = fs::remove_file(root.join(at));
            copy(&found, &root.join(at));
            libraries_of(&found, root);
        }
    }
    let remote = Path::new("/usr/lib/git-core/git-remote-https");
    if remote.exists() {
        fs::create_dir_all(root.join("usr/lib/git-core")).unwrap();
        copy(remote, &root.join("usr/lib/git-core/git-remote-https"));
        libraries_of(remote, root);
    }
    python(root);
}

/// The part of the image that depends on no library: busybox with all its applets.
pub(crate) fn base(root: &Path) {
    for dir in [
        "bin",
        "dev",
        "etc",
        "home/user",
        "proc",
        "root",
        "run",
        "sys",
        "tmp",
        "usr/bin",
        "usr/lib",
        "var/tmp",
    ] {
        fs::create_dir_all(root.join(dir)).unwrap();
    }
    for dir in ["tmp", "var/tmp"] {
        fs::set_permissions(root.join(dir), fs::Permissions::from_mode(0o1777)).unwrap();
    }
    rustix::fs::chown(
        root.join("home/user"),
        Some(rustix::fs::Uid::from_raw(1000)),
        Some(rustix::fs::Gid::from_raw(1000)),
    )
    .unwrap();
    let etc = [
        (
            "passwd",
            "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/home/user:/bin/sh\n\
             nobody:x:65534:65534:nobody:/nonexistent:/bin/false\n",
        ),
        ("group", "root:x:0:\nstaff:x:50:user\nuser:x:1000:\nnogroup:x:65534:\n"),
        ("hosts", "127.0.0.1 localhost\n::1 localhost\n"),
        ("nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n"),
        ("small-image", "made by the tests\n"),
    ];
    for (name, text) in etc {
        fs::write(root.join("etc").join(name), text).unwrap();
    }
    let busybox = which("busybox").expect("busybox is missing: ./test installs it (package busybox-static)");
    copy(&busybox, &root.join("bin/busybox"));
    let applets = Command::new(&busybox).arg("--list").output().unwrap();
    for applet in String::from_utf8_lossy(&applets.stdout).lines() {
        if applet != "busybox" {
            symlink("busybox", root.join("bin").join(applet)).unwrap();
        }
    }
}

/// The distribution's own python3. A version manager's may have its libraries anywhere.
fn python(root: &Path) {
    let Some(python) = which("python3") else { return };
    let ask = "import sys, sysconfig, os; print(os.path.realpath(sys.executable)); print(sysconfig.get_path('stdlib'))";
    let Ok(answer) = Command::new(&python).args(["-I", "-c", ask]).output() else { return };
    let answer = String::from_utf8_lossy(&answer.stdout).into_owned();
    let [executable, library] = answer.lines().collect::<Vec<_>>()[..] else { return };
    if !executable.starts_with("/usr/") {
        return;
    }
    copy(Path::new(executable), &root.join("usr/bin/python3"));
    libraries_of(Path::new(executable), root);
    copy_library(Path::new(library), &root.join(library.trim_start_matches('/')), root);
}

fn copy_library(from: &Path, to: &Path, root: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let name = entry.file_name();
        let text = name.to_string_lossy().into_owned();
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            if !PYTHON_LEFT_OUT.contains(&text.as_str()) && !text.starts_with("config-") {
                copy_library(&entry.path(), &to.join(&name), root);
            }
        } else if text.ends_with(".py") || text.ends_with(".so") {
            copy(&entry.path(), &to.join(&name));
            if text.ends_with(".so") {
                libraries_of(&entry.path(), root);
            }
        }
    }
}

/// Copies the shared libraries and the loader of an executable to the same paths below `root`.
pub(crate) fn libraries_of(executable: &Path, root: &Path) {
    let output = Command::new("ldd").arg(executable).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let paths: BTreeSet<&str> =
        text.lines().filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/'))).collect();
    for path in paths {
        let to = root.join(path.trim_start_matches('/'));
        if !to.exists() {
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            copy(Path::new(path), &to);
        }
    }
}

/// Copies the target of a path, with its permissions but without set-id bits.
pub(crate) fn copy(from: &Path, to: &Path) {
    fs::copy(from, to).unwrap_or_else(|error| panic!("{} to {}: {error}", from.display(), to.display()));
    let mode = fs::metadata(from).unwrap().permissions().mode() & 0o755;
    fs::set_permissions(to, fs::Permissions::from_mode(mode)).unwrap();
}

/// Prefers the distribution's copy: one in /usr/local may need libraries from anywhere.
pub(crate) fn which(tool: &str) -> Option<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default();
    let first = ["/usr/bin", "/bin"].into_iter();
    first.chain(path.split(':')).map(|dir| Path::new(dir).join(tool)).find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tools_of_the_small_image_run_without_other_files() {
        let image = small();
        let run = |args: &[&str]| {
            let output = Command::new("chroot")
                .arg(&image)
                .args(args)
                .env("PATH", "/bin:/usr/bin:/usr/sbin:/sbin")
                .output()
                .unwrap();
            assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        assert_eq!(run(&["sh", "-c", "echo $((6*7)) | cat; id -un"]), "42\nroot\n");
        assert_eq!(run(&["bash", "-c", "echo ${BASH_VERSION:+bash}"]), "bash\n");
        // Git needs a /dev/null, which is missing here. Only the loader and the libraries are tested.
        assert!(run(&["sh", "-c", "git --version 2>&1 | head -1; true"]).contains("/dev/null"));
        if has_python() {
            assert_eq!(
                run(&["python3", "-c", "import ctypes, socket, fcntl, pty; print('python')"]),
                "python\n"
            );
        }
    }
}
