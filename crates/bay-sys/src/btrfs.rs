//! btrfs by its ioctls: subvolumes, snapshots, quotas, resizing, and some items of its trees.
//!
//! The layouts are those of `<linux/btrfs.h>`; a test checks their sizes. Names are single path components: the kernel
//! refuses a slash, and `name_into` refuses names that would be truncated or misread.

use std::ffi::OsStr;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;

mod tree;

pub use tree::{
    Extent, Inode, bytes_written_since_birth, extents_since, inodes_changed_since, made_in_generation,
    qgroup_list, qgroup_usage, subvolume_children, subvolume_exists,
};

const MAGIC: u32 = 0x94;
const NAME_V1: usize = 4088;
const NAME_V2: usize = 4040;
/// Longest name of a subvolume; the same as for files.
const NAME_MAX: usize = 255;

const SUBVOL_RDONLY: u64 = 1 << 1;
const SUBVOL_QGROUP_INHERIT: u64 = 1 << 2;
const SUBVOL_SPEC_BY_ID: u64 = 1 << 4;

const QUOTA_ENABLE: u64 = 1;
const QUOTA_ENABLE_SIMPLE: u64 = 4;
const QGROUP_LIMIT_MAX_EXCL: u64 = 1 << 1;

/// Inode number of the top directory of every subvolume.
pub const SUBVOLUME_ROOT_INODE: u64 = 256;

#[repr(C)]
struct VolArgs {
    fd: i64,
    name: [u8; NAME_V1],
}

#[repr(C)]
struct VolArgsV2 {
    fd: i64,
    transid: u64,
    flags: u64,
    /// With `SUBVOL_QGROUP_INHERIT`: size of and pointer to a [`QgroupInherit`].
    inherit_size: u64,
    inherit: u64,
    unused: [u64; 2],
    /// A name, or with `SUBVOL_SPEC_BY_ID` a subvolume id in its first eight bytes.
    name: [u8; NAME_V2],
}

#[repr(C)]
#[derive(Default)]
struct QgroupLimit {
    flags: u64,
    max_rfer: u64,
    max_excl: u64,
    rsv_rfer: u64,
    rsv_excl: u64,
}

#[repr(C)]
struct QgroupInherit {
    flags: u64,
    num_qgroups: u64,
    num_ref_copies: u64,
    num_excl_copies: u64,
    lim: QgroupLimit,
    qgroups: [u64; 1],
}

#[repr(C)]
struct QuotaCtl {
    cmd: u64,
    status: u64,
}

#[repr(C)]
struct QgroupCreate {
    create: u64,
    qgroupid: u64,
}

#[repr(C)]
struct QgroupAssign {
    assign: u64,
    src: u64,
    dst: u64,
}

#[repr(C)]
struct QgroupLimitArgs {
    qgroupid: u64,
    lim: QgroupLimit,
}

#[repr(C)]
struct QuotaRescan([u64; 8]);

#[repr(C)]
struct Timespec {
    sec: u64,
    nsec: u32,
}

#[repr(C)]
struct SubvolInfo {
    treeid: u64,
    name: [u8; 256],
    parent_id: u64,
    dirid: u64,
    generation: u64,
    flags: u64,
    uuid: [u8; 16],
    parent_uuid: [u8; 16],
    received_uuid: [u8; 16],
    ctransid: u64,
    otransid: u64,
    stransid: u64,
    rtransid: u64,
    times: [Timespec; 4],
    reserved: [u64; 8],
}

#[repr(C)]
struct InodeLookup {
    /// The subvolume; 0 for the one of the descriptor.
    treeid: u64,
    objectid: u64,
    name: [u8; LOOKUP_NAME],
}
const LOOKUP_NAME: usize = 4080;

#[repr(C)]
struct FsInfo {
    max_id: u64,
    num_devices: u64,
    fsid: [u8; 16],
    rest: [u8; 992],
}

const fn request(direction: u32, number: u32, size: usize) -> u32 {
    (direction << 30) | ((size as u32) << 16) | (MAGIC << 8) | number
}
const WRITE: u32 = 1;
const READ: u32 = 2;

