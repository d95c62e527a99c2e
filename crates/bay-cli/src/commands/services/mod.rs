mod add;
mod preset;
mod target;
mod wait;

use bay_client::{bay_path, invalid};
use bay_types::service::{ServiceName, ServiceState, ServiceVerb, ServiceView};
use clap::{Args, Subcommand};
use comfy_table::Cell;
use jiff::Timestamp;

use super::logs;
use crate::failure::{Failure, Outcome};
use crate::global_options::GlobalOptions;
use crate::output::age::since;
use crate::output::{count, size, table};
use bay_text::clip;
use bay_text::escape::{one_line, visible};
use bay_text::shell::command;

pub(crate) use add::Definition;
pub(crate) use target::{Target, list};

/// Most characters of a reason in the table. `bay services show` prints it whole.
const REASON: usize = 70;

/// Manage the services of a bay: commands that it keeps running, and starts again when it starts.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  bay services add web db --health tcp:5432 -- postgres -D /data\n  bay services add web app --needs db --health http://localhost:8000/health -- npm run dev\n  bay services add web --preset postgres\n  bay services ls web\n  bay services logs web app --follow\n  bay services restart web app"
)]
pub(crate) struct Services {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Args)]
struct One {
    /// Name or id of the bay.
    name: String,
    /// Name of the service.
    service: String,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Add(Box<add::Add>),
    /// List the services with their states and the reasons.
    Ls {
        /// Name or id of the bay.
        name: String,
    },
    /// Show everything about a service.
    Show(One),
    /// Show the output of a service from all kept runs, both streams on standard output. On a terminal, colours work;
    /// other control sequences are shown as text.
    Logs {
        #[command(flatten)]
        one: One,
        /// Follow new output, including that of later runs, until interrupted.
        #[arg(short, long)]
        follow: bool,
        #[command(flatten)]
        part: logs::Part,
    },
    /// Start a service that is stopped, done, failed, backing off or in a crash loop, and wait until it is ready.
    Start {
        #[command(flatten)]
        one: One,
        /// Do not wait until it is ready.
        #[arg(long)]
        no_wait: bool,
    },
    /// Stop a service: TERM to all its processes, KILL after its grace period. It stays stopped when the bay starts
    /// again.
    Stop {
        #[command(flatten)]
        one: One,
        /// Do not wait until it has ended.
        #[arg(long)]
        no_wait: bool,
    },
    /// Stop a service, start it again, and wait until it is ready.
    Restart {
        #[command(flatten)]
        one: One,
        /// Do not wait until it is ready.
        #[arg(long)]
        no_wait: bool,
    },
    /// Stop a service, and delete it with its log.
    Rm(One),
}

impl Services {
    pub(crate) async fn run(self, global: &GlobalOptions) -> Outcome {
        let mut client = global.client();
        match self.verb {
            Verb::Add(add) => add.run(global).await,
            Verb::Ls { name } => {
                let none = format!("no services: `bay services add {name} SERVICE -- CMD` defines one");
                list(&mut client, &base(&name)?, global.json, &none).await
            }
            Verb::Show(one) => one.target(global)?.show(&mut client).await,
            Verb::Logs { one, follow, part } => {
                let path = one.target(global)?.path("");
                logs::Source { bay: &one.name, path, follow, part: &part }.show(global).await
            }
            Verb::Start { one, no_wait } => {
                one.target(global)?.ask(&mut client, ServiceVerb::Start, no_wait).await
            }
            Verb::Stop { one, no_wait } => {
                one.target(global)?.ask(&mut client, ServiceVerb::Stop, no_wait).await
            }
            Verb::Restart { one, no_wait } => {
                one.target(global)?.ask(&mut client, ServiceVerb::Restart, no_wait).await
            }
            Verb::Rm(one) => one.target(global)?.remove(&mut client).await,
        }
    }
}

/// The path of all services of a bay.
fn base(bay: &str) -> Result<String, Failure> {
    Ok(bay_path(crate::naming::bay(bay)?, "/services"))
}

/// Checks a name before a request is sent.
pub(crate) fn service_name(given: &str) -> Result<ServiceName, Failure> {
    given.parse().map_err(|e: bay_types::id::ParseIdError| {
        invalid(e.to_string(), "choose a plain short name, such as web").into()
    })
}

impl One {
    fn target(&self, global: &GlobalOptions) -> Result<Target, Failure> {
        let service = service_name(&self.service)?;
        let logs = format!("bay services logs {} {service}", self.name);
        Ok(Target { base: base(&self.name)?, service, logs, json: global.json })
    }
}

