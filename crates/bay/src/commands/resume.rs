use clap::Args;

use super::lifecycle::change;
use crate::cli::Global;
use crate::failure::Outcome;

/// Let a paused bay go on where it was.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  bay resume web")]
pub(crate) struct Resume {
    /// Name or id of the bay.
    name: String,
}

impl Resume {
    pub(crate) async fn run(self, global: &Global) -> Outcome {
        change(global, &self.name, "resume", "resuming").await
    }
}