const IOC_RESIZE: u32 = request(WRITE, 3, size_of::<VolArgs>());
const IOC_SYNC: u32 = request(0, 8, 0);
const IOC_SNAP_DESTROY: u32 = request(WRITE, 15, size_of::<VolArgs>());
const IOC_INO_LOOKUP: u32 = request(READ | WRITE, 18, size_of::<InodeLookup>());
const IOC_WAIT_SYNC: u32 = request(WRITE, 22, size_of::<u64>());
const IOC_SNAP_CREATE_V2: u32 = request(WRITE, 23, size_of::<VolArgsV2>());
const IOC_SUBVOL_CREATE_V2: u32 = request(WRITE, 24, size_of::<VolArgsV2>());
const IOC_START_SYNC: u32 = request(READ, 24, size_of::<u64>());
const IOC_SUBVOL_GETFLAGS: u32 = request(READ, 25, size_of::<u64>());
const IOC_SUBVOL_SETFLAGS: u32 = request(WRITE, 26, size_of::<u64>());
const IOC_FS_INFO: u32 = request(READ, 31, size_of::<FsInfo>());
const IOC_QUOTA_CTL: u32 = request(READ | WRITE, 40, size_of::<QuotaCtl>());
const IOC_QGROUP_ASSIGN: u32 = request(WRITE, 41, size_of::<QgroupAssign>());
const IOC_QGROUP_CREATE: u32 = request(WRITE, 42, size_of::<QgroupCreate>());
const IOC_QGROUP_LIMIT: u32 = request(READ, 43, size_of::<QgroupLimitArgs>());
const IOC_QUOTA_RESCAN: u32 = request(WRITE, 44, size_of::<QuotaRescan>());
const IOC_GET_SUBVOL_INFO: u32 = request(READ, 60, size_of::<SubvolInfo>());
const IOC_SNAP_DESTROY_V2: u32 = request(WRITE, 63, size_of::<VolArgsV2>());

