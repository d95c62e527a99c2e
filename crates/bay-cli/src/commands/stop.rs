use bay_types::bay::STOP_GRACE_S;
use clap::Args;

use super::lifecycle::change;
use crate::failure::Outcome;
use crate::global_options::GlobalOptions;

/// End all processes of a bay, also those of a paused one. Its files stay, and `bay start` starts it again.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  bay stop web\n  bay stop web api")]
pub(crate) struct Stop {
    /// Names or ids of the bays.
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    /// Seconds between TERM and KILL, at most 600.
    #[arg(
        short = 't',
        long,
        visible_alias = "time",
        value_name = "SECONDS",
        default_value_t = STOP_GRACE_S,
        value_parser = whole_seconds
    )]
    grace: u64,
}

fn whole_seconds(given: &str) -> Result<u64, String> {
    given.parse().map_err(|_| "give a whole number of seconds".to_owned())
}

impl Stop {
    pub(crate) async fn run(self, global: &GlobalOptions) -> Outcome {
        change(global, &self.names, &format!("stop?grace_s={}", self.grace), "stopping").await
    }
}
