//! Definitions on disk: `STATE/services/NAME.json`, replaced atomically and flushed before the request is answered. The
//! output of runs is in `STATE/services/execs/`.
//!
//! Root in the bay can write to this directory. So what is read of a file is bounded; a file that makes no sense is
//! reported and left as it is.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use bay_types::service::{KEPT_RUNS, MAX_SERVICES, ServiceName, ServiceRun, ServiceSpec};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::spool;

pub(super) const DIRECTORY: &str = "services";
const FORMAT: u32 = 1;
const SUFFIX: &str = ".json";
/// Longest file that is read: a definition, its runs, and room for whitespace.
const MAX_FILE: u64 = 4 * ServiceSpec::MAX_BYTES as u64;

/// What the disk has of a service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Record {
    format: u32,
    pub(super) spec: ServiceSpec,
    /// False if it was stopped on request.
    pub(super) wanted: bool,
    pub(super) runs: Vec<ServiceRun>,
}

impl Record {
    pub(super) fn new(spec: ServiceSpec, wanted: bool, runs: Vec<ServiceRun>) -> Self {
        Self { format: FORMAT, spec, wanted, runs }
    }
}

/// The directory of the services. Made if it does not exist, or if something else has its name.
pub(super) fn directory(state: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let make = || match rustix::fs::mkdirat(state, DIRECTORY, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => spool::open_directory(state, DIRECTORY),
        Err(e) => Err(e.into()),
    };
    make().or_else(|_| {
        spool::remove_tree(state, DIRECTORY.as_bytes())?;
        make()
    })
}

/// The definitions, ordered by name, at most [`MAX_SERVICES`]. For one that cannot be read, the reason.
pub(super) fn load(dir: BorrowedFd<'_>) -> Vec<(ServiceName, Result<Record, String>)> {
    let mut names: Vec<ServiceName> = Vec::new();
    let listed = spool::for_each_name(dir, |name| {
        let name = std::str::from_utf8(name).ok().and_then(|name| name.strip_suffix(SUFFIX));
        names.extend(name.and_then(|name| name.parse().ok()));
    });
    // If listing failed midway, the names found until then are used.
    drop(listed);
    names.sort();
    names.truncate(MAX_SERVICES);
    names
        .into_iter()
        .map(|name| {
            let record = read(dir, &name);
            (name, record)
        })
        .collect()
}

fn read(dir: BorrowedFd<'_>, name: &ServiceName) -> Result<Record, String> {
    let (file, size) = spool::open_regular(dir, &file_name(name)).map_err(|e| e.to_string())?;
    if size > MAX_FILE {
        return Err(format!("its file has {size} bytes, more than {MAX_FILE}"));
    }
    let mut text = Vec::new();
    File::from(file).take(MAX_FILE).read_to_end(&mut text).map_err(|e| e.to_string())?;
    let mut record: Record = serde_json::from_slice(&text).map_err(|e| e.to_string())?;
    if record.format != FORMAT {
        return Err(format!("it is of format {}, and this version knows {FORMAT}", record.format));
    }
    record.spec.check().map_err(|e| e.message)?;
    let old = record.runs.len().saturating_sub(KEPT_RUNS);
    record.runs.drain(..old);
    Ok(record)
}

/// Replaces a definition atomically, and returns when it is on disk.
pub(super) fn save(dir: BorrowedFd<'_>, name: &ServiceName, record: &Record) -> io::Result<()> {
    let text = serde_json::to_vec(record)?;
    let fresh = format!("{name}.new");
    // O_EXCL fails if a leftover has the name. Without it, a write could go through a link.
    spool::remove_tree(dir, fresh.as_bytes())?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::openat(dir, &fresh, flags, Mode::RUSR | Mode::WUSR)?);
    let written = file.write_all(&text).and_then(|()| file.sync_all()).and_then(|()| {
        let renamed = rustix::fs::renameat(dir, &fresh, dir, file_name(name));
        if renamed == Err(Errno::ISDIR) {
            spool::remove_tree(dir, file_name(name).as_bytes())?;
            rustix::fs::renameat(dir, &fresh, dir, file_name(name))?;
        } else {
            renamed?;
        }
        Ok(rustix::fs::fsync(dir)?)
    });
    if written.is_err() {
        let _ = rustix::fs::unlinkat(dir, &fresh, AtFlags::empty());
    }
    written
}

pub(super) fn remove(dir: BorrowedFd<'_>, name: &ServiceName) -> io::Result<()> {
    spool::remove_tree(dir, file_name(name).as_bytes())?;
    Ok(rustix::fs::fsync(dir.as_fd())?)
}

fn file_name(name: &ServiceName) -> String {
    format!("{name}{SUFFIX}")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn name(text: &str) -> ServiceName {
        text.parse().unwrap()
    }

    #[test]
    fn a_definition_is_read_as_it_was_written() {
        let temp = tempfile::tempdir().unwrap();
        let state = File::open(temp.path()).unwrap();
        let dir = directory(state.as_fd()).unwrap();
        let record = Record::new(ServiceSpec::new(["server", "ü\n"]), true, vec![]);
        save(dir.as_fd(), &name("web"), &record).unwrap();
        save(dir.as_fd(), &name("web"), &record).unwrap();
        assert_eq!(load(dir.as_fd()), [(name("web"), Ok(record))]);
        remove(dir.as_fd(), &name("web")).unwrap();
        remove(dir.as_fd(), &name("web")).unwrap();
        assert_eq!(load(dir.as_fd()), []);
    }

    #[test]
    fn damaged_definitions_are_reported_and_affect_no_other() {
        let temp = tempfile::tempdir().unwrap();
        let state = File::open(temp.path()).unwrap();
        let at = temp.path().join("services");
        fs::write(&at, "in the way").unwrap();
        let dir = directory(state.as_fd()).unwrap();
        save(dir.as_fd(), &name("good"), &Record::new(ServiceSpec::new(["a"]), false, vec![])).unwrap();
        fs::write(at.join("cut.json"), r#"{"format":1,"spec":{"ar"#).unwrap();
        fs::write(at.join("deep.json"), "[".repeat(100_000)).unwrap();
        fs::write(at.join("empty.json"), "").unwrap();
        fs::write(at.join("future.json"), r#"{"format":9,"spec":{"argv":["a"]},"wanted":true,"runs":[]}"#)
            .unwrap();
        fs::write(at.join("odd.json"), r#"{"format":1,"spec":{"argv":[]},"wanted":true,"runs":[]}"#).unwrap();
        fs::write(at.join("huge.json"), vec![b' '; usize::try_from(MAX_FILE).unwrap() + 1]).unwrap();
        symlink("/etc/passwd", at.join("link.json")).unwrap();
        fs::create_dir(at.join("dir.json")).unwrap();
        fs::write(at.join("Not A Name.json"), "").unwrap();
        let found = load(dir.as_fd());
        let bad: Vec<&str> = found.iter().filter(|(_, r)| r.is_err()).map(|(n, _)| n.as_str()).collect();
        assert_eq!(bad, ["cut", "deep", "dir", "empty", "future", "huge", "link", "odd"]);
        assert_eq!(found.len(), 9);
        // Defining it again repairs it, whatever has its name.
        for odd in ["link", "dir", "cut"] {
            let record = Record::new(ServiceSpec::new(["a"]), true, vec![]);
            save(dir.as_fd(), &name(odd), &record).unwrap();
            assert!(load(dir.as_fd()).contains(&(name(odd), Ok(record))));
        }
    }
}
