//! The image `host`: which part of the host is imported.
//!
//! The import takes programs, their settings and the package database, as far as `nobody` may read them. In `/etc`,
//! files that identify the host or usually hold secrets are withheld even if everybody may read them. The key of
//! the image is a hash of the package database and of the added directories' names: after a package is installed on
//! the host, the image is out of date, and the next import makes a fresh one.

use std::path::{Path, PathBuf};

use bay_text::hex;
use sha2::{Digest, Sha256};

use super::tree::Choice;
use crate::error::{PoolError, Result};

/// Entries of the host's root that are taken completely, in addition to `lib*`.
const TOP: &[&str] = &["usr", "opt", "etc", "bin", "sbin"];
/// Directories of `/var/lib` that are taken: package managers in a bay need them.
const VAR_LIB: &[&str] = &["dpkg", "apt", "rpm", "pacman"];

/// Withheld from `/etc`: what identifies this host, its disks and its networks, and common places of secrets.
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

/// Withheld from directories that a caller adds: credentials of tools, and histories of what people typed.
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

/// Directories that cannot be added to an image, nor anything below them: every bay gets its own.
const NEVER_ADDED: &[&str] = &["/proc", "/sys", "/dev", "/run"];

/// Which part of the host's root is taken, by path relative to it.
pub(crate) fn choose(path: &Path) -> Choice {
    let mut parts = path.components().filter_map(|part| part.as_os_str().to_str());
    let (first, second, third) = (parts.next(), parts.next(), parts.next());
    match (first, second, third) {
        (Some("etc"), Some(_), _) => choose_etc(path),
        (Some(top), _, _) if TOP.contains(&top) || top.starts_with("lib") => Choice::Take,
        (Some("var"), None, _) | (Some("var"), Some("lib"), None) => Choice::Take,
        (Some("var"), Some("lib"), Some(name)) if VAR_LIB.contains(&name) => {
            // Downloaded package indexes are large and soon stale.
            if path.starts_with("var/lib/apt/lists") { Choice::Pass } else { Choice::Take }
        }
        _ => Choice::Pass,
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

/// Whether this path, or a directory above it, is a known place of credentials.
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

/// The key of a host image.
pub(crate) fn host_key(packages: &str, add: &[PathBuf]) -> String {
    let mut hash = Sha256::new();
    hash.update(packages);
    for path in add {
        hash.update([0]);
        hash.update(path.as_os_str().as_encoded_bytes());
    }
    if !add.is_empty() {
        // Earlier images with added tools did not have them on the path; this gives the new ones another key.
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
            assert_eq!(choose(Path::new(path)), Choice::Take, "{path}");
        }
        for path in
            ["home", "root/.bashrc", "var/log", "var/lib/postgresql", "var/lib/apt/lists/x", "boot", "srv"]
        {
            assert_eq!(choose(Path::new(path)), Choice::Pass, "{path}");
        }
        for path in ["etc/machine-id", "etc/ssh/ssh_host_rsa_key", "etc/hosts", "etc/apt/auth.conf.d/x"] {
            assert_eq!(choose(Path::new(path)), Choice::Withhold, "{path}");
        }
        assert_eq!(choose(Path::new("etc/ssh/ssh_config")), Choice::Take);
    }

    #[test]
    fn credentials_are_recognised_in_any_directory() {
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
