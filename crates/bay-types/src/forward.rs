//! Forwards: TCP ports of a bay that a client makes reachable on its own host.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::bay::State;
use crate::error::{CoreError, ErrorCode};
use crate::id::ForwardId;

/// Token of the `Upgrade` header of a connection that carries one forwarded TCP connection, between CLI and daemon and
/// between daemon and guest. The crate `bay-tunnel` describes what follows.
pub const UPGRADE: &str = "bay-tcp/1";

/// Forwarded connections of one bay at once, over all of its forwards.
pub const MAX_CONNECTIONS: usize = 1000;

/// Forwards of one bay at once.
pub const MAX_FORWARDS: usize = 64;

/// Ports of one forward.
pub const MAX_PORTS: usize = 128;

/// What `POST /v1/bays/{bay}/forwards` opens. The forward lasts as long as its client reads the answer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForwardSpec {
    /// The bay's ports.
    #[serde(default)]
    pub ports: Vec<u16>,
    /// Every port on which the bay listens at the time of a connection.
    #[serde(default)]
    pub all: bool,
    /// The address of its host at which the client listens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listen: Option<IpAddr>,
}

impl ForwardSpec {
    /// An error if it names no port, too many, or port 0.
    pub fn check(&self) -> Result<(), CoreError> {
        let bad = |message: String, next: String| Err(CoreError::new(ErrorCode::InvalidInput, message, next));
        if self.ports.contains(&0) {
            return bad("port 0 cannot be forwarded".to_owned(), "name a port from 1 to 65535".to_owned());
        }
        if self.ports.is_empty() && !self.all {
            return bad(
                "a forward needs a port".to_owned(),
                "name the bay's port, or all of them".to_owned(),
            );
        }
        if self.ports.len() > MAX_PORTS {
            let message = format!("{} ports are too many for one forward", self.ports.len());
            return bad(message, format!("name at most {MAX_PORTS}"));
        }
        Ok(())
    }

    /// Whether a connection to this port belongs to the forward.
    #[must_use]
    pub fn covers(&self, port: u16) -> bool {
        port != 0 && (self.all || self.ports.contains(&port))
    }
}

/// One line of the answer to the opening of a forward.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum ForwardLine {
    /// The first line.
    Open { forward: ForwardId },
    /// The bay reached another state. Connections are possible while it runs.
    State { state: State, reason: String },
    /// The last line: the bay is being removed.
    Removed,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forward_covers_its_ports_and_with_all_every_port() {
        let two = ForwardSpec { ports: vec![80, 5173], ..ForwardSpec::default() };
        two.check().unwrap();
        assert!(two.covers(80) && two.covers(5173) && !two.covers(81));
        let all = ForwardSpec { all: true, ..ForwardSpec::default() };
        all.check().unwrap();
        assert!(all.covers(1) && !all.covers(0));
    }

    #[test]
    fn a_forward_without_a_port_or_with_too_many_is_refused() {
        for ports in [vec![], vec![0], vec![80, 0], vec![1; MAX_PORTS + 1]] {
            let spec = ForwardSpec { ports, ..ForwardSpec::default() };
            assert_eq!(spec.check().unwrap_err().code, ErrorCode::InvalidInput, "{spec:?}");
        }
    }
}
