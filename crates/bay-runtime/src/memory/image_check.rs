//! Checks whether images may be restored at all. CRIU wrote them, but the bay's processes chose what is in them, and an
//! examination before the dump says nothing about the moment of the dump. So this reads what CRIU has written, before
//! anything is ended or made because of it.
//!
//! CRIU mounts what the bay had mounted while it still sees paths of the host. Two kinds of mounts refer to other
//! paths: an overlay names its layers; and for a mount of something that was deleted, CRIU makes the deleted thing
//! again by its path, which may now lead through a link. Also, CRIU recognises the guest's socket by a name, and gives
//! it to every process that had anything of that name open.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::Path;

use super::protobuf::{Value, all_fields};

/// The message for images with forbidden content.
pub(super) const MUST_NOT: &str = "what was captured must not go on";
const MOUNTS: &str = "mountpoints-";
const FILES: &str = "files.img";
/// Two numbers that identify the kind of image.
const HEAD: usize = 8;
/// Longest image that is read, far more than mounts and open files usually need. A longer one is refused.
const MAX_BYTES: u64 = 256 << 20;

/// The fields of `mnt_entry` in CRIU's `mnt.proto` that are read.
mod mount_field {
    pub(super) const FILESYSTEM: u64 = 1;
    pub(super) const DEVICE: u64 = 3;
    pub(super) const POINT: u64 = 7;
    pub(super) const DELETED: u64 = 16;
    /// Present only for mounts that the helper makes.
    pub(super) const EXTERNAL_KEY: u64 = 18;
}

/// `enum fstype` in CRIU's `mnt.proto`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Filesystem {
    Unsupported,
    Proc,
    Sysfs,
    Devtmpfs,
    Tmpfs,
    Devpts,
    Cgroup,
    Mqueue,
    Cgroup2,
    /// Any other.
    Other,
}

impl Filesystem {
    fn of(number: u64) -> Self {
        match number {
            0 => Self::Unsupported,
            1 => Self::Proc,
            2 => Self::Sysfs,
            3 => Self::Devtmpfs,
            5 => Self::Tmpfs,
            6 => Self::Devpts,
            12 => Self::Cgroup,
            14 => Self::Mqueue,
            23 => Self::Cgroup2,
            _ => Self::Other,
        }
    }

    /// Mounting it involves no other path.
    fn is_plain(self) -> bool {
        match self {
            Self::Proc
            | Self::Sysfs
            | Self::Tmpfs
            | Self::Devpts
            | Self::Cgroup
            | Self::Mqueue
            | Self::Cgroup2 => true,
            Self::Unsupported | Self::Devtmpfs | Self::Other => false,
        }
    }

    /// CRIU never mounts it itself, because it does not know it, or because it is the host's devtmpfs. A mount of it is
    /// a part of a mount that the helper makes.
    fn is_only_taken_over(self) -> bool {
        matches!(self, Self::Unsupported | Self::Devtmpfs)
    }
}

/// Checks the images in a directory. `listener` is the inode of the guest's socket.
///
/// # Errors
/// The forbidden content, or that the images cannot be read.
pub(super) fn check(images: &Path, listener: u64) -> io::Result<()> {
    for entry in fs::read_dir(images)? {
        let entry = entry?;
        if entry.file_name().as_encoded_bytes().starts_with(MOUNTS.as_bytes()) {
            mounts(&read(&entry.path())?)?;
        }
    }
    let files = images.join(FILES);
    // For CRIU, the socket has the name of a file in the root directory.
    let impostor = format!("/socket:[{listener}]");
    if files.exists() && read(&files)?.windows(impostor.len()).any(|at| at == impostor.as_bytes()) {
        return Err(refused(format!("an open file is called {impostor}, like the guest's socket")));
    }
    Ok(())
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    if fs::metadata(path)?.len() > MAX_BYTES {
        return Err(refused(format!("{} is larger than {MAX_BYTES} bytes", path.display())));
    }
    fs::read(path)
}

