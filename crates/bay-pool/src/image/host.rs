//! The image `host`: which part of the host it takes, and when it is out of date.
//!
//! Taken is what `nobody` may read of the programs, their settings and the package database; of `/etc`, what names the
//! host or is likely to hold a secret stays behind even if everybody may read it. The key of the image is a hash over
//! the package database: installing a package on the host makes the next bay start from a fresh import.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bay_text::hex;
use sha2::{Digest, Sha256};

use super::tree::Choice;
use crate::error::{Doing, PoolError, Result};

/// Part of every key: raised when an import of the same host would come out differently.
const FORMAT: &str = "host-1";

/// Where package managers keep what is installed. Files are hashed whole; of directories, the names and times inside.
const PACKAGE_DATABASES: &[&str] = &[
    "var/lib/dpkg/status",
    "var/lib/rpm/rpmdb.sqlite",
    "var/lib/rpm/Packages",
    "usr/lib/sysimage/rpm/rpmdb.sqlite",
    "usr/lib/sysimage/rpm/Packages.db",
    "var/lib/pacman/local",
    "lib/apk/db/installed",
];

/// Entries of the host's root that are taken whole (`lib*` as well).
const TOP: &[&str] = &["usr", "opt", "etc", "bin", "sbin"];
/// Directories of `/var/lib` that are taken: what package managers need to go on from here.
const VAR_LIB: &[&str] = &["dpkg", "apt", "rpm", "pacman"];

/// Left in the host's `/etc`: what names this host, its disks and its networks, and where secrets are common.
const ETC_WITHHELD: &[&str] = &[
    "machine-id",
    "machine-info",
    "hostname",
    "hosts",
    "resolv.conf",
    "fstab",
    "mtab",
    "crypttab",
    "adjtime",
    "environment",
    "passwd-",
    "group-",
    "shadow",
    "shadow-",
    "gshadow",
    "gshadow-",
    "krb5.keytab",
    "netplan",
    "network/interfaces",
    "network/interfaces.d",
    "NetworkManager/system-connections",
    "wpa_supplicant",
    "apt/auth.conf",
    "apt/auth.conf.d",
];

/// Never copied from a directory that a caller adds: where tools keep credentials, and what people typed.
const CREDENTIALS: &[&str] = &[
    ".cargo/credentials",
    ".cargo/credentials.toml",
    ".npmrc",
    ".yarnrc.yml",
    ".netrc",
    ".ssh",
    ".gnupg",
    ".aws",
    ".azure",
    ".kube",
    ".config/gcloud",
    ".config/gh",
    ".docker/config.json",
    ".pypirc",
    ".git-credentials",
    ".config/git/credentials",
    ".gem/credentials",
    ".m2/settings.xml",
    ".m2/settings-security.xml",
    ".gradle/gradle.properties",
    ".terraform.d/credentials.tfrc.json",
    ".lesshst",
    ".viminfo",
    ".bash_history",
    ".zsh_history",
    ".python_history",
    ".node_repl_history",
    ".psql_history",
    ".mysql_history",
    ".sqlite_history",
    ".rediscli_history",
];

/// Directories that can never be added to an image: they are not files, or not the caller's to give.
const NEVER_ADDED: &[&str] = &["/proc", "/sys", "/dev", "/run"];

/// The tree that counts as the host's root; another one in tests.
#[derive(Debug, Clone)]
pub(crate) struct HostTree {
    pub(crate) root: PathBuf,
}

impl Default for HostTree {
    fn default() -> Self {
        Self { root: PathBuf::from("/") }
    }
}

/// The hash of the package database, and what its files looked like when it was taken.
#[derive(Debug)]
pub(crate) struct HostKeyCache {
    stamp: Vec<(u64, u64, i64, i64)>,
    hash: String,
}

impl HostTree {
    /// The hash of the package database, read again only when its files have changed.
    pub(crate) fn packages(&self, cache: &mut Option<HostKeyCache>) -> Result<String> {
        let stamp = PACKAGE_DATABASES
            .iter()
            .filter_map(|path| std::fs::metadata(self.root.join(path)).ok())
            .map(|found| (found.ino(), found.len(), found.mtime(), found.mtime_nsec()))
            .collect::<Vec<_>>();
        if let Some(known) = cache.as_ref().filter(|known| known.stamp == stamp) {
            return Ok(known.hash.clone());
        }
        let mut hash = Sha256::new();
        hash.update(FORMAT);
        for path in PACKAGE_DATABASES {
            let file = self.root.join(path);
            hash.update(path);
            hash_database(&file, &mut hash)
                .doing(|| format!("read the package database {}", file.display()))?;
        }
        let hash = hex::encode(hash.finalize());
        *cache = Some(HostKeyCache { stamp, hash: hash.clone() });
        Ok(hash)
    }