/// Calls a btrfs ioctl with a structure of the layout that belongs to the request number.
fn call<T>(fd: impl AsFd, request: u32, argument: &mut T) -> io::Result<i32> {
    // SAFETY: `argument` is a live, exclusive reference to a `repr(C)` value of exactly the layout from which `request`
    // was encoded (the constants above pair them, and a test checks the sizes). So the kernel reads and writes only
    // inside it. Pointers in it (`VolArgsV2::inherit`) are set by the two callers to values that outlive the call.
    // Needed because no well-maintained crate wraps these ioctls.
    let result = unsafe {
        libc::ioctl(fd.as_fd().as_raw_fd(), libc::Ioctl::from(request), std::ptr::from_mut(argument))
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Copies a single path component, checked.
fn name_into<const N: usize>(name: &OsStr, buffer: &mut [u8; N]) -> io::Result<()> {
    let bytes = name.as_bytes();
    if bytes.is_empty()
        || bytes.len() > NAME_MAX
        || bytes == b"."
        || bytes == b".."
        || bytes.iter().any(|byte| matches!(byte, 0 | b'/'))
    {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    buffer[..bytes.len()].copy_from_slice(bytes);
    Ok(())
}

/// A quota group: `level/id`. Each group of level 0 belongs to one subvolume and has its id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Qgroup(u64);

impl Qgroup {
    const LEVEL_SHIFT: u32 = 48;

    #[must_use]
    pub fn new(level: u16, id: u64) -> Self {
        Self((u64::from(level) << Self::LEVEL_SHIFT) | (id & ((1 << Self::LEVEL_SHIFT) - 1)))
    }

    #[must_use]
    pub fn level(self) -> u16 {
        (self.0 >> Self::LEVEL_SHIFT) as u16
    }

    #[must_use]
    pub fn id(self) -> u64 {
        self.0 & ((1 << Self::LEVEL_SHIFT) - 1)
    }
}

/// How the kernel accounts for quotas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuotaKind {
    /// An extent is charged permanently to the subvolume that wrote it (kernel 6.7 and later). It costs almost nothing.
    Simple,
    /// Shared and exclusive bytes are tracked, which makes every snapshot and deletion more expensive.
    Full,
}

#[must_use]
fn volume(fd: i64) -> Box<VolArgsV2> {
    Box::new(VolArgsV2 {
        fd,
        transid: 0,
        flags: 0,
        inherit_size: 0,
        inherit: 0,
        unused: [0; 2],
        name: [0; NAME_V2],
    })
}

fn inherit_of(group: Qgroup) -> QgroupInherit {
    QgroupInherit {
        flags: 0,
        num_qgroups: 1,
        num_ref_copies: 0,
        num_excl_copies: 0,
        lim: QgroupLimit::default(),
        qgroups: [group.0],
    }
}

/// Whether this file or directory is on btrfs.
pub fn is_btrfs(fd: impl AsFd) -> io::Result<bool> {
    const BTRFS_SUPER_MAGIC: u64 = 0x9123_683E;
    Ok(rustix::fs::fstatfs(fd)?.f_type as u64 & 0xFFFF_FFFF == BTRFS_SUPER_MAGIC)
}

/// Makes an empty subvolume `name` in the directory. Counts it in `group` too, if given.
pub fn subvolume_create(directory: impl AsFd, name: &OsStr, group: Option<Qgroup>) -> io::Result<()> {
    let mut arguments = volume(0);
    name_into(name, &mut arguments.name)?;
    let inherit = group.map(inherit_of);
    if let Some(inherit) = &inherit {
        arguments.flags |= SUBVOL_QGROUP_INHERIT;
        arguments.inherit_size = size_of::<QgroupInherit>() as u64;
        arguments.inherit = std::ptr::from_ref(inherit) as u64;
    }
    call(directory, IOC_SUBVOL_CREATE_V2, &mut *arguments).map(drop)
}

/// Makes `name` in the directory a snapshot of the subvolume `source`. Counts it in `group` too, if given.
pub fn snapshot(
    source: impl AsFd,
    directory: impl AsFd,
    name: &OsStr,
    read_only: bool,
    group: Option<Qgroup>,
) -> io::Result<()> {
    let mut arguments = volume(i64::from(source.as_fd().as_raw_fd()));
    name_into(name, &mut arguments.name)?;
    if read_only {
        arguments.flags |= SUBVOL_RDONLY;
    }
    let inherit = group.map(inherit_of);
    if let Some(inherit) = &inherit {
        arguments.flags |= SUBVOL_QGROUP_INHERIT;
        arguments.inherit_size = size_of::<QgroupInherit>() as u64;
        arguments.inherit = std::ptr::from_ref(inherit) as u64;
    }
    call(directory, IOC_SNAP_CREATE_V2, &mut *arguments).map(drop)
}

/// Deletes the subvolume `name` in the directory. `ENOTEMPTY` if it contains subvolumes.
pub fn subvolume_destroy(directory: impl AsFd, name: &OsStr) -> io::Result<()> {
    let mut arguments = Box::new(VolArgs { fd: 0, name: [0; NAME_V1] });
    name_into(name, &mut arguments.name)?;
    call(directory, IOC_SNAP_DESTROY, &mut *arguments).map(drop)
}

/// Deletes a subvolume, wherever it is below the mount on which `filesystem` is open.
pub fn subvolume_destroy_by_id(filesystem: impl AsFd, id: u64) -> io::Result<()> {
    let mut arguments = volume(0);
    arguments.flags = SUBVOL_SPEC_BY_ID;
    arguments.name[..8].copy_from_slice(&id.to_ne_bytes());
    call(filesystem, IOC_SNAP_DESTROY_V2, &mut *arguments).map(drop)
}

/// What the filesystem records about a subvolume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subvolume {
    pub id: u64,
    pub uuid: [u8; 16],
    /// The subvolume of which this one was a snapshot. All zero if it was made empty.
    pub parent_uuid: [u8; 16],
    /// The transaction in which it was made. Later extents were written through it.
    pub born: u64,
    /// The last committed transaction that changed it.
    pub generation: u64,
    /// When it was made: seconds and nanoseconds.
    pub made_at: (u64, u32),
}

/// The subvolume of this file or directory.
pub fn subvolume_info(fd: impl AsFd) -> io::Result<Subvolume> {
    let mut info = Box::new(SubvolInfo {
        treeid: 0,
        name: [0; 256],
        parent_id: 0,
        dirid: 0,
        generation: 0,
        flags: 0,
        uuid: [0; 16],
        parent_uuid: [0; 16],
        received_uuid: [0; 16],
        ctransid: 0,
        otransid: 0,
        stransid: 0,
        rtransid: 0,
        times: [const { Timespec { sec: 0, nsec: 0 } }; 4],
        reserved: [0; 8],
    });
    call(fd, IOC_GET_SUBVOL_INFO, &mut *info)?;
    // In the order of the header: changed, made, sent, received.
    let made = &info.times[1];
    Ok(Subvolume {
        id: info.treeid,
        uuid: info.uuid,
        parent_uuid: info.parent_uuid,
        born: info.otransid,
        generation: info.generation,
        made_at: (made.sec, made.nsec),
    })
}

/// Whether this open directory is the top of a subvolume.
pub fn is_subvolume(directory: impl AsFd) -> io::Result<bool> {
    let directory = directory.as_fd();
    Ok(rustix::fs::fstat(directory)?.st_ino == SUBVOLUME_ROOT_INODE && is_btrfs(directory)?)
}

/// Sets or clears the read-only flag of the subvolume whose top directory is `top`.
pub fn set_read_only(top: impl AsFd, read_only: bool) -> io::Result<()> {
    let top = top.as_fd();
    let mut flags: u64 = 0;
    call(top, IOC_SUBVOL_GETFLAGS, &mut flags)?;
    let mut wanted = if read_only { flags | SUBVOL_RDONLY } else { flags & !SUBVOL_RDONLY };
    if wanted != flags {
        call(top, IOC_SUBVOL_SETFLAGS, &mut wanted)?;
    }
    Ok(())
}

/// The filesystem's id, under which it is in `/sys/fs/btrfs`.
pub fn filesystem_id(fd: impl AsFd) -> io::Result<[u8; 16]> {
    let mut info = Box::new(FsInfo { max_id: 0, num_devices: 0, fsid: [0; 16], rest: [0; 992] });
    call(fd, IOC_FS_INFO, &mut *info)?;
    Ok(info.fsid)
}

/// Commits everything that was written so far, except files that a program overwrites at this very moment: for an
/// instant, the kernel takes those off the list of what it flushes, here and for a snapshot. `syncfs` flushes them too.
pub fn sync(fd: impl AsFd) -> io::Result<()> {
    let mut nothing = 0_u64;
    call(fd, IOC_SYNC, &mut nothing).map(drop)
}

/// Commits the changes of names and attributes so far, but no data that is still in memory. Data in existing files is
/// committed by [`sync`].
pub fn commit(fd: impl AsFd) -> io::Result<()> {
    let fd = fd.as_fd();
    let mut transaction = 0_u64;
    call(fd, IOC_START_SYNC, &mut transaction)?;
    call(fd, IOC_WAIT_SYNC, &mut transaction).map(drop)
}

/// A path of an inode, relative to the top of the subvolume of `top`. None if the inode is gone or the path is too
/// long.
pub fn inode_path(top: impl AsFd, inode: u64) -> io::Result<Option<Vec<u8>>> {
    let mut lookup = Box::new(InodeLookup { treeid: 0, objectid: inode, name: [0; LOOKUP_NAME] });
    match call(top, IOC_INO_LOOKUP, &mut *lookup) {
        Ok(_) => {}
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENAMETOOLONG)) => {
            return Ok(None);
        }
        Err(error) => return Err(error),
    }
    let length = lookup.name.iter().position(|byte| *byte == 0).unwrap_or(LOOKUP_NAME);
    // The kernel writes it like a directory's, even if it is none.
    let path = lookup.name[..length].strip_suffix(b"/").unwrap_or(&lookup.name[..length]);
    Ok(Some(path.to_vec()))
}

