//! What there is of a daemon and of the installation, found without asking the daemon.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bay_pool::{Pool, PoolContents};
use bay_runtime::Hierarchies;
use bay_types::ApiError;
use bay_types::BayId;
use bay_types::installation::{self, DataRecord, KEYS};

use super::install::{is_own_unit, members};
use super::place::{Place, sha256};
use crate::daemon_start::DaemonLocation;

/// What a daemon makes in its data directory, besides the pool and [`LAST`]. A name with a suffix (`bay.db-wal`,
/// `token.new`) belongs to the name before it.
const DATA: [&str; 13] = [
    "bay.db",
    "bay.sock",
    "daemon.log",
    "egress",
    "former-secrets.age",
    "former-secrets.new",
    "guest",
    "ledger",
    "notify.age",
    "notify.new",
    "run",
    "secrets",
    "token",
];
/// The files that identify the directory. They go last, so that an interrupted removal can continue.
pub(super) const LAST: [&str; 3] = ["installation.new", installation::FILE, "daemon.lock"];
/// Most bytes of a database that are searched for the daemon's id. The row is among the first pages.
const MAX_DATABASE: u64 = 64 << 20;

/// What there is.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) data_dir: PathBuf,
    /// `None` if neither the record nor the database says it.
    pub(crate) daemon: Option<String>,
    /// The process that holds the lock of the data directory.
    pub(crate) process: Option<i32>,
    /// Bays that have something on the host besides their files: processes, namespaces, groups.
    pub(crate) bays: BTreeSet<BayId>,
    /// The daemon's control groups, one in each hierarchy.
    pub(crate) groups: Vec<PathBuf>,
    pub(crate) pool_dir: PathBuf,
    /// Why nobody can look into the pool, if so.
    pub(crate) pool: Result<Option<PoolContents>, String>,
    /// What the daemon made in its data directory.
    pub(crate) data: Vec<PathBuf>,
    pub(crate) keys: Vec<PathBuf>,
    pub(crate) installed: Option<Installed>,
    /// What stays, and why.
    pub(crate) stays: Vec<(PathBuf, String)>,
}

/// What `bay install` made.
#[derive(Debug)]
pub(crate) struct Installed {
    pub(crate) executable: bool,
    pub(crate) unit: bool,
    /// The group, if it has no members.
    pub(crate) group: Option<String>,
}

impl Found {
    pub(crate) fn look(place: &Place, location: &DaemonLocation) -> Result<Self, ApiError> {
        let data_dir = location.data_dir.canonicalize().unwrap_or_else(|_| location.data_dir.clone());
        let record = read_record(&data_dir);
        let daemon = record
            .as_ref()
            .map(|record| record.daemon.clone())
            .filter(|id| DataRecord::is_daemon_id(id))
            .or_else(|| id_in_database(&data_dir.join("bay.db")));
        let pool_dir = record.as_ref().map_or_else(|| location.pool.clone(), |record| record.pool.clone());
        let mut stays = Vec::new();
        let (data, other) = data_files(&data_dir, &pool_dir);
        if !data.is_empty() {
            for path in other {
                stays.push((path, "a daemon did not make it".to_owned()));
            }
        }
        let pool = match &daemon {
            Some(daemon) => {
                Pool::contents(&pool_dir, daemon).map_err(|error| bay_types::error::chain(&error))
            }
            None => Ok(None),
        };
        let mut keys = Vec::new();
        if let Some(daemon) = &daemon {
            let own = place.keys().join(daemon);
            let made = record.as_ref().and_then(|record| record.key.clone());
            keys = [Some(own), made].into_iter().flatten().filter(|key| key.exists()).collect();
            keys.dedup();
        }
        let groups = daemon.as_deref().map(groups).unwrap_or_default();
        let installed = installed(place, &data_dir, &mut stays)?;
        Ok(Self {
            process: holder(&data_dir),
            bays: bays(&data_dir, &groups),
            groups,
            pool,
            data,
            keys,
            installed,
            stays,
            data_dir,
            daemon,
            pool_dir,
        })
    }

