use clap::Args;

use super::lifecycle::change;
use crate::cli::Global;
use crate::failure::Outcome;

/// Freeze everything a bay runs, in memory and without using processor time.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  bay pause web\n  bay pause web api")]
pub(crate) struct Pause {
    /// Names or ids of the bays.
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
}

impl Pause {
    pub(crate) async fn run(self, global: &Global) -> Outcome {
        change(global, &self.names, "pause", "pausing").await
    }
}
