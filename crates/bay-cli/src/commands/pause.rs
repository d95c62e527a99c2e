use clap::Args;

use super::lifecycle::change;
use crate::failure::Outcome;
use crate::global_options::GlobalOptions;

/// Freeze all processes of a bay in memory, where they use no processor time, or on disk, where they use no memory.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  bay pause web\n  bay pause web --to-disk\n  bay resume web")]
pub(crate) struct Pause {
    /// Names or ids of the bays.
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    /// Capture the memory as a checkpoint and end all processes. `bay resume` continues from it, also after a reboot.
    #[arg(long)]
    to_disk: bool,
}

impl Pause {
    pub(crate) async fn run(self, global: &GlobalOptions) -> Outcome {
        let verb = if self.to_disk { "pause?to_disk=true" } else { "pause" };
        change(global, &self.names, verb, "pausing").await
    }
}
