//! `bay-ctl`: what a process in a bay can ask its bay, over a socket that leads to its own guest and nowhere else.

use std::process::ExitCode;

use bay_client::{Client, Endpoint};
use bay_types::CheckpointName;
use bay_types::bay::Limits;
use bay_types::checkpoint::CheckpointView;
use bay_types::inside::{CTL_SOCKET, Can, Hold, InsideDiff, Message, Port, WhoAmI};
use bay_types::traffic::InsideEgress;
use bay_types::{ApiError, ErrorCode};
use clap::{Parser, Subcommand};
use jiff::Timestamp;

use crate::commands::{checkpoint, checkpoints, diff, ports};
use crate::failure::{Failure, Outcome};
use bay_text::escape::visible;

mod services;

/// The name by which this executable is `bay-ctl`.
pub const NAME: &str = "bay-ctl";

/// Ask about the bay you are in, and manage it: identity, limits, policy, ports, services, checkpoints, staying awake.
#[derive(Debug, Parser)]
#[command(
    name = NAME,
    version,
    subcommand_required = true,
    arg_required_else_help = true,
    after_help = "Examples:\n  bay-ctl whoami\n  bay-ctl ports --json\n  bay-ctl services ls\n  bay-ctl checkpoint -m 'before the migration'\n  bay-ctl hold 30m\n\n/.bay/README.md describes this machine."
)]
struct Ctl {
    /// Print JSON: results on standard output, errors on standard error.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Show the bay, the exec of this process, the limits and the isolation.
    Whoami,
    /// Show the network, mounts and limits in short.
    Can,
    /// Show which requests may leave the bay: the effective policy, rule by rule.
    Egress,
    /// List the ports that processes in the bay listen on.
    Ports,
    /// Keep the bay awake for a while, even when it looks idle.
    Hold {
        /// How long: 45s, 30m or 2h, up to 24h.
        #[arg(value_parser = seconds)]
        time: u64,
    },
    /// End the hold.
    Release,
    /// Capture the files of the bay as a checkpoint (root only). The newest five can be read below
    /// /.bay/checkpoints/vN.
    Checkpoint {
        /// A description.
        #[arg(short, long, value_name = "TEXT")]
        message: Option<String>,
    },
    /// List the checkpoints of the bay.
    Checkpoints,
    /// Restore the files of the bay from a checkpoint (root only). All processes end, also the one that calls this. The present
    /// files become a checkpoint first.
    Restore {
        /// The checkpoint to restore: v1, v2, …
        checkpoint: CheckpointName,
    },
    /// Show what changed in the bay (root only), as `bay diff` does on the host: since the work began, or between any
    /// two moments.
    Diff(diff::What),
    Services(services::Services),
}

