//! A filesystem that accepts a read and never answers it, as a dead network server does. After the first signal the reader
//! is in uninterruptible sleep: the kernel waits for the answer, and not even KILL ends the wait. It ends when the
//! filesystem answers or is unmounted.
//!
//! The filesystem implements just enough of the kernel's FUSE protocol to have one file, [`FILE`].

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

/// The only file. A process that reads it waits until the filesystem answers or is unmounted.
pub const FILE: &str = "never";

const ROOT_NODE: u64 = 1;
const FILE_NODE: u64 = 2;
/// The smallest value that the kernel accepts.
const LARGEST_WRITE: u32 = 4096;
/// Room for any request: more than the largest write.
const REQUEST_BYTES: usize = 64 << 10;
const HEADER_BYTES: usize = 40;
const ENOENT: i32 = 2;
const ENOSYS: i32 = 38;
/// How long the kernel may cache an answer.
const VALID_S: u64 = 3600;

mod opcode {
    pub(super) const LOOKUP: u32 = 1;
    pub(super) const FORGET: u32 = 2;
    pub(super) const GETATTR: u32 = 3;
    pub(super) const OPEN: u32 = 14;
    pub(super) const READ: u32 = 15;
    pub(super) const RELEASE: u32 = 18;
    pub(super) const FLUSH: u32 = 25;
    pub(super) const INIT: u32 = 26;
    pub(super) const INTERRUPT: u32 = 36;
    pub(super) const BATCH_FORGET: u32 = 42;
}

/// Mounted, and served by a thread, until it is dropped. Drop it before the daemon whose bays read from it, because a
/// process that waits for it cannot end before.
#[derive(Debug)]
pub struct HangingFilesystem {
    path: PathBuf,
    reads: Arc<AtomicUsize>,
}

impl HangingFilesystem {
    /// Mounts the filesystem.
    ///
    /// # Errors
    /// If this kernel has no FUSE, or no id-mapped mounts of it (Linux 6.12).
    ///
    /// # Panics
    /// If the mount point cannot be made.
    pub fn mounted_at(path: &Path) -> io::Result<Self> {
        fs::create_dir_all(path).unwrap();
        let mut device = File::options().read(true).write(true).open("/dev/fuse")?;
        let options = format!(
            "fd={},rootmode=40000,user_id=0,group_id=0,default_permissions,allow_other",
            device.as_raw_fd()
        );
        let options = std::ffi::CString::new(options).unwrap();
        mount("stuck", path, "fuse", MountFlags::NOSUID | MountFlags::NODEV, Some(options.as_c_str()))?;
        let disk = Self { path: path.to_owned(), reads: Arc::default() };
        let reads = Arc::clone(&disk.reads);
        let mut request = vec![0; REQUEST_BYTES];
        let taken = device.read(&mut request)?;
        if !init(&mut device, &request[..taken])? {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "FUSE mounts here keep their owners"));
        }
        // The thread ends when the filesystem is unmounted.
        std::thread::spawn(move || {
            while let Ok(taken) = device.read(&mut request) {
                if word(&request, 4) == opcode::READ {
                    reads.fetch_add(1, Ordering::Relaxed);
                }
                if serve(&mut device, &request[..taken]).is_err() {
                    return;
                }
            }
        });
        Ok(disk)
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The number of pending reads.
    #[must_use]
    pub fn reads(&self) -> usize {
        self.reads.load(Ordering::Relaxed)
    }
}

impl Drop for HangingFilesystem {
    fn drop(&mut self) {
        // Force the unmount: every pending read gets an error.
        let _ = unmount(&self.path, UnmountFlags::FORCE | UnmountFlags::DETACH);
        let _ = fs::remove_dir(&self.path);
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap())
}

fn answer(device: &mut File, request: &[u8], outcome: Result<&[u8], i32>) -> io::Result<()> {
    let body = outcome.unwrap_or_default();
    let mut out = Vec::with_capacity(16 + body.len());
    out.extend(u32::try_from(16 + body.len()).unwrap().to_ne_bytes());
    out.extend(outcome.err().map_or(0, |errno| -errno).to_ne_bytes());
    out.extend(long(request, 8).to_ne_bytes());
    out.extend(body);
    // The reading process may have ended.
    match device.write(&out) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Negotiates the protocol. Returns false if the kernel does not allow id-mapped mounts of this filesystem.
fn init(device: &mut File, request: &[u8]) -> io::Result<bool> {
    const MORE_FLAGS: u32 = 1 << 30;
    const ALLOW_IDMAP: u32 = 1 << (40 - 32);
    assert_eq!(word(request, 4), opcode::INIT, "the first request");
    let body = &request[HEADER_BYTES..];
    let offered = if word(body, 12) & MORE_FLAGS == 0 { 0 } else { word(body, 16) };
    let mut out = [0; 64];
    let mut put = |at: usize, value: u32| out[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    put(0, word(body, 0));
    put(4, word(body, 4));
    put(12, MORE_FLAGS);
    put(20, LARGEST_WRITE);
    put(24, 1);
    put(32, ALLOW_IDMAP);
    answer(device, request, Ok(&out))?;
    Ok(offered & ALLOW_IDMAP != 0)
}

fn attributes(node: u64) -> Vec<u8> {
    let (mode, size) = if node == ROOT_NODE { (0o040_755_u32, 0) } else { (0o100_644, 4096_u64) };
    let mut out = Vec::new();
    for value in [node, size, 0, 0, 0, 0] {
        out.extend(value.to_ne_bytes());
    }
    for value in [0, 0, 0, mode, 1, 0, 0, 0, 4096, 0] {
        out.extend(value.to_ne_bytes());
    }
    out
}

fn serve(device: &mut File, request: &[u8]) -> io::Result<()> {
    /// Reads bypass the page cache: a cached read could be interrupted.
    const DIRECT: u32 = 1;
    let node = long(request, 16);
    let valid = |seconds: u64| seconds.to_ne_bytes().to_vec();
    match word(request, 4) {
        opcode::READ | opcode::INTERRUPT | opcode::FORGET | opcode::BATCH_FORGET => Ok(()),
        opcode::LOOKUP if request[HEADER_BYTES..].strip_suffix(b"\0") == Some(FILE.as_bytes()) => {
            let mut out = Vec::new();
            for value in [FILE_NODE, 0, VALID_S, VALID_S, 0] {
                out.extend(value.to_ne_bytes());
            }
            out.extend(attributes(FILE_NODE));
            answer(device, request, Ok(&out))
        }
        opcode::LOOKUP => answer(device, request, Err(ENOENT)),
        opcode::GETATTR => {
            let out = [valid(VALID_S), vec![0; 8], attributes(node)].concat();
            answer(device, request, Ok(&out))
        }
        opcode::OPEN => {
            let out = [vec![0; 8], DIRECT.to_ne_bytes().to_vec(), vec![0; 4]].concat();
            answer(device, request, Ok(&out))
        }
        opcode::RELEASE | opcode::FLUSH => answer(device, request, Ok(&[])),
        _ => answer(device, request, Err(ENOSYS)),
    }
}
