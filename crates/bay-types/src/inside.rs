//! Types of `bay-ctl`, `bay ports` and activity: what the processes of a bay ask their guest, and what the guest
//! reports.
//!
//! `bay-ctl` speaks HTTP/1.1 with the guest over [`CTL_SOCKET`], one request per connection:
//!
//! | request                    | answer                                       |
//! |----------------------------|----------------------------------------------|
//! | `GET /v1/whoami`           | [`WhoAmI`]                                   |
//! | `GET /v1/can`              | [`Can`]                                      |
//! | `GET /v1/ports`            | array of [`Port`]                            |
//! | `POST /v1/hold?seconds=N`  | [`Hold`]; N up to [`MAX_HOLD_S`]             |
//! | `DELETE /v1/hold`          | [`Hold`]                                     |
//! | `GET /v1/egress`           | [`InsideEgress`](crate::traffic::InsideEgress) |
//! | `GET /v1/checkpoints`      | array of [`CheckpointView`](crate::checkpoint::CheckpointView) |
//! | `POST /v1/checkpoints` [`Message`] | `CheckpointView`; for root of the bay only |
//! | `POST /v1/restore/{checkpoint}` | `CheckpointView` of the state before, sent just before the restore; for root of the bay only |
//! | `POST /v1/diff` [`DiffAsk`](crate::diff::DiffAsk) | [`InsideDiff`]; for root of the bay only |
//! | `… /v1/services…`          | as in [`guest`](crate::guest); other methods than `GET` for root of the bay only, and variables shown to root only; a definition waits until the daemon allows its commands |
//!
//! The guest closes each connection after some seconds. So a reader of a log asks again from where it ended.

use std::net::IpAddr;
use std::path::PathBuf;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::bay::{Isolation, Limits};
use crate::diff::{DiffLine, Moment, Part};
use crate::durability::Durability;
use crate::error::ApiError;
use crate::id::CheckpointName;
use crate::id::ExecId;
use crate::service::{ServiceName, ServiceSpec, ServiceVerb};
use crate::text_enum::text_enum;

/// Inside the bay: the guest's socket for `bay-ctl`.
pub const CTL_SOCKET: &str = "/.bay/ctl.sock";
/// Inside the bay: the path of `bay-ctl`.
pub const CTL: &str = "/.bay/bin/bay-ctl";
/// Inside the bay: the directory of `bay-ctl`, which is in `PATH`.
pub const CTL_DIR: &str = "/.bay/bin";
/// Below the root of the bay: where the guest links to `bay-ctl`, at the first place whose directory exists. Every `PATH`
/// that a login shell, `su` or `sudo` makes has `/usr/bin`; some leave out `/usr/local/bin`.
pub const CTL_LINKS: [&str; 2] = ["usr/bin/bay-ctl", "usr/local/bin/bay-ctl"];
/// Inside the bay: information for the agent.
pub const README: &str = "/.bay/README.md";
/// Longest hold of one `bay-ctl hold`. It can be renewed.
pub const MAX_HOLD_S: u64 = 24 * 60 * 60;

/// What a bay learns about itself when it starts.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct About {
    pub limits: Limits,
    #[serde(default, skip_serializing_if = "Durability::is_strict")]
    pub durability: Durability,
    /// Mount points of the host's directories and files, read-only. The bay does not learn their sources.
    pub mounts: Vec<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolation: Option<Isolation>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protocol {
    Tcp,
    Udp,
}

text_enum!(Protocol { Tcp = "tcp", Udp = "udp" });

/// One listening socket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    pub protocol: Protocol,
    pub address: IpAddr,
    pub port: u16,
    /// It is bound to loopback.
    pub loopback: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exec: Option<ExecId>,
    /// The number of that exec, which only the daemon knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exec_number: Option<u64>,
    /// The service whose run that exec is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<ServiceName>,
}

/// `GET /v1/activity`: activity of a bay that its use of processors and network does not show.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Activity {
    /// A process in the bay requested that it is not stopped as idle until then.
    pub hold_until: Option<Timestamp>,
    /// When the last byte of input or output went through a terminal.
    pub last_input_at: Option<Timestamp>,
}

/// Answer to `bay-ctl hold` and `release`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    pub hold_until: Option<Timestamp>,
}

/// A request of a process in a bay to the daemon, through the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "kebab-case")]
pub enum Ask {
    /// The bay's egress policy.
    Egress,
    Checkpoints,
    Checkpoint {
        message: Option<String>,
    },
    Restore {
        checkpoint: CheckpointName,
    },
    Diff {
        from: Option<Moment>,
        to: Option<Moment>,
        part: Part,
        patch: bool,
        /// Guests of earlier versions send nothing.
        #[serde(default)]
        ignored: bool,
    },
    /// Whether the rules on commands let the bay define this service. The guest defines it if the daemon agrees.
    Service {
        service: ServiceName,
        spec: Box<ServiceSpec>,
    },
}

/// The answer to [`Ask::Diff`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InsideDiff {
    pub lines: Vec<DiffLine>,
    /// The answer was too long: lines before the last one are missing.
    #[serde(default)]
    pub cut: bool,
}

/// A change that a process of the bay made through its guest, reported to the daemon for the record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "kebab-case")]
pub enum InsideChange {
    ServiceDefined {
        service: ServiceName,
        /// The beginning of its command.
        argv: Vec<String>,
        arguments_left_out: usize,
    },
    ServiceAsked {
        service: ServiceName,
        verb: ServiceVerb,
    },
    ServiceRemoved {
        service: ServiceName,
    },
    HoldTaken {
        until: Option<Timestamp>,
    },
    HoldReleased,
}

/// `POST /v1/asks/{id}` of the guest: the answer to an [`Ask`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Answered {
    #[serde(default)]
    pub value: serde_json::Value,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ApiError>,
}

/// The message of a checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Message {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// `bay-ctl whoami`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WhoAmI {
    pub bay: String,
    pub name: String,
    /// The exec of the process that asks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exec: Option<ExecId>,
    pub uid: u32,
    /// When the bay started.
    pub started_at: Timestamp,
    pub version: String,
    pub limits: Limits,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolation: Option<Isolation>,
}

/// `bay-ctl can`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Can {
    pub network: Network,
    /// Mount points of the host's directories and files, read-only.
    pub mounts: Vec<PathBuf>,
    /// It survives everything but the deletion of the bay.
    pub workspace: PathBuf,
    pub limits: Limits,
    pub hold_until: Option<Timestamp>,
}

/// How the bay's outbound connections are handled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    /// `policy`: the bay's policy decides; everything else is refused at once.
    pub outbound: String,
    pub detail: String,
}
