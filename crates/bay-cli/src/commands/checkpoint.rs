use bay_client::bay_path;
use bay_types::checkpoint::{CheckpointCreate, CheckpointKind, CheckpointView};
use clap::Args;

use crate::failure::Outcome;
use crate::global_options::GlobalOptions;
use bay_text::escape::visible;

/// Make a checkpoint of a bay: its files always, and its memory if it runs and that is possible. The bay need not be
/// stopped first.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  bay checkpoint web -m 'before the migration'\n  bay checkpoint web --files-only\n  bay restore web v1"
)]
pub(crate) struct Checkpoint {
    /// Name or id of the bay.
    name: String,
    /// A description.
    #[arg(short, long, value_name = "TEXT")]
    message: Option<String>,
    /// Capture the memory too, or fail.
    #[arg(long, conflicts_with = "files_only")]
    memory: bool,
    /// Capture the files only.
    #[arg(long)]
    files_only: bool,
}

impl Checkpoint {
    pub(crate) async fn run(self, global: &GlobalOptions) -> Outcome {
        let bay = crate::naming::bay(&self.name)?;
        let kind = match (self.memory, self.files_only) {
            (true, _) => Some(CheckpointKind::Memory),
            (_, true) => Some(CheckpointKind::Files),
            _ => None,
        };
        let body = CheckpointCreate { message: self.message, kind };
        let made: CheckpointView = global.client().post(&bay_path(bay, "/checkpoints"), &body).await?;
        if global.json {
            crate::output::json(&made)?;
            return Ok(0);
        }
        crate::output::data(&said(bay, &made))?;
        for why in &made.without_memory {
            crate::output::talk(&format!("the memory was not captured: {}", visible(why)));
        }
        Ok(0)
    }
}

/// One line about the new checkpoint.
pub(crate) fn said(bay: &str, made: &CheckpointView) -> String {
    let what = match made.kind {
        CheckpointKind::Files => "files".to_owned(),
        CheckpointKind::Memory => {
            let size = made.memory_bytes.map(|bytes| format!(" ({} on disk)", crate::output::size(bytes)));
            format!("files and memory{}", size.unwrap_or_default())
        }
    };
    let still = if made.pause_ms > 0.0 {
        format!("; it was paused for {:.0} ms", made.pause_ms.ceil())
    } else {
        String::new()
    };
    format!("{} of {bay} holds its {what}{still}", made.name)
}
