//! What the interface reports of a file: its kind, owner, permissions, the target of a link, and its metadata.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use jiff::Timestamp;
use rustix::fs::{FileType, OFlags, Stat, XattrFlags};
use rustix::io::Errno;
use serde::Serialize;

use super::caller::{clean, split};
use super::fault::{Fault, Kind, Result};
use crate::files::{FileError, path};
use crate::users::Names;

/// Prefix of the extended attributes that hold metadata.
const NAMESPACE: &str = "user.e2b.";
/// Longest list of attribute names, and longest value, in the kernel.
const MAX_ATTRIBUTES: usize = 64 << 10;
/// Longest name of a metadata entry: the kernel's longest attribute name without the prefix.
const MAX_KEY: usize = 255 - NAMESPACE.len();
/// Most metadata of one file, in bytes: names with their prefix, and values.
const MAX_METADATA: usize = 4096;

pub(super) type Metadata = BTreeMap<String, String>;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Entry {
    pub(super) name: String,
    #[serde(rename = "type")]
    pub(super) kind: EntryKind,
    pub(super) path: String,
    /// 64-bit numbers are text in protobuf's JSON.
    size: String,
    mode: u32,
    permissions: String,
    owner: String,
    group: String,
    modified_time: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    symlink_target: Option<String>,
    #[serde(skip_serializing_if = "Metadata::is_empty")]
    metadata: Metadata,
    /// Whether the entry itself is a link. Its kind is then the kind of the target.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    is_symlink: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) enum EntryKind {
    #[serde(rename = "FILE_TYPE_UNSPECIFIED")]
    Other,
    #[serde(rename = "FILE_TYPE_FILE")]
    File,
    #[serde(rename = "FILE_TYPE_DIRECTORY")]
    Directory,
    #[serde(rename = "FILE_TYPE_SYMLINK")]
    Symlink,
}

impl Entry {
    pub(super) fn is_link(&self) -> bool {
        self.is_symlink
    }
}

impl From<&Stat> for EntryKind {
    fn from(stat: &Stat) -> Self {
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => EntryKind::File,
            FileType::Directory => EntryKind::Directory,
            FileType::Symlink => EntryKind::Symlink,
            _ => EntryKind::Other,
        }
    }
}

/// Describes the file at a clean absolute path. Of a link, kind, mode and metadata are those of its target, whose
/// path is added. Everything else is the link's own.
pub(super) fn describe(root: BorrowedFd<'_>, names: &Names, path: &str) -> Result<Entry> {
    let own = path::stat(root, path.as_bytes(), false)?;
    let is_symlink = FileType::from_raw_mode(own.st_mode) == FileType::Symlink;
    let (symlink_target, seen) = match is_symlink {
        false => (None, own),
        true => match path::open(root, path.as_bytes(), OFlags::PATH) {
            // A link whose target does not exist is described as a link, with that path.
            Err(_) => (raw_target(root, path), own),
            Ok(fd) => {
                let seen =
                    rustix::fs::fstat(&fd).map_err(|e| FileError::io("looking at", path.as_bytes(), e))?;
                (real_path(root, &fd).or_else(|| raw_target(root, path)), seen)
            }
        },
    };
    Ok(Entry {
        name: split(path).map_or("/", |(_, name)| name).to_owned(),
        kind: (&seen).into(),
        path: path.to_owned(),
        size: own.st_size.to_string(),
        mode: seen.st_mode & 0o777,
        permissions: permissions(own.st_mode),
        owner: names.user(own.st_uid),
        group: names.group(own.st_gid),
        modified_time: modified(&own),
        symlink_target,
        metadata: metadata_at(root, path, &seen),
        is_symlink,
    })
}