fn refused(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

struct Mount {
    filesystem: Filesystem,
    device: u64,
    point: String,
    removed: bool,
    ours: bool,
}

impl Mount {
    /// None for an entry that cannot be parsed to its end, or lacks a field that every mount has.
    fn read(entry: &[u8]) -> Option<Self> {
        let (mut filesystem, mut device, mut point) = (None, None, None);
        let (mut removed, mut ours) = (false, false);
        for (field, value) in all_fields(entry)? {
            match (field, value) {
                (mount_field::FILESYSTEM, Value::Number(number)) => filesystem = Some(Filesystem::of(number)),
                (mount_field::DEVICE, Value::Number(number)) => device = Some(number),
                (mount_field::POINT, Value::Bytes(text)) => {
                    point = Some(String::from_utf8_lossy(text).into_owned());
                }
                (mount_field::DELETED, Value::Number(deleted)) => removed = deleted != 0,
                (mount_field::EXTERNAL_KEY, Value::Bytes(_)) => ours = true,
                _ => {}
            }
        }
        Some(Self { filesystem: filesystem?, device: device?, point: point?, removed, ours })
    }
}

fn mounts(image: &[u8]) -> io::Result<()> {
    let broken = || refused("the image of the mounts is broken".to_owned());
    let mut all = Vec::new();
    let mut rest = image.get(HEAD..).ok_or_else(broken)?;
    while let Some((length, after)) = rest.split_first_chunk() {
        let length = usize::try_from(u32::from_le_bytes(*length)).map_err(|_| broken())?;
        let (entry, after) = after.split_at_checked(length).ok_or_else(broken)?;
        all.push(Mount::read(entry).ok_or_else(broken)?);
        rest = after;
    }
    let ours: HashSet<u64> = all.iter().filter(|mount| mount.ours).map(|mount| mount.device).collect();
    for mount in all.iter().filter(|mount| !mount.ours) {
        let point = &mount.point;
        if mount.removed {
            return Err(refused(format!("what is mounted at {point} was removed")));
        }
        let taken = mount.filesystem.is_only_taken_over() && ours.contains(&mount.device);
        if !mount.filesystem.is_plain() && !taken {
            return Err(refused(format!(
                "the filesystem mounted at {point} is of a kind that cannot be captured, such as an overlay"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::protobuf::Message;
    use super::*;

    fn mount(kind: u64, device: u64, point: &str) -> Message {
        let mut mount = Message::default();
        mount.number(mount_field::FILESYSTEM, kind).number(mount_field::DEVICE, device);
        mount.bytes(mount_field::POINT, point.as_bytes());
        mount
    }

    fn image(mounts: &[Message]) -> Vec<u8> {
        let mut image = vec![7; HEAD];
        for mount in mounts {
            image.extend(u32::try_from(mount.as_bytes().len()).unwrap().to_le_bytes());
            image.extend(mount.as_bytes());
        }
        image
    }

    #[test]
    fn mounts_that_name_paths_of_their_own_are_refused() {
        let mut workspace = mount(0, 47, "/workspace");
        workspace.bytes(mount_field::EXTERNAL_KEY, b"workspace");
        let usual = [workspace, mount(0, 47, "/"), mount(5, 50, "/run"), mount(23, 51, "/sys/fs/cgroup")];
        mounts(&image(&usual)).unwrap();
        let with = |more: Message| mounts(&image(&[&usual[..], &[more]].concat())).unwrap_err().to_string();
        assert!(with(mount(17, 60, "/merged")).contains("/merged"));
        // Also at the mount point of one of the helper's mounts, or beside it.
        assert!(with(mount(17, 47, "/merged")).contains("/merged"));
        // On a filesystem from which no mount of the helper comes.
        assert!(with(mount(0, 61, "/elsewhere")).contains("/elsewhere"));
        let mut removed = mount(5, 50, "/was");
        removed.number(mount_field::DELETED, 1);
        assert!(with(removed).contains("/was was removed"));
        // A truncated image hides nothing.
        let whole = image(&usual);
        assert!(mounts(&whole[..whole.len() - 1]).is_err());
        assert!(mounts(&whole[..4]).is_err());
    }

    #[test]
    fn an_unknown_field_hides_nothing_after_it() {
        const FIXED: &[u8] = &[19 << 3 & 0x7f | 0x80 | 1, 1, 0, 0, 0, 0, 0, 0, 0, 0];
        let mut odd = mount(5, 50, "/was");
        let before = odd.as_bytes().len();
        odd.number(mount_field::DELETED, 1);
        let (known, behind) = odd.as_bytes().split_at(before);
        let entry = [known, FIXED, behind].concat();
        let length = u32::try_from(entry.len()).unwrap().to_le_bytes();
        let whole = [&[7; HEAD][..], &length, &entry].concat();
        assert!(mounts(&whole).is_err());
        // An entry that lacks a required field does not pass for another.
        let mut lacking = Message::default();
        lacking.number(mount_field::FILESYSTEM, 5).number(mount_field::DEVICE, 50);
        assert!(mounts(&image(&[lacking])).is_err());
    }

    #[test]
    fn nobody_but_the_guest_gets_its_socket() {
        let images = tempfile::tempdir().unwrap();
        let files = images.path().join(FILES);
        check(images.path(), 4711).unwrap();
        fs::write(&files, b"12345678....\x32\x0f/workspace/file").unwrap();
        check(images.path(), 4711).unwrap();
        fs::write(&files, b"12345678....\x32\x0e/socket:[4711]").unwrap();
        assert!(check(images.path(), 4711).unwrap_err().to_string().contains("/socket:[4711]"));
        check(images.path(), 471).unwrap();
    }
}
