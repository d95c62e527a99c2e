use std::io::{BufRead, Write};

use bay_client::{bay_path, local};
use bay_types::bay::BayDeleted;
use clap::Args;

use super::lifecycle::resolve;
use crate::failure::{Failure, Outcome};
use crate::global_options::GlobalOptions;
use bay_text::escape::visible;

/// Delete bays with their workspaces and checkpoints. On a terminal it asks first; in a script it does not.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  bay rm web\n  bay rm web api --yes\n  bay rm web --keep-workspace   the files stay: see `bay workspaces`"
)]
pub(crate) struct Rm {
    /// Names or ids of the bays.
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    /// Keep the workspace's files on the pool. Nothing is asked then.
    #[arg(long)]
    keep_workspace: bool,
    /// Do not ask for confirmation.
    #[arg(short, long, visible_alias = "force", short_alias = 'f')]
    yes: bool,
}

impl Rm {
    pub(crate) async fn run(self, global: &GlobalOptions) -> Outcome {
        let mut client = global.client();
        let bays = resolve(&mut client, &self.names).await?;
        let asks = !self.yes && !self.keep_workspace && !global.json;
        if asks
            && crate::terminal::stdin_is_terminal()
            && crate::output::watched()
            && !confirmed(&format!("{} with everything in the workspace", bays.join(", ")))?
        {
            crate::output::talk("nothing was deleted");
            return Ok(1);
        }
        let query = if self.keep_workspace { "?keep_workspace=true" } else { "" };
        for bay in bays {
            let deleted: BayDeleted = client.delete(&bay_path(&bay, query)).await?;
            report(&deleted, global.json)?;
        }
        Ok(0)
    }
}

fn report(deleted: &BayDeleted, json: bool) -> Result<(), Failure> {
    if json {
        return crate::output::json(deleted);
    }
    let workspace = match &deleted.kept_workspace {
        Some(path) => {
            let name = visible(&path.file_name().unwrap_or_default().to_string_lossy());
            format!(
                "its workspace is kept at {}\n  bay up --workspace {name}    make a bay with a copy of it\n  bay workspaces rm {name}     delete it",
                visible(&path.display().to_string())
            )
        }
        None => "so are its workspace and its checkpoints".to_owned(),
    };
    crate::output::data(&format!("{} is deleted; {workspace}", deleted.name))
}

/// Asks a person for confirmation.
pub(super) fn confirmed(what: &str) -> Result<bool, bay_types::ApiError> {
    let mut prompt = std::io::stderr().lock();
    let _ = write!(prompt, "delete {what}? [y/N] ");
    let _ = prompt.flush();
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer).map_err(|e| local("reading the answer", &e))?;
    Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}
