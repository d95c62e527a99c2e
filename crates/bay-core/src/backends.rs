//! The drivers that this daemon has, by name, and how their errors are shown to callers.
//!
//! A bay belongs to one backend for life. This daemon may lack the driver, because it was started on another host
//! or without the driver's program. Then it shows the bay with that reason, and changes neither its row nor its
//! workspace until a daemon has the driver again. Only adoption removes a disk or a checkpoint of it that is
//! incomplete.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use async_trait::async_trait;
use bay_backend::files::NoFiles;
use bay_backend::{
    Backend, BackendError, BayFiles, BoxedStream, Capabilities, EgressPort, LimitSpec, NetworkUse,
    RuntimeFacts, RuntimeHandle, Seen, StartSpec,
};
use bay_types::backend::{
    AttributionGrain, BackendName, EgressControl, FilesCheckpoint, IsolationGrade, Support,
};
use bay_types::bay::{Isolation, Limits};
use bay_types::stats::BayStats;
use bay_types::{Action, BayId, BayName, CoreError, ErrorCode, Hint, HintBay};

/// The drivers of this daemon.
#[derive(Debug)]
pub(crate) struct Backends {
    drivers: BTreeMap<BackendName, Arc<dyn Backend>>,
    default: BackendName,
}

impl Backends {
    /// # Errors
    /// The names of the drivers, if `default` is none of them.
    pub(crate) fn new(drivers: Vec<Arc<dyn Backend>>, default: BackendName) -> Result<Self, String> {
        let drivers: BTreeMap<_, _> = drivers
            .into_iter()
            .map(|driver| (BackendName::from(driver.isolation().backend), driver))
            .collect();
        let backends = Self { drivers, default };
        if backends.drivers.contains_key(&backends.default) { Ok(backends) } else { Err(backends.names()) }
    }

    fn names(&self) -> String {
        self.drivers.keys().map(BackendName::as_str).collect::<Vec<_>>().join(", ")
    }

    /// The driver for a new bay: the one that the caller named, or the daemon's default.
    pub(crate) fn choose(&self, wanted: Option<&str>) -> Result<(BackendName, &Arc<dyn Backend>), CoreError> {
        let name = wanted.map_or_else(|| self.default.clone(), BackendName::from);
        match self.drivers.get(&name) {
            Some(driver) => Ok((name, driver)),
            None => Err(CoreError::new(
                ErrorCode::InvalidInput,
                format!("this daemon has no backend {:?}", name.as_str()),
                format!("the backends here are: {}", self.names()),
            )),
        }
    }

    /// The driver of an existing bay. If this daemon lacks the driver, a placeholder that can run nothing.
    pub(crate) fn of(&self, name: &BackendName) -> BayBackend {
        match self.drivers.get(name) {
            Some(driver) => BayBackend { driver: Arc::clone(driver), missing: None },
            None => BayBackend { driver: Arc::new(Missing(name.clone())), missing: Some(missing(name)) },
        }
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<dyn Backend>> {
        self.drivers.values()
    }
}

/// The driver of one bay.
#[derive(Debug, Clone)]
pub(crate) struct BayBackend {
    pub(crate) driver: Arc<dyn Backend>,
    /// Why this daemon lacks the driver.
    pub(crate) missing: Option<String>,
}

fn missing(name: &BackendName) -> String {
    format!("this daemon has no backend {name}; the bay is kept as it is")
}

/// Refuses a verb on a bay whose driver this daemon does not have.
pub(crate) fn without_driver(bay: &BayName, why: &str) -> CoreError {
    CoreError::new(
        ErrorCode::HostUnfit,
        format!("{bay} cannot be used: {why}"),
        Hint::new(
            "install the backend's program ({} lists what is missing here) and restart the daemon, or use a host that \
             has it",
            [Action::Doctor],
        ),
    )
}

/// Converts a backend's error for callers of the API.
pub(crate) fn refusal(error: &BackendError) -> CoreError {
    match error {
        BackendError::Disk(error) => return (**error).clone(),
        BackendError::Hangs(_) => {
            return CoreError::new(
                ErrorCode::BayFailed,
                error.to_string(),
                "it ends when the disk, or the directory of the host that is mounted in the bay, responds again; \
                 a requested stop or removal then continues by itself",
            );
        }
        BackendError::LimitInUse(_) => {
            return CoreError::new(
                ErrorCode::BayState,
                error.to_string(),
                Hint::new(
                    "end some of its commands first ({} lists them), or set a higher limit; the old limits remain",
                    [Action::ListExecs(HintBay::OfRequest)],
                ),
            );
        }
        BackendError::LimitUnsupported(_) => {
            return CoreError::new(
                ErrorCode::HostUnfit,
                error.to_string(),
                Hint::new("leave that limit out; {} shows which controllers this host has", [Action::Doctor]),
            );
        }
        BackendError::MemoryUnsupported(_) => {
            return CoreError::new(
                ErrorCode::HostUnfit,
                error.to_string(),
                Hint::new(
                    "{} captures the files alone; {} shows what a memory checkpoint needs",
                    [Action::FilesOnly, Action::Doctor],
                ),
            );
        }
        BackendError::Obstacles(_) => {
            return CoreError::new(
                ErrorCode::BayState,
                error.to_string(),
                Hint::new(
                    "end the processes named above and try again, or capture the files alone with {}",
                    [Action::FilesOnly],
                ),
            );
        }
        BackendError::OtherMachine(_) => {
            return CoreError::new(
                ErrorCode::MemoryUnavailable,
                error.to_string(),
                Hint::new("use its files alone, which every host can restore: {}", [Action::FilesOnly]),
            );
        }
        _ => {}
    }
    CoreError::new(
        ErrorCode::BayFailed,
        bay_types::error::chain(error),
        Hint::new(
            "{} shows what this host lacks; {} tries again",
            [Action::Doctor, Action::StartBay(HintBay::OfRequest)],
        ),
    )
}

/// The placeholder for a driver that this daemon lacks.
#[derive(Debug)]
struct Missing(BackendName);

impl Missing {
    fn error(&self) -> BackendError {
        BackendError::DriverMissing(missing(&self.0))
    }

