//! The pool as the files of bays, for the drivers that run bays on this host.

use std::path::PathBuf;

use bay_backend::files::{BayFiles, BayUsage, Result, RootFrom, WorkspaceFrom};
use bay_types::checkpoint::Point;
use bay_types::{BayId, CheckpointName, CoreError, ImageId};

use crate::{Pool, PoolError};

/// The result of the pool, with the error that the API returns.
fn api_result<T>(done: std::result::Result<T, PoolError>) -> Result<T> {
    done.map_err(|error: PoolError| -> CoreError { error.to_api() })
}

impl BayFiles for Pool {
    fn create(&self, bay: BayId, root: RootFrom, from: &WorkspaceFrom, quota_mib: Option<u64>) -> Result<()> {
        api_result(self.bay_create(bay, root, from, quota_mib)).map(drop)
    }

    fn replace_root(&self, bay: BayId, image: ImageId) -> Result<()> {
        api_result(self.bay_replace_root(bay, image))
    }

    fn restore(&self, bay: BayId, from: Point, state: bool) -> Result<()> {
        api_result(self.bay_restore(bay, from, state))
    }

    fn remove(&self, bay: BayId, keep_workspace: Option<&str>) -> Result<Option<PathBuf>> {
        api_result(self.bay_remove(bay, keep_workspace))
    }

    fn list(&self) -> Result<Vec<BayId>> {
        api_result(self.bay_list())
    }

    fn set_quota(&self, bay: BayId, mib: Option<u64>) -> Result<()> {
        api_result(self.bay_set_quota(bay, mib))
    }

    fn flush(&self, bay: BayId) -> Result<()> {
        api_result(self.bay_flush(bay))
    }

    fn usage(&self, bay: BayId) -> Result<BayUsage> {
        api_result(self.bay_usage(bay))
    }

    fn checkpoint_prepare(&self, bay: BayId) -> Result<()> {
        api_result(self.checkpoint_prepare(bay))
    }

    fn checkpoint_take(&self, bay: BayId) -> Result<()> {
        api_result(self.checkpoint_take(bay))
    }

    fn checkpoint_keep(&self, point: Point) -> Result<()> {
        api_result(self.checkpoint_keep(point))
    }

    fn checkpoint_flush(&self, point: Point) -> Result<()> {
        api_result(self.checkpoint_flush(point))
    }

    fn checkpoint_discard(&self, bay: BayId) -> Result<()> {
        api_result(self.checkpoint_discard(bay))
    }

    fn checkpoint_remove(&self, point: Point) -> Result<()> {
        api_result(self.checkpoint_remove(point))
    }

    fn checkpoint_sweep(&self, bay: BayId, known: &[CheckpointName]) -> Result<()> {
        api_result(self.checkpoint_sweep(bay, known))
    }

    fn checkpoints_arrange(&self, bay: BayId, shown: &[CheckpointName]) -> Result<()> {
        api_result(self.checkpoints_arrange(bay, shown))
    }

    fn checkpoint_make_room(&self, bytes: u64) -> Result<()> {
        api_result(self.checkpoint_make_room(bytes))
    }

    fn checkpoint_memory_bytes(&self, point: Point) -> Result<u64> {
        api_result(self.checkpoint_memory_bytes(point))
    }

    fn checkpoint_disk_bytes(&self, point: Point) -> Option<u64> {
        self.checkpoint_disk_bytes(point)
    }

    fn capture_is_unfinished(&self, bay: BayId) -> bool {
        self.checkpoint_new_memory(bay).exists()
    }
}
