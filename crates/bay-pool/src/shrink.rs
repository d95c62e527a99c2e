//! Gives free space of the pool file back to the host.
//!
//! ```text
//!  roomy for a while ── btrfs moves what lies at the end, commits the smaller size ── the file is cut ── the device too
//! ```
//!
//! The file stays fully allocated, so a full host disk still cannot become a write error inside the pool. After a kill
//! between commit and cut, the file is longer than its filesystem. That is the state of an interrupted growth, and the
//! next open makes the filesystem fit the file again.
//!
//! One step is small, because imports and checkpoints that need the pool to grow wait for it. The pool does not
//! become smaller than its first size, which is on record beside it, because the operator or the default chose that
//! size.

use std::fs::{self, File};

use bay_sys::btrfs;
use bay_sys::loopdev::LoopDevice;
use rustix::io::Errno;

use crate::backing::{Backing, Space};
use crate::error::{Doing, Result};
use crate::files::write_whole;

const MIB: u64 = 1024 * 1024;
const GIB: u64 = 1024 * MIB;

/// Most that one step gives back. Moving it takes some seconds on a slow disk.
const STEP_MAX: u64 = GIB;
/// A smaller step is not worth the work.
const STEP_MIN: u64 = 64 * MIB;
/// A pool is roomy if more than this part of it is free. A growth adds a quarter, so a pool that has just grown is not
/// roomy, and growing and shrinking do not alternate.
const ROOMY_DIVISOR: u64 = 2;
/// The smallest size of a pool whose first size is not on record, because an earlier release made it. That release
/// chose no larger one by itself.
const UNKNOWN_FIRST_SIZE: u64 = 32 * GIB;
/// Longest record of the first size that is read.
const MAX_RECORD: usize = 32;

impl Backing {
    fn first_size_file(&self) -> std::path::PathBuf {
        self.dir.join("first-size")
    }

    pub(crate) fn remember_first_size(&self, bytes: u64) -> Result<()> {
        write_whole(&self.first_size_file(), bytes.to_string().as_bytes())
    }

    pub(crate) fn first_size(&self) -> u64 {
        let text = fs::read_to_string(self.first_size_file()).ok().filter(|text| text.len() <= MAX_RECORD);
        text.and_then(|text| text.trim().parse().ok()).unwrap_or(UNKNOWN_FIRST_SIZE)
    }

    pub(crate) fn is_roomy(&self) -> Result<bool> {
        Ok(smaller(&Space::of(&self.mount_point())?, self.first_size()).is_some())
    }

    /// Makes the pool smaller by a step if it is roomy. Returns whether it did.
    pub(crate) fn shrink(&self) -> Result<bool> {
        if !self.is_roomy()? {
            return Ok(false);
        }
        let _lock = Self::lock(&self.dir)?;
        let before = Space::of(&self.mount_point())?;
        let Some(size) = smaller(&before, self.first_size()) else { return Ok(false) };
        let image = self.open_image()?;
        let top = File::open(self.mount_point()).doing(|| "open the pool".to_owned())?;
        match btrfs::resize_to(&top, size) {
            Ok(()) => {}
            Err(error)
                if matches!(
                    Errno::from_io_error(&error),
                    Some(Errno::NOSPC | Errno::BUSY | Errno::AGAIN | Errno::TXTBSY | Errno::INPROGRESS)
                ) =>
            {
                // What is in use does not fit into less, or the filesystem is being rearranged. A later pass tries
                // again.
                return Ok(false);
            }
            Err(error) => return Err(error).doing(|| "shrink the pool".to_owned()),
        }
        // The file is only cut where both the mounted filesystem and its superblock on the disk say that it ends.
        let after = Space::of(&self.mount_point())?;
        let sizes = self.check(&image)?;
        if after.total != size || sizes.filesystem != size || sizes.file <= size {
            return Ok(false);
        }
        image.set_len(size).doing(|| "give space of the pool back to the disk".to_owned())?;
        LoopDevice::of_file(&image)
            .and_then(|device| device.ok_or_else(|| std::io::Error::from(Errno::NODEV)))
            .and_then(|device| device.refresh_capacity())
            .doing(|| "shrink the pool's loop device".to_owned())?;
        tracing::info!(pool = %self.dir.display(), by_mib = (sizes.file - size) / MIB, "the pool shrank");
        Ok(true)
    }

    /// What the pool leaves free on the disk that its file lies on.
    pub(crate) fn host_reserve(&self) -> Result<u64> {
        Ok(self.reserve(&Space::of(&self.dir)?))
    }
}

/// The size of a roomy pool after a step, at least its first size.
fn smaller(pool: &Space, first_size: u64) -> Option<u64> {
    // After giving back `by`, a half of what is left is still free.
    let roomy_by = (pool.free.saturating_mul(ROOMY_DIVISOR)).saturating_sub(pool.total);
    let by = roomy_by.min(pool.total.saturating_sub(first_size)).min(STEP_MAX) / MIB * MIB;
    (by >= STEP_MIN).then(|| pool.total - by)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_roomy_pool_shrinks_in_steps_until_half_of_it_is_in_use_or_it_has_its_first_size() {
        let size = |total: u64, free: u64, first: u64| {
            smaller(&Space { total: total * GIB, free: free * GIB, read_only: false }, first * GIB)
                .map(|size| size / GIB)
        };
        assert_eq!(size(40, 10, 10), None);
        assert_eq!(size(40, 20, 10), None);
        assert_eq!(size(40, 21, 10), Some(39));
        assert_eq!(size(40, 39, 40), None);
        assert_eq!(size(40, 39, 50), None, "the record of a larger pool");
        // It would need to grow when less than a tenth is free, so it does not grow right after it shrank.
        let (mut total, mut free) = (100 * GIB, 90 * GIB);
        while let Some(size) = smaller(&Space { total, free, read_only: false }, 8 * GIB) {
            free -= total - size;
            total = size;
        }
        assert_eq!((total, free), (20 * GIB, 10 * GIB));
    }
}
