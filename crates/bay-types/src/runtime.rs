//! What the daemon tells `bay __runtime`, and what it hears back.
//!
//! The helper reads one [`RuntimeRequest`] as JSON from standard input, does its work in one thread, writes one
//! [`RuntimeReply`] to standard output and exits. What it started goes on without it.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::bay::{Author, Isolation, Limits, Mount};
use crate::id::{BayId, BayName};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case")]
pub enum RuntimeRequest {
    Start(Box<RuntimeSpec>),
    /// Ends everything the bay runs and takes away its namespaces, mounts and cgroups. Harmless when there is nothing.
    Clear(RuntimePlace),
    Freeze(RuntimePlace),
    Thaw(RuntimePlace),
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
    /// Subvolumes on the pool.
    pub root: PathBuf,
    pub workspace: PathBuf,
    pub state: PathBuf,
    pub mounts: Vec<Mount>,
    /// First host id of the bay's range; id 0 inside is this one outside.
    pub id_base: u32,
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

/// How to find PID 1 of a running bay again, and be sure that it is that process and not a later one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuntimeRecord {
    pub pid: i32,
    /// Field 22 of `/proc/PID/stat`.
    pub start_ticks: u64,
    /// `/proc/sys/kernel/random/boot_id` of the host.
    pub boot_id: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "kebab-case")]
pub enum RuntimeReply {
    Started {
        record: RuntimeRecord,
    },
    Done,
    Failed {
        step: String,
        message: String,
    },
    /// Processes of the bay hang in the kernel: they can be neither ended nor frozen until what they wait for answers.
    Hangs {
        message: String,
    },
}
