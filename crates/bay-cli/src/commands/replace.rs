use clap::Args;

use super::lifecycle::change;
use crate::failure::Outcome;
use crate::global_options::GlobalOptions;

/// Give a bay a fresh root filesystem from the newest image of the name that it was made with. The workspace is kept;
/// all processes end. It starts again, unless it was stopped.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  bay replace web\n  bay replace web api")]
pub(crate) struct Replace {
    /// Names or ids of the bays.
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
}

impl Replace {
    pub(crate) async fn run(self, global: &GlobalOptions) -> Outcome {
        change(global, &self.names, "replace", "replacing").await
    }
}
