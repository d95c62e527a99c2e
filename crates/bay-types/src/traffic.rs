//! What is on record of a bay's traffic: the kinds of its events, and how they are shown.

use serde::{Deserialize, Serialize};

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

/// What all kinds of events of traffic begin with.
pub const KINDS: &str = "egress.";
/// A request, or a connection that is passed on, and what was decided on it.
pub const DECIDED: &str = "egress.decided";
/// Something that was refused before there was a request to decide on.
pub const REFUSED: &str = "egress.refused";
/// How something ended that was let out.
pub const ENDED: &str = "egress.ended";
/// A question for a name.
pub const LOOKED_UP: &str = "egress.looked-up";
/// How many more there were like one that has an event of its own.
pub const REPEATED: &str = "egress.repeated";
/// The way out of a bay was opened, or could not be.
pub const OPENED: &str = "egress.opened";
pub const CLOSED: &str = "egress.closed";
