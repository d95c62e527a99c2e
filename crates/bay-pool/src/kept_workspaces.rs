//! Workspaces that outlived their bays: `kept/<bay>-<time>`, each a subvolume. A new bay gets a snapshot of one, so
//! a kept workspace does not change until somebody removes it by name.

use std::ffi::OsStr;
use std::path::PathBuf;

use bay_sys::btrfs;
use bay_types::bay::WorkspaceView;
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use crate::error::{Doing, PoolError, Result};
use crate::pool::Pool;
use crate::quota::MAX_EXTENTS_COUNTED;
use crate::subvolume::{self, entries, open_dir};

/// The format of the time in a name.
pub(crate) const STAMP: &str = "%Y%m%dT%H%M%SZ";

impl Pool {
    /// Every kept workspace, oldest first.
    pub fn kept_list(&self) -> Result<Vec<WorkspaceView>> {
        let mut all = Vec::new();
        for path in entries(&self.corner("kept"))? {
            let Some(name) = path.file_name().and_then(OsStr::to_str).map(str::to_owned) else { continue };
            if !subvolume::exists(&path) {
                continue;
            }
            let Some((bay, kept_at)) = parts(&name) else { continue };
            let bytes = open_dir(&path)
                .and_then(|top| btrfs::bytes_written_since_birth(&top, MAX_EXTENTS_COUNTED))
                .doing(|| format!("count the bytes of {}", path.display()))?;
            all.push(WorkspaceView { bay: bay.to_owned(), name, kept_at, path, bytes });
        }
        all.sort_by_key(|kept| kept.kept_at);
        Ok(all)
    }

    /// Removes a kept workspace.
    pub fn kept_remove(&self, name: &str) -> Result<()> {
        let path = self.kept_path(name)?;
        self.trash().remove(&path)
    }

    pub(crate) fn kept_path(&self, name: &str) -> Result<PathBuf> {
        let path = self.corner("kept").join(name);
        let plain = parts(name).is_some() && !name.contains('/');
        if plain && subvolume::exists(&path) {
            return Ok(path);
        }
        Err(PoolError::KeptNotFound { workspace: crate::error::one_line(name) })
    }
}

/// The bay's name and the time of `<bay>-<time>` or `<bay>-<time>-<number>`.
fn parts(name: &str) -> Option<(&str, Timestamp)> {
    let stamped = |(at, _): (usize, &str)| {
        let stamp = name[at + 1..].split('-').next()?;
        let time = DateTime::strptime(STAMP, stamp).ok()?.to_zoned(TimeZone::UTC).ok()?;
        Some((&name[..at], time.timestamp()))
    };
    name.rmatch_indices('-').find_map(stamped).filter(|(bay, _)| !bay.is_empty())
}

#[cfg(test)]
mod tests {
    use super::parts;

    #[test]
    fn a_kept_name_contains_the_bay_and_the_time() {
        let time = "2026-01-02T03:04:05Z".parse().unwrap();
        assert_eq!(parts("web-2-20260102T030405Z"), Some(("web-2", time)));
        assert_eq!(parts("web-20260102T030405Z-0123abcd"), Some(("web", time)));
        for odd in ["web", "-20260102T030405Z", "web-20261302T030405Z", "..", ""] {
            assert_eq!(parts(odd), None, "{odd}");
        }
    }
}
