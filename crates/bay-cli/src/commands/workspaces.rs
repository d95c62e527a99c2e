use bay_types::bay::WorkspaceView;
use clap::{Args, Subcommand};
use jiff::Timestamp;

use super::rm::confirmed;
use crate::failure::Outcome;
use crate::global_options::GlobalOptions;
use crate::output::age::since;
use crate::output::{size, table};
use bay_text::escape::visible;
use bay_text::percent::segment;

/// Manage the workspaces that `bay rm --keep-workspace` kept. `bay up --workspace` makes a bay with a copy of one.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  bay workspaces ls\n  bay up --workspace web-20260102T030405Z\n  bay workspaces rm web-20260102T030405Z"
)]
pub(crate) struct Workspaces {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List the workspaces.
    Ls,
    /// Delete workspaces permanently. On a terminal it asks first; in a script it does not.
    Rm {
        /// Names of workspaces. The name of a bay is enough if only one of its workspaces is kept.
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
        /// Do not ask for confirmation.
        #[arg(short, long, visible_alias = "force", short_alias = 'f')]
        yes: bool,
    },
}

impl Workspaces {
    pub(crate) async fn run(self, global: &GlobalOptions) -> Outcome {
        let mut client = global.client();
        match self.verb {
            Verb::Ls => {
                let kept: Vec<WorkspaceView> = client.get("/v1/workspaces").await?;
                if global.json {
                    crate::output::json(&kept)?;
                } else if kept.is_empty() {
                    crate::output::talk("no workspaces are kept: `bay rm NAME --keep-workspace` keeps one");
                } else {
                    crate::output::data(&render(&kept, Timestamp::now()))?;
                }
            }
            Verb::Rm { names, yes } => {
                // Look up all of them before deleting the first: a typing error in the third name must not cost the
                // first two.
                let mut kept: Vec<String> = Vec::new();
                for name in &names {
                    let found: WorkspaceView =
                        client.get(&format!("/v1/workspaces/{}", segment(name))).await?;
                    if !kept.contains(&found.name) {
                        kept.push(found.name);
                    }
                }
                let asks = !yes && !global.json && crate::terminal::stdin_is_terminal();
                let what = format!("the kept {} with everything in the workspace", visible(&kept.join(", ")));
                if asks && crate::output::watched() && !confirmed(&what)? {
                    crate::output::talk("nothing was deleted");
                    return Ok(1);
                }
                for name in kept {
                    let _: serde_json::Value =
                        client.delete(&format!("/v1/workspaces/{}", segment(&name))).await?;
                    if global.json {
                        crate::output::json(&serde_json::json!({ "removed": name }))?;
                    } else {
                        crate::output::data(&format!("{} is deleted", visible(&name)))?;
                    }
                }
            }
        }
        Ok(0)
    }
}

fn render(kept: &[WorkspaceView], now: Timestamp) -> String {
    let mut table = table::table(&["WORKSPACE", "OF BAY", "KEPT", "OWN SIZE", "PATH"]);
    for kept in kept {
        table.add_row([
            visible(&kept.name),
            visible(&kept.bay),
            format!("{} ago", since(kept.kept_at, now)),
            size(kept.bytes),
            visible(&kept.path.display().to_string()),
        ]);
    }
    table.trim_fmt()
}
