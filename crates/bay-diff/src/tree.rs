//! Opening and listing files below a directory, none of which is trusted.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use bay_sys::paths::open_below;
use bay_types::diff::{Node, NodeKind};
use rustix::fs::{AtFlags, Dir, FileType, OFlags, ResolveFlags, Statx, StatxFlags, statx};
use rustix::io::Errno;

/// A tree: its top directory, or `None` for an empty tree.
pub type Tree<'a> = Option<BorrowedFd<'a>>;

/// Longest path that is passed to the kernel in one call. The kernel's limit is 4096 with the NUL.
const MAX_PIECE: usize = 4000;
/// Memory of a name in a listing besides its bytes.
const PER_NAME: usize = size_of::<Name>();

fn resolve() -> ResolveFlags {
    ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV
}

/// Opens a path of any length below `top`.
fn open(top: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> io::Result<OwnedFd> {
    let mut rest = path;
    let mut held: Option<OwnedFd> = None;
    while rest.len() > MAX_PIECE {
        let cut = memchr::memrchr(b'/', &rest[..MAX_PIECE]).ok_or(Errno::NAMETOOLONG)?;
        let at = held.as_ref().map_or(top, |fd| fd.as_fd());
        held = Some(open_below(at, &rest[..cut], OFlags::PATH | OFlags::DIRECTORY, resolve())?);
        rest = &rest[cut + 1..];
    }
    let at = held.as_ref().map_or(top, |fd| fd.as_fd());
    Ok(open_below(at, rest, flags | OFlags::NOFOLLOW, resolve())?)
}

/// Opens a regular file for reading. Another kind of file is refused before opening it could have an effect.
pub(crate) fn open_file(top: BorrowedFd<'_>, path: &[u8]) -> io::Result<File> {
    let seen = open(top, path, OFlags::PATH)?;
    let kind = |fd: BorrowedFd<'_>| {
        let found = statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::TYPE)?;
        Ok::<_, Errno>(FileType::from_raw_mode(found.stx_mode.into()))
    };
    if kind(seen.as_fd())? != FileType::RegularFile {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    let file = open(top, path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)?;
    // In a tree that is not a snapshot, the name may have been replaced between the two calls.
    if kind(file.as_fd())? != FileType::RegularFile {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    Ok(file.into())
}

/// The target of a symbolic link, as bytes.
pub(crate) fn read_link(top: BorrowedFd<'_>, path: &[u8]) -> io::Result<Vec<u8>> {
    let link = open(top, path, OFlags::PATH)?;
    Ok(rustix::fs::readlinkat(link, c"", Vec::new())?.into_bytes())
}

/// What is at a path; `None` if nothing is there, or if it cannot be reached.
pub(crate) fn kind_at(top: BorrowedFd<'_>, path: &[u8]) -> Option<NodeKind> {
    let found = open(top, path, OFlags::PATH).ok()?;
    Meta::at_itself(found.as_fd()).ok().map(|meta| meta.kind)
}

/// The metadata of one path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Meta {
    pub(crate) kind: NodeKind,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Size of a file, or number of names in a directory once it is listed.
    pub(crate) size: u64,
    pub(crate) inode: u64,
    pub(crate) born: (i64, u32),
    changed: (i64, u32),
    modified: (i64, u32),
    /// Major and minor number of a device.
    pub(crate) device: (u32, u32),
}

impl Meta {
    pub(crate) fn at(directory: BorrowedFd<'_>, name: &CStr) -> io::Result<Self> {
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
        Ok(Self::of(&statx(directory, name, flags, StatxFlags::BASIC_STATS | StatxFlags::BTIME)?))
    }

