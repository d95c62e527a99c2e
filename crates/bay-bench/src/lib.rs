//! `bay bench`: how long a person waits for a bay, compared with other tools in the same run.
//!
//! Machines are shared and noisy, so a number alone says little. Every contest runs its contestants in turn, round by
//! round. It reports medians, and the ratio to the peer that its bar names.
//!
//! ```text
//!  Bench::run ──► Setup (a small image, two repositories, the peers) ──► cases, work, durable, throughput, …  ──► Vec<Scored>
//!            └──► gateway::Lab (a daemon, an origin and a load generator of its own) ──────────────────┘
//! ```
//!
//! The crate prints progress on standard error and returns the results; `bay` prints the tables.
#![forbid(unsafe_code)]

mod cases;
mod chart;
mod checkpoints_and_forks;
mod container;
mod durable;
mod forward;
mod gateway;
mod gvisor;
mod idle_bays;
mod live_processes;
mod memory;
mod peers;
mod place;
mod scoring;
mod setup;
mod talk;
mod throughput;
mod work;

use std::fs::OpenOptions;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use bay_types::ApiError;
use clap::{Args, ValueEnum};

use peers::Peer;
pub use scoring::{Judged, Line, Scored, Unit};
pub use setup::Daemon;
use setup::Setup;

/// Fewer rounds than this give no meaningful median.
const MIN_ROUNDS: usize = 3;
/// Rounds of contests that take seconds each.
const SLOW_ROUNDS: usize = 7;

/// Compare new bays, commands, workspaces, imports, real work and many bays with other tools on this machine.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  bay bench\n  bay bench --only exec --rounds 50\n  bay bench --peers runc,docker --json\n  bay bench --only first-command,exec --chart bench.svg"
)]
pub struct Bench {
    /// Run only these contests.
    #[arg(long, value_delimiter = ',')]
    only: Vec<Contest>,
    /// The tools to compare with. A tool that is not installed or not running is left out and named.
    #[arg(long, value_delimiter = ',', default_value = "runc,docker,runsc,bwrap")]
    peers: Vec<Peer>,
    /// Number of rounds of each contestant.
    #[arg(long, default_value_t = 20)]
    rounds: usize,
    /// Files in the repository of the `workspace` contest.
    #[arg(long, default_value_t = 50_000)]
    files: usize,
    /// Duration of the `storm` contest in seconds.
    #[arg(long, default_value_t = 300)]
    seconds: u32,
    /// Data of the larger bay in the `checkpoint` contest, in MiB or with a unit.
    #[arg(long, value_name = "SIZE", default_value = "10240", value_parser = bay_types::mib::parse)]
    data_mib: u64,
    /// The directory copied in the `import` contest.
    #[arg(long, default_value = "/usr/lib")]
    tree: PathBuf,
    /// Also draw the contests against other tools as bars into this SVG file.
    #[arg(long, value_name = "FILE")]
    chart: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Contest {
    /// A new bay on a cached repository, until the output of its first command.
    FirstCommand,
    /// `true` in a running bay.
    Exec,
    /// A workspace from a cached repository of many files.
    Workspace,
    /// The import of a tree into the pool as an image.
    Import,
    /// Builds, installs, tests and tools on large trees, compared with the bare host.
    Work,
    /// SQLite and PostgreSQL with every commit on disk.
    Durable,
    /// A hundred idle bays.
    Crowd,
    /// A gigabyte of output from one command.
    Output,
    /// Commands in one bay while another explodes.
    Neighbours,
    /// How long a bay is paused for a checkpoint, with little and with much data; the disk usage of many checkpoints.
    /// Takes minutes: only if named.
    Checkpoint,
    /// A fork, until the output of the first command in the child.
    Fork,
    /// What `bay forward` adds to a message, and how much of loopback's throughput it reaches.
    Forward,
    /// How long a bay with databases is paused while its memory is captured, and how soon children and a restored bay
    /// answer. Needs the databases on the host: only if named.
    Memory,
    /// What the gateway adds to requests, and its throughput, with a daemon of its own and compared with mitmproxy.
    /// Takes minutes: only if named.
    Gateway,
    /// How soon a held request continues after an approval, and the cost of a thousand held ones. Uses its own daemon,
    /// which is killed meanwhile. Takes minutes: only if named.
    Approvals,
    /// Only the long responses of `gateway`: one, one that is scrubbed of a secret, and a hundred concurrent ones. Only
    /// if named.
    Downloads,
    /// New bays inside gVisor, and builds and installs there, compared with `runsc` itself and Docker with it. Needs
    /// runsc: only if named.
    Gvisor,
    /// Two hundred commands a second in twenty bays. Takes minutes: only if named.
    Storm,
}

impl Bench {
    /// Runs the contests on a running daemon, and on other daemons if a contest needs its own.
    pub async fn run(self, daemon: Daemon) -> Result<Vec<Scored>, ApiError> {
        if self.rounds < MIN_ROUNDS {
            return Err(bay_client::invalid(
                format!("{} rounds make no median", self.rounds),
                format!("ask for at least {MIN_ROUNDS}"),
            ));
        }
        // Before minutes of measuring, not after them.
        if let Some(chart) = &self.chart {
            let opened = OpenOptions::new().create(true).append(true).open(chart);
            opened.map_err(|error| unwritable(chart, &error))?;
        }
        let wanted = |contest| self.only.is_empty() || self.only.contains(&contest);
        let mut scored = Vec::new();
        if self.only.contains(&Contest::Gateway) {
            scored.extend(gateway::gateway(self.rounds.min(SLOW_ROUNDS)).await?);
        }
        if self.only.contains(&Contest::Approvals) {
            scored.extend(gateway::approvals::approvals(self.rounds.min(SLOW_ROUNDS)).await?);
        }
        if self.only.contains(&Contest::Downloads) {
            scored.extend(gateway::downloads(self.rounds).await?);
        }
        // These contests use a daemon of their own. All others share one setup.
        let own = [Contest::Gateway, Contest::Approvals, Contest::Downloads];
        if self.only.is_empty() || self.only.iter().any(|contest| !own.contains(contest)) {
            let mut setup = Setup::prepare(daemon, &self.peers, self.files).await?;
            let result = self.measure(&mut setup, wanted).await;
            setup.remove().await;
            scored.extend(result?);
        }
        if let Some(chart) = &self.chart {
            std::fs::write(chart, chart::svg(&scored)).map_err(|error| unwritable(chart, &error))?;
        }
        Ok(scored)
    }

