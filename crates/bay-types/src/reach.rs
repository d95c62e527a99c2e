//! The services of the host that a bay may use: `PUT /v1/bays/{bay}/reach`.

use serde::{Deserialize, Serialize};

/// The one name under which a bay uses services of its host. It means the host's loopback, and only the ports that an
/// operator named for the bay.
pub const HOST_NAME: &str = "host.bay.internal";

/// The most ports of the host that one bay may use.
pub const MAX_REACH: usize = 16;

/// `PUT /v1/bays/{bay}/reach`: exactly these ports. An empty list closes all of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReachSet {
    /// TCP ports on the host's `127.0.0.1`.
    pub ports: Vec<u16>,
}
