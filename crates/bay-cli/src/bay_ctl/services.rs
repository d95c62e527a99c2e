//! `bay-ctl services`: the verbs of `bay services`, for the bay that the process runs in.

use std::time::Duration;

use bay_client::{Client, broken};
use bay_types::output::OutputRequest;
use bay_types::service::ServiceVerb;
use clap::{Args, Subcommand};
use jiff::Timestamp;

use crate::commands::logs::{self, End, Part, Printer};
use crate::commands::services::{Definition, Target, list, service_name};
use crate::failure::{Failure, Outcome};

/// The path of all services.
const BASE: &str = "/v1/services";
/// Interval between requests for new output of a followed service.
const POLL: Duration = Duration::from_millis(250);

/// Manage the services of this bay: commands that it keeps running. Only root of the bay may change them.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  bay-ctl services ls\n  bay-ctl services add web --health tcp:8000 -- npm run dev\n  bay-ctl services logs web --follow --tail 20\n  bay-ctl services restart web"
)]
pub(super) struct Services {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Args)]
struct Add {
    /// Name of the service.
    service: String,
    #[command(flatten)]
    definition: Definition,
}

#[derive(Debug, Args)]
struct Change {
    /// Name of the service.
    service: String,
    /// Do not wait until it is ready.
    #[arg(long)]
    no_wait: bool,
}

#[derive(Debug, Args)]
struct Stop {
    /// Name of the service.
    service: String,
    /// Do not wait until it has ended.
    #[arg(long)]
    no_wait: bool,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List the services with their states and the reasons.
    Ls,
    /// Show everything about a service.
    Show {
        /// Name of the service.
        service: String,
    },
    /// Show the output of a service from all kept runs, both streams on standard output. On a terminal everything but colours is made visible.
    Logs {
        /// Name of the service.
        service: String,
        /// Keep showing new output, across restarts of the service, until interrupted.
        #[arg(short, long)]
        follow: bool,
        #[command(flatten)]
        part: Part,
    },
    /// Define and start a service, or replace its definition; wait until it is ready.
    Add(Box<Add>),
    /// Start a service that is stopped, done, failed, backing off or in a crash loop, and wait until it is ready.
    Start(Change),
    /// Stop a service: TERM to all its processes, KILL after its grace period. It stays stopped when the bay starts
    /// again.
    Stop(Stop),
    /// Stop a service, start it again, and wait until it is ready.
    Restart(Change),
    /// Stop a service, and delete it with its log.
    Rm {
        /// Name of the service.
        service: String,
    },
}

impl Services {
    pub(super) async fn run(self, guest: &mut Client, json: bool) -> Outcome {
        let target = |given: &str| -> Result<Target, Failure> {
            let service = service_name(given)?;
            let logs = format!("bay-ctl services logs {service}");
            Ok(Target { base: BASE.to_owned(), service, logs, json })
        };
        match self.verb {
            Verb::Ls => {
                let none = "no services: `bay-ctl services add SERVICE -- CMD` defines one";
                list(guest, BASE, json, none).await
            }
            Verb::Show { service } => target(&service)?.show(guest).await,
            Verb::Logs { service, follow, part } => {
                let target = target(&service)?;
                let mut printer = Printer::new(part.layout(json, Timestamp::now()));
                printer.ended(async |printer| show_log(guest, &target, follow, &part, printer).await).await
            }
            Verb::Add(add) => {
                let spec = add.definition.spec()?;
                target(&add.service)?.define(guest, &spec, add.definition.no_wait).await
            }
            Verb::Start(Change { service, no_wait }) => {
                target(&service)?.ask(guest, ServiceVerb::Start, no_wait).await
            }
            Verb::Stop(Stop { service, no_wait }) => {
                target(&service)?.ask(guest, ServiceVerb::Stop, no_wait).await
            }
            Verb::Restart(Change { service, no_wait }) => {
                target(&service)?.ask(guest, ServiceVerb::Restart, no_wait).await
            }
            Verb::Rm { service } => target(&service)?.remove(guest).await,
        }
    }
}

/// Shows the log. The bay closes connections after some seconds; the client then continues from its offset.
async fn show_log(
    guest: &mut Client,
    target: &Target,
    follow: bool,
    part: &Part,
    printer: &mut Printer,
) -> Outcome {
    let mut offset = part.begin(guest, &target.path("")).await?;
    loop {
        let before = offset;
        let request =
            OutputRequest { since: offset, times: printer.needs_times(), ..OutputRequest::default() };
        let path = target.path(&format!("/output?{}", request.query()));
        match logs::read(guest, &path, &mut offset, printer, false).await? {
            Some(End::Cut) if offset == before => {
                return Err(broken("the output ended in the middle").into());
            }
            Some(End::Cut) => {}
            Some(End::Done) | None if !follow => return Ok(0),
            Some(End::Done) | None => tokio::time::sleep(POLL).await,
        }
    }
}
