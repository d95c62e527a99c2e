use bay_client::bay_path;
use bay_types::checkpoint::{Promote as Wanted, Restored};
use clap::Args;

use crate::failure::Outcome;
use crate::global_options::GlobalOptions;
use bay_text::escape::one_line;

/// Make the files of one bay another's, as the best of several forks becomes the parent. The state that it replaces is kept.
///
/// Files alone: what runs in the other bay ends, and it starts anew from them.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  bay promote web-fork-2 --into web")]
pub(crate) struct Promote {
    /// Name or id of the bay whose state is wanted. It stays as it is.
    name: String,
    /// Name or id of the bay that takes it.
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
            "{} is what {child} is; it is {}: {}",
            view.name,
            view.state,
            one_line(&view.reason)
        ))?;
        crate::output::talk(
            "files alone were taken: what ran in it has ended, and what runs there did not come along",
        );
        crate::output::talk(&format!(
            "its state before is {0}: `bay restore {parent} {0}`",
            done.before.name
        ));
        Ok(0)
    }
}
