//! How the root of a bay gets packages, and which of them probably has a program.
//!
//! The root filesystem is hostile: root in the bay writes it. Every path is resolved inside of it, only regular files are
//! read, and the number of files, the length of a line and the sum of all bytes have bounds. What is found is only shown.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use bay_sys::paths::open_below;
use bay_types::blame::PackageManager;
use rustix::fs::{Dir, FileType, Mode, OFlags, ResolveFlags};

use super::missing_command::plain_name;

/// The lists that `apt-get update` fetched.
const APT_LISTS: &str = "var/lib/apt/lists";
/// How many entries of the directory of lists are looked at.
const MAX_ENTRIES: usize = 512;
/// The most bytes of all lists together that are read. The main list of a distribution has about 50 MiB.
const MAX_BYTES: u64 = 96 << 20;
/// Longer lines are read in parts of this length.
const MAX_LINE: u64 = 4096;
/// How many packages are reported for one program.
const MAX_PACKAGES: usize = 3;

/// Programs whose package in Debian and Ubuntu has another name. Lists of packages have no names of programs, so
/// this table has some that agents often miss.
const OTHER_NAMES: &[(&str, &str)] = &[
    ("ag", "silversearcher-ag"),
    ("cc", "gcc"),
    ("convert", "imagemagick"),
    ("dig", "dnsutils"),
    ("fd", "fd-find"),
    ("ip", "iproute2"),
    ("javac", "default-jdk"),
    ("nc", "netcat-openbsd"),
    ("node", "nodejs"),
    ("pg_config", "libpq-dev"),
    ("ping", "iputils-ping"),
    ("pip", "python3-pip"),
    ("pip3", "python3-pip"),
    ("ps", "procps"),
    ("psql", "postgresql-client"),
    ("python", "python-is-python3"),
    ("redis-cli", "redis-tools"),
    ("rg", "ripgrep"),
    ("ssh", "openssh-client"),
    ("vi", "vim"),
];

/// How packages get into an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) manager: PackageManager,
    /// A request to the usual server of the distribution. The image may use another one.
    pub(super) server: &'static str,
    /// Packages that have the program, or probably have it because of their name.
    pub(super) packages: Vec<String>,
}

/// The package manager of a root filesystem, and the packages that have a program. `None` if the image has no package
/// manager that is known here.
pub(super) fn search(root: &Path, command: &str) -> Option<Found> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root = rustix::fs::open(root, flags, Mode::empty()).ok()?;
    let exists = |path: &str| regular(&root, path).is_some();
    if exists("usr/bin/apt-get") {
        let ubuntu = text(&root, "etc/os-release").lines().any(|line| line == "ID=ubuntu");
        let server = if ubuntu {
            "GET http://archive.ubuntu.com/ubuntu/"
        } else {
            "GET http://deb.debian.org/debian/"
        };
        let packages = apt_packages(&root, command);
        return Some(Found { manager: PackageManager::Apt, server, packages });
    }
    if exists("sbin/apk") {
        let server = "GET https://dl-cdn.alpinelinux.org/alpine/";
        return Some(Found { manager: PackageManager::Apk, server, packages: Vec::new() });
    }
    None
}

fn regular(root: &OwnedFd, path: &str) -> Option<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    let fd = open_below(root, path, flags, ResolveFlags::IN_ROOT).ok()?;
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&fd).ok()?.st_mode);
    (kind == FileType::RegularFile).then(|| File::from(fd))
}

fn text(root: &OwnedFd, path: &str) -> String {
    let mut bytes = Vec::new();
    if let Some(file) = regular(root, path) {
        let _ = file.take(MAX_LINE).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The names of the lists, those with programs first: they are short, and they are exact.
fn lists(root: &OwnedFd) -> Vec<String> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let Ok(directory) = open_below(root, APT_LISTS, flags, ResolveFlags::IN_ROOT) else { return Vec::new() };
    let Ok(entries) = Dir::read_from(directory.as_fd()) else { return Vec::new() };
    let names = entries
        .take(MAX_ENTRIES)
        .filter_map(|entry| entry.ok()?.file_name().to_str().ok().map(str::to_owned));
    let mut names: Vec<String> =
        names.filter(|name| name.contains("_cnf_Commands-") || name.ends_with("_Packages")).collect();
    names.sort_by_key(|name| (name.ends_with("_Packages"), name.clone()));
    names
}

fn apt_packages(root: &OwnedFd, command: &str) -> Vec<String> {
    let other = OTHER_NAMES.iter().find(|(program, _)| *program == command).map(|(_, package)| *package);
    let mut packages: Vec<String> = Vec::new();
    let mut left = MAX_BYTES;
    for name in lists(root) {
        let of_packages = name.ends_with("_Packages");
        // A list of programs that names one is exact; a package of the same name is a guess.
        if of_packages && !packages.is_empty() {
            break;
        }
        let Some(file) = regular(root, &format!("{APT_LISTS}/{name}")) else { continue };
        let mut lines = Lines { from: BufReader::new(file), left: &mut left, line: Vec::new() };
        let mut package = String::new();
        while packages.len() < MAX_PACKAGES && lines.read() {
            let Ok(line) = std::str::from_utf8(&lines.line) else { continue };
            let found = if of_packages {
                let name = line.strip_prefix("Package: ").map(str::trim_end);
                name.filter(|name| *name == command || Some(*name) == other)
            } else if let Some(name) = line.strip_prefix("name: ") {
                name.trim_end().clone_into(&mut package);
                None
            } else {
                let programs = line.strip_prefix("commands: ");
                programs
                    .is_some_and(|all| all.trim_end().split(',').any(|program| program == command))
                    .then_some(package.as_str())
            };
            if let Some(name) = found.and_then(plain_name)
                && !packages.iter().any(|known| known == name)
            {
                packages.push(name.to_owned());
            }
        }
    }
    // The package with another name is the one that is meant.
    packages.sort_by_key(|package| Some(package.as_str()) != other);
    packages
}

/// Lines of a file, each up to a bound, until the bytes for all files are used up.
struct Lines<'a> {
    from: BufReader<File>,
    left: &'a mut u64,
    line: Vec<u8>,
}