pub fn run() -> ExitCode {
    let ctl = match Ctl::try_parse() {
        Ok(ctl) => ctl,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    let json = ctl.json;
    ExitCode::from(
        crate::one_thread::block_on(ctl.run())
            .unwrap_or_else(|failure| crate::output::report(&failure, json)),
    )
}

impl Ctl {
    async fn run(self) -> Outcome {
        let mut guest = Client::new(Endpoint::at(CTL_SOCKET));
        let asked = self.ask(&mut guest).await;
        asked.map_err(|failure| match failure {
            Failure::Api { error, .. } => explain(error, guest.connected()).into(),
            Failure::BrokenPipe => Failure::BrokenPipe,
        })
    }

    async fn ask(self, guest: &mut Client) -> Outcome {
        match self.verb {
            Verb::Whoami => {
                let me: WhoAmI = guest.get("/v1/whoami").await?;
                self.print(&me, || whoami(&me))
            }
            Verb::Can => {
                let can: Can = guest.get("/v1/can").await?;
                self.print(&can, || allowed(&can))
            }
            Verb::Egress => {
                let told: InsideEgress = guest.get("/v1/egress").await?;
                self.print(&told, || egress(&told))
            }
            Verb::Ports => {
                let found: Vec<Port> = guest.get("/v1/ports").await?;
                self.print(&found, || {
                    if found.is_empty() { "nothing listens".to_owned() } else { ports::render(&found) }
                })
            }
            Verb::Hold { time } => {
                let path = format!("/v1/hold?seconds={time}");
                let hold: Hold = guest.post(&path, &()).await?;
                self.print(&hold, || hold_text(hold))
            }
            Verb::Checkpoint { ref message } => {
                let body = Message { message: message.clone() };
                let made: CheckpointView = guest.post("/v1/checkpoints", &body).await?;
                self.print(&made, || checkpoint::said("this bay", &made))
            }
            Verb::Checkpoints => {
                let all: Vec<CheckpointView> = guest.get("/v1/checkpoints").await?;
                self.print(&all, || {
                    if all.is_empty() {
                        "no checkpoints yet: `bay-ctl checkpoint` makes one".to_owned()
                    } else {
                        checkpoints::render(&all, Timestamp::now())
                    }
                })
            }
            Verb::Restore { checkpoint } => {
                let before: CheckpointView = guest.post(&format!("/v1/restore/{checkpoint}"), &()).await?;
                self.print(&before, || {
                    format!(
                        "this bay is being restored to {checkpoint}; its previous state is {}",
                        before.name
                    )
                })
            }
            Verb::Diff(what) => {
                let found: InsideDiff = guest.post("/v1/diff", &what.ask()).await?;
                let cut = found.cut;
                diff::show(found.lines, &what, self.json)?;
                if cut {
                    crate::output::talk(
                        "the comparison is too long to show completely; --stat or a later --from makes it shorter",
                    );
                }
                Ok(0)
            }
            Verb::Services(services) => services.run(guest, self.json).await,
            Verb::Release => {
                let hold: Hold = guest.delete("/v1/hold").await?;
                self.print(&hold, || hold_text(hold))
            }
        }
    }

    fn print<T: serde::Serialize>(&self, value: &T, text: impl FnOnce() -> String) -> Outcome {
        if self.json {
            crate::output::json(value)?;
        } else {
            crate::output::data(&text())?;
        }
        Ok(0)
    }
}

/// Adapts an error to a process in a bay, which knows neither the daemon nor the bay's name outside, and has the commands
/// of `bay-ctl`.
fn explain(error: ApiError, connected: bool) -> ApiError {
    match error.code {
        // If there was no connection, the socket could not be opened. If there was one, the bay itself reports this
        // error.
        ErrorCode::NotRoot if connected => error,
        ErrorCode::DaemonUnreachable | ErrorCode::NotRoot => ApiError::new(
            ErrorCode::GuestUnreachable,
            format!("the bay does not answer on {CTL_SOCKET}"),
            "bay-ctl works inside a bay only; when it is busy, try again in a few seconds",
        ),
        ErrorCode::ServiceNotFound => {
            ApiError { next: "`bay-ctl services ls` lists them".to_owned(), ..error }
        }
        _ => error,
    }
}

fn whoami(me: &WhoAmI) -> String {
    let mut lines = vec![
        format!("bay        {} ({})", visible(&me.name), visible(&me.bay)),
        format!("exec       {}", me.exec.map_or_else(|| "none".to_owned(), |id| id.to_string())),
        format!("user       {}", me.uid),
        format!("up since   {}", me.started_at),
        format!("limits     {}", limits(&me.limits)),
    ];
    if let Some(isolation) = &me.isolation {
        lines.push(format!("isolation  {}: {}", visible(&isolation.grade), visible(&isolation.detail)));
    }
    lines.join("\n")
}

fn allowed(can: &Can) -> String {
    let mounts: Vec<String> = can.mounts.iter().map(|path| visible(&path.to_string_lossy())).collect();
    let mounts = if mounts.is_empty() { "none".to_owned() } else { mounts.join(", ") };
    [
        format!("network    {}: {}", visible(&can.network.outbound), visible(&can.network.detail)),
        format!("workspace  {}", visible(&can.workspace.to_string_lossy())),
        format!("mounts     {mounts}"),
        format!("limits     {}", limits(&can.limits)),
        format!("kept awake {}", can.hold_until.map_or_else(|| "no".to_owned(), |at| format!("until {at}"))),
    ]
    .join("\n")
}

fn egress(told: &InsideEgress) -> String {
    let policies: Vec<String> = told.policies.iter().map(|name| visible(name)).collect();
    let mut lines = vec![
        format!("egress     {}", if told.open { "open" } else { "closed: nothing can leave now" }),
        format!("policy     {}", policies.join(", then ")),
        format!("proxy      {}", visible(&told.proxy)),
        format!("resolver   {}", visible(&told.resolver)),
    ];
    for rule in &told.rules {
        let until = rule.expires.map(|at| format!(" (until {at})")).unwrap_or_default();
        lines.push(format!("{:<10} {}{until}", visible(&rule.outcome), visible(&rule.what)));
    }
    if told.more {
        lines.push("and more rules than are shown".to_owned());
    }
    lines.push(format!("{:<10} everything else", visible(&told.otherwise)));
    lines.join("\n")
}

fn hold_text(hold: Hold) -> String {
    hold.hold_until.map_or_else(|| "not kept awake".to_owned(), |at| format!("kept awake until {at}"))
}

fn limits(limits: &Limits) -> String {
    let told = [
        limits.cpus.map(|n| format!("{n} processors")),
        limits.memory_mib.map(|n| format!("{n} MiB of memory")),
        limits.disk_mib.map(|n| format!("{n} MiB of disk")),
        limits.pids.map(|n| format!("{n} processes")),
    ];
    let told: Vec<String> = told.into_iter().flatten().collect();
    if told.is_empty() { "the host's".to_owned() } else { told.join(", ") }
}

/// `45s`, `30m`, `2h`.
fn seconds(given: &str) -> Result<u64, String> {
    let unit = match given.chars().last() {
        Some('s') => 1,
        Some('m') => 60,
        Some('h') => 60 * 60,
        _ => return Err("end it with s, m or h, such as 30m".to_owned()),
    };
    let number: u64 = given[..given.len() - 1].parse().map_err(|_| "it is not a whole number".to_owned())?;
    number.checked_mul(unit).ok_or_else(|| "it is too long".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_grammar_is_consistent() {
        Ctl::command().debug_assert();
    }

    #[test]
    fn times_have_a_unit() {
        assert_eq!(seconds("45s"), Ok(45));
        assert_eq!(seconds("30m"), Ok(1800));
        assert_eq!(seconds("2h"), Ok(7200));
        for odd in ["", "30", "m", "-1m", "1.5h", "18446744073709551615h", "1ü"] {
            assert!(seconds(odd).is_err(), "{odd}");
        }
    }
}
