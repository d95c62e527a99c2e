use bay_client::bay_path;
use bay_types::CheckpointName;
use bay_types::checkpoint::{Restore as Wanted, Restored};
use clap::Args;

use crate::failure::Outcome;
use crate::global_options::GlobalOptions;
use bay_text::escape::one_line;

/// Restore a bay to one of its checkpoints. Its present files become another checkpoint first; its processes end.
///
/// If the checkpoint has the memory too, the processes in it continue. Otherwise the bay starts from the files,
/// unless it was stopped. The checkpoint of the present files is automatic: such checkpoints are removed after a
/// week, or earlier if there are many (docs/checkpoints.md).
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  bay restore web v1\n  bay checkpoints ls web")]
pub(crate) struct Restore {
    /// Name or id of the bay.
    name: String,
    /// The checkpoint to restore: v1, v2, …
    checkpoint: CheckpointName,
    /// Start from the files only, even if the checkpoint has the memory too.
    #[arg(long)]
    files_only: bool,
}

impl Restore {
    pub(crate) async fn run(self, global: &GlobalOptions) -> Outcome {
        let bay = crate::naming::bay(&self.name)?;
        let body = Wanted { checkpoint: self.checkpoint, files_only: self.files_only };
        let done: Restored = global.client().post(&bay_path(bay, "/restore"), &body).await?;
        if global.json {
            crate::output::json(&done)?;
            return Ok(0);
        }
        let view = &done.bay;
        crate::output::data(&format!("{} is {}: {}", view.name, view.state, one_line(&view.reason)))?;
        crate::output::talk(&format!("its previous state is {0}: `bay restore {bay} {0}`", done.before.name));
        Ok(0)
    }
}
