//! The record of everything decided and done. Every event is a leaf of one Merkle tree (RFC 6962).
//!
//! An [`Event`] is the stored form: a kind, and a body in JSON. An [`EventBody`] is the typed form: one struct for
//! each kind, in one module for each area. `EVENTS.md` in this crate lists them all; a test generates it from the
//! structs.
//!
//! Events are kept for ever, so every written event stays readable:
//! * a field is never removed, renamed or given another meaning; a field that is no longer written stays, and its
//!   documentation says so;
//! * a new field is optional, or has a default that is true for older events;
//! * if that is not possible, the kind gets another version ([`Recorded::VERSION`]);
//! * an event of a kind or version that this release does not know is [`EventBody::Other`].

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::id::{BayId, ExecId};
use crate::principal;

pub mod approval;
mod area;
pub mod bay;
pub mod checkpoint;
pub mod daemon;
pub mod egress;
pub mod exec;
pub mod file;
pub mod forward;
pub mod inside;
pub mod policy;
pub mod pool;
#[cfg(test)]
mod reference;
pub mod secret;
pub mod service;
#[cfg(test)]
mod tests;
pub mod work;

pub use approval::ApprovalEvent;
pub use area::{Field, FieldInfo, KindInfo, Recorded, VERSION_KEY};
pub use bay::BayEvent;
pub use checkpoint::CheckpointEvent;
pub use daemon::DaemonEvent;
pub use egress::{EgressEvent, TrafficPart};
pub use exec::ExecEvent;
pub use file::FileEvent;
pub use forward::ForwardEvent;
pub use inside::InsideEvent;
pub use policy::PolicyEvent;
pub use pool::PoolEvent;
pub use secret::SecretEvent;
pub use service::ServiceEvent;
pub use work::WorkEvent;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Counts from 1 without gaps.
    pub seq: u64,
    pub at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bay: Option<BayId>,
    /// Noun and verb: `bay.create`, `exec.start`.
    pub kind: String,
    /// A JSON object; its fields depend on the kind.
    pub body: Value,
    /// Its leaf in the ledger: hexadecimal SHA-256 over everything above.
    pub hash: String,
}

impl Event {
    /// The typed form.
    #[must_use]
    pub fn read(&self) -> EventBody {
        EventBody::read(&self.kind, &self.body)
    }
}

macro_rules! event_body {
    ($($area:ident($event:ident),)*) => {
        /// The typed form of an event.
        #[allow(clippy::large_enum_variant)] // Only one is in memory at a time.
        #[derive(Debug, Clone, PartialEq)]
        pub enum EventBody {
            $( $area($event), )*
            /// An event of a kind, or of a version, that this release does not know.
            Other(OtherEvent),
        }

        impl EventBody {
            /// Every kind that this release knows, by area: its name, documentation, and kinds.
            pub const AREAS: &'static [(&'static str, &'static [&'static str], &'static [KindInfo])] =
                &[$( (stringify!($area), $event::ABOUT, $event::KINDS), )*];

            /// Parses an event. A field of an unexpected shape is left out or empty.
            #[must_use]
            pub fn read(kind: &str, body: &Value) -> Self {
                $( if let Some(event) = $event::read(kind, body) { return Self::$area(event); } )*
                Self::Other(OtherEvent { kind: kind.to_owned(), body: body.clone() })
            }

            #[must_use]
            pub fn kind(&self) -> &str {
                match self {
                    $( Self::$area(event) => event.kind(), )*
                    Self::Other(other) => &other.kind,
                }
            }

            /// Its body, as it is recorded.
            #[must_use]
            pub fn body(&self) -> Value {
                match self {
                    $( Self::$area(event) => event.body(), )*
                    Self::Other(other) => other.body.clone(),
                }
            }
        }

        $(
            impl From<$event> for EventBody {
                fn from(event: $event) -> Self {
                    Self::$area(event)
                }
            }
        )*
    };
}

event_body! {
    Bay(BayEvent),
    Exec(ExecEvent),
    Service(ServiceEvent),
    Checkpoint(CheckpointEvent),
    File(FileEvent),
    Forward(ForwardEvent),
    Egress(EgressEvent),
    Policy(PolicyEvent),
    Approval(ApprovalEvent),
    Secret(SecretEvent),
    Inside(InsideEvent),
    Work(WorkEvent),
    Pool(PoolEvent),
    Daemon(DaemonEvent),
}

impl EventBody {
    /// The exec that it is about, or that caused it.
    #[must_use]
    pub fn exec(&self) -> Option<ExecId> {
        match self {
            Self::Exec(event) => event.exec(),
            Self::Egress(event) => event.exec(),
            Self::Approval(ApprovalEvent::Asked(asked)) => asked.by.as_ref()?.exec,
            Self::Other(other) => {
                let id = other.body.get("exec").or_else(|| other.body.get("by")?.get("exec"))?;
                id.as_str()?.parse().ok()
            }
            _ => None,
        }
    }
}

/// An event that this release has no type for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherEvent {
    pub kind: String,
    pub body: Value,
}

impl OtherEvent {
    pub fn new(kind: impl Into<String>, body: Value) -> Self {
        Self { kind: kind.into(), body }
    }
}

impl From<OtherEvent> for EventBody {
    fn from(other: OtherEvent) -> Self {
        Self::Other(other)
    }
}

/// Columns by which the store selects events. They follow from kind and body, which are hashed; verification
/// compares them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventColumns {
    /// Its part of a bay's traffic, if it is traffic.
    pub traffic: Option<TrafficPart>,
    /// Whether the bay's own processes caused it, and it is not traffic. A bay may fill a limited part of the
    /// record with such events.
    pub from_inside: bool,
}

impl EventColumns {
    /// The columns of an event with this body.
    #[must_use]
    pub fn of(event: &EventBody, body: &Value) -> Self {
        let traffic = match event {
            EventBody::Egress(egress) => Some(egress.part()),
            other => other.kind().starts_with(egress::KINDS).then_some(TrafficPart::Other),
        };
        let by = body.get("by").and_then(Value::as_str);
        let caused = event.kind() == approval::ApprovalAsked::KIND
            || matches!(by, Some(principal::INSIDE | principal::APPROVAL));
        Self { traffic, from_inside: caused && traffic.is_none() }
    }
}

/// `GET /v1/events/verify`: whether every hash of the record verifies, and the last signed head.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventsVerified {
    pub ok: bool,
    /// How many events verify, from the first on.
    pub events: u64,
    /// The root over all events, if all verify. Stored elsewhere, it later proves that none was changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head_hash: Option<String>,
    /// The first event that does not verify, if known, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_bad: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// `GET /v1/audit/key`: the public key that verifies the ledger's signed heads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerKey {
    pub log: String,
    /// One line: name, id and key.
    pub key: String,
}

/// `GET /v1/audit/head`: the end of the record, signed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerHead {
    /// The signed note.
    pub note: String,
    /// The content of the note: the number of events, the root over all of them, and the time of signing.
    pub size: u64,
    pub root: String,
    pub signed_at: Timestamp,
}
