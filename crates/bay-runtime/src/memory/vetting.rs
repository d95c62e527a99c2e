//! Whether images may be restored at all. They are CRIU's, but what is in them the bay's processes have chosen, and a look
//! before the dump says nothing of the moment of the dump. So what CRIU has written is what is read here, before anything
//! is ended for it and before anything is made of it.
//!
//! CRIU mounts what the bay had mounted while it still sees paths of ours. Two kinds of mounts name paths of their own: an
//! overlay names its layers, and a mount of something that was removed since is made by making the removed thing again,
//! by its path, which may lead through a link by now. And CRIU hands the guest's socket, which it knows by a name, to
//! whoever had anything of that name open.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::Path;

use super::wire::{Value, fields};

/// Said of images in which something is found.
pub(super) const MUST_NOT: &str = "what was captured must not go on";
const MOUNTS: &str = "mountpoints-";
const FILES: &str = "files.img";
/// Two numbers that say what kind of image it is.
const HEAD: usize = 8;
/// Longest image that is read: a bay has fewer mounts and open files than this has room for.
const MAX_BYTES: u64 = 256 << 20;

/// CRIU's numbers for kinds of filesystems in which no path of anything else is named.
const PLAIN: [u64; 7] = [
    1,  // proc
    2,  // sysfs
    5,  // tmpfs
    6,  // devpts
    12, // cgroup
    14, // mqueue
    23, // cgroup2
];

/// Its numbers for kinds that it never makes itself: one it does not know, and that of the host's devices. What is mounted
/// of them is a part of something that we mount.
const TAKEN: [u64; 2] = [0, 3];

/// # Errors
/// What is in them that must not come back; or they cannot be read.
pub(super) fn vet(images: &Path, listener: u64) -> io::Result<()> {
    for entry in fs::read_dir(images)? {
        let entry = entry?;
        if entry.file_name().as_encoded_bytes().starts_with(MOUNTS.as_bytes()) {
            mounts(&read(&entry.path())?)?;
        }
    }
    let files = images.join(FILES);
    // Its name as CRIU knows it is that of a file in the root directory with a slash before it.
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

#[derive(Default)]
struct Mount {
    kind: u64,
    device: u64,
    point: String,
    removed: bool,
    ours: bool,
}

impl Mount {
    fn read(entry: &[u8]) -> Self {
        let mut mount = Self::default();
        for field in fields(entry) {
            match field {
                (1, Value::Number(kind)) => mount.kind = kind,
                (3, Value::Number(device)) => mount.device = device,
                (7, Value::Bytes(point)) => mount.point = String::from_utf8_lossy(point).into_owned(),
                (16, Value::Number(removed)) => mount.removed = removed != 0,
                (18, Value::Bytes(_)) => mount.ours = true,
                _ => {}
            }
        }
        mount
    }
}

fn mounts(image: &[u8]) -> io::Result<()> {
    let broken = || refused("the image of the mounts is broken".to_owned());
    let mut all = Vec::new();
    let mut rest = image.get(HEAD..).ok_or_else(broken)?;
    while let Some((length, after)) = rest.split_first_chunk() {
        let length = usize::try_from(u32::from_le_bytes(*length)).map_err(|_| broken())?;
        let (entry, after) = after.split_at_checked(length).ok_or_else(broken)?;
        all.push(Mount::read(entry));
        rest = after;
    }
    let ours: HashSet<u64> = all.iter().filter(|mount| mount.ours).map(|mount| mount.device).collect();
    for mount in all.iter().filter(|mount| !mount.ours) {
        let point = &mount.point;
        if mount.removed {
            return Err(refused(format!("what is mounted at {point} was removed")));
        }
        let taken = TAKEN.contains(&mount.kind) && ours.contains(&mount.device);
        if !PLAIN.contains(&mount.kind) && !taken {
            return Err(refused(format!(
                "the filesystem mounted at {point} is of a kind that cannot be kept: an overlay, for one"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::wire::Message;
    use super::*;

    fn mount(kind: u64, device: u64, point: &str) -> Message {
        let mut mount = Message::default();
        mount.number(1, kind).number(3, device).bytes(7, point.as_bytes());
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
        workspace.bytes(18, b"workspace");
        let usual = [workspace, mount(0, 47, "/"), mount(5, 50, "/run"), mount(23, 51, "/sys/fs/cgroup")];
        mounts(&image(&usual)).unwrap();
        let with = |more: Message| mounts(&image(&[&usual[..], &[more]].concat())).unwrap_err().to_string();
        assert!(with(mount(17, 60, "/merged")).contains("/merged"));
        // Also where one of ours should be, and by its side.
        assert!(with(mount(17, 47, "/merged")).contains("/merged"));
        // Of a filesystem that none of our mounts is of.
        assert!(with(mount(0, 61, "/elsewhere")).contains("/elsewhere"));
        let mut removed = mount(5, 50, "/was");
        removed.number(16, 1);
        assert!(with(removed).contains("/was was removed"));
        // An image that breaks off hides nothing.
        let whole = image(&usual);
        assert!(mounts(&whole[..whole.len() - 1]).is_err());
        assert!(mounts(&whole[..4]).is_err());
    }

    #[test]
    fn nobody_but_the_guest_gets_its_socket() {
        let images = tempfile::tempdir().unwrap();
        let files = images.path().join(FILES);
        vet(images.path(), 4711).unwrap();
        fs::write(&files, b"12345678....\x32\x0f/workspace/file").unwrap();
        vet(images.path(), 4711).unwrap();
        fs::write(&files, b"12345678....\x32\x0e/socket:[4711]").unwrap();
        assert!(vet(images.path(), 4711).unwrap_err().to_string().contains("/socket:[4711]"));
        vet(images.path(), 471).unwrap();
    }
}
