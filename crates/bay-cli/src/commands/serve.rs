use bay_types::{ApiError, ErrorCode};

use crate::daemon_in_this_executable::DaemonInThisExecutable;
use crate::failure::Outcome;
use crate::global_options::GlobalOptions;
use crate::serve_options::Serve;

impl Serve {
    pub(crate) fn run(self, daemon: &DaemonInThisExecutable, global: &GlobalOptions) -> Outcome {
        if !rustix::process::geteuid().is_root() {
            return Err(ApiError::new(
                ErrorCode::NotRoot,
                "the daemon makes namespaces, mounts and cgroups, which needs root",
                "run it with sudo",
            )
            .into());
        }
        (daemon.serve)(self, global.location())?;
        Ok(0)
    }
}
