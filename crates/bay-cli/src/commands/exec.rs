use std::net::Ipv4Addr;

use bay_client::{Client, bay_path};
use bay_types::exec::{ExecSpec, ExecView};
use bay_types::{ApiError, ExecId};
use clap::Args;

use super::approvals;
use crate::failure::{Failure, Outcome};
use crate::forward::{Change, Forwarding, PortPair, Wanted};
use crate::global_options::GlobalOptions;
use crate::{session, terminal};

/// Run a command in a bay with this terminal's input, output and exit code.
///
/// Exits with the command's own code; 128 + N if signal N ended it; 137 also if its bay was stopped or died; 124
/// after a timeout; 126 or 127 if it could not be started; 125 if Workbay itself failed; 2 if the options cannot be
/// parsed. The first Ctrl-C goes to the command, the second kills everything it started, and the third ends this
/// program. If the daemon restarts meanwhile, this program waits for it, up to a minute, and continues with the next
/// byte of the output.
///
/// With -t the command controls this terminal: the terminal interprets everything that the command writes, and every
/// key, Ctrl-C too, goes to the command. Without -t a terminal gets the command's text and colours, and any other
/// sequence is shown as text. A pipe or a file gets every byte unchanged.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  bay exec web -- cargo test\n  bay exec web -t -- vim README.md\n  bay exec web --ask -- make release\n  tar c data | bay exec web -- tar x -C /tmp\n  bay exec web -d -- npm run dev   then: bay logs web 3 --follow, with the number it printed"
)]
pub(crate) struct Exec {
    /// Name or id of the bay.
    name: String,
    #[command(flatten)]
    options: Options,
    /// Give the command a terminal. If standard input ends, or there is none, the terminal sends its end-of-file
    /// character (Ctrl-D), so that this works in scripts too.
    #[arg(short, long)]
    tty: bool,
    /// Attach standard input even if it is a terminal and no -t is given.
    #[arg(short, long, conflicts_with = "no_stdin")]
    interactive: bool,
    /// Attach no standard input, so that a surrounding shell loop keeps its own.
    #[arg(short, long)]
    no_stdin: bool,
    /// Start the command, print its number and return; `bay logs NAME NUMBER` shows its output.
    #[arg(short, long, conflicts_with_all = ["tty", "interactive"])]
    detach: bool,
    /// Run the command only after a person has allowed it. `bay approvals` shows pending approvals.
    #[arg(long)]
    ask: bool,
    /// Without -t: send the output to a terminal unchanged. The terminal interprets every sequence that the command
    /// writes.
    #[arg(long, conflicts_with = "detach")]
    raw: bool,
    /// While the command runs, forward this port of the bay to this host's loopback, as `bay forward` does. May be
    /// given several times.
    #[arg(long = "forward", value_name = "PORT[:HOST_PORT]", conflicts_with = "detach")]
    forwards: Vec<PortPair>,
    /// The command and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "CMD")]
    pub(crate) command: Vec<String>,
}

/// Options that `exec` and `shell` share.
#[derive(Debug, Default, Args)]
pub(super) struct Options {
    /// Set a variable. NAME alone passes on the caller's value.
    #[arg(short, long, value_name = "NAME=VALUE")]
    env: Vec<String>,
    /// Directory to run in [default: /workspace].
    #[arg(short = 'C', long, visible_alias = "workdir", value_name = "DIR")]
    cwd: Option<String>,
    /// User of the bay, by name or number [default: the one of `bay up --user`, or root].
    #[arg(short, long)]
    user: Option<String>,
    /// Kill everything that the command started after this many seconds.
    #[arg(long, value_name = "SECONDS", value_parser = positive_seconds)]
    timeout: Option<u64>,
    /// Id of the agent's tool call that runs the command. It is stored with the command.
    #[arg(long, value_name = "ID")]
    tool_call: Option<String>,
}

/// Seconds of a timeout.
fn positive_seconds(given: &str) -> Result<u64, String> {
    match given.parse::<u64>() {
        Ok(seconds) if seconds > 0 => Ok(seconds),
        _ => Err("give a whole number of seconds, at least 1".to_owned()),
    }
}

