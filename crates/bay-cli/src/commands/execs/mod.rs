use bay_client::bay_path;
use bay_types::exec::ExecView;
use clap::{Args, Subcommand};
use jiff::Timestamp;

use crate::failure::Outcome;
use crate::global_options::GlobalOptions;
use crate::output::age::{since, took};
use crate::output::{size, table};
use crate::removed_bay;
use bay_text::clip;
use bay_text::shell::command;

const COMMAND: usize = 60;

mod show;

/// List the commands of a bay, and show what a command did and used.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  bay execs ls web\n  bay execs show web 3")]
pub(crate) struct Execs {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List the commands, newest last.
    Ls {
        /// Name or id of the bay.
        name: String,
        /// Only running commands.
        #[arg(short, long)]
        running: bool,
    },
    /// Show a command: how it ended, its use of processor, memory and disk, and its cost.
    Show(show::Show),
}

impl Execs {
    pub(crate) async fn run(self, global: &GlobalOptions) -> Outcome {
        let (name, running) = match self.verb {
            Verb::Ls { name, running } => (name, running),
            Verb::Show(verb) => return verb.run(global).await,
        };
        let bay = crate::naming::bay(&name)?;
        removed_bay::or_newest(global, bay, async |bay| list(global, bay, running).await).await
    }
}

async fn list(global: &GlobalOptions, bay: &str, running: bool) -> Outcome {
    let mut execs: Vec<ExecView> = global.client().get(&bay_path(bay, "/execs")).await?;
    if running {
        execs.retain(|exec| exec.exit.is_none() && exec.ended_at.is_none());
    }
    if global.json {
        crate::output::json(&execs)?;
    } else if execs.is_empty() {
        crate::output::talk(&format!("no commands: `bay exec {bay} -- CMD` runs one"));
    } else {
        crate::output::data(&render(&execs, Timestamp::now()))?;
    }
    Ok(0)
}

fn render(execs: &[ExecView], now: Timestamp) -> String {
    let mut table = table::table(&["EXEC", "STATE", "STARTED", "TOOK", "OUTPUT", "COMMAND"]);
    for exec in execs {
        table.add_row([
            exec.number.to_string(),
            state(exec),
            format!("{} ago", since(exec.started_at, now)),
            took(exec.started_at, exec.ended_at.unwrap_or(now)),
            // The size is known when the command ends.
            if exec.ended_at.is_none() { "…".to_owned() } else { size(exec.output_bytes) },
            clip(&command(&exec.argv), COMMAND),
        ]);
    }
    table.trim_fmt()
}

pub(super) fn state(exec: &ExecView) -> String {
    let ended = how(exec);
    if exec.limits_hit.is_empty() {
        return ended;
    }
    let limits: Vec<&str> = exec.limits_hit.iter().map(|limit| limit.as_str()).collect();
    format!("{ended} ({} limit)", limits.join(", "))
}

fn how(exec: &ExecView) -> String {
    match exec.exit {
        None if exec.ended_at.is_none() => "running".to_owned(),
        None => "ended".to_owned(),
        Some(exit) => match (exit.code, exit.signal) {
            (Some(code), _) => format!("{} {code}", exit.reason),
            (None, Some(signal)) => format!("{} {signal}", exit.reason),
            (None, None) => exit.reason.to_string(),
        },
    }
}