    async fn measure(
        &self,
        setup: &mut Setup,
        wanted: impl Fn(Contest) -> bool,
    ) -> Result<Vec<Scored>, ApiError> {
        let mut scored = Vec::new();
        if wanted(Contest::FirstCommand) {
            scored.push(cases::first_command(setup, self.rounds).await?);
        }
        if wanted(Contest::Exec) {
            scored.push(cases::exec(setup, self.rounds).await?);
        }
        if wanted(Contest::Workspace) {
            scored.push(cases::workspace(setup, self.rounds).await?);
        }
        if wanted(Contest::Import) {
            scored.push(cases::import(setup, &self.tree, self.rounds.min(cases::IMPORT_ROUNDS)).await?);
        }
        if wanted(Contest::Work) {
            scored.extend(work::work(setup, self.rounds.min(SLOW_ROUNDS)).await?);
        }
        if wanted(Contest::Durable) {
            scored.push(durable::sqlite(setup, self.rounds.min(SLOW_ROUNDS)).await?);
            scored.push(durable::postgres(setup, self.rounds.min(SLOW_ROUNDS)).await?);
        }
        if wanted(Contest::Crowd) {
            scored.push(idle_bays::idle_bays(setup).await?);
        }
        if wanted(Contest::Output) {
            scored.push(throughput::output(setup, self.rounds.min(SLOW_ROUNDS)).await?);
        }
        if wanted(Contest::Neighbours) {
            scored.push(throughput::neighbours(setup).await?);
        }
        if wanted(Contest::Fork) {
            scored.push(checkpoints_and_forks::fork(setup, self.rounds).await?);
        }
        if wanted(Contest::Forward) {
            scored.extend(forward::forward(setup, self.rounds.min(SLOW_ROUNDS)).await?);
        }
        if self.only.contains(&Contest::Checkpoint) {
            scored.push(checkpoints_and_forks::checkpoint(setup, self.rounds, self.data_mib).await?);
            scored.push(checkpoints_and_forks::many(setup).await?);
        }
        if self.only.contains(&Contest::Memory) {
            scored.push(memory::memory(setup, self.rounds).await?);
        }
        if self.only.contains(&Contest::Gvisor) {
            scored.extend(gvisor::gvisor(setup, self.rounds, self.rounds.min(SLOW_ROUNDS)).await?);
        }
        if self.only.contains(&Contest::Storm) {
            scored.push(throughput::storm(setup, self.seconds).await?);
        }
        Ok(scored)
    }
}

fn unwritable(chart: &Path, error: &io::Error) -> ApiError {
    bay_client::invalid(
        format!("the chart cannot be written to {}: {error}", chart.display()),
        "name a file in a directory that exists and that you may write to",
    )
}

/// Runs the load generator as a separate program: `bay __load ORDER`.
#[must_use]
pub fn load(order: &str) -> ExitCode {
    gateway::load::run(order)
}
