use std::path::PathBuf;

use clap::Args;

use crate::failure::Outcome;
use crate::global_options::GlobalOptions;
use crate::installation::install::install;
use crate::installation::place::Place;

/// Install this executable on this host: a copy in /usr/local/bin, the group `workbay`, whose members may use the
/// daemon and are then equal to root, and, where systemd runs, a unit that starts the daemon at the next boot. `bay
/// uninstall` removes it.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  sudo ./bay install\n  sudo ./bay install --data-dir /srv/bays")]
pub(crate) struct Install {
    /// Replace a file /usr/local/bin/bay that `bay install` did not make. A systemd unit of somebody else's stays.
    #[arg(long)]
    force: bool,
    /// For tests: another root directory.
    #[arg(long, hide = true, default_value = "/")]
    root: PathBuf,
}

impl Install {
    pub(crate) fn run(self, global: &GlobalOptions) -> Outcome {
        let done = install(&Place::new(&self.root), &global.location().data_dir, self.force)?;
        if global.json {
            crate::output::json(&serde_json::json!({ "done": done }))?;
        } else {
            crate::output::data(&done.join("\n"))?;
        }
        Ok(0)
    }
}
