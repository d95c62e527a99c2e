use std::time::Duration;

use bay_client::bay_path;
use bay_types::exec::{ExecView, SignalRequest, Signalled};
use bay_types::{ApiError, ErrorCode};
use clap::Args;
use tokio::time::Instant;

use crate::failure::Outcome;
use crate::global_options::GlobalOptions;
use bay_text::clip;
use bay_text::percent::segment;
use bay_text::shell::command;

const SIGKILL: i32 = 9;
/// How long to wait for a killed command. Longer than its guest waits before it gives up on it.
const ENDED_WITHIN: Duration = Duration::from_secs(8);
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);
/// Most characters of a command line that are shown.
const COMMAND: usize = 60;

/// End a command with every process in its control group, or send it a signal.
///
/// The group contains every process that the command started, unless root in the bay moved it to another group.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  bay kill web 3\n  bay kill web 3 --signal INT")]
pub(crate) struct Kill {
    /// Name or id of the bay.
    name: String,
    /// The command to end: its number in `bay execs ls`, its id, or the end of its id.
    exec: String,
    /// Signal by name or number. Without --tree, a signal other than KILL goes only to the command's process
    /// group.
    #[arg(short, long, default_value = "KILL")]
    signal: String,
    /// Send the signal to every process in the command's control group.
    #[arg(long)]
    tree: bool,
}

impl Kill {
    pub(crate) async fn run(self, global: &GlobalOptions) -> Outcome {
        let bay = crate::naming::bay(&self.name)?;
        let signal = crate::naming::signal(&self.signal)?;
        let request = SignalRequest { signal, tree: self.tree || signal == SIGKILL };
        let exec = format!("/execs/{}", segment(&self.exec));
        let mut client = global.client();
        let before: ExecView = client.get(&bay_path(bay, &exec)).await?;
        let signalled: Option<Signalled> =
            client.post(&bay_path(bay, &format!("{exec}/signal")), &request).await?;
        let mut after: ExecView = client.get(&bay_path(bay, &exec)).await?;
        let until = Instant::now() + ENDED_WITHIN;
        while signal == SIGKILL && after.ended_at.is_none() && Instant::now() < until {
            tokio::time::sleep(BETWEEN_LOOKS).await;
            after = client.get(&bay_path(bay, &exec)).await?;
        }
        if global.json {
            crate::output::json(&after)?;
        }
        let hung = after.ended_at.is_none() || (before.ended_at.is_none() && after.hangs());
        if signal == SIGKILL && hung {
            return Err(hangs(&self.name, &after).into());
        }
        if !global.json {
            let left = signalled.unwrap_or_default().left;
            crate::output::data(&done(&self.name, &before, &self.signal, request, left))?;
        }
        Ok(0)
    }
}

fn hangs(bay: &str, exec: &ExecView) -> ApiError {
    ApiError::new(
        ErrorCode::BayState,
        format!(
            "{} of {bay} ({}) was killed and does not end: it hangs in the kernel (uninterruptible sleep)",
            exec.number,
            clip(&command(&exec.argv), COMMAND)
        ),
        "it ends when the disk or host mount that it waits for responds",
    )
}

/// The result, given the exec's earlier state and the number of processes that it had left.
fn done(bay: &str, exec: &ExecView, signal: &str, request: SignalRequest, left: u64) -> String {
    let what = format!("{} of {bay} ({})", exec.number, clip(&command(&exec.argv), COMMAND));
    if exec.hangs() {
        return format!(
            "{what} already hangs in the kernel (uninterruptible sleep); Workbay no longer waits for it"
        );
    }
    if exec.ended_at.is_some() {
        let processes =
            if left == 1 { "1 process that it left" } else { &format!("{left} processes that it left") };
        return match (left, request.signal) {
            (0, _) => format!("{what} had ended before"),
            (1, SIGKILL) => format!("{what} had ended before; {processes} was ended"),
            (_, SIGKILL) => format!("{what} had ended before; {processes} were ended"),
            _ => format!("{what} had ended before; {processes} got the signal {signal}"),
        };
    }
    match (request.signal, request.tree) {
        // Root in the bay can move a process out of the group, so the message makes no claim about such processes.
        (SIGKILL, _) => format!("{what} was ended, with every process in its control group"),
        (_, true) => format!("{what} and every process in its control group got the signal {signal}"),
        (_, false) => format!("{what} got the signal {signal}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kill_says_what_it_ended() {
        let view = |ended: bool| -> ExecView {
            serde_json::from_value(serde_json::json!({
                "id": bay_types::ExecId::generate(), "bay": bay_types::BayId::generate(), "number": 3,
                "argv": ["sleep", "1\u{1b}[2J"], "cwd": null, "user": null, "tty": false, "tool_call": null,
                "started_at": "2026-01-01T00:00:00Z", "usage": { "user_us": 0, "system_us": 0, "max_rss_kib": 0 },
                "ended_at": ended.then_some("2026-01-01T00:00:01Z"), "output_bytes": 0,
            }))
            .unwrap()
        };
        let said = |ended, signal, tree| done("web", &view(ended), "INT", SignalRequest { signal, tree }, 0);
        let ended = said(false, SIGKILL, true);
        assert!(
            ended.starts_with("3 of web (sleep ")
                && ended.ends_with("with every process in its control group"),
            "{ended}"
        );
        assert!(!ended.contains('\u{1b}'));
        assert!(said(false, 2, false).ends_with("got the signal INT"));
        assert!(said(false, 2, true).ends_with("and every process in its control group got the signal INT"));
        assert!(said(true, SIGKILL, true).ends_with("had ended before"));
        let left = |signal, left| done("web", &view(true), "INT", SignalRequest { signal, tree: true }, left);
        assert!(left(SIGKILL, 1).ends_with("had ended before; 1 process that it left was ended"));
        assert!(left(SIGKILL, 2).ends_with("had ended before; 2 processes that it left were ended"));
        assert!(left(2, 2).ends_with("2 processes that it left got the signal INT"));
    }
}
