use bay_client::bay_path;
use bay_types::exec::{ExecSpec, ExecView};
use bay_types::{ApiError, ErrorCode};
use clap::Args;

use super::logs;
use crate::failure::{Failure, Outcome};
use crate::global_options::GlobalOptions;
use crate::{session, terminal};
use bay_text::percent::segment;

/// Lines of kept output that are shown first by default.
const SCROLL_BACK: u64 = 1000;

/// Attach this terminal to a command that runs already: one of a fork, or one whose client is gone.
///
/// Shows the last lines of the kept output first, then what the command writes. Input, signals, and the exit code are
/// passed as by `bay exec`. If the command has a terminal, it is told this terminal's size and draws itself again.
///
/// Ctrl-P Ctrl-Q detaches, if this terminal's input is attached: this program ends with code 0, and the command
/// continues. It also continues if this program is killed or its terminal closes. Several clients may be attached at once.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  bay attach web 3\n  bay attach web 3 --tail 0\n  echo yes | bay attach web 3\n\n`bay execs ls web --running` lists the commands that run. `bay logs web 3 --follow` only shows the output."
)]
pub(crate) struct Attach {
    /// Name or id of the bay.
    name: String,
    /// The exec: its number, its id, or the end of its id.
    exec: String,
    /// Show only the last N lines of the output so far.
    #[arg(long, value_name = "N", default_value_t = SCROLL_BACK, value_parser = clap::value_parser!(u64).range(..=logs::MAX_TAIL))]
    tail: u64,
    /// Attach no standard input.
    #[arg(short, long)]
    no_stdin: bool,
    /// If the command has no terminal: send its output to a terminal unchanged.
    #[arg(long)]
    raw: bool,
}

impl Attach {
    pub(crate) async fn run(self, global: &GlobalOptions) -> Outcome {
        self.attach(global).await.map_err(Failure::in_exec)
    }

    async fn attach(&self, global: &GlobalOptions) -> Outcome {
        let bay = crate::naming::bay(&self.name)?;
        let mut client = global.client();
        let path = bay_path(bay, &format!("/execs/{}", segment(&self.exec)));
        let view: ExecView = client.get(&path).await?;
        if view.ended_at.is_some() {
            return Err(over(bay, &view).into());
        }
        let since = logs::tail_offset(&mut client, &path, self.tail).await?;
        let mut spec = ExecSpec { id: view.id, ..ExecSpec::new(view.argv) };
        spec.tty = view.tty.then(session::tty_size);
        spec.stdin = !self.no_stdin && !terminal::stdin_is_nothing();
        session::join(&mut client, bay, spec, since, self.raw).await
    }
}

fn over(bay: &str, exec: &ExecView) -> ApiError {
    let number = exec.number;
    ApiError::new(
        ErrorCode::InvalidInput,
        format!("exec {number} of the bay {bay} has ended: {}", exec.state),
        format!("`bay logs {bay} {number}` shows its output; `bay execs ls {bay} --running` lists what runs"),
    )
}