/// Makes the filesystem this small. The kernel first moves what lies beyond, which takes time in proportion to it, and
/// then commits the new size. It may also answer with success and do nothing, if something else rearranges the
/// filesystem; the caller compares the size.
pub fn resize_to(filesystem: impl AsFd, bytes: u64) -> io::Result<()> {
    let mut arguments = Box::new(VolArgs { fd: 0, name: [0; NAME_V1] });
    let text = bytes.to_string();
    arguments.name[..text.len()].copy_from_slice(text.as_bytes());
    call(filesystem, IOC_RESIZE, &mut *arguments).map(drop)
}

/// Grows the filesystem to the present size of its (only) device.
pub fn resize_to_device(filesystem: impl AsFd) -> io::Result<()> {
    let mut arguments = Box::new(VolArgs { fd: 0, name: [0; NAME_V1] });
    arguments.name[..3].copy_from_slice(b"max");
    call(filesystem, IOC_RESIZE, &mut *arguments).map(drop)
}

/// Turns quotas on, simple quotas if the kernel has them. Does nothing if quotas (of either kind) are on.
pub fn quota_enable(filesystem: impl AsFd) -> io::Result<QuotaKind> {
    let filesystem = filesystem.as_fd();
    let mut control = QuotaCtl { cmd: QUOTA_ENABLE_SIMPLE, status: 0 };
    match call(filesystem, IOC_QUOTA_CTL, &mut control) {
        Ok(_) => return Ok(QuotaKind::Simple),
        Err(error)
            if matches!(
                error.raw_os_error(),
                Some(libc::EINVAL | libc::EOPNOTSUPP | libc::ENOTTY | libc::EPERM)
            ) => {}
        Err(error) => return Err(error),
    }
    call(filesystem, IOC_QUOTA_CTL, &mut QuotaCtl { cmd: QUOTA_ENABLE, status: 0 })?;
    Ok(QuotaKind::Full)
}

