use clap::Args;

use super::lifecycle::change;
use crate::cli::Global;
use crate::failure::Outcome;

/// Give a bay a fresh root filesystem from its image; the workspace is kept.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  bay replace web")]
pub(crate) struct Replace {
    /// Name or id of the bay.
    name: String,
}

impl Replace {
    pub(crate) async fn run(self, global: &Global) -> Outcome {
        change(global, &self.name, "replace", "replacing").await
    }
}
