//! Small files and directories of the pool's own.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::io::Errno;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Doing, PoolError, Result};

/// Makes a directory that only root can enter, if it is missing.
pub(crate) fn make_private_dir(path: &Path) -> Result<()> {
    match rustix::fs::mkdir(path, rustix::fs::Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(error).doing(|| format!("make the directory {}", path.display())),
    }
}

pub(crate) fn remove_if_there(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).doing(|| format!("remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// Flushes a directory, so that its names survive a power cut.
pub(crate) fn sync_dir(path: &Path) -> Result<()> {
    File::open(path).and_then(|directory| directory.sync_all()).doing(|| format!("sync {}", path.display()))
}

/// Repeats a call that a signal interrupted.
pub(crate) fn retry<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

/// Writes a small file atomically.
pub(crate) fn write_json(path: &Path, value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_vec_pretty(value)
        .map_err(io::Error::other)
        .doing(|| format!("write {}", path.display()))?;
    write_whole(path, &text)
}

pub(crate) fn write_whole(path: &Path, contents: &[u8]) -> Result<()> {
    let new = path.with_extension("new");
    std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&new)
        .and_then(|mut file| file.write_all(contents).and_then(|()| file.sync_data()))
        .and_then(|()| std::fs::rename(&new, path))
        .doing(|| format!("write {}", path.display()))
}

/// Reads a small file; `None` if it does not exist.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(error) => return Err(error).doing(|| format!("read {}", path.display())),
    };
    serde_json::from_slice(&bytes).map(Some).map_err(|error| PoolError::Damaged {
        pool: path.to_owned(),
        why: format!("it cannot be read ({error})"),
    })
}
