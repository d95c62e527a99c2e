use bay_client::bay_path;
use bay_types::checkpoint::{Promote as Wanted, Restored};
use clap::Args;

use crate::failure::Outcome;
use crate::global_options::GlobalOptions;
use bay_text::escape::one_line;

/// Replace the files of one bay by those of another, such as a parent's by those of its best fork.
///
/// The old files of the replaced bay become an automatic checkpoint: `bay restore` brings them back. Only files are
/// copied: all processes of the replaced bay end. It starts again with the new files, unless it was stopped.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  bay promote web-fork-2 --into web")]
pub(crate) struct Promote {
    /// Name or id of the bay to copy from. Its files and processes stay as they are.
    name: String,
    /// Name or id of the bay to replace.
    #[arg(long, value_name = "PARENT")]
    into: String,
}

impl Promote {
    pub(crate) async fn run(self, global: &GlobalOptions) -> Outcome {
        let (child, parent) = (crate::naming::bay(&self.name)?, crate::naming::bay(&self.into)?);
        let body = Wanted { from: child.to_owned() };
        let done: Restored = global.client().post(&bay_path(parent, "/promote"), &body).await?;
        if global.json {
            crate::output::json(&done)?;
            return Ok(0);
        }
        let view = &done.bay;
        crate::output::data(&format!(
            "{} has the files of {child}; it is {}: {}",
            view.name,
            view.state,
            one_line(&view.reason)
        ))?;
        crate::output::talk(
            "only files were copied: all processes of the replaced bay ended, and none were copied",
        );
        crate::output::talk(&format!(
            "its previous state is {0}: `bay restore {parent} {0}`",
            done.before.name
        ));
        Ok(0)
    }
}
