use clap::Args;

use super::lifecycle::change;
use crate::failure::Outcome;
use crate::global_options::GlobalOptions;

/// Start a stopped or failed bay with its files.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  bay start web\n  bay start web api")]
pub(crate) struct Start {
    /// Names or ids of the bays.
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
}

impl Start {
    pub(crate) async fn run(self, global: &GlobalOptions) -> Outcome {
        change(global, &self.names, "start", "starting").await
    }
}
