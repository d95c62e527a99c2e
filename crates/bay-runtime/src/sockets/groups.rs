//! Which exec a control group belongs to. Only the bay's own groups are examined, so the answer is never an exec of
//! another bay. The kernel never reuses an id, so an answer stays true after the group is gone.

use std::fs;
use std::num::NonZeroUsize;
use std::os::unix::fs::DirEntryExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use bay_types::ExecId;
use bay_types::guest::SERVICE_MARK;
use bay_types::service::ServiceName;
use lru::LruCache;
use rustix::fs::lgetxattr;

use crate::cgroup::{MAX_GROUP_DEPTH, MAX_GROUPS};

/// Groups that are remembered, including removed ones. Those that were not used for the longest time are forgotten.
const REMEMBERED: NonZeroUsize = NonZeroUsize::new(2 * MAX_GROUPS as usize).unwrap();
/// How long one scan of a bay's groups may take.
const LOOK_WITHIN: Duration = Duration::from_millis(10);
/// One part in this many of the time may be used for scans. A bay that makes and removes groups must not keep the host
/// scanning.
const LOOKING_PART: u32 = 10;
/// The longest time that may be used for scans at once.
const LOOKING_AT_ONCE: Duration = Duration::from_millis(50);

/// What a group is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    Guest,
    Exec(ExecId),
    /// Made by the bay itself, for example by containers.
    Other,
}

/// A group of the bay.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) purpose: Purpose,
    /// Relative to the bay's own group.
    pub(super) path: PathBuf,
    service: OnceLock<String>,
}

/// The groups of one bay by their ids.
#[derive(Debug)]
pub(super) struct Groups {
    bay: PathBuf,
    seen: Mutex<Known>,
}

#[derive(Debug)]
struct Known {
    known: LruCache<u64, Arc<Group>>,
    /// Ids of groups that were removed before a scan found them.
    missed: LruCache<u64, ()>,
    /// Time for scans that was left, and when.
    left: (Duration, Instant),
}

impl Known {
    fn time_left(&self) -> Duration {
        let (left, at) = self.left;
        (left + at.elapsed() / LOOKING_PART).min(LOOKING_AT_ONCE)
    }

    fn scan(&mut self, bay: &Path, wanted: Option<u64>) -> bool {
        let (time, began) = (self.time_left(), Instant::now());
        let complete = scan(bay, &mut self.known, wanted, began + time.min(LOOK_WITHIN));
        let now = Instant::now();
        self.left = (time.saturating_sub(now - began), now);
        complete
    }
}

impl Groups {
    /// `bay` is the bay's own group in version 2.
    pub(super) fn of(bay: PathBuf) -> Self {
        let seen = Known {
            known: LruCache::new(REMEMBERED),
            missed: LruCache::new(REMEMBERED),
            left: (LOOKING_AT_ONCE, Instant::now()),
        };
        Self { bay, seen: Mutex::new(seen) }
    }

    pub(super) fn find(&self, number: u64) -> Option<Arc<Group>> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(group) = seen.known.get(&number) {
            return Some(Arc::clone(group));
        }
        if seen.missed.contains(&number) || seen.time_left().is_zero() {
            return None;
        }
        let complete = seen.scan(&self.bay, Some(number));
        let found = seen.known.get(&number).map(Arc::clone);
        if found.is_none() && complete {
            seen.missed.put(number, ());
        }
        found
    }

    /// Remembers the present groups, so that they are known after their removal.
    pub(super) fn remember_present(&self) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.scan(&self.bay, None);
    }

    /// The directory that lists the processes of a group and of those below it. If the group belongs to an exec, that
    /// of the exec.
    pub(super) fn directory(&self, group: &Group) -> PathBuf {
        let depth = if matches!(group.purpose, Purpose::Exec(_)) { 2 } else { usize::MAX };
        self.bay.join(group.path.iter().take(depth).collect::<PathBuf>())
    }

    /// The service whose run an exec is, as the guest has marked the group. After a restore the guest marks it again, a
    /// little later.
    pub(super) fn service(&self, group: &Group) -> Option<String> {
        let marked = || {
            let mut name = [0; ServiceName::MAX_LEN];
            let length = lgetxattr(self.directory(group), SERVICE_MARK, &mut name).ok()?;
            let name: ServiceName = std::str::from_utf8(name.get(..length)?).ok()?.parse().ok()?;
            Some(name.to_string())
        };
        match group.purpose {
            Purpose::Exec(_) if group.service.get().is_none() => {
                marked().map(|name| group.service.get_or_init(|| name).clone())
            }
            _ => group.service.get().cloned(),
        }
    }
}

