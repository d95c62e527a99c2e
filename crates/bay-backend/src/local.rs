//! skeleton
use std::path::PathBuf;

use super::*;

/// Where the local driver keeps its things.
#[derive(Debug, Clone)]
pub struct LocalConfig {
    /// Directory of one sub-directory per bay; owned by root.
    pub run_dir: PathBuf,
    /// Path below each cgroup hierarchy, unique per daemon: `workbay/<daemon id>`.
    pub cgroup: PathBuf,
    /// The `bay` executable, run as `bay __runtime`.
    pub helper: PathBuf,
    /// The executable that becomes PID 1 in bays.
    pub guest: PathBuf,
    /// Tests: the step before which the helper kills itself.
    pub die_before: Option<String>,
}

/// Namespaces of this host's kernel.
#[derive(Debug)]
pub struct Local {}

impl Local {
    #[must_use]
    pub fn new(_config: LocalConfig) -> Self {
        Self {}
    }
}

#[async_trait]
impl Backend for Local {
    fn isolation(&self) -> Isolation { unreachable!() }
    async fn start(&self, _spec: &StartSpec) -> Result<RuntimeRecord, BackendError> { unreachable!() }
    async fn inspect(&self, _bay: BayId, _record: &RuntimeRecord) -> Seen { unreachable!() }
    async fn clear(&self, _bay: BayId) -> Result<(), BackendError> { unreachable!() }
    async fn pause(&self, _bay: BayId) -> Result<(), BackendError> { unreachable!() }
    async fn resume(&self, _bay: BayId) -> Result<(), BackendError> { unreachable!() }
    async fn connect(&self, _bay: BayId) -> io::Result<UnixStream> { unreachable!() }
    async fn wait_gone(&self, _record: &RuntimeRecord) { unreachable!() }
    async fn leftovers(&self) -> Result<Vec<BayId>, BackendError> { unreachable!() }
}
