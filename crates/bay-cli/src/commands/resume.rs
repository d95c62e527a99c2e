use clap::Args;

use super::lifecycle::change;
use crate::failure::Outcome;
use crate::global_options::GlobalOptions;

/// Resume a paused bay where it was paused.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  bay resume web\n  bay resume web api")]
pub(crate) struct Resume {
    /// Names or ids of the bays.
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
}

impl Resume {
    pub(crate) async fn run(self, global: &GlobalOptions) -> Outcome {
        change(global, &self.names, "resume", "resuming").await
    }
}