impl Lines<'_> {
    /// Reads the next line, or the next part of one that is too long. False at the end.
    fn read(&mut self) -> bool {
        self.line.clear();
        let most = MAX_LINE.min(*self.left);
        match self.from.by_ref().take(most).read_until(b'\n', &mut self.line) {
            Ok(read) if read > 0 => {
                *self.left = self.left.saturating_sub(read as u64);
                true
            }
            Ok(_) | Err(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn image(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (path, content) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        dir
    }

    const MAIN: &str = "var/lib/apt/lists/deb_dists_stable_main_binary-amd64_Packages";
    const COMMANDS: &str = "var/lib/apt/lists/deb_dists_stable_main_cnf_Commands-amd64";

    fn packages(files: &[(&str, &str)], command: &str) -> Vec<String> {
        let mut all = vec![("usr/bin/apt-get", "")];
        all.extend_from_slice(files);
        search(image(&all).path(), command).unwrap().packages
    }

    #[test]
    fn the_manager_and_its_server_follow_from_the_image() {
        assert_eq!(search(image(&[]).path(), "rg"), None);
        let debian = search(image(&[("usr/bin/apt-get", "")]).path(), "rg").unwrap();
        assert_eq!((debian.manager, debian.packages.len()), (PackageManager::Apt, 0));
        assert!(debian.server.contains("deb.debian.org"));
        let ubuntu = image(&[("usr/bin/apt-get", ""), ("etc/os-release", "NAME=x\nID=ubuntu\n")]);
        assert!(search(ubuntu.path(), "rg").unwrap().server.contains("archive.ubuntu.com"));
        let alpine = search(image(&[("sbin/apk", "")]).path(), "rg").unwrap();
        assert_eq!(alpine.manager, PackageManager::Apk);
    }

    #[test]
    fn a_package_is_found_by_its_name_by_a_known_other_name_and_by_its_programs() {
        let main = "Package: jq\nVersion: 1\n\nPackage: ripgrep\nVersion: 2\n";
        assert_eq!(packages(&[(MAIN, main)], "jq"), ["jq"]);
        assert_eq!(packages(&[(MAIN, main)], "rg"), ["ripgrep"]);
        assert!(packages(&[(MAIN, main)], "ripgre").is_empty());
        let commands = "suite: stable\n\nname: poppler-utils\nversion: 1\ncommands: pdftotext,pdfinfo\n";
        assert_eq!(packages(&[(MAIN, main), (COMMANDS, commands)], "pdfinfo"), ["poppler-utils"]);
    }

    #[test]
    fn hostile_lists_cost_a_bounded_amount_and_name_no_odd_package() {
        let odd = "name: a;reboot\ncommands: x\nname: \u{1b}[2J\ncommands: x\n";
        assert!(packages(&[(COMMANDS, odd)], "x").is_empty());
        let many: String = (0..100).map(|n| format!("name: p{n}\ncommands: x\n")).collect();
        assert_eq!(packages(&[(COMMANDS, &many)], "x").len(), MAX_PACKAGES);
        let endless = format!("{}\nPackage: x\n", "y".repeat(3 * 4096));
        assert_eq!(packages(&[(MAIN, &endless)], "x"), ["x"]);
    }

    #[test]
    fn a_list_that_leads_out_of_the_image_is_not_read() {
        let image = image(&[("usr/bin/apt-get", ""), ("outside", "")]);
        let lists = image.path().join(APT_LISTS);
        fs::create_dir_all(&lists).unwrap();
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("list"), "Package: x\n").unwrap();
        std::os::unix::fs::symlink(outside.path().join("list"), lists.join("main_Packages")).unwrap();
        assert!(search(image.path(), "x").unwrap().packages.is_empty());
        // A FIFO without a writer does not hold the search up.
        rustix::fs::mknodat(rustix::fs::CWD, lists.join("fifo_Packages"), FileType::Fifo, Mode::RUSR, 0)
            .unwrap();
        assert!(search(image.path(), "x").unwrap().packages.is_empty());
    }
}
