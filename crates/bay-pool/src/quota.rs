//! Disk limits of bays: one quota group of level 1 per bay with a limit, named after its state subvolume. Its
//! members are the bay's three subvolumes, and the snapshots that were made for the bay since it had the group.
//!
//! The first bay with a limit turns quotas on. Its group may not count what a bay wrote before it had the group.
//! That number of bytes is stored beside its files (`uncounted`) and subtracted from its limit. It stays subtracted
//! until the bay is removed, even if the bay deletes those files.

use std::path::PathBuf;
use std::sync::PoisonError;

use bay_sys::btrfs::{self, Qgroup};
use bay_types::BayId;

use crate::error::{Doing, PoolError, Result};
use crate::files::write_whole;
use crate::pool::{BayDisk, Pool};
use crate::subvolume::{self, open_dir};

const MIB: u64 = 1024 * 1024;
/// Without quotas, the bytes of a bay are counted extent by extent. A bay can have any number of extents, so this
/// bounds the work and the result is then a lower bound.
pub(crate) const MAX_EXTENTS_COUNTED: u64 = 2_000_000;

impl Pool {
    /// Makes the quota group of a new bay, with its limit and with the state subvolume as a member.
    pub(crate) fn quota_begin(&self, disk: &BayDisk, mib: u64) -> Result<Qgroup> {
        self.quotas_on()?;
        let top = self.top()?;
        let state = subvolume::info(&disk.state)?.id;
        let group = Qgroup::new(1, state);
        btrfs::qgroup_create(&top, group)
            .and_then(|()| btrfs::qgroup_limit(&top, group, mib.saturating_mul(MIB)))
            .and_then(|()| btrfs::qgroup_assign(&top, Qgroup::new(0, state), group))
            .doing(|| format!("limit the disk of {}", disk.state.display()))?;
        Ok(group)
    }

    fn quotas_on(&self) -> Result<()> {
        let mut on = self.inner.quotas_on.lock().unwrap_or_else(PoisonError::into_inner);
        if !*on {
            let kind = btrfs::quota_enable(self.top()?).doing(|| "turn on disk quotas".to_owned())?;
            tracing::info!(?kind, "disk quotas are on");
            *on = true;
        }
        Ok(())
    }

    /// The quota group of a bay, if it has one, and the bytes it counts.
    pub(crate) fn quota_of(&self, disk: &BayDisk) -> Result<Option<(Qgroup, u64)>> {
        let group = Qgroup::new(1, subvolume::info(&disk.state)?.id);
        let usage = btrfs::qgroup_usage(self.top()?, group).doing(|| "read a quota".to_owned())?;
        Ok(usage.map(|bytes| (group, bytes)))
    }

    /// Changes or removes the limit of an existing bay. It takes effect at once, also for open files.
    ///
    /// # Errors
    /// [`PoolError::QuotaInUse`] if the bay already uses more: when its quota is exceeded, even deleting might
    /// fail.
    pub fn bay_set_quota(&self, bay: BayId, mib: Option<u64>) -> Result<()> {
        let disk = self.bay_disk(bay);
        if !subvolume::exists(&disk.state) {
            return Err(PoolError::BayFilesMissing { bay: bay.to_string() });
        }
        let doing = || format!("limit the disk of {bay}");
        let Some(mib) = mib else {
            return match self.quota_of(&disk)? {
                Some((group, _)) => btrfs::qgroup_limit(self.top()?, group, btrfs::NO_LIMIT).doing(doing),
                None => Ok(()),
            };
        };
        let bytes = mib.saturating_mul(MIB);
        if self.quota_of(&disk)?.is_none() {
            self.quota_make(bay, &disk)?;
        }
        // Also if the group exists: its maker may have been killed before it added the members.
        let group = self.quota_join(bay, &disk)?;
        let counted = self.quota_of(&disk)?.map_or(0, |(_, counted)| counted);
        let before = self.uncounted_bytes(&disk)?;
        let held = counted.saturating_add(before);
        if held > bytes {
            return Err(PoolError::QuotaInUse { held_mib: held.div_ceil(MIB), mib });
        }
        btrfs::qgroup_limit(self.top()?, group, bytes.saturating_sub(before)).doing(doing)
    }

    /// Makes a group without members and limit. First the bytes that the group will not count are stored, so that a
    /// killed call can be repeated.
    fn quota_make(&self, bay: BayId, disk: &BayDisk) -> Result<()> {
        self.quotas_on()?;
        let doing = || format!("count the disk of {bay}");
        let top = self.top()?;
        let held = Self::own_bytes_counted(disk)?;
        let mut counted = 0_u64;
        // The kernel makes a group for every subvolume while quotas are on.
        for member in Self::quota_members(disk)? {
            counted = counted.saturating_add(btrfs::qgroup_usage(&top, member).doing(doing)?.unwrap_or(0));
        }
        write_whole(&self.uncounted_file(disk), held.saturating_sub(counted).to_string().as_bytes())?;
        btrfs::qgroup_create(&top, Qgroup::new(1, subvolume::info(&disk.state)?.id)).doing(doing)
    }

    /// Adds the bay's subvolumes to its group. Harmless if they are members.
    fn quota_join(&self, bay: BayId, disk: &BayDisk) -> Result<Qgroup> {
        let top = self.top()?;
        let group = Qgroup::new(1, subvolume::info(&disk.state)?.id);
        for member in Self::quota_members(disk)? {
            btrfs::qgroup_assign(&top, member, group).doing(|| format!("count the disk of {bay}"))?;
        }
        // Only the older kind of quotas needs it; the newer one refuses it.
        let _ = btrfs::quota_rescan(&top);
        Ok(group)
    }

    fn quota_members(disk: &BayDisk) -> Result<[Qgroup; 3]> {
        let group = |path| subvolume::info(path).map(|info| Qgroup::new(0, info.id));
        Ok([group(&disk.root)?, group(&disk.workspace)?, group(&disk.state)?])
    }

    fn uncounted_file(&self, disk: &BayDisk) -> PathBuf {
        disk.state.with_file_name("uncounted")
    }

    /// Bytes that the bay wrote before its group counted.
    pub(crate) fn uncounted_bytes(&self, disk: &BayDisk) -> Result<u64> {
        let file = self.uncounted_file(disk);
        match std::fs::read_to_string(&file) {
            Ok(text) => Ok(text.trim().parse().unwrap_or(0)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(0),
            Err(error) => Err(error).doing(|| format!("read {}", file.display())),
        }
    }

    /// Bytes written through the bay's subvolumes since they were made, counted by extent.
    pub(crate) fn own_bytes_counted(disk: &BayDisk) -> Result<u64> {
        let mut own_bytes = 0_u64;
        for path in [&disk.root, &disk.workspace, &disk.state] {
            let counted = open_dir(path)
                .and_then(|top| btrfs::bytes_written_since_birth(&top, MAX_EXTENTS_COUNTED))
                .doing(|| format!("count the bytes of {}", path.display()))?;
            own_bytes = own_bytes.saturating_add(counted);
        }
        Ok(own_bytes)
    }
}
