use clap::Args;

use super::lifecycle::change;
use crate::cli::Global;
use crate::failure::Outcome;

/// Start a stopped bay with the files it had.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  bay start web")]
pub(crate) struct Start {
    /// Name or id of the bay.
    name: String,
}

impl Start {
    pub(crate) async fn run(self, global: &Global) -> Outcome {
        change(global, &self.name, "start", "starting").await
    }
}
