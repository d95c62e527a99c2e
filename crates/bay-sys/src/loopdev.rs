//! The loop device of a pool file: a block device with the file's blocks.
//!
//! Devices are made with *autoclear*: the device ends with its last opener or mount, so a killed process leaves none
//! behind. Direct I/O avoids a second copy of the data in the page cache, and makes a flush as fast as a flush of the
//! file.

use std::fs::{File, OpenOptions};
use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;

const LOOP_SET_CAPACITY: u32 = 0x4C07;
const LOOP_GET_STATUS64: u32 = 0x4C05;
const LOOP_CONFIGURE: u32 = 0x4C0A;
const LOOP_CTL_GET_FREE: u32 = 0x4C82;

const FLAG_AUTOCLEAR: u32 = 4;
const FLAG_DIRECT_IO: u32 = 16;

/// Block size of the devices: that of btrfs, and aligned for direct I/O on disks of every sector size.
pub const BLOCK_SIZE: u32 = 4096;
/// Another process may take the free device before it is configured. So many times in a row is no accident.
const ATTEMPTS: usize = 64;

#[repr(C)]
#[derive(Clone, Copy)]
struct LoopInfo {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

impl LoopInfo {
    const EMPTY: Self = Self {
        device: 0,
        inode: 0,
        rdevice: 0,
        offset: 0,
        size_limit: 0,
        number: 0,
        encrypt_type: 0,
        encrypt_key_size: 0,
        flags: 0,
        file_name: [0; 64],
        crypt_name: [0; 64],
        encrypt_key: [0; 32],
        init: [0; 2],
    };
}

#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

const _: () = assert!(size_of::<LoopInfo>() == 232 && size_of::<LoopConfig>() == 304);

/// An open loop device. Without a mount it ends when this is dropped.
#[derive(Debug)]
pub struct LoopDevice {
    file: File,
    path: PathBuf,
}

impl LoopDevice {
    /// Connects a free loop device to the file.
    pub fn attach(backing: &File) -> io::Result<Self> {
        let control = OpenOptions::new().read(true).write(true).open("/dev/loop-control")?;
        let descriptor =
            u32::try_from(backing.as_raw_fd()).map_err(|_| io::Error::from_raw_os_error(libc::EBADF))?;
        for _ in 0..ATTEMPTS {
            // SAFETY: the request takes no argument. Needed because no crate in use wraps it.
            let number = unsafe { libc::ioctl(control.as_raw_fd(), libc::Ioctl::from(LOOP_CTL_GET_FREE)) };
            if number < 0 {
                return Err(io::Error::last_os_error());
            }
            let path = PathBuf::from(format!("/dev/loop{number}"));
            let file = OpenOptions::new().read(true).write(true).open(&path)?;
            let mut config = LoopConfig {
                fd: descriptor,
                block_size: BLOCK_SIZE,
                info: LoopInfo { flags: FLAG_AUTOCLEAR | FLAG_DIRECT_IO, ..LoopInfo::EMPTY },
                reserved: [0; 8],
            };
            match configure(&file, &mut config) {
                Ok(()) => return Ok(Self { file, path }),
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::from_raw_os_error(libc::EBUSY))
    }

    /// The device that is already connected to this file, if any.
    pub fn of_file(backing: &File) -> io::Result<Option<Self>> {
        let wanted = rustix::fs::fstat(backing)?;
        let devices = match std::fs::read_dir("/sys/block") {
            Ok(devices) => devices,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        for entry in devices {
            let entry = entry?;
            let name = entry.file_name();
            let in_use = name.to_string_lossy().starts_with("loop") && entry.path().join("loop").exists();
            if !in_use {
                continue;
            }
            let path = PathBuf::from("/dev").join(&name);
            // For reading only: after a device was open for writing, the system probes it again.
            let Ok(file) = File::open(&path) else { continue };
            // The device ended meanwhile, so it is another file's.
            let Ok(info) = status(&file) else { continue };
            if info.inode == wanted.st_ino && info.device == encode_device(wanted.st_dev) {
                return Ok(Some(Self { file, path }));
            }
        }
        Ok(None)
    }

    #[must_use]
    pub fn path(&self) -> &std::path::Path {
        &self.path
    }

    /// Updates the device to the present size of the file.
    pub fn refresh_capacity(&self) -> io::Result<()> {
        // SAFETY: the request takes no argument. Needed because no crate in use wraps it.
        let result =
            unsafe { libc::ioctl(self.file.as_fd().as_raw_fd(), libc::Ioctl::from(LOOP_SET_CAPACITY), 0) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Whether the device bypasses the page cache. Some filesystems do not support that.
    pub fn is_direct(&self) -> io::Result<bool> {
        Ok(status(&self.file)?.flags & FLAG_DIRECT_IO != 0)
    }
}

fn configure(device: &File, config: &mut LoopConfig) -> io::Result<()> {
    // SAFETY: `config` is a live, exclusive `repr(C)` value of the layout LOOP_CONFIGURE reads (its size is asserted
    // above), and the descriptor in it is open for the length of the call. Needed because no crate in use wraps it.
    let result = unsafe {
        libc::ioctl(device.as_raw_fd(), libc::Ioctl::from(LOOP_CONFIGURE), std::ptr::from_mut(config))
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn status(device: &File) -> io::Result<LoopInfo> {
    let mut info = LoopInfo::EMPTY;
    // SAFETY: `info` is a live, exclusive `repr(C)` value of the layout LOOP_GET_STATUS64 fills (its size is asserted
    // above). Needed because no crate in use wraps it.
    let result = unsafe {
        libc::ioctl(device.as_raw_fd(), libc::Ioctl::from(LOOP_GET_STATUS64), std::ptr::from_mut(&mut info))
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(info) }
}

/// A device number as the kernel's `huge_encode_dev` encodes it.
fn encode_device(device: u64) -> u64 {
    let (major, minor) = (u64::from(libc::major(device)), u64::from(libc::minor(device)));
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}
