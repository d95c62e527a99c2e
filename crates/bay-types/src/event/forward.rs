use std::net::IpAddr;

use super::Field;
use super::area::area;
use crate::id::ForwardId;

area! {
    /// Forwards of a bay's ports to the host of a client. The connections of a forward are not recorded one by one.
    Forward: ForwardEvent;

    /// Somebody opened a forward.
    Open(ForwardOpen) = "forward.open" {
        /// The forward.
        forward: Field<ForwardId>,
        /// The bay's ports that are forwarded.
        ports: Vec<u16>,
        /// Whether every port on which the bay listens is forwarded.
        all: bool,
        /// The address of its host at which the client listens, as the client reports it.
        #[serde(skip_serializing_if = "Option::is_none")]
        listen: Option<IpAddr>,
        /// Who asked.
        by: String,
    }

    /// A forward ended. If the daemon ended first, there is no such event.
    End(ForwardEnd) = "forward.end" {
        /// The forward.
        forward: Field<ForwardId>,
        /// How many connections were forwarded.
        connections: u64,
        /// Bytes that were sent into the bay, with 4 for each piece in which they were sent.
        bytes_in: u64,
        /// Bytes that the bay sent, with 4 for each piece in which they were sent.
        bytes_out: u64,
    }
}
