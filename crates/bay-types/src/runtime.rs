//! What the daemon tells `bay __runtime`, and what it hears back.
//!
//! The helper reads one [`RuntimeRequest`] as a line of JSON from standard input, does its work in one thread, writes
//! one [`RuntimeReply`] as a line to standard output and exits. What it started goes on without it.
//!
//! A capture has one line more each way: the helper says [`RuntimeReply::Stopped`] when everything in the bay stands
//! still and its memory is kept, and waits for [`GO_ON`]. Anything else, or the end of its input, means that the capture
//! is not wanted any more.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::bay::{Author, Isolation, Limits, Mount};
use crate::guest::GatewaySsh;
use crate::id::{BayId, BayName};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case")]
pub enum RuntimeRequest {
    Start(Box<RuntimeSpec>),
    /// Starts a bay inside gVisor.
    Sandbox(Box<SandboxSpec>),
    /// Ends everything the bay runs and takes away its namespaces, mounts and cgroups. Harmless when there is nothing.
    Clear(RuntimePlace),
    Freeze(RuntimePlace),
    Thaw(RuntimePlace),
    /// What in a running bay cannot be in a memory checkpoint. Stops nothing.
    Examine(Box<CaptureSpec>),
    /// Keeps the memory of a running bay.
    Capture(Box<CaptureSpec>),
    /// Takes away what a capture that failed may have left: its images, and what it did to a bay that goes on.
    Mend(Box<CaptureSpec>),
    /// Starts a bay from kept memory instead of from nothing.
    Restore(Box<RestoreSpec>),
}

/// A bay that gVisor's kernel serves.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SandboxSpec {
    pub runtime: RuntimeSpec,
    /// The program that makes sandboxes.
    pub runsc: PathBuf,
}

/// What the daemon says to a helper that waits with a stopped bay.
pub const GO_ON: &str = "go on";

/// The program that keeps memory and gives it back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Criu {
    pub program: PathBuf,
    /// As it calls itself, such as `4.2.1`.
    pub version: String,
}

/// A running bay whose memory is to be kept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CaptureSpec {
    /// As it was started.
    pub runtime: RuntimeSpec,
    pub record: RuntimeRecord,
    /// Directory for what is kept; made by the helper, and removed by it when the capture fails.
    pub images: PathBuf,
    pub criu: Criu,
    /// Whether the bay ends with the capture instead of going on.
    pub end: bool,
}

/// A bay that is to go on from kept memory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RestoreSpec {
    /// Its subvolumes are as they were at the capture.
    pub runtime: RuntimeSpec,
    /// Directory that a capture filled.
    pub images: PathBuf,
    pub criu: Criu,
    /// Which child of its capture this bay is, from 0 on; absent when it is the captured bay itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fork_index: Option<u32>,
}

/// Something that cannot be in a memory checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Obstacle {
    /// Its number inside the bay; absent when it is not about one process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<i32>,
    /// What the process calls itself.
    pub program: String,
    /// What it has.
    pub resource: String,
    /// Why that cannot be kept.
    pub reason: String,
}

impl std::fmt::Display for Obstacle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.pid {
            Some(pid) => write!(f, "process {pid} ({}): {}: {}", self.program, self.resource, self.reason),
            None => write!(f, "{}: {}", self.resource, self.reason),
        }
    }
}

