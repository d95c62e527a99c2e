use clap::{Args, Command};
use clap_complete::Shell;

use crate::failure::Outcome;

/// Print a completion script for a shell.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  bay completions bash > /etc/bash_completion.d/bay")]
pub(crate) struct Completions {
    /// The shell.
    shell: Shell,
}

impl Completions {
    pub(crate) fn run(self, mut bay: Command) -> Outcome {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut bay, "bay", &mut script);
        crate::output::data(String::from_utf8_lossy(&script).trim_end())?;
        Ok(0)
    }
}