/// Makes a quota group. Does nothing if it exists.
pub fn qgroup_create(filesystem: impl AsFd, group: Qgroup) -> io::Result<()> {
    match call(filesystem, IOC_QGROUP_CREATE, &mut QgroupCreate { create: 1, qgroupid: group.0 }) {
        Err(error) if error.raw_os_error() == Some(libc::EEXIST) => Ok(()),
        other => other.map(drop),
    }
}

/// Removes a quota group. Does nothing if it does not exist.
pub fn qgroup_destroy(filesystem: impl AsFd, group: Qgroup) -> io::Result<()> {
    match call(filesystem, IOC_QGROUP_CREATE, &mut QgroupCreate { create: 0, qgroupid: group.0 }) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTCONN)) => Ok(()),
        other => other.map(drop),
    }
}

/// Counts `member` in `group` too. Does nothing if it already does.
pub fn qgroup_assign(filesystem: impl AsFd, member: Qgroup, group: Qgroup) -> io::Result<()> {
    match call(filesystem, IOC_QGROUP_ASSIGN, &mut QgroupAssign { assign: 1, src: member.0, dst: group.0 }) {
        Err(error) if error.raw_os_error() == Some(libc::EEXIST) => Ok(()),
        other => other.map(drop),
    }
}

/// Makes the kernel recount every group. If a member with shared extents joined a group, its numbers are wrong until
/// then. Simple quotas need no recount and return an error.
pub fn quota_rescan(filesystem: impl AsFd) -> io::Result<()> {
    call(filesystem, IOC_QUOTA_RESCAN, &mut QuotaRescan([0; 8])).map(drop)
}

/// "No limit" for [`qgroup_limit`].
pub const NO_LIMIT: u64 = u64::MAX;

/// Limits the bytes that only this group has.
pub fn qgroup_limit(filesystem: impl AsFd, group: Qgroup, bytes: u64) -> io::Result<()> {
    let lim = QgroupLimit { flags: QGROUP_LIMIT_MAX_EXCL, max_excl: bytes, ..QgroupLimit::default() };
    call(filesystem, IOC_QGROUP_LIMIT, &mut QgroupLimitArgs { qgroupid: group.0, lim }).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_have_the_sizes_of_the_kernel_header() {
        assert_eq!(size_of::<VolArgs>(), 4096);
        assert_eq!(size_of::<VolArgsV2>(), 4096);
        assert_eq!(size_of::<QgroupInherit>(), 80);
        assert_eq!(size_of::<QgroupLimitArgs>(), 48);
        assert_eq!(size_of::<QuotaRescan>(), 64);
        assert_eq!(size_of::<SubvolInfo>(), 504);
        assert_eq!(size_of::<InodeLookup>(), 4096);
        assert_eq!(size_of::<FsInfo>(), 1024);
        assert_eq!(IOC_SNAP_CREATE_V2, 0x5000_9417);
        assert_eq!(IOC_SUBVOL_CREATE_V2, 0x5000_9418);
    }

    #[test]
    fn a_name_that_is_not_one_component_is_refused() {
        let mut buffer = [0; NAME_V1];
        for name in ["", ".", "..", "a/b", "a\0b"] {
            assert!(name_into(OsStr::new(name), &mut buffer).is_err(), "{name:?}");
        }
        assert!(name_into(OsStr::new(&"x".repeat(256)), &mut buffer).is_err());
        assert!(name_into(OsStr::new("root"), &mut buffer).is_ok());
    }

    #[test]
    fn a_group_keeps_its_level_and_id() {
        let group = Qgroup::new(1, 257);
        assert_eq!((group.level(), group.id()), (1, 257));
    }
}