    /// Whether there is nothing to remove.
    pub(crate) fn is_empty(&self) -> bool {
        let pool_is_empty = match &self.pool {
            Ok(None) => true,
            Ok(Some(contents)) => !contents.has_corner && contents.file.is_none(),
            Err(_) => false,
        };
        self.data.is_empty() && pool_is_empty && self.keys.is_empty() && self.installed.is_none()
    }

    /// The pool file is this daemon's alone although nobody can look into it: it is in the data directory.
    pub(crate) fn pool_is_inside(&self) -> bool {
        self.pool_dir.starts_with(&self.data_dir)
    }
}

fn read_record(data_dir: &Path) -> Option<DataRecord> {
    serde_json::from_slice(&fs::read(data_dir.join(installation::FILE)).ok()?).ok()
}

/// The daemon's id, read from the bytes of its database, which may be damaged. The row is in the main file since the
/// database was made, and its value follows its key.
fn id_in_database(path: &Path) -> Option<String> {
    use std::io::Read;
    const KEY: &[u8] = b"daemon_id";
    const LENGTH: usize = 16;
    let mut bytes = Vec::new();
    fs::File::open(path).ok()?.take(MAX_DATABASE).read_to_end(&mut bytes).ok()?;
    let after = |at: usize| bytes.get(at + KEY.len()..at + KEY.len() + LENGTH);
    let keys = bytes.windows(KEY.len()).enumerate().filter(|(_, window)| *window == KEY);
    let texts = keys.filter_map(|(at, _)| after(at)).filter_map(|value| std::str::from_utf8(value).ok());
    texts.map(str::to_owned).find(|text| DataRecord::is_daemon_id(text))
}

/// The entries of the data directory that a daemon made, and the others.
fn data_files(data_dir: &Path, pool_dir: &Path) -> (Vec<PathBuf>, Vec<PathBuf>) {
    let entries = fs::read_dir(data_dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let (mut own, mut other): (Vec<PathBuf>, Vec<PathBuf>) =
        entries.filter(|path| path != pool_dir).partition(|path| {
            path.file_name().and_then(|name| name.to_str()).is_some_and(|name| {
                LAST.contains(&name)
                    || DATA.iter().any(|known| {
                        name.strip_prefix(known)
                            .is_some_and(|rest| rest.is_empty() || rest.starts_with(['-', '.']))
                    })
            })
        });
    own.sort();
    other.sort();
    (own, other)
}

/// The process that has the lock of the data directory: it has the file open, and the kernel lists its lock.
pub(crate) fn holder(data_dir: &Path) -> Option<i32> {
    let lock = data_dir.join("daemon.lock");
    let inode = format!(":{}", fs::metadata(&lock).ok()?.ino());
    let locks = fs::read_to_string("/proc/locks").ok()?;
    let pids = locks.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let is_lock = words.iter().any(|word| word.ends_with(&inode));
        words.get(4).filter(|_| is_lock)?.parse::<i32>().ok()
    });
    pids.filter(|pid| *pid > 0).find(|pid| has_open(*pid, &lock))
}

fn has_open(pid: i32, path: &Path) -> bool {
    let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    open.filter_map(|entry| fs::read_link(entry.path()).ok()).any(|to| to == path)
}

/// The groups of a daemon in every hierarchy.
fn groups(daemon: &str) -> Vec<PathBuf> {
    let Ok(Some(hierarchies)) = Hierarchies::mounted() else { return Vec::new() };
    let mut roots: Vec<PathBuf> = hierarchies.v1.into_iter().map(|(_, at)| at).collect();
    roots.push(hierarchies.v2);
    roots.sort();
    roots.dedup();
    roots.into_iter().map(|root| root.join("workbay").join(daemon)).filter(|group| group.is_dir()).collect()
}

