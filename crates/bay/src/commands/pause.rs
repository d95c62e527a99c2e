use clap::Args;

use super::lifecycle::change;
use crate::cli::Global;
use crate::failure::Outcome;

/// Freeze everything a bay runs, in memory and without using processor time.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  bay pause web")]
pub(crate) struct Pause {
    /// Name or id of the bay.
    name: String,
}

impl Pause {
    pub(crate) async fn run(self, global: &Global) -> Outcome {
        change(global, &self.name, "pause", "pausing").await
    }
}