fn render(all: &[ServiceView], now: Timestamp) -> String {
    let mut table = table::table(&["SERVICE", "STATE", "SINCE", "RESTARTS", "PID", "REASON"]);
    for view in all {
        table.add_row([
            Cell::new(view.name.as_str()),
            state(view.state),
            Cell::new(format!("{} ago", since(view.since, now))),
            Cell::new(view.restarts),
            Cell::new(view.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string())),
            Cell::new(clip(&one_line(&view.reason), REASON)),
        ]);
    }
    table.trim_fmt()
}

fn state(state: ServiceState) -> Cell {
    use comfy_table::Color;
    let cell = Cell::new(state.as_str());
    if !crate::output::colours() {
        return cell;
    }
    cell.fg(match state {
        ServiceState::Ready => Color::Green,
        ServiceState::Done => Color::Cyan,
        ServiceState::Stopped => Color::DarkGrey,
        ServiceState::Unhealthy | ServiceState::CrashLoop | ServiceState::Failed => Color::Red,
        ServiceState::Waiting
        | ServiceState::Starting
        | ServiceState::BackingOff
        | ServiceState::Stopping => Color::Yellow,
    })
}

fn show(view: &ServiceView, now: Timestamp) -> String {
    let mut lines = vec![
        ("state", format!("{}, for {}", view.state, since(view.since, now))),
        ("reason", one_line(&view.reason)),
    ];
    if let Some(at) = view.retry_at {
        lines.push(("next try", at.to_string()));
    }
    if let Some(pid) = view.pid {
        lines.push(("pid", format!("{pid} (inside the bay)")));
    }
    lines.push(("restarts", view.restarts.to_string()));
    lines.push((
        "log",
        format!(
            "{} in {}",
            size(view.log_end.saturating_sub(view.log_start)),
            count(view.runs.len() as u64, "run")
        ),
    ));
    let mut sections = vec![table::section(view.name.as_str(), &lines)];
    if let Some(spec) = &view.spec {
        let mut lines = vec![("command", command(&spec.argv)), ("restart", spec.restart.to_string())];
        if let Some(user) = &spec.user {
            lines.push(("user", visible(user)));
        }
        if let Some(cwd) = &spec.cwd {
            lines.push(("cwd", visible(cwd)));
        }
        if !spec.needs.is_empty() {
            let needs: Vec<&str> = spec.needs.iter().map(ServiceName::as_str).collect();
            lines.push(("needs", needs.join(", ")));
        }
        // Values may be secrets. Only `--json` prints them.
        let names: Vec<String> = spec.env.iter().map(|(key, _)| visible(key)).collect();
        if !names.is_empty() {
            lines.push(("env", names.join(", ")));
        }
        if let Some(health) = &spec.health {
            lines.push((
                "health",
                format!(
                    "{}, every {} s, within {} s, start period {} s",
                    visible(&health.check.to_string()),
                    seconds(health.interval_ms),
                    seconds(health.timeout_ms),
                    seconds(health.start_period_ms)
                ),
            ));
        }
        lines.push(("stop grace", format!("{} s", seconds(spec.stop_grace_ms))));
        sections.push(table::section("definition", &lines));
    }
    sections.join("\n\n")
}

fn seconds(ms: u64) -> String {
    match ms % 1000 {
        0 => (ms / 1000).to_string(),
        rest => format!("{}.{}", ms / 1000, format!("{rest:03}").trim_end_matches('0')),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_is_shown_with_its_reason_and_nothing_reaches_the_terminal() {
        let value = serde_json::json!({
            "name": "web", "spec": {"argv": ["npm", "run", "dev \u{1b}[2J"], "env": [["TOKEN", "hush"]], "needs": ["db"],
                "health": {"check": {"kind": "tcp", "port": 80}, "interval_ms": 1500}},
            "state": "backing-off", "reason": "it said \u{1b}]0;x\u{7}", "since": "2026-01-01T00:00:00Z", "wanted": true,
            "restarts": 3, "attempt": 3, "retry_at": "2026-01-01T00:00:09Z", "runs": [], "log_start": 0, "log_end": 2048
        });
        let view: ServiceView = serde_json::from_value(value).unwrap();
        let now = "2026-01-01T00:00:05Z".parse().unwrap();
        let text = show(&view, now);
        for part in
            ["backing-off, for 5s", "\\x1b]0;x", "needs", "db", "tcp:80, every 1.5 s", "TOKEN", "2.0 KiB"]
        {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
        assert!(!text.contains('\u{1b}') && !text.contains("hush"), "{text}");
        let listed = render(&[view], now);
        assert!(listed.contains("backing-off") && !listed.contains('\u{1b}'), "{listed}");
    }
}
