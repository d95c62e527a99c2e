//! What a bay knows about itself, and what is told about its inside: `bay ports`, `bay-ctl`, activity.
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
//! | `POST /v1/restore/{checkpoint}` | `CheckpointView` of what was before, right before the bay goes back; for root of the bay only |
//! | `POST /v1/diff` [`DiffAsk`](crate::diff::DiffAsk) | [`InsideDiff`]; for root of the bay only |
//! | `… /v1/services…`          | as in [`guest`](crate::guest); what is no `GET` for root of the bay only, and variables shown to root only; a definition waits for the daemon's word on its commands |
//!
//! A connection is cut after some seconds, so a log is not followed but asked for again from where it ended.

use std::net::IpAddr;
use std::path::PathBuf;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::bay::{Isolation, Limits, text_enum};
use crate::checkpoint::CheckpointName;
use crate::diff::{DiffLine, Moment, Part};
use crate::error::ApiError;
use crate::id::ExecId;
use crate::service::{ServiceName, ServiceSpec, ServiceVerb};

/// Inside the bay: where `bay-ctl` finds the guest of its own bay.
pub const CTL_SOCKET: &str = "/.bay/ctl.sock";
/// Inside the bay: `bay-ctl` itself, and the directory of it that commands have in their `PATH`.
pub const CTL: &str = "/.bay/bin/bay-ctl";
pub const CTL_DIR: &str = "/.bay/bin";
/// Inside the bay: what its agent should know.
pub const README: &str = "/.bay/README.md";
/// Longest lease that one `bay-ctl hold` takes. It can be taken again.
pub const MAX_HOLD_S: u64 = 24 * 60 * 60;

/// What a bay is told about itself when it starts.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct About {
    pub limits: Limits,
    /// Where directories and files of the host are mounted, read-only. Where they come from is not the bay's business.
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
    /// Only processes of the bay itself can reach it.
    pub loopback: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exec: Option<ExecId>,
    /// Number of that exec, which only the daemon knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exec_number: Option<u64>,
    /// The service whose run that exec is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<ServiceName>,
}

/// `GET /v1/activity`: what a bay does that cannot be seen from its use of processors and network.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Activity {
    /// Somebody inside wants the bay awake until then.
    pub hold_until: Option<Timestamp>,
    /// The last byte of input or output on any terminal.
    pub last_input_at: Option<Timestamp>,
}

/// Answer to `bay-ctl hold` and `release`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    pub hold_until: Option<Timestamp>,
}

/// What a process of a bay asks of the daemon, through its guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "kebab-case")]
pub enum Ask {
    /// What may leave the bay.
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
    },
    /// Whether the rules on commands let the bay define this service. The guest defines it once the daemon agrees.
    Service {
        service: ServiceName,
        spec: Box<ServiceSpec>,
    },
}

/// What came of [`Ask::Diff`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InsideDiff {
    pub lines: Vec<DiffLine>,
    /// There was more than fits: lines before the last are missing.
    #[serde(default)]
    pub cut: bool,
}

/// What a process of the bay changed by asking its guest, told to the daemon for the record.
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

/// `POST /v1/asks/{id}` of the guest: what came of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Answered {
    #[serde(default)]
    pub value: serde_json::Value,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ApiError>,
}

/// What is worth remembering about a checkpoint.
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
    /// The exec that the asking process belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exec: Option<ExecId>,
    pub uid: u32,
    /// Up since.
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
    /// Shown read-only from the host.
    pub mounts: Vec<PathBuf>,
    /// Survives everything but the deletion of the bay.
    pub workspace: PathBuf,
    pub limits: Limits,
    pub hold_until: Option<Timestamp>,
}

/// What connections out of the bay come to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    /// `policy`: what the bay's policy allows leaves, everything else is refused at once.
    pub outbound: String,
    pub detail: String,
}
