use std::path::PathBuf;

use clap::Args;

use crate::failure::Outcome;
use crate::global_options::GlobalOptions;
use crate::installation::install::install;
use crate::installation::place::Place;

/// Install this executable for all users: a copy in /usr/local/bin, the group `workbay`, and a systemd unit where systemd
/// runs. `bay uninstall` removes it.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  sudo ./bay install\n  sudo ./bay install --data-dir /srv/bays")]
pub(crate) struct Install {
    /// Replace a file in /usr/local/bin that `bay install` did not make.
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
