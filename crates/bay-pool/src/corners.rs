//! Whose corner is whose, and corners that nobody needs any more: their daemon's data directory is gone.
//!
//! Each daemon records its data directory in its corner. A corner without that record belongs to a daemon of an earlier
//! release that has not started since; nothing is known about it, so it counts as in use. A data directory on a disk that
//! is not mounted is not gone either: the record names the mount point, which must be one now.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use bay_types::installation::{self, DataRecord};
use bay_types::pool::CornerView;
use serde::{Deserialize, Serialize};

use crate::device::unescape;
use crate::error::{Doing, PoolError, Result, one_line};
use crate::files::{read_json, write_json};
use crate::pool::Pool;
use crate::subvolume::{entries, remove_all};

/// Longest name of a corner: several times the length of a daemon's id.
const MAX_CORNER: usize = 80;
/// In a corner: its owner.
const OWNER: &str = "owner.json";
/// In `corners/`: the beginning of the name of a corner whose removal has begun.
const REMOVED: &str = ".removed-";

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Owner {
    data_dir: PathBuf,
    /// Where the filesystem of the data directory is mounted.
    mounted_at: PathBuf,
}

impl Pool {
    pub(crate) fn remember_owner(&self, data_dir: &Path) -> Result<()> {
        let data_dir = data_dir.canonicalize().doing(|| format!("find {}", data_dir.display()))?;
        let mounted_at = mount_above(&mount_table()?, &data_dir);
        let (path, owner) = (self.corner(OWNER), Owner { data_dir, mounted_at });
        if read_json::<Owner>(&path).ok().flatten().as_ref() == Some(&owner) {
            return Ok(());
        }
        write_json(&path, &owner)
    }

    /// The corners of other daemons whose data directory is gone.
    pub fn abandoned_corners(&self) -> Result<Vec<CornerView>> {
        let table = mount_table()?;
        let own = self.own_corner();
        let mut found = Vec::new();
        for corner in entries(&self.base().join("corners"))? {
            let Some(daemon) = corner.file_name().and_then(OsStr::to_str) else { continue };
            if corner == own || !DataRecord::is_daemon_id(daemon) {
                continue;
            }
            let Ok(Some(owner)) = read_json::<Owner>(&corner.join(OWNER)) else { continue };
            if is_gone(&owner, daemon, &table) {
                let bays = entries(&corner.join("bays")).map_or(0, |bays| bays.len() as u64);
                found.push(CornerView { daemon: daemon.to_owned(), data_dir: owner.data_dir, bays });
            }
        }
        Ok(found)
    }

    /// Removes a corner whose daemon's data directory is gone.
    ///
    /// # Errors
    /// [`PoolError::Invalid`] if it is not such a corner (any more).
    pub fn abandoned_remove(&self, daemon: &str) -> Result<()> {
        self.check_writable()?;
        if !self.abandoned_corners()?.iter().any(|corner| corner.daemon == daemon) {
            return Err(PoolError::Invalid {
                what: format!("the corner {daemon:?}"),
                why: "its daemon's data directory is there, or the pool has no such corner".to_owned(),
            });
        }
        remove_corner(self.base(), daemon)
    }
}

/// Removes a corner with everything in it. It gets another name first, so that a daemon that starts meanwhile makes a
/// corner of its own and never uses half of one.
pub(crate) fn remove_corner(base: &Path, daemon: &str) -> Result<()> {
    check_corner(daemon)?;
    let corners = base.join("corners");
    let aside = corners.join(format!("{REMOVED}{daemon}"));
    // What an interrupted removal left.
    remove_all(&aside)?;
    match std::fs::rename(corners.join(daemon), &aside) {
        Ok(()) => remove_all(&aside),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error).doing(|| format!("remove the corner {daemon}")),
    }
}

/// Whether a corner has the name of a corner whose removal has begun.
pub(crate) fn is_removed(name: &OsStr) -> bool {
    name.to_str().is_some_and(|name| name.starts_with(REMOVED))
}

/// Finishes interrupted removals of corners.
pub(crate) fn sweep(base: &Path) -> Result<()> {
    for corner in entries(&base.join("corners"))? {
        if corner.file_name().is_some_and(is_removed) {
            remove_all(&corner)?;
        }
    }
    Ok(())
}

pub(crate) fn check_corner(corner: &str) -> Result<()> {
    let fine = !corner.is_empty()
        && corner.len() <= MAX_CORNER
        && !corner.starts_with('.')
        && corner.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'));
    if fine {
        return Ok(());
    }
    Err(PoolError::Invalid {
        what: format!("the corner name {:?}", one_line(corner)),
        why: "only letters, digits, '-', '_' and '.' are allowed".to_owned(),
    })
}

fn is_gone(owner: &Owner, daemon: &str, table: &str) -> bool {
    if mount_above(table, &owner.mounted_at) != owner.mounted_at {
        return false;
    }
    match std::fs::symlink_metadata(&owner.data_dir) {
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
        // Another daemon was begun in the same place.
        Ok(_) => read_json::<DataRecord>(&owner.data_dir.join(installation::FILE))
            .is_ok_and(|record| record.is_some_and(|record| record.daemon != daemon)),
    }
}

fn mount_table() -> Result<String> {
    std::fs::read_to_string("/proc/self/mountinfo").doing(|| "read the mount table".to_owned())
}

/// The nearest mount point above a path, or the path itself.
fn mount_above(table: &str, path: &Path) -> PathBuf {
    let points =
        table.lines().filter_map(|line| line.split(' ').nth(4)).map(|point| PathBuf::from(unescape(point)));
    points
        .filter(|point| path.starts_with(point))
        .max_by_key(|point| point.as_os_str().len())
        .unwrap_or_else(|| PathBuf::from("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_data_directory_is_gone_only_if_its_disk_is_mounted_and_it_is_not_there() {
        let dir = tempfile::tempdir().unwrap();
        let table = format!(
            "1 0 0:1 / / rw - ext4 /dev/a rw\n2 1 0:2 / {} rw - ext4 /dev/b rw",
            dir.path().display()
        );
        let owner = |data_dir: &str, mounted_at: &Path| Owner {
            data_dir: dir.path().join(data_dir),
            mounted_at: mounted_at.to_owned(),
        };
        let id = "0123456789abcdef";
        assert!(is_gone(&owner("absent", dir.path()), id, &table));
        assert!(!is_gone(&owner("absent", &dir.path().join("disk")), id, &table), "its disk is not mounted");
        std::fs::create_dir(dir.path().join("there")).unwrap();
        assert!(!is_gone(&owner("there", dir.path()), id, &table), "nothing says that another daemon has it");
        for (daemon, gone) in [(id, false), ("fedcba9876543210", true)] {
            let record =
                DataRecord { daemon: daemon.to_owned(), pool: "/p".into(), socket: "/s".into(), key: None };
            std::fs::write(
                dir.path().join("there").join(installation::FILE),
                serde_json::to_vec(&record).unwrap(),
            )
            .unwrap();
            assert_eq!(is_gone(&owner("there", dir.path()), id, &table), gone, "{daemon}");
        }
    }
}
