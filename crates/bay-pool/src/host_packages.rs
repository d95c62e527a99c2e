//! The tree that the image `host` is made from, and the hash of its package database: when that changes, the image is
//! out of date.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bay_text::hex;
use sha2::{Digest, Sha256};

use crate::error::{Doing, Result};

/// Part of every hash. A release whose import of the same host gives another result changes it.
const FORMAT: &str = "host-1";

/// Databases of package managers. Files are hashed completely; of directories, the names inside.
const PACKAGE_DATABASES: &[&str] = &[
    "var/lib/dpkg/status",
    "var/lib/rpm/rpmdb.sqlite",
    "var/lib/rpm/Packages",
    "usr/lib/sysimage/rpm/rpmdb.sqlite",
    "usr/lib/sysimage/rpm/Packages.db",
    "var/lib/pacman/local",
    "lib/apk/db/installed",
];

/// The tree that is imported as the host's root; tests use another.
#[derive(Debug, Clone)]
pub(crate) struct HostTree {
    pub(crate) root: PathBuf,
}

impl Default for HostTree {
    fn default() -> Self {
        Self { root: PathBuf::from("/") }
    }
}

/// The hash of the package database, with the metadata of its files at that time.
#[derive(Debug)]
pub(crate) struct HostKeyCache {
    stamp: Vec<(u64, u64, i64, i64)>,
    hash: String,
}

impl HostTree {
    /// The hash of the package database, computed again only if its files changed.
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