fn modified(stat: &Stat) -> Timestamp {
    let nanoseconds = i32::try_from(stat.st_mtime_nsec).unwrap_or(0);
    Timestamp::new(stat.st_mtime, nanoseconds).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// The path of an open file, as seen from the root.
pub(super) fn real_path(root: BorrowedFd<'_>, fd: &OwnedFd) -> Option<String> {
    let place = kernel_path(fd.as_fd())?;
    let top = kernel_path(root)?;
    if top == "/" {
        return Some(place);
    }
    match place.strip_prefix(&top)? {
        "" => Some("/".to_owned()),
        rest => rest.starts_with('/').then(|| rest.to_owned()),
    }
}

/// The path that the kernel reports for an open file.
pub(super) fn kernel_path(fd: BorrowedFd<'_>) -> Option<String> {
    let link = format!("/proc/self/fd/{}", fd.as_raw_fd());
    rustix::fs::readlink(link, Vec::new()).ok()?.into_string().ok()
}

fn raw_target(root: BorrowedFd<'_>, path: &str) -> Option<String> {
    let (parent, name) = split(path)?;
    let dir = path::open(root, parent.as_bytes(), OFlags::PATH | OFlags::DIRECTORY).ok()?;
    let target = rustix::fs::readlinkat(dir, name, Vec::new()).ok()?.into_string().ok()?;
    Some(clean(&if target.starts_with('/') { target } else { format!("{parent}/{target}") }))
}

/// Mode bits in the notation of Go, which clients show: a letter for each kind and special bit that is set, then the
/// nine letters of the permissions.
fn permissions(mode: u32) -> String {
    let kind = FileType::from_raw_mode(mode);
    let mut text = String::new();
    let special = [
        ('d', kind == FileType::Directory),
        ('L', kind == FileType::Symlink),
        ('D', matches!(kind, FileType::BlockDevice | FileType::CharacterDevice)),
        ('p', kind == FileType::Fifo),
        ('S', kind == FileType::Socket),
        ('u', mode & 0o4000 != 0),
        ('g', mode & 0o2000 != 0),
        ('c', kind == FileType::CharacterDevice),
        ('t', mode & 0o1000 != 0),
    ];
    text.extend(special.iter().filter(|(_, set)| *set).map(|(letter, _)| letter));
    if text.is_empty() {
        text.push('-');
    }
    let bits = (0..9).map(|n| if mode & (0o400 >> n) == 0 { '-' } else { char::from(b"rwx"[n % 3]) });
    text.extend(bits);
    text
}

/// Refuses metadata that is not printable, has no name, or is longer than the bounds above.
pub(super) fn check_metadata(wanted: &Metadata) -> Result<()> {
    let printable = |text: &str| text.bytes().all(|b| (0x20..=0x7e).contains(&b));
    let mut total = 0;
    for (key, value) in wanted {
        if key.is_empty() || !printable(key) || !printable(value) {
            return Err(Fault::invalid("metadata must be printable ASCII, with a name"));
        }
        if key.len() > MAX_KEY {
            return Err(Fault::invalid(format!(
                "the name of a piece of metadata is longer than {MAX_KEY} bytes"
            )));
        }
        total += NAMESPACE.len() + key.len() + value.len();
    }
    if total > MAX_METADATA {
        return Err(Fault::invalid(format!("the metadata of a file is longer than {MAX_METADATA} bytes")));
    }
    Ok(())
}

/// Replaces a file's metadata.
pub(super) fn write_metadata(file: BorrowedFd<'_>, wanted: &Metadata) -> Result<()> {
    let refused = |e: Errno| match e {
        Errno::OPNOTSUPP => Fault::new(Kind::Invalid, "the filesystem keeps no metadata with files"),
        Errno::NOSPC | Errno::DQUOT | Errno::TOOBIG | Errno::RANGE => {
            Fault::new(Kind::NoSpace, "the filesystem has no room for the metadata")
        }
        e => Fault::new(Kind::Internal, format!("the metadata could not be written: {e}")),
    };
    for name in attribute_names(file) {
        if !wanted.contains_key(&name[NAMESPACE.len()..]) {
            match rustix::fs::fremovexattr(file, &*name) {
                Ok(()) | Err(Errno::NODATA) => {}
                Err(e) => return Err(refused(e)),
            }
        }
    }
    for (key, value) in wanted {
        let name = format!("{NAMESPACE}{key}");
        rustix::fs::fsetxattr(file, &*name, value.as_bytes(), XattrFlags::empty()).map_err(refused)?;
    }
    Ok(())
}

fn metadata_at(root: BorrowedFd<'_>, path: &str, seen: &Stat) -> Metadata {
    let kind = FileType::from_raw_mode(seen.st_mode);
    if !matches!(kind, FileType::RegularFile | FileType::Directory) {
        return Metadata::new();
    }
    // The file may have been replaced meanwhile. Opening it only must not block.
    match path::open(root, path.as_bytes(), OFlags::RDONLY | OFlags::NONBLOCK) {
        Ok(fd) => read_metadata(fd.as_fd()),
        Err(_) => Metadata::new(),
    }
}

pub(super) fn read_metadata(file: BorrowedFd<'_>) -> Metadata {
    let mut all = Metadata::new();
    for name in attribute_names(file) {
        let mut value = vec![0; MAX_ATTRIBUTES];
        if let Ok(len) = rustix::fs::fgetxattr(file, &*name, &mut value) {
            let text = String::from_utf8_lossy(&value[..len]).into_owned();
            all.insert(name[NAMESPACE.len()..].to_owned(), text);
        }
    }
    all
}

/// Names of a file's metadata attributes.
fn attribute_names(file: BorrowedFd<'_>) -> Vec<String> {
    // Most files have none.
    let Ok(len @ 1..) = rustix::fs::flistxattr_query(file) else {
        return Vec::new();
    };
    let mut list = vec![0; len.min(MAX_ATTRIBUTES)];
    let Ok(len) = rustix::fs::flistxattr(file, &mut list) else {
        return Vec::new();
    };
    list[..len]
        .split(|b| *b == 0)
        .filter_map(|name| String::from_utf8(name.to_vec()).ok())
        .filter(|name| name.len() > NAMESPACE.len() && name.starts_with(NAMESPACE))
        .collect()
}

/// The fault for a failed system call on a path.
pub(super) fn failed(what: &'static str, path: &str, error: impl Into<io::Error>) -> Fault {
    FileError::io(what, path.as_bytes(), error).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_read_as_clients_expect() {
        for (mode, text) in [
            (0o100_644, "-rw-r--r--"),
            (0o040_755, "drwxr-xr-x"),
            (0o120_777, "Lrwxrwxrwx"),
            (0o041_777, "dtrwxrwxrwx"),
            (0o104_755, "urwxr-xr-x"),
            (0o020_620, "Dcrw--w----"),
            (0o060_660, "Drw-rw----"),
            (0o010_600, "prw-------"),
            (0o140_700, "Srwx------"),
        ] {
            assert_eq!(permissions(mode), text, "{mode:o}");
        }
    }

    #[test]
    fn metadata_that_no_filesystem_or_header_could_hold_is_refused() {
        let one = |key: &str, value: &str| Metadata::from([(key.to_owned(), value.to_owned())]);
        assert!(check_metadata(&one("author", "me")).is_ok());
        assert!(check_metadata(&one("", "me")).is_err());
        assert!(check_metadata(&one("author", "m\ne")).is_err());
        assert!(check_metadata(&one("author", "ä")).is_err());
        assert!(check_metadata(&one(&"k".repeat(246), "")).is_ok());
        assert!(check_metadata(&one(&"k".repeat(247), "")).is_err());
        assert!(check_metadata(&one("k", &"v".repeat(4096))).is_err());
    }
}
