//! What is on record of a bay's traffic: the kinds of its events, and how they are shown.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::bay::text_enum;
use crate::egress::Who;
use crate::timeline::TimelineEnd;

/// `GET /v1/bays/{name}/egress`: how the way out of a bay is at this moment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EgressState {
    /// Whether somebody is there to be asked: a bay that does not run has no way out.
    pub open: bool,
    /// Packets that went nowhere since it started.
    pub dropped: DroppedPackets,
}

/// What is neither TCP nor a question for a name, and so leads nowhere.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DroppedPackets {
    /// Datagrams, QUIC included.
    pub udp: u64,
    pub icmp: u64,
    /// Packets of any other protocol.
    pub other: u64,
    /// Questions for names beyond what a bay may ask in a second.
    pub dns: u64,
}

/// One thing that a bay sent or tried to send: a request, a connection, a question for a name. Fields may be added; none is
/// taken away. Much of it was said by the bay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EgressEntry {
    /// Number of the newest event that this was made from: where to go on after it.
    pub seq: u64,
    /// Number of the decision, for `bay policy explain`. For a sum, that of the last one like those it counts.
    pub id: u64,
    pub at: Timestamp,
    pub outcome: EgressOutcome,
    /// `METHOD URL`, `tcp://HOST:PORT`, `tls://HOST:PORT`, or `HOST:PORT` where there was no request; a name for a look-up.
    pub request: String,
    /// How it ended: `answered`, `broken`, `failed`, `closed`, `abandoned`, `revoked`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ending: Option<String>,
    /// What the origin answered.
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
    /// Secrets whose values were put into it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<String>,
    /// Why it was refused, or what was said to a look-up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Who>,
    /// Number and command of the exec, as long as the daemon keeps them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exec_number: Option<u64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exec_argv: Vec<String>,
    /// Of a sum: how many there were, and within what time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within_s: Option<u64>,
    /// If the sum is of more than one name: how many different names there were, and the first of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub distinct: Option<u64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sample: Vec<String>,
}

/// What became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EgressOutcome {
    /// Let out, and over.
    Ended,
    /// Let out, and not over yet.
    UnderWay,
    /// Let out by a daemon that ended first: how it ended is not on record.
    EndUnknown,
    /// Refused by the policy, or for want of one.
    Denied,
    /// Refused, because nobody approved it.
    Ask,
    /// Refused before there was a request to decide on.
    Refused,
    LookedUp,
    /// More like one that has an entry of its own.
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

/// What is said on the stream of a bay's traffic: entries, and how it ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum EgressNews {
    Entry(Box<EgressEntry>),
    End(TimelineEnd),
}

/// What a bay is told of its own way out: `bay-ctl egress`. Nothing of the host's files or of other bays is in it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InsideEgress {
    /// Whether anybody is there to be asked.
    pub open: bool,
    /// Names of the policies that hold together, the host's first. None of them is a path.
    pub policies: Vec<String>,
    /// What is said to requests that no rule speaks of.
    pub otherwise: String,
    pub rules: Vec<InsideRule>,
    /// There are more rules than are told.
    #[serde(default)]
    pub more: bool,
    /// Where clients that want a proxy find it.
    pub proxy: String,
    pub resolver: String,
}

/// A rule or a grant that is in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InsideRule {
    /// `allow`, `ask` or `deny`.
    pub outcome: String,
    /// What it speaks of, in one line.
    pub what: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Timestamp>,
}
