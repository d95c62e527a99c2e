//! Removing what a daemon has in a pool, without the daemon. Every step may be repeated, and finds what an interrupted one
//! left.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bay_sys::loopdev::LoopDevice;

use crate::backing::{Backing, on_btrfs};
use crate::corners::{is_removed, remove_corner};
use crate::error::{Doing, PoolError, Result};
use crate::files::remove_if_there;
use crate::subvolume::{entries, remove_all};
use crate::{Pool, sysfs};

/// How long an unmounted pool file may stay attached to its loop device.
const DETACH_PATIENCE: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 10 });
/// Pause between two checks whether it is still attached.
const DETACH_RETRY: Duration = Duration::from_millis(20);

/// What is in a pool, as far as the removal of one daemon's corner needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolContents {
    /// The file that holds the pool; `None` if the pool is a directory of a btrfs of the host.
    pub file: Option<PathBuf>,
    /// Size of that file.
    pub file_bytes: u64,
    /// Bays whose files are in the daemon's corner.
    pub bays: u64,
    /// The daemon has a corner, or one whose removal was interrupted.
    pub has_corner: bool,
    /// Daemons that have a corner too. While there is one, the pool and its images stay.
    pub others: Vec<String>,
}

impl Pool {
    /// Looks into the pool in `dir`. A pool file that is not mounted is mounted for that, and unmounted again. `None` if
    /// there is no pool.
    pub fn contents(dir: &Path, daemon: &str) -> Result<Option<PoolContents>> {
        with_base(dir, &mut |base, file| {
            let mut contents = PoolContents {
                file: file.map(Path::to_owned),
                file_bytes: file.and_then(|file| fs::metadata(file).ok()).map_or(0, |found| found.len()),
                bays: 0,
                has_corner: false,
                others: Vec::new(),
            };
            for corner in entries(&base.join("corners")).unwrap_or_default() {
                let Some(name) = corner.file_name() else { continue };
                if name == OsStr::new(daemon) {
                    contents.has_corner = true;
                    contents.bays = entries(&corner.join("bays")).map_or(0, |bays| bays.len() as u64);
                } else if is_removed(name) {
                    contents.has_corner = true;
                } else {
                    contents.others.push(name.to_string_lossy().into_owned());
                }
            }
            Ok(contents)
        })
    }

    /// Removes the corner of a daemon from the pool in `dir`, and if no other daemon has one, everything that daemons
    /// made there: images, the pool file, the mount. Returns a directory that stays, as [`Pool::remove_file`] does.
    pub fn uninstall(dir: &Path, daemon: &str) -> Result<Option<(PathBuf, String)>> {
        let mut shared = false;
        let found = with_base(dir, &mut |base, _| {
            remove_corner(base, daemon)?;
            let corners = entries(&base.join("corners")).unwrap_or_default();
            shared = corners.iter().any(|corner| !corner.file_name().is_some_and(is_removed));
            if !shared {
                // Only what daemons make. On a btrfs of the host the directory may hold something else.
                remove_all(&base.join("corners"))?;
                remove_all(&base.join("images"))?;
            }
            Ok(())
        })?;
        if shared || found.is_none() {
            return Ok(None);
        }
        Self::remove_file(dir)
    }

    /// Unmounts the pool in `dir` and removes its file, whatever is in it. The caller knows that no other daemon uses it.
    /// Returns a directory that stays, because it holds something else, and what that is.
    pub fn remove_file(dir: &Path) -> Result<Option<(PathBuf, String)>> {
        let Ok(dir) = dir.canonicalize() else { return Ok(None) };
        let backing = Backing::new(&dir, None);
        if backing.mount_point().is_dir() {
            backing.unmount()?;
        }
        wait_until_detached(&backing.image())?;
        for name in ["pool.img", "pool.img.new", "first-size", "first-size.new", "pool.lock"] {
            remove_if_there(&dir.join(name))?;
        }
        for empty in [backing.mount_point(), dir] {
            if let Some(why) = remove_empty(&empty)? {
                return Ok(Some((empty, why)));
            }
        }
        Ok(None)
    }
}

/// Removes a directory, unless it is not empty or something is mounted there. Returns why it stays.
fn remove_empty(dir: &Path) -> Result<Option<String>> {
    match fs::remove_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {
            let names: Vec<_> = entries(dir)?
                .iter()
                .filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned()))
                .collect();
            Ok(Some(format!("Workbay did not make {} in it", names.join(", "))))
        }
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
            Ok(Some("something is mounted there".to_owned()))
        }
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).doing(|| format!("remove {}", dir.display()))
        }
        _ => Ok(None),
    }
}

/// Waits until no loop device has the file. A device ends with its last opener, and every program that looks for loop
/// devices opens each of them for a moment; nothing signals the end.
fn wait_until_detached(image: &Path) -> Result<()> {
    let Ok(file) = fs::File::open(image) else { return Ok(()) };
    let began = Instant::now();
    while LoopDevice::of_file(&file).doing(|| "look for the pool's loop device".to_owned())?.is_some() {
        if began.elapsed() > DETACH_PATIENCE {
            return Err(PoolError::StillMounted { image: image.to_owned() });
        }
        std::thread::park_timeout(DETACH_RETRY);
    }
    Ok(())
}

/// Runs `work` on the top directory of the pool in `dir`, mounted for that if necessary. `None` if there is no pool.
fn with_base<T>(dir: &Path, work: &mut dyn FnMut(&Path, Option<&Path>) -> Result<T>) -> Result<Option<T>> {
    let Ok(dir) = dir.canonicalize() else { return Ok(None) };
    if on_btrfs(&dir)? {
        return work(&dir, None).map(Some);
    }
    let backing = Backing::new(&dir, None);
    let image = backing.image();
    let mounted = backing.mount_point().is_dir() && on_btrfs(&backing.mount_point())?;
    if !mounted {
        if !image.exists() {
            return Ok(None);
        }
        let _lock = Backing::lock(&dir)?;
        backing.mount_existing()?;
        sysfs::hide_from_bays(&backing.mount_point())?;
    }
    let done = work(&backing.mount_point(), image.exists().then_some(image.as_path()));
    if !mounted {
        backing.unmount()?;
    }
    done.map(Some)
}
