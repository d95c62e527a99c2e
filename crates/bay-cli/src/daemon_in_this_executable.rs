//! What the CLI needs of the daemon in the same executable. The executable passes it, so that the CLI does not depend on
//! the daemon's crates.

use std::path::Path;

use bay_types::ApiError;

use crate::daemon_start::DaemonLocation;
use crate::serve_options::Serve;

/// The functions of the daemon that `bay serve` and `bay doctor` call in their own process.
#[derive(Debug, Clone, Copy)]
pub struct DaemonInThisExecutable {
    /// Runs a daemon until it ends.
    pub serve: fn(Serve, DaemonLocation) -> Result<(), ApiError>,
    /// Reports which keys of daemons there are, or why they cannot be used.
    pub look_at_keys: fn(Option<&Path>) -> Result<String, String>,
}
