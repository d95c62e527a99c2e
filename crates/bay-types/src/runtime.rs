//! The protocol between the daemon and its helper `bay __runtime`.
//!
//! The helper reads one [`RuntimeRequest`] as a line of JSON from standard input, does the work in one thread,
//! writes one [`RuntimeReply`] as a line to standard output, and exits. The processes that it started continue.
//!
//! A capture has one more line in each direction. When all processes in the bay are stopped and its memory is
//! written, the helper sends [`RuntimeReply::Stopped`] and waits for [`GO_ON`]. Any other line, or the end of its
//! input, cancels the capture.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::bay::{Author, BayUser, Isolation, Limits, Mount};
use crate::durability::Durability;
use crate::guest::GatewaySsh;
use crate::id::{BayId, BayName};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case")]
pub enum RuntimeRequest {
    Start(Box<RuntimeSpec>),
    /// Starts a bay inside gVisor.
    Sandbox(Box<SandboxSpec>),
    /// Ends all processes of the bay and removes its namespaces, mounts and cgroups. Harmless if there are none.
    Clear(RuntimePlace),
    Freeze(RuntimePlace),
    Thaw(RuntimePlace),
    /// Lists what in a running bay cannot be captured. Stops nothing.
    Examine(Box<CaptureSpec>),
    /// Captures the memory of a running bay.
    Capture(Box<CaptureSpec>),
    /// Cleans up after a failed capture: removes its images and undoes its changes to a bay that continues.
    Mend(Box<CaptureSpec>),
    /// Starts a bay from captured memory.
    Restore(Box<RestoreSpec>),
}

/// A bay that gVisor's kernel serves.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SandboxSpec {
    pub runtime: RuntimeSpec,
    /// The `runsc` program.
    pub runsc: PathBuf,
}

/// The daemon's line to a helper that waits with a stopped bay.
pub const GO_ON: &str = "go on";

/// The program that captures and restores memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Criu {
    pub program: PathBuf,
    /// As the program reports it: `4.2.1`.
    pub version: String,
}

/// A running bay whose memory is to be captured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CaptureSpec {
    /// The spec that it was started with.
    pub runtime: RuntimeSpec,
    pub record: RuntimeRecord,
    /// Directory for the images. The helper makes it, and removes it if the capture fails.
    pub images: PathBuf,
    pub criu: Criu,
    /// Whether the bay ends with the capture.
    pub end: bool,
}

/// A bay that is to continue from captured memory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RestoreSpec {
    /// Its subvolumes have the contents of the moment of the capture.
    pub runtime: RuntimeSpec,
    /// The directory with the images.
    pub images: PathBuf,
    pub criu: Criu,
    /// The index of this bay among the forks of its capture, from 0; absent if it is the captured bay itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fork_index: Option<u32>,
}

/// Something that prevents a memory checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Obstacle {
    /// Process id inside the bay; absent if it is not about one process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<i32>,
    /// The name that the process gave itself.
    pub program: String,
    /// The resource that cannot be captured.
    pub resource: String,
    /// Why it cannot be captured.
    pub reason: String,
    /// How many other processes of the bay have the same obstacle.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub others: u64,
}

/// The signature is serde's.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl std::fmt::Display for Obstacle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.pid {
            Some(pid) => write!(f, "process {pid} ({})", self.program)?,
            None => return write!(f, "{}: {}", self.resource, self.reason),
        }
        match self.others {
            0 => {}
            1 => write!(f, " and 1 other")?,
            others => write!(f, " and {others} others")?,
        }
        write!(f, ": {}: {}", self.resource, self.reason)
    }
}

/// Where a runtime's host resources are. All paths follow from the ids of daemon and bay, so that leftovers of a
/// killed helper can be found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuntimePlace {
    pub bay_id: BayId,
    /// Host directory of the socket, the namespace handle and the record; owned by root.
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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<BayUser>,
    /// The certificate of the bay's gateway, as PEM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<String>,
    /// How the bay's gateway answers SSH.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssh: Option<GatewaySsh>,
    /// The sentinels of the bay's secrets.
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
    /// The bay's index among the children of a fork.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fork_index: Option<u32>,
    pub limits: Limits,
    #[serde(default, skip_serializing_if = "Durability::is_strict")]
    pub durability: Durability,
    /// How the bay is isolated, as `bay-ctl` shows it.
    pub isolation: Isolation,
    /// The pool's disks as `major:minor`, on which the I/O limits are set.
    pub io_devices: Vec<String>,
    /// The executable that becomes PID 1, on the host.
    pub guest: PathBuf,
    /// A copy of that executable on the pool, for `bay-ctl` inside. Mounting the original would show the bay its
    /// path on the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ctl: Option<PathBuf>,
    /// Tests set it: the helper dies before this step, to prove that nothing is left behind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub die_before: Option<String>,
}

/// Size of a bay's range of user ids: 16 bits, so that every id a distribution uses exists inside.
pub const ID_RANGE: u32 = 65536;

/// The record of the driver `local`: how to find PID 1 of a running bay again, and how to tell it from a later
/// process with the same pid.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuntimeRecord {
    pub pid: i32,
    /// Field 22 of `/proc/PID/stat`.
    pub start_ticks: u64,
    /// `/proc/sys/kernel/random/boot_id` of the host.
    pub boot_id: String,
}

/// The handle by which a backend finds a runtime again. Only the driver that made it knows its content. All others
/// store it as opaque JSON and pass it back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RuntimeHandle(serde_json::Value);

impl RuntimeHandle {
    /// # Errors
    /// When the driver's record cannot be written as JSON.
    pub fn of<T: Serialize>(record: &T) -> serde_json::Result<Self> {
        serde_json::to_value(record).map(Self)
    }

    /// The content, for the driver that made it.
    ///
    /// # Errors
    /// When it is not a record of that driver.
    pub fn read<T: for<'de> Deserialize<'de>>(&self) -> serde_json::Result<T> {
        T::deserialize(&self.0)
    }
}

/// PID 1 was found outside of its own control group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moved {
    /// The group where it was found, relative to the bay's. Root in the bay chose its name.
    pub group: String,
    pub frozen: bool,
    /// Why it could not be moved back. It was thawed in any case.
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
        /// How long the bay was paused.
        pause_ms: u64,
    },
    Restored {
        record: RuntimeRecord,
        /// Problems inside, as reported by the guest: bounded, not trusted.
        notes: Vec<String>,
    },
    /// The answer to [`RuntimeRequest::Examine`], or to a capture that was not started.
    Examined {
        obstacles: Vec<Obstacle>,
    },
    Failed {
        step: String,
        message: String,
    },
    /// Processes of the bay hang in the kernel and can be neither killed nor frozen for now.
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