impl Options {
    pub(super) fn spec(&self, argv: Vec<String>) -> Result<ExecSpec, Failure> {
        let env =
            self.env.iter().map(|given| crate::naming::variable(given)).collect::<Result<Vec<_>, _>>()?;
        Ok(ExecSpec {
            id: ExecId::generate(),
            argv,
            env,
            cwd: self.cwd.clone(),
            user: self.user.clone(),
            tty: None,
            stdin: false,
            timeout_s: self.timeout,
            tool_call: self.tool_call.clone(),
        })
    }
}

impl Exec {
    pub(crate) async fn run(self, global: &GlobalOptions) -> Outcome {
        let (detach, ask, raw) = (self.detach, self.ask, self.raw);
        let name = self.name.clone();
        let forwards = self.forwards.clone();
        let result = async {
            let bay = crate::naming::bay(&name)?;
            let mut client = global.client();
            let spec = self.spec()?;
            let forwarding = match forwards {
                pairs if pairs.is_empty() => None,
                pairs => Some(forward(global, bay, pairs).await?),
            };
            let waiting = approvals::tell_if_waiting(global.client(), bay.to_owned(), spec.argv.clone());
            let running = async {
                if ask {
                    client.post::<_, ()>(&bay_path(bay, "/execs/ask"), &spec).await?;
                }
                if detach {
                    start(&mut client, bay, &spec, global.json).await
                } else {
                    session::run(&mut client, bay, spec, raw, !global.json).await
                }
            };
            tokio::pin!(running);
            let beside = async { tokio::join!(waiting, keep_forwarding(forwarding)) };
            // If the command waits for an approval, report that and continue to wait.
            tokio::select! {
                outcome = &mut running => outcome,
                _ = beside => running.await,
            }
        };
        result.await.map_err(Failure::in_exec)
    }

    fn spec(self) -> Result<ExecSpec, Failure> {
        let mut spec = self.options.spec(self.command)?;
        if self.detach {
            return Ok(spec);
        }
        // Read a terminal only on request: reading it would stop a background job.
        let wanted = self.interactive || self.tty || !terminal::stdin_is_terminal();
        spec.stdin = wanted && !self.no_stdin && !terminal::stdin_is_nothing();
        if self.tty {
            with_terminal(&mut spec);
        }
        Ok(spec)
    }
}

/// Opens a forward to this host's loopback, and reports its addresses.
async fn forward(global: &GlobalOptions, bay: &str, pairs: Vec<PortPair>) -> Result<Forwarding, ApiError> {
    let listen = Ipv4Addr::LOCALHOST.into();
    let wanted = Wanted { bay: bay.to_owned(), pairs, all: false, listen };
    let forwarding = Forwarding::open(global.client(), wanted).await?;
    for change in forwarding.listening() {
        if let Change::Opened(address, port) = change {
            crate::output::talk(&format!("{address} -> {bay}:{port}"));
        }
    }
    Ok(forwarding)
}

/// Keeps a forward open beside the command. The command continues without it.
async fn keep_forwarding(forwarding: Option<Forwarding>) {
    if let Some(forwarding) = forwarding {
        let error: ApiError = forwarding.run(|_| Ok(())).await;
        session::note(&error.message);
    }
}

/// Adds a terminal with the caller's size and type.
pub(super) fn with_terminal(spec: &mut ExecSpec) {
    spec.tty = Some(session::tty_size());
    for variable in ["TERM", "COLORTERM"] {
        let given = spec.env.iter().any(|(name, _)| name == variable);
        if let (false, Ok(value)) = (given, std::env::var(variable)) {
            spec.env.push((variable.to_owned(), value));
        }
    }
}

async fn start(client: &mut Client, bay: &str, spec: &ExecSpec, json: bool) -> Outcome {
    let view: ExecView = client.post(&bay_path(bay, "/execs"), spec).await?;
    if json {
        crate::output::json(&view)?;
    } else {
        // Only the number goes to standard output. Every verb accepts it as an exec.
        crate::output::data(&view.number.to_string())?;
        crate::output::talk(&format!(
            "exec {0} ({1}) runs in the background: `bay logs {bay} {0} --follow` shows its output, \
             `bay kill {bay} {0}` ends it",
            view.number, view.id
        ));
    }
    Ok(0)
}
