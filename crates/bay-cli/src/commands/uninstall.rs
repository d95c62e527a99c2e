use std::path::PathBuf;

use bay_client::invalid;
use bay_text::escape::visible;
use bay_types::{ApiError, ErrorCode};
use clap::Args;
use serde_json::json;

use super::rm::confirmed;
use crate::failure::Outcome;
use crate::global_options::GlobalOptions;
use crate::installation::found::Found;
use crate::installation::place::Place;
use crate::installation::remove::{Removal, list, stays};
use crate::output::table::section;

/// Remove what this installation made: bays, the pool, the data directory, the key, the unit, the executable, the
/// group. First lists that, and what stays, with the reason. Needs no daemon, may be interrupted, and can be
/// repeated.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  sudo bay uninstall\n  sudo bay uninstall --keep-data    bays and their files stay on disk for a later installation\n  sudo bay uninstall --yes"
)]
pub(crate) struct Uninstall {
    /// Keep the data directory, the pool with the files of bays, and the key.
    #[arg(long)]
    keep_data: bool,
    /// Only show what would be removed.
    #[arg(long)]
    dry_run: bool,
    /// Remove it without asking. A script needs this.
    #[arg(short, long)]
    yes: bool,
    /// For tests: another root directory.
    #[arg(long, hide = true, default_value = "/")]
    root: PathBuf,
    /// For tests: die before this step.
    #[arg(long, hide = true)]
    die_before: Option<String>,
}

impl Uninstall {
    pub(crate) fn run(self, global: &GlobalOptions) -> Outcome {
        if !rustix::process::geteuid().is_root() {
            return Err(ApiError::new(
                ErrorCode::NotRoot,
                "removing an installation needs root",
                "run `sudo bay uninstall`",
            )
            .into());
        }
        let place = Place::new(&self.root);
        let found = Found::look(&place, &global.location())?;
        let stays = stays(&found, self.keep_data);
        if found.is_empty() {
            let message = format!("nothing of Workbay is in {}", found.data_dir.display());
            if global.json {
                crate::output::json(&json!({ "removed": [], "stays": stays }))?;
            } else {
                crate::output::talk(&visible(&message));
            }
            return Ok(0);
        }
        let lines = list(&place, &found, self.keep_data);
        let shown: Vec<_> = lines.iter().map(|(what, where_)| (*what, visible(where_))).collect();
        let mut text = section("to be removed", &shown);
        if !stays.is_empty() {
            let stays: Vec<_> = stays.iter().map(|line| ("", visible(line))).collect();
            text.push_str("\n\n");
            text.push_str(&section("stays", &stays));
        }
        let result = json!({
            "removed": lines.iter().map(|(what, at)| json!({ "what": what, "at": at })).collect::<Vec<_>>(),
            "stays": stays,
        });
        if self.dry_run {
            if global.json {
                crate::output::json(&result)?;
            } else {
                crate::output::data(&text)?;
            }
            return Ok(0);
        }
        if !self.yes && (global.json || !crate::terminal::stdin_is_terminal() || !crate::output::watched()) {
            return Err(invalid(
                "this deletes the installation, and without a terminal it cannot ask for confirmation",
                "look at what `bay uninstall --dry-run` lists, then repeat the command with --yes",
            )
            .into());
        }
        if !global.json {
            crate::output::talk(&text);
        }
        if !self.yes && !confirmed("all of this for good")? {
            crate::output::talk("nothing was removed");
            return Ok(1);
        }
        Removal::new(&place, &found, self.keep_data, self.die_before.as_deref()).run()?;
        if global.json {
            crate::output::json(&result)?;
        } else {
            crate::output::data("Workbay is removed")?;
        }
        Ok(0)
    }
}