/// Where a runtime keeps its things on the host. Derived from the daemon and bay ids alone, so that everything a lost
/// helper may have left behind can be found again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuntimePlace {
    pub bay_id: BayId,
    /// Host directory for the socket, the namespace handle and the record; owned by root.
    pub run_dir: PathBuf,
    /// Path below each cgroup hierarchy's root, such as `workbay/3f2a…/bay_…`.
    pub cgroup: PathBuf,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RuntimeSpec {
    pub place: RuntimePlace,
    pub name: BayName,
    pub machine_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub author: Option<Author>,
    /// The certificate of the bay's gateway, as PEM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<String>,
    /// How the bay's gateway answers SSH.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssh: Option<GatewaySsh>,
    /// What the bay has in the place of secrets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<crate::secret::Delivered>,
    /// Subvolumes on the pool.
    pub root: PathBuf,
    pub workspace: PathBuf,
    pub state: PathBuf,
    /// A directory of the pool with the checkpoints that the bay may read.
    pub checkpoints: PathBuf,
    pub mounts: Vec<Mount>,
    /// First host id of the bay's range; id 0 inside is this one outside.
    pub id_base: u32,
    /// Which of the children of a fork it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fork_index: Option<u32>,
    pub limits: Limits,
    /// What the bay may tell its own processes about itself.
    pub isolation: Isolation,
    /// The disks that the pool is on, each as `major:minor`: what limits of reading and writing are set for.
    pub io_devices: Vec<String>,
    /// The executable that becomes PID 1, on the host.
    pub guest: PathBuf,
    /// The same executable on the pool, for `bay-ctl` inside. A mount of the other one would show the bay where on the
    /// host it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ctl: Option<PathBuf>,
    /// Stop dead before this step: tests use it to show that a lost helper leaves nothing behind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub die_before: Option<String>,
}

/// Ids per bay: 16 bits, so that every id a distribution uses exists inside.
pub const ID_RANGE: u32 = 65536;

/// The local driver's record of a runtime: how to find PID 1 of a running bay again, and be sure that it is that process and not a later one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuntimeRecord {
    pub pid: i32,
    /// Field 22 of `/proc/PID/stat`.
    pub start_ticks: u64,
    /// `/proc/sys/kernel/random/boot_id` of the host.
    pub boot_id: String,
}

/// How a backend finds one runtime again. Only the driver that made it knows what is in it; everybody else keeps it, as the
/// JSON it is, and hands it back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RuntimeHandle(serde_json::Value);

impl RuntimeHandle {
    /// # Errors
    /// When the driver's record cannot be written as JSON.
    pub fn of<T: Serialize>(record: &T) -> serde_json::Result<Self> {
        serde_json::to_value(record).map(Self)
    }

    /// The driver's own record.
    ///
    /// # Errors
    /// When it is not a record of that driver.
    pub fn read<T: for<'de> Deserialize<'de>>(&self) -> serde_json::Result<T> {
        T::deserialize(&self.0)
    }
}

/// Where the backend found PID 1 instead of its own group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moved {
    /// The group, below the bay's own. Root in the bay chose its name.
    pub group: String,
    pub frozen: bool,
    /// Why it could not be moved back; it was thawed all the same.
    pub stays: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "kebab-case")]
pub enum RuntimeReply {
    Started {
        record: RuntimeRecord,
    },
    Done,
    /// See [`GO_ON`].
    Stopped,
    Captured {
        /// How long the bay stood still.
        pause_ms: u64,
    },
    Restored {
        record: RuntimeRecord,
        /// What did not go as it should inside, in the guest's own words: bounded, and not to be trusted.
        notes: Vec<String>,
    },
    /// The answer to [`RuntimeRequest::Examine`], and to a capture that was not begun.
    Examined {
        obstacles: Vec<Obstacle>,
    },
    Failed {
        step: String,
        message: String,
    },
    /// Processes of the bay hang in the kernel: they can be neither ended nor frozen until what they wait for answers.
    Hangs {
        message: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_the_json_that_earlier_releases_stored() {
        let stored = r#"{"pid":41,"start_ticks":7,"boot_id":"b"}"#;
        let handle: RuntimeHandle = serde_json::from_str(stored).unwrap();
        let record = RuntimeRecord { pid: 41, start_ticks: 7, boot_id: "b".to_owned() };
        assert_eq!(handle.read::<RuntimeRecord>().unwrap(), record);
        assert_eq!(handle, RuntimeHandle::of(&record).unwrap());
        let written: RuntimeRecord = serde_json::from_str(&serde_json::to_string(&handle).unwrap()).unwrap();
        assert_eq!(written, record);
        let other: RuntimeHandle = serde_json::from_str(r#"{"container":"x"}"#).unwrap();
        assert!(other.read::<RuntimeRecord>().is_err());
    }
}
