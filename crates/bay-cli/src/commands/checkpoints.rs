use bay_client::bay_path;
use bay_types::CheckpointName;
use bay_types::checkpoint::CheckpointView;
use clap::{Args, Subcommand};
use jiff::Timestamp;

use crate::failure::Outcome;
use crate::global_options::GlobalOptions;
use crate::output::age::since;
use crate::output::table;
use bay_text::escape::one_line;

/// Manage the checkpoints of a bay. The newest five are readable inside it below /.bay/checkpoints.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  bay checkpoints ls web\n  bay checkpoints rm web v1 v2")]
pub(crate) struct Checkpoints {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List the checkpoints, oldest first. A star marks the one that the bay descends from.
    Ls {
        /// Name or id of the bay.
        name: String,
    },
    /// Delete checkpoints. Other checkpoints and bays keep their files. A checkpoint on which a bay is paused cannot be
    /// deleted.
    Rm {
        /// Name or id of the bay.
        name: String,
        /// The checkpoints: v1, v2, …
        #[arg(required = true, value_name = "CHECKPOINT")]
        checkpoints: Vec<CheckpointName>,
    },
}

impl Checkpoints {
    pub(crate) async fn run(self, global: &GlobalOptions) -> Outcome {
        let mut client = global.client();
        match self.verb {
            Verb::Ls { name } => {
                let bay = crate::naming::bay(&name)?;
                let all: Vec<CheckpointView> = client.get(&bay_path(bay, "/checkpoints")).await?;
                if global.json {
                    crate::output::json(&all)?;
                } else if all.is_empty() {
                    crate::output::talk(&format!("no checkpoints yet: `bay checkpoint {bay}` makes one"));
                } else {
                    crate::output::data(&render(&all, Timestamp::now()))?;
                }
            }
            Verb::Rm { name, checkpoints } => {
                let bay = crate::naming::bay(&name)?;
                // Look up all of them before deleting the first: a typing error in the third must not cost the first
                // two.
                let all: Vec<CheckpointView> = client.get(&bay_path(bay, "/checkpoints")).await?;
                let missing = checkpoints.iter().find(|name| !all.iter().any(|known| known.name == **name));
                if let Some(missing) = missing {
                    return Err(bay_types::ApiError::new(
                        bay_types::ErrorCode::CheckpointNotFound,
                        format!("the bay {bay} has no checkpoint {missing}; nothing was removed"),
                        format!("`bay checkpoints ls {bay}` lists its checkpoints"),
                    )
                    .into());
                }
                for checkpoint in checkpoints {
                    let path = bay_path(bay, &format!("/checkpoints/{checkpoint}"));
                    let _: serde_json::Value = client.delete(&path).await?;
                    if global.json {
                        crate::output::json(&serde_json::json!({ "removed": checkpoint }))?;
                    } else {
                        crate::output::data(&format!("{checkpoint} of {bay} is deleted"))?;
                    }
                }
            }
        }
        Ok(0)
    }
}

pub(crate) fn render(all: &[CheckpointView], now: Timestamp) -> String {
    let mut table = table::table(&["", "NAME", "PARENT", "MADE", "KIND", "MEMORY", "WHAT"]);
    for one in all {
        let what = match (&one.message, &one.automatic) {
            (Some(message), _) => one_line(message),
            (None, Some(why)) => format!("({})", one_line(why)),
            (None, None) => "-".to_owned(),
        };
        table.add_row([
            if one.current { "*".to_owned() } else { String::new() },
            one.name.to_string(),
            one.parent.map_or_else(|| "-".to_owned(), |parent| parent.to_string()),
            format!("{} ago", since(one.created_at, now)),
            one.kind.to_string(),
            one.memory_bytes.map_or_else(|| "-".to_owned(), crate::output::size),
            what,
        ]);
    }
    table.trim_fmt()
}
