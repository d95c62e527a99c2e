use clap::Args;

use super::lifecycle::change;
use crate::cli::Global;
use crate::failure::Outcome;

/// End everything a bay runs; its files stay, and `bay start` brings it back.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  bay stop web")]
pub(crate) struct Stop {
    /// Name or id of the bay.
    name: String,
    /// How long processes have between TERM and KILL.
    #[arg(short = 't', long, visible_alias = "time", value_name = "SECONDS")]
    grace: Option<u64>,
}

impl Stop {
    pub(crate) async fn run(self, global: &Global) -> Outcome {
        let verb = self.grace.map_or_else(|| "stop".to_owned(), |seconds| format!("stop?grace_s={seconds}"));
        change(global, &self.name, &verb, "stopping").await
    }
}
