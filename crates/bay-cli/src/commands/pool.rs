use bay_client::invalid;
use bay_text::escape::visible;
use bay_types::pool::{CornerView, PoolPrune, PoolPruned};
use clap::{Args, Subcommand};

use super::rm::confirmed;
use crate::failure::Outcome;
use crate::global_options::GlobalOptions;
use crate::output::{count, table};

/// Manage the pool, which several daemons may share.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  bay pool prune --dry-run\n  bay pool prune --yes")]
pub(crate) struct PoolCommand {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Remove what is left in the pool of daemons whose data directories are gone. Shows it first.
    Prune {
        /// Only show what would be removed.
        #[arg(long)]
        dry_run: bool,
        /// Remove it without asking. A script needs this.
        #[arg(short, long)]
        yes: bool,
    },
}

impl PoolCommand {
    pub(crate) async fn run(self, global: &GlobalOptions) -> Outcome {
        let Verb::Prune { dry_run, yes } = self.verb;
        let mut client = global.client();
        let ask = PoolPrune { daemons: None, dry_run: true };
        let found: PoolPruned = client.post("/v1/pool/prune", &ask).await?;
        if found.corners.is_empty() || dry_run {
            if global.json {
                crate::output::json(&found)?;
            } else if found.corners.is_empty() {
                crate::output::talk(
                    "there is nothing to remove: no data directory of a daemon that used the pool is gone",
                );
            } else {
                crate::output::data(&render(&found.corners))?;
            }
            return Ok(0);
        }
        if !yes && (global.json || !crate::terminal::stdin_is_terminal() || !crate::output::watched()) {
            return Err(invalid(
                "this deletes files of bays, and without a terminal it cannot ask for confirmation",
                "look at what `bay pool prune --dry-run` lists, then repeat the command with --yes",
            )
            .into());
        }
        if !global.json {
            crate::output::talk(&render(&found.corners));
        }
        let what = count(found.corners.len() as u64, "daemon");
        if !yes && !confirmed(&format!("what {what} left, with the files of their bays"))? {
            crate::output::talk("nothing was removed");
            return Ok(1);
        }
        // By id: only what was shown is removed.
        let daemons = Some(found.corners.into_iter().map(|corner| corner.daemon).collect());
        let removed: PoolPruned =
            client.post("/v1/pool/prune", &PoolPrune { daemons, dry_run: false }).await?;
        if global.json {
            crate::output::json(&removed)?;
        } else {
            let removed = count(removed.corners.len() as u64, "daemon");
            crate::output::data(&format!("what {removed} left is removed"))?;
        }
        Ok(0)
    }
}

fn render(corners: &[CornerView]) -> String {
    let mut table = table::table(&["DAEMON", "ITS DATA DIRECTORY WAS", "BAYS"]);
    for corner in corners {
        table.add_row([
            visible(&corner.daemon),
            visible(&corner.data_dir.display().to_string()),
            corner.bays.to_string(),
        ]);
    }
    table.trim_fmt()
}
