//! What a bay's gateway stores for the next daemon: its certificate authority, and which name has which address.
//!
//! ```text
//!   data directory/egress/<bay id>/authority.age    encrypted: it has the key
//!   data directory/egress/<bay id>/names            one name in a line, in the order of their addresses
//! ```
//! If its parent has an authority, a fork begins with copies of both, because its processes have loaded the
//! certificate and know the addresses. No bay gets the key, so the shared authority gives a child nothing that its
//! parent does not have.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use bay_gateway::{Authority, Names, Pools, SavedAuthority, SavedNames};
use bay_types::{BayId, CoreError, ErrorCode};

use crate::keyring::Keyring;

const AUTHORITY: &str = "authority.age";
const NAMES: &str = "names";
/// The longest list that is read: the most names, each as long as a name can be.
const MAX_NAMES_BYTES: u64 = (bay_gateway::limits::MAX_NAMES as u64) * 256;

pub(crate) fn dir(data_dir: &Path, bay: BayId) -> PathBuf {
    data_dir.join("egress").join(bay.to_string())
}

fn failed(what: &str, path: &Path, error: &dyn std::fmt::Display) -> CoreError {
    CoreError::new(
        ErrorCode::Internal,
        format!("{what} {} failed: {error}", path.display()),
        "check the disk of the data directory",
    )
}

/// The bay's authority. If there is none, it is copied from the bay's parent or made.
pub(crate) fn authority(
    data_dir: &Path,
    bay: BayId,
    forked_from: Option<BayId>,
    keys: &Keyring,
) -> Result<Authority, CoreError> {
    let dir = dir(data_dir, bay);
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir).map_err(|e| failed("making", &dir, &e))?;
    let path = dir.join(AUTHORITY);
    let bad = |error: &dyn std::fmt::Display| failed("using", &path, error);
    if let Some(kept) = keys.read(&path)? {
        let saved: SavedAuthority = serde_json::from_slice(&kept).map_err(|e| bad(&e))?;
        return Authority::load(&saved).map_err(|e| bad(&e));
    }
    let made = match forked_from {
        // If the parent has no authority any more, no running process can have loaded it.
        Some(parent) if self::dir(data_dir, parent).join(AUTHORITY).exists() => {
            return inherit(data_dir, bay, parent, keys);
        }
        _ => Authority::generate(&format!("Workbay bay {}", bay.short())).map_err(|e| bad(&e))?,
    };
    write_authority(&path, &made, keys)?;
    Ok(made)
}

fn inherit(data_dir: &Path, bay: BayId, parent: BayId, keys: &Keyring) -> Result<Authority, CoreError> {
    let (from, to) = (dir(data_dir, parent), dir(data_dir, bay));
    let authority = authority(data_dir, parent, None, keys)?;
    match fs::copy(from.join(NAMES), to.join(NAMES)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(failed("copying", &from.join(NAMES), &error));
        }
        _ => {}
    }
    // Written last: a reader that finds the authority finds the names too.
    write_authority(&to.join(AUTHORITY), &authority, keys)?;
    Ok(authority)
}

fn write_authority(path: &Path, authority: &Authority, keys: &Keyring) -> Result<(), CoreError> {
    let text = zeroize::Zeroizing::new(
        serde_json::to_vec(&authority.saved()).map_err(|e| failed("writing", path, &e))?,
    );
    keys.write(path, &text)
}

/// Removes the files of a bay that is gone.
pub(super) fn remove(data_dir: &Path, bay: BayId) -> io::Result<()> {
    match fs::remove_dir_all(dir(data_dir, bay)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The list of names on disk, to which new names are appended.
#[derive(Debug)]
pub(crate) struct NamesFile {
    held: Mutex<Held>,
}

#[derive(Debug)]
struct Held {
    file: File,
    end: u64,
    /// Lines that could not be written yet. Their addresses are taken.
    unwritten: String,
}

impl Held {
    fn write(&mut self) -> io::Result<()> {
        self.file.write_all_at(self.unwritten.as_bytes(), self.end)?;
        self.end += self.unwritten.len() as u64;
        self.unwritten.clear();
        Ok(())
    }
}

impl NamesFile {
    /// Reads the names. A last line that a crash cut short was never part of an answer, and is overwritten.
    pub(crate) fn open(data_dir: &Path, bay: BayId) -> Result<(Self, Names), CoreError> {
        let path = dir(data_dir, bay).join(NAMES);
        let open = || -> io::Result<(File, String)> {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .open(&path)?;
            let mut text = String::new();
            (&file).take(MAX_NAMES_BYTES).read_to_string(&mut text)?;
            Ok((file, text))
        };
        let (file, text) = open().map_err(|e| failed("reading", &path, &e))?;
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        let names = text[..whole].lines().map(str::to_owned).collect();
        let names = Names::load(&SavedNames { pools: Pools::default(), names })
            .map_err(|e| failed("reading", &path, &e))?;
        let held = Held { file, end: whole as u64, unwritten: String::new() };
        Ok((Self { held: Mutex::new(held) }, names))
    }

    fn held(&self) -> std::sync::MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a name. If this succeeds, the name survives the end of the daemon, but not yet a power cut. If it
    /// fails, the name must not be used until [`NamesFile::settle`] succeeds.
    pub(crate) fn add(&self, name: &str) -> io::Result<()> {
        let mut held = self.held();
        held.unwritten.push_str(name);
        held.unwritten.push('\n');
        held.write()
    }

    /// Writes the lines that could not be written before.
    pub(crate) fn settle(&self) -> io::Result<()> {
        let mut held = self.held();
        if held.unwritten.is_empty() { Ok(()) } else { held.write() }
    }

    /// Flushes the list to disk, for processes in a memory checkpoint, which outlive a reboot.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.held().file.sync_data()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_outlive_the_daemon_and_a_line_that_was_cut_short_does_not() {
        let temp = tempfile::tempdir().unwrap();
        let bay = BayId::generate();
        fs::create_dir_all(dir(temp.path(), bay)).unwrap();
        let (file, names) = NamesFile::open(temp.path(), bay).unwrap();
        assert!(names.saved().names.is_empty());
        file.add("a.test").unwrap();
        file.add("b.test").unwrap();
        let path = dir(temp.path(), bay).join(NAMES);
        let mut text = fs::read(&path).unwrap();
        text.extend(b"half.te");
        fs::write(&path, text).unwrap();
        let (file, names) = NamesFile::open(temp.path(), bay).unwrap();
        assert_eq!(names.saved().names, ["a.test", "b.test"]);
        file.add("c.test").unwrap();
        let (_, names) = NamesFile::open(temp.path(), bay).unwrap();
        assert_eq!(names.saved().names, ["a.test", "b.test", "c.test"]);
    }
    #[test]
    fn names_that_a_full_disk_did_not_take_keep_their_places_until_it_does() {
        let temp = tempfile::tempdir().unwrap();
        let bay = BayId::generate();
        fs::create_dir_all(dir(temp.path(), bay)).unwrap();
        let (file, _) = NamesFile::open(temp.path(), bay).unwrap();
        file.add("a.test").unwrap();
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let disk = std::mem::replace(&mut file.held().file, full);
        file.add("b.test").unwrap_err();
        file.settle().unwrap_err();
        file.add("c.test").unwrap_err();
        file.held().file = disk;
        file.settle().unwrap();
        file.add("d.test").unwrap();
        let (_, names) = NamesFile::open(temp.path(), bay).unwrap();
        assert_eq!(names.saved().names, ["a.test", "b.test", "c.test", "d.test"]);
    }
}
