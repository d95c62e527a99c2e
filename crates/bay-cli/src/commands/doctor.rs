use bay_types::ErrorCode;
use clap::Args;

use crate::daemon_in_this_executable::DaemonInThisExecutable;
use crate::doctor::{self, report};
use crate::failure::Outcome;
use crate::global_options::GlobalOptions;

/// Check what this host supports for bays, what is missing, and how to fix it. Needs no daemon.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  bay doctor\n  bay doctor --json | jq '.checks[] | select(.state != \"ok\")'"
)]
pub(crate) struct Doctor {}

impl Doctor {
    pub(crate) async fn run(self, daemon: &DaemonInThisExecutable, global: &GlobalOptions) -> Outcome {
        let location = global.location();
        let examined = doctor::examine(daemon, &location).await;
        if global.json {
            crate::output::json(&examined)?;
        } else {
            crate::output::data(&report::render(&examined))?;
        }
        Ok(if examined.fit { 0 } else { ErrorCode::HostUnfit.exit_code() })
    }
}