    fn io_error(&self) -> io::Error {
        io::Error::new(io::ErrorKind::Unsupported, missing(&self.0))
    }
}

#[async_trait]
impl Backend for Missing {
    fn isolation(&self) -> Isolation {
        Isolation { backend: self.0.to_string(), grade: "unknown".to_owned(), detail: missing(&self.0) }
    }

    fn capabilities(&self) -> Capabilities {
        let no = || Support::no(missing(&self.0));
        Capabilities {
            isolation: IsolationGrade::SharedKernel,
            memory_checkpoints: no(),
            files_checkpoint: FilesCheckpoint::Copy,
            live_limits: no(),
            egress: EgressControl::Backend,
            attribution: AttributionGrain::Bay,
            nested_containers: no(),
            quota: no(),
        }
    }

    fn files(&self) -> Arc<dyn BayFiles> {
        Arc::new(NoFiles(refusal(&self.error())))
    }

    fn facts(&self, _: &RuntimeHandle) -> RuntimeFacts {
        RuntimeFacts::default()
    }

    async fn start(&self, _: &StartSpec) -> Result<RuntimeHandle, BackendError> {
        Err(self.error())
    }

    /// The true state is unknown. Callers check for the driver before they act on this.
    async fn inspect(&self, _: BayId, _: &RuntimeHandle) -> Seen {
        Seen::Gone
    }

    async fn stats(&self, _: BayId, _: &RuntimeHandle) -> BayStats {
        BayStats::default()
    }

    async fn network(&self, _: &RuntimeHandle) -> NetworkUse {
        NetworkUse::default()
    }

    async fn egress(&self, _: BayId) -> io::Result<EgressPort> {
        Err(self.io_error())
    }

    async fn clear(&self, _: BayId) -> Result<(), BackendError> {
        Err(self.error())
    }

    async fn pause(&self, _: BayId) -> Result<(), BackendError> {
        Err(self.error())
    }

    async fn resume(&self, _: BayId) -> Result<(), BackendError> {
        Err(self.error())
    }

    fn can_keep(&self, _: &Limits) -> Result<(), BackendError> {
        Err(self.error())
    }

    async fn set_limits(&self, _: &LimitSpec) -> Result<(), BackendError> {
        Err(self.error())
    }

    async fn connect(&self, _: BayId) -> io::Result<BoxedStream> {
        Err(self.io_error())
    }

    async fn wait_gone(&self, _: &RuntimeHandle) {
        std::future::pending::<()>().await;
    }

    async fn leftovers(&self) -> Result<Vec<BayId>, BackendError> {
        Ok(Vec::new())
    }
}
