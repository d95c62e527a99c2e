use bay_types::exec::{ExecView, SignalRequest};
use clap::Args;

use crate::cli::Global;
use crate::client::{bay_path, encode};
use crate::failure::Outcome;

const SIGKILL: i32 = 9;

/// End a command and everything it started, or send it a signal.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  bay kill web 3\n  bay kill web 3 --signal INT")]
pub(crate) struct Kill {
    /// Name or id of the bay.
    name: String,
    /// The exec: its number, its id, or the end of its id.
    exec: String,
    /// Signal by name or number; anything but KILL goes to the command's own process group.
    #[arg(short, long, default_value = "KILL")]
    signal: String,
    /// Send it to every process the command started.
    #[arg(long)]
    tree: bool,
}

impl Kill {
    pub(crate) async fn run(self, global: &Global) -> Outcome {
        let bay = crate::naming::bay(&self.name)?;
        let signal = crate::naming::signal(&self.signal)?;
        let request = SignalRequest { signal, tree: self.tree || signal == SIGKILL };
        let exec = format!("/execs/{}", encode(&self.exec));
        let mut client = global.client();
        let _: serde_json::Value = client.post(&bay_path(bay, &format!("{exec}/signal")), &request).await?;
        if global.json {
            let view: ExecView = client.get(&bay_path(bay, &exec)).await?;
            crate::output::json(&view)?;
        }
        Ok(0)
    }
}
