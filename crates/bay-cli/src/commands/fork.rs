use bay_client::bay_path;
use bay_types::CheckpointName;
use bay_types::checkpoint::{ForkCreate, Forked};
use clap::Args;

use crate::failure::Outcome;
use crate::global_options::GlobalOptions;
use bay_text::escape::one_line;

/// Make new bays from the present state of a bay, or from a checkpoint. They are isolated from each other.
///
/// If the checkpoint has the memory too, the processes in it continue in each new bay. Otherwise the bays start from
/// the files. A new checkpoint has the memory if the bay runs and that is possible.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  bay fork web --count 3\n  bay fork web --from v2 --count 2 --name fix\n  bay compare fix-1 fix-2 --run 'make test'"
)]
pub(crate) struct Fork {
    /// Name or id of the bay.
    name: String,
    /// Number of new bays.
    #[arg(long, value_name = "N", default_value_t = 1)]
    count: u32,
    /// The checkpoint to begin from: v1, v2, … [default: a new one]
    #[arg(long, value_name = "CHECKPOINT")]
    from: Option<CheckpointName>,
    /// Prefix of their names; a number follows it [default: the bay's name and -fork].
    #[arg(long = "name", value_name = "PREFIX")]
    prefix: Option<String>,
    /// Start them from the files only, without the memory.
    #[arg(long)]
    files_only: bool,
}

impl Fork {
    pub(crate) async fn run(self, global: &GlobalOptions) -> Outcome {
        let bay = crate::naming::bay(&self.name)?;
        let body =
            ForkCreate { count: self.count, from: self.from, name: self.prefix, files_only: self.files_only };
        let made: Forked = global.client().post(&bay_path(bay, "/forks"), &body).await?;
        if global.json {
            crate::output::json(&made)?;
            return Ok(0);
        }
        for why in &made.checkpoint.without_memory {
            crate::output::talk(&format!("started from the files alone: {}", one_line(why)));
        }
        for child in &made.bays {
            crate::output::data(&format!(
                "{} is {} from {} of {bay}: {}",
                child.name,
                child.state,
                made.checkpoint.name,
                one_line(&child.reason)
            ))?;
        }
        Ok(0)
    }
}