fn bays(data_dir: &Path, groups: &[PathBuf]) -> BTreeSet<BayId> {
    let run = data_dir.join("run");
    let dirs = groups.iter().chain([&run]);
    let entries = dirs.flat_map(|dir| fs::read_dir(dir).into_iter().flatten().flatten());
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// What was installed for the daemon of this data directory.
fn installed(
    place: &Place,
    data_dir: &Path,
    stays: &mut Vec<(PathBuf, String)>,
) -> Result<Option<Installed>, ApiError> {
    let Some(record) = place.read()? else { return Ok(None) };
    let installed_for = record.data_dir.canonicalize().unwrap_or_else(|_| record.data_dir.clone());
    if installed_for != data_dir {
        stays.push((
            place.executable(),
            format!("it was installed for the data directory {}", installed_for.display()),
        ));
        return Ok(None);
    }
    let target = place.executable();
    let mut executable = target.symlink_metadata().is_ok_and(|found| found.is_file())
        && sha256(&target).is_ok_and(|hash| record.sha256.contains(&hash));
    if target.exists() && !executable {
        stays.push((target.clone(), "it is not the file that `bay install` put there".to_owned()));
    }
    if executable && let Some((pid, data)) = other_daemon(&target, data_dir) {
        stays.push((target, format!("another daemon runs from it (process {pid}, {data})")));
        executable = false;
    }
    let mut group = record.group.clone();
    if let Some(name) = &group {
        let members = members(&fs::read_to_string(place.groups()).unwrap_or_default(), name);
        match members {
            None => group = None,
            Some(members) if !members.is_empty() => {
                stays.push((place.groups(), format!("the group {name} has members: {}", members.join(", "))));
                group = None;
            }
            Some(_) => {}
        }
    }
    let unit = is_own_unit(place, &record);
    Ok(Some(Installed { executable, unit, group }))
}

/// A daemon on another data directory that runs from this file.
fn other_daemon(executable: &Path, data_dir: &Path) -> Option<(i32, String)> {
    let processes = fs::read_dir("/proc")
        .ok()?
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    for pid in processes {
        if !fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == executable) {
            continue;
        }
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).into_owned();
        let words: Vec<&str> = line.split('\0').collect();
        if words.get(1) != Some(&"serve") {
            continue;
        }
        let its = words.windows(2).find(|pair| pair[0] == "--data-dir").map_or("", |pair| pair[1]);
        if Path::new(its) != data_dir && holder(data_dir) != Some(pid) {
            return Some((pid, bay_text::escape::one_line(its)));
        }
    }
    None
}

/// Whether a key is directly in the directory of keys, of this installation or of the host.
pub(crate) fn is_below_keys(place: &Place, key: &Path) -> bool {
    key.parent() == Some(place.keys().as_path()) || key.parent() == Some(Path::new(KEYS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_daemon_makes_in_its_data_directory_is_its_own() {
        let dir = tempfile::tempdir().unwrap();
        for name in [
            "bay.db",
            "bay.db-wal",
            "bay.db.new-shm",
            "token.new",
            "daemon.log.1",
            "daemon.lock",
            "notes",
            "bay.dbx",
            "tokens",
        ] {
            fs::write(dir.path().join(name), "").unwrap();
        }
        fs::create_dir(dir.path().join("pool")).unwrap();
        let (own, other) = data_files(dir.path(), &dir.path().join("pool"));
        let names = |paths: Vec<PathBuf>| -> Vec<String> {
            paths.iter().map(|path| path.file_name().unwrap().to_string_lossy().into_owned()).collect()
        };
        assert_eq!(
            names(own),
            ["bay.db", "bay.db-wal", "bay.db.new-shm", "daemon.lock", "daemon.log.1", "token.new"]
        );
        assert_eq!(names(other), ["bay.dbx", "notes", "tokens"]);
    }

    #[test]
    fn the_id_is_found_in_a_damaged_database() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bay.db");
        assert_eq!(id_in_database(&path), None);
        fs::write(&path, b"\xff\xffdaemon_idnot-an-id-at-all daemon_id0123456789abcdef\xff").unwrap();
        assert_eq!(id_in_database(&path).as_deref(), Some("0123456789abcdef"));
        fs::write(&path, b"daemon_id../../../../../..").unwrap();
        assert_eq!(id_in_database(&path), None);
    }

    #[test]
    fn the_holder_of_a_lock_is_found_by_its_open_file() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        let lock = fs::File::create(dir.join("daemon.lock")).unwrap();
        assert_eq!(holder(&dir), None);
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
        assert_eq!(holder(&dir), i32::try_from(std::process::id()).ok());
    }
}
