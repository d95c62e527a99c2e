//! A bay's egress state and recorded traffic, as the API shows them.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::egress::Who;
use crate::text_enum::text_enum;
use crate::timeline::TimelineEnd;

/// `GET /v1/bays/{name}/egress`: the present state of a bay's egress.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EgressState {
    /// Whether the gateway runs. Nothing leaves a bay that does not run.
    pub open: bool,
    /// Dropped packets since it started.
    pub dropped: DroppedPackets,
}

/// Packets that the gateway dropped: everything but TCP and DNS, and DNS queries beyond the limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DroppedPackets {
    /// Datagrams, QUIC included.
    pub udp: u64,
    pub icmp: u64,
    /// Packets of any other protocol.
    pub other: u64,
    /// DNS queries beyond the limit per second.
    pub dns: u64,
}

/// Something that a bay sent or tried to send: a request, a connection, or a name lookup. New releases may add
/// fields and remove none. The bay controls many of these texts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EgressEntry {
    /// Number of the newest event in this entry: continue reading after it.
    pub seq: u64,
    /// Number of the decision, for `bay policy explain`. For a sum: the last decision like those it counts.
    pub id: u64,
    pub at: Timestamp,
    pub outcome: EgressOutcome,
    /// `METHOD URL`, `tcp://HOST:PORT`, `tls://HOST:PORT`, or `HOST:PORT` without a request; for a lookup, the
    /// name.
    pub request: String,
    /// How it ended: `answered`, `broken`, `failed`, `closed`, `abandoned`, `revoked`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ending: Option<String>,
    /// The status of the origin's answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Why the origin could not be used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// Bytes of bodies and tunnels, from the bay and to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub received: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<EgressRule>,
    /// Secrets whose values the gateway attached.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<String>,
    /// Why it was refused, or the answer to a lookup.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Who>,
    /// Number and command of the exec, if the daemon still has them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exec_number: Option<u64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exec_argv: Vec<String>,
    /// Of a sum: how many there were, and in how many seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within_s: Option<u64>,
    /// If a sum has several names: how many different ones, and the first of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub distinct: Option<u64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sample: Vec<String>,
}

/// The outcome of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EgressOutcome {
    /// Allowed, and ended.
    Ended,
    /// Allowed, and not ended yet.
    UnderWay,
    /// Allowed by a daemon that ended before it did: no end is on record.
    EndUnknown,
    /// Denied by the policy, or because there is none.
    Denied,
    /// Refused, because nobody approved it.
    Ask,
    /// Refused before a request could be decided on.
    Refused,
    LookedUp,
    /// A sum of entries like one that has its own entry.
    Repeated,
}

text_enum!(EgressOutcome {
    Ended = "ended",
    UnderWay = "under-way",
    EndUnknown = "end-unknown",
    Denied = "denied",
    Ask = "ask",
    Refused = "refused",
    LookedUp = "looked-up",
    Repeated = "repeated",
});

/// The rule that decided, and where it is written.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EgressRule {
    pub id: String,
    pub origin: String,
}

/// An item of the stream of a bay's traffic.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum EgressNews {
    Entry(Box<EgressEntry>),
    End(TimelineEnd),
}

/// The answer of `bay-ctl egress`: what a bay may know of its egress policy. It has nothing of the host's files or
/// of other bays.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InsideEgress {
    /// Whether the gateway runs.
    pub open: bool,
    /// Names of the policies in force, the host's first. None of them is a path.
    pub policies: Vec<String>,
    /// The outcome for requests that no rule covers.
    pub otherwise: String,
    pub rules: Vec<InsideRule>,
    /// There are more rules than are listed.
    #[serde(default)]
    pub more: bool,
    /// Address of the gateway's proxy.
    pub proxy: String,
    pub resolver: String,
}

/// A rule or a grant that is in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InsideRule {
    /// `allow`, `ask` or `deny`.
    pub outcome: String,
    /// What it covers, on one line.
    pub what: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Timestamp>,
}