    fn at_itself(fd: BorrowedFd<'_>) -> io::Result<Self> {
        Ok(Self::of(&statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS | StatxFlags::BTIME)?))
    }

    fn of(found: &Statx) -> Self {
        let kind = match FileType::from_raw_mode(found.stx_mode.into()) {
            FileType::Directory => NodeKind::Directory,
            FileType::Symlink => NodeKind::Symlink,
            FileType::Fifo => NodeKind::Fifo,
            FileType::Socket => NodeKind::Socket,
            FileType::CharacterDevice => NodeKind::CharDevice,
            FileType::BlockDevice => NodeKind::BlockDevice,
            FileType::RegularFile | FileType::Unknown => NodeKind::File,
        };
        let directory = kind == NodeKind::Directory;
        Self {
            kind,
            mode: u32::from(found.stx_mode) & 0o7777,
            uid: found.stx_uid,
            gid: found.stx_gid,
            size: if directory { 0 } else { found.stx_size },
            inode: found.stx_ino,
            born: (found.stx_btime.tv_sec, found.stx_btime.tv_nsec),
            changed: (found.stx_ctime.tv_sec, found.stx_ctime.tv_nsec),
            modified: (found.stx_mtime.tv_sec, found.stx_mtime.tv_nsec),
            device: (found.stx_rdev_major, found.stx_rdev_minor),
        }
    }

    /// Whether both are the same unchanged file. No process in a bay can set the change time.
    pub(crate) fn untouched(&self, other: &Self, settled_before: Option<(i64, u32)>) -> bool {
        self == other && settled_before.is_none_or(|moment| self.changed < moment)
    }

    /// What identifies a file, changed or not. Inode numbers can be reused, but with another birth time.
    pub(crate) fn identity(&self) -> (NodeKind, u64, (i64, u32)) {
        (self.kind, self.inode, self.born)
    }

    /// `owners` says whether another owner is a difference.
    pub(crate) fn same_rights(&self, other: &Self, owners: bool) -> bool {
        self.mode == other.mode && (!owners || (self.uid, self.gid) == (other.uid, other.gid))
    }

    pub(crate) fn node(&self, target: Option<&[u8]>) -> Node {
        let device = matches!(self.kind, NodeKind::CharDevice | NodeKind::BlockDevice)
            .then(|| format!("{}:{}", self.device.0, self.device.1));
        Node {
            kind: self.kind,
            mode: self.mode,
            uid: self.uid,
            gid: self.gid,
            size: self.size,
            target: target.map(|bytes| String::from_utf8_lossy(bytes).into_owned()).or(device),
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Name {
    start: usize,
    /// Without the NUL.
    len: u16,
}

/// An open directory with its names, sorted by their bytes.
#[derive(Debug)]
pub(crate) struct Listing {
    directory: OwnedFd,
    /// Each name with its NUL.
    bytes: Vec<u8>,
    names: Vec<Name>,
}

/// Why a directory could not be listed.
#[derive(Debug)]
pub(crate) enum Unlisted {
    TooLarge,
    Failed(io::Error),
}

impl From<io::Error> for Unlisted {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

impl From<Errno> for Unlisted {
    fn from(errno: Errno) -> Self {
        Self::Failed(errno.into())
    }
}

impl Listing {
    /// The top of a tree.
    pub(crate) fn top(top: BorrowedFd<'_>, budget: usize) -> Result<Self, Unlisted> {
        let again = open_below(top, c".", OFlags::RDONLY | OFlags::DIRECTORY, resolve())?;
        Self::read(again, budget, |_| true)
    }

    /// A directory inside it, without the names that `wanted` rejects.
    pub(crate) fn below(
        &self,
        name: &CStr,
        budget: usize,
        wanted: impl Fn(&[u8]) -> bool,
    ) -> Result<Self, Unlisted> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
        Self::read(open_below(&self.directory, name, flags, resolve())?, budget, wanted)
    }

    fn read(directory: OwnedFd, budget: usize, wanted: impl Fn(&[u8]) -> bool) -> Result<Self, Unlisted> {
        let (mut bytes, mut names) = (Vec::new(), Vec::new());
        for entry in Dir::read_from(&directory)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." || !wanted(name) {
                continue;
            }
            let Ok(len) = u16::try_from(name.len()) else { return Err(Errno::NAMETOOLONG.into()) };
            names.push(Name { start: bytes.len(), len });
            bytes.extend_from_slice(entry.file_name().to_bytes_with_nul());
            if bytes.len() + names.len() * PER_NAME > budget {
                return Err(Unlisted::TooLarge);
            }
        }
        let whole = |name: &Name| &bytes[name.start..name.start + usize::from(name.len)];
        names.sort_unstable_by(|a, b| whole(a).cmp(whole(b)));
        Ok(Self { directory, bytes, names })
    }

    pub(crate) fn len(&self) -> usize {
        self.names.len()
    }

    /// Its part of the memory budget.
    pub(crate) fn cost(&self) -> usize {
        self.bytes.len() + self.names.len() * PER_NAME
    }

    pub(crate) fn contains(&self, name: &[u8]) -> bool {
        let bytes = |listed: &Name| &self.bytes[listed.start..listed.start + usize::from(listed.len)];
        self.names.binary_search_by(|listed| bytes(listed).cmp(name)).is_ok()
    }

    pub(crate) fn name(&self, at: usize) -> Option<&CStr> {
        let name = self.names.get(at)?;
        CStr::from_bytes_with_nul(&self.bytes[name.start..=name.start + usize::from(name.len)]).ok()
    }

    pub(crate) fn meta(&self, name: &CStr) -> io::Result<Meta> {
        Meta::at(self.directory.as_fd(), name)
    }
}