/// Scans the bay's groups, nearest first, until the wanted one is found. Returns false if some were left out.
fn scan(bay: &Path, known: &mut LruCache<u64, Arc<Group>>, wanted: Option<u64>, until: Instant) -> bool {
    let mut level = vec![PathBuf::new()];
    let mut count = 0;
    for _ in 0..MAX_GROUP_DEPTH {
        let mut below = Vec::new();
        for path in &level {
            if Instant::now() > until {
                return false;
            }
            // Removed meanwhile.
            let Ok(entries) = fs::read_dir(bay.join(path)) else { continue };
            for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
                count += 1;
                if count > MAX_GROUPS {
                    return false;
                }
                let path = path.join(entry.file_name());
                below.push(path.clone());
                if let Some(purpose) = purpose(&path)
                    && !known.contains(&entry.ino())
                {
                    known.put(entry.ino(), Arc::new(Group { purpose, path, service: OnceLock::new() }));
                }
            }
        }
        if wanted.is_some_and(|wanted| known.contains(&wanted)) {
            return true;
        }
        if below.is_empty() {
            return true;
        }
        // Execs are all on the second level. Without a wanted group, deeper ones are not needed.
        if wanted.is_none() && below.iter().all(|path| path.iter().count() >= 2) {
            return true;
        }
        // The execs first, however many other groups the bay has made.
        below.sort_by_key(|path| path != Path::new("execs"));
        level = below;
    }
    false
}

/// By its path below the bay's group. None for groups without processes.
fn purpose(path: &Path) -> Option<Purpose> {
    let mut parts = path.iter().map(|part| part.to_str().unwrap_or_default());
    match (parts.next(), parts.next()) {
        (Some("guest"), _) => Some(Purpose::Guest),
        (Some("execs"), Some(id)) => Some(id.parse().map_or(Purpose::Other, Purpose::Exec)),
        (Some("execs") | None, None) => None,
        _ => Some(Purpose::Other),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn number(path: &Path) -> u64 {
        fs::metadata(path).unwrap().ino()
    }

    #[test]
    fn groups_are_known_by_their_id_even_after_their_removal() {
        let dir = tempfile::tempdir().unwrap();
        let exec = ExecId::generate();
        let leaf = dir.path().join("execs").join(exec.to_string());
        for part in [leaf.join("inner/deep"), dir.path().join("guest"), dir.path().join("docker/abc")] {
            fs::create_dir_all(part).unwrap();
        }
        let groups = Groups::of(dir.path().to_owned());
        let purpose = |at: u64| groups.find(at).map(|group| group.purpose);
        let deep = number(&leaf.join("inner/deep"));
        assert_eq!(purpose(deep), Some(Purpose::Exec(exec)));
        assert_eq!(groups.directory(&groups.find(deep).unwrap()), leaf);
        assert_eq!(purpose(number(&dir.path().join("guest"))), Some(Purpose::Guest));
        let container = groups.find(number(&dir.path().join("docker/abc"))).unwrap();
        assert_eq!((container.purpose, container.path.as_path()), (Purpose::Other, Path::new("docker/abc")));
        assert_eq!(purpose(number(&dir.path().join("execs"))), None);
        fs::remove_dir_all(&leaf).unwrap();
        assert_eq!(purpose(deep), Some(Purpose::Exec(exec)));
    }

    #[test]
    fn groups_outside_of_the_bay_are_never_found() {
        let dir = tempfile::tempdir().unwrap();
        let [own, other] = ["own", "other"].map(|bay| dir.path().join(bay).join("execs"));
        let exec = ExecId::generate().to_string();
        fs::create_dir_all(own.join(&exec)).unwrap();
        fs::create_dir_all(other.join(&exec)).unwrap();
        std::os::unix::fs::symlink(&other, own.join("link")).unwrap();
        let groups = Groups::of(dir.path().join("own"));
        assert!(groups.find(number(&other.join(&exec))).is_none());
    }
}