    /// What of the host's root is taken, by path relative to it.
    pub(crate) fn choose(path: &Path) -> Choice {
        let mut parts = path.components().filter_map(|part| part.as_os_str().to_str());
        let (first, second, third) = (parts.next(), parts.next(), parts.next());
        match (first, second, third) {
            (Some("etc"), Some(_), _) => choose_etc(path),
            (Some(top), _, _) if TOP.contains(&top) || top.starts_with("lib") => Choice::Take,
            (Some("var"), None, _) | (Some("var"), Some("lib"), None) => Choice::Take,
            (Some("var"), Some("lib"), Some(name)) if VAR_LIB.contains(&name) => {
                // Downloaded indexes are large, and stale by the time a bay needs them.
                if path.starts_with("var/lib/apt/lists") { Choice::Pass } else { Choice::Take }
            }
            _ => Choice::Pass,
        }
    }
}

fn choose_etc(path: &Path) -> Choice {
    let Ok(inside) = path.strip_prefix("etc") else { return Choice::Pass };
    let host_key = inside.parent() == Some(Path::new("ssh"))
        && inside.file_name().is_some_and(|name| name.to_string_lossy().starts_with("ssh_host_"));
    if host_key || ETC_WITHHELD.iter().any(|name| inside.starts_with(name)) {
        Choice::Withhold
    } else {
        Choice::Take
    }
}

/// Is this path, or a directory above it, a known place of credentials?
pub(crate) fn holds_credentials(path: &Path) -> bool {
    path.ancestors().any(|ancestor| CREDENTIALS.iter().any(|name| ancestor.ends_with(name)))
}

/// Checks a directory that a caller wants in the image.
pub(crate) fn check_added(path: &Path) -> Result<()> {
    let refuse = |why: &str| {
        Err(PoolError::Invalid { what: format!("--add {}", path.display()), why: why.to_owned() })
    };
    if !path.is_absolute() || path.parent().is_none() {
        return refuse("it must be an absolute path below /");
    }
    if path.components().any(|part| matches!(part, std::path::Component::ParentDir)) {
        return refuse("it must not contain ..");
    }
    if NEVER_ADDED.iter().any(|never| path.starts_with(never)) {
        return refuse("that directory is made anew in every bay");
    }
    if holds_credentials(path) {
        return refuse("it is a place of credentials, which never go into an image");
    }
    Ok(())
}

fn hash_database(path: &Path, hash: &mut Sha256) -> io::Result<()> {
    let found = match std::fs::metadata(path) {
        Ok(found) => found,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    if found.is_dir() {
        let mut names: Vec<_> = std::fs::read_dir(path)?.filter_map(|e| Some(e.ok()?.file_name())).collect();
        names.sort();
        for name in names {
            hash.update(name.as_encoded_bytes());
            hash.update([0]);
        }
        return Ok(());
    }
    hash.update(found.len().to_le_bytes());
    let mut file = File::open(path)?;
    let mut buffer = vec![0_u8; 256 * 1024];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(()),
            count => hash.update(&buffer[..count]),
        }
    }
}

/// The key of a host image.
pub(crate) fn host_key(packages: &str, add: &[PathBuf]) -> String {
    let mut hash = Sha256::new();
    hash.update(packages);
    for path in add {
        hash.update([0]);
        hash.update(path.as_os_str().as_encoded_bytes());
    }
    if !add.is_empty() {
        // Images made before added tools were put on the path come out differently now.
        hash.update([0, 0]);
    }
    hex::encode(hash.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_settings_and_the_package_database_are_taken_and_nothing_else() {
        for path in
            ["usr/bin/env", "opt/tool", "etc/passwd", "lib64", "bin", "var/lib/dpkg/status", "var", "var/lib"]
        {
            assert_eq!(HostTree::choose(Path::new(path)), Choice::Take, "{path}");
        }
        for path in
            ["home", "root/.bashrc", "var/log", "var/lib/postgresql", "var/lib/apt/lists/x", "boot", "srv"]
        {
            assert_eq!(HostTree::choose(Path::new(path)), Choice::Pass, "{path}");
        }
        for path in ["etc/machine-id", "etc/ssh/ssh_host_rsa_key", "etc/hosts", "etc/apt/auth.conf.d/x"] {
            assert_eq!(HostTree::choose(Path::new(path)), Choice::Withhold, "{path}");
        }
        assert_eq!(HostTree::choose(Path::new("etc/ssh/ssh_config")), Choice::Take);
    }

    #[test]
    fn credentials_are_known_wherever_they_lie() {
        for path in
            ["/home/a/.cargo/credentials.toml", "/home/a/.ssh/id_ed25519", "/x/.netrc", "/h/.bash_history"]
        {
            assert!(holds_credentials(Path::new(path)), "{path}");
        }
        for path in ["/home/a/.cargo/bin/cargo", "/home/a/credentials.toml", "/h/.rustup/toolchains"] {
            assert!(!holds_credentials(Path::new(path)), "{path}");
        }
    }

    #[test]
    fn only_sensible_directories_can_be_added() {
        assert!(check_added(Path::new("/home/a/.cargo")).is_ok());
        for path in ["/", "relative", "/proc/1", "/home/../etc", "/root/.ssh", "/home/a/.aws/x"] {
            assert!(check_added(Path::new(path)).is_err(), "{path}");
        }
    }
}
