//! `bay bench`: what a person waits for, measured beside the peers in one run.
//!
//! Machines are shared and noisy, so a number alone says little. Every contest takes its contestants in turn, round by
//! round, and reports medians and the ratio to the peer named in its bar.

mod branching;
mod cases;
mod container;
mod contest;
mod crowd;
mod durable;
mod flow;
mod gateway;
mod memory;
mod peers;
mod place;
mod scene;
mod work;

use bay_types::ApiError;
use clap::{Args, ValueEnum};

use crate::cli::Global;
use crate::failure::Outcome;
use crate::output::table;
use contest::Scored;
pub(crate) use gateway::load::run as load;
use peers::Peer;
use scene::Scene;

/// Fewer rounds than this make no median worth writing down.
const MIN_ROUNDS: usize = 3;
/// Rounds of contests that take seconds each.
const SLOW_ROUNDS: usize = 7;

/// Measure new bays, commands, workspaces, imports, real work and crowds beside other tools on this machine.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  bay bench\n  bay bench --only exec --rounds 50\n  bay bench --peers runc,docker --json"
)]
pub(crate) struct Bench {
    /// Only these contests.
    #[arg(long, value_delimiter = ',')]
    only: Vec<Contest>,
    /// The tools to measure beside bays; those that are not installed or not running are left out and named.
    #[arg(long, value_delimiter = ',', default_value = "runc,docker,runsc,bwrap")]
    peers: Vec<Peer>,
    /// How often each contestant runs.
    #[arg(long, default_value_t = 20)]
    rounds: usize,
    /// Files in the repository of the `workspace` contest.
    #[arg(long, default_value_t = 50_000)]
    files: usize,
    /// How long the `storm` contest goes on.
    #[arg(long, default_value_t = 300)]
    seconds: u32,
    /// What the larger bay of the `checkpoint` contest holds.
    #[arg(long, default_value_t = 10_240)]
    data_mib: usize,
    /// The directory copied in the `import` contest.
    #[arg(long, default_value = "/usr/lib")]
    tree: std::path::PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Contest {
    /// A new bay on a cached repository to its first command's output.
    FirstCommand,
    /// `true` in a running bay.
    Exec,
    /// A workspace from a cached repository of many files.
    Workspace,
    /// Taking a tree into the pool as an image.
    Import,
    /// Builds, installs, tests and tools on large trees, beside the bare host.
    Work,
    /// SQLite and PostgreSQL with every commit on disk.
    Durable,
    /// A hundred idle bays.
    Crowd,
    /// A gigabyte of output from one command.
    Output,
    /// Commands in one bay while another explodes.
    Neighbours,
    /// How long a bay stands still for a checkpoint, with little and with much data; what many cost on disk. Minutes: only
    /// when asked for by name.
    Checkpoint,
    /// A fork to the first command in the child.
    Fork,
    /// How long a bay with databases stands still while its memory is kept, and how soon children and a restored one
    /// answer. Needs them on the host: only when asked for by name.
    Memory,
    /// What the gateway adds to requests and carries, with a daemon of its own and mitmproxy beside it. Minutes: only when
    /// asked for by name.
    Gateway,
    /// How soon a held request goes on when a person has allowed it, and what a thousand of them cost, with a daemon of its own
    /// that is killed meanwhile. Minutes: only when asked for by name.
    Approvals,
    /// The long answers of `gateway` alone: one, one that is scrubbed of a secret, a hundred side by side. Only when asked
    /// for by name.
    Downloads,
    /// Two hundred commands a second over twenty bays. Minutes: only when asked for by name.
    Storm,
}

impl Bench {
    pub(crate) async fn run(self, global: &Global) -> Outcome {
        if self.rounds < MIN_ROUNDS {
            return Err(bay_client::invalid(
                format!("{} rounds make no median", self.rounds),
                format!("ask for at least {MIN_ROUNDS}"),
            )
            .into());
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
        // The others have their scene in common; these need none of it.
        let own = [Contest::Gateway, Contest::Approvals, Contest::Downloads];
        if self.only.is_empty() || self.only.iter().any(|contest| !own.contains(contest)) {
            let mut scene = Scene::set(global, &self.peers, self.files).await?;
            let result = self.measure(&mut scene, wanted).await;
            scene.strike().await;
            scored.extend(result?);
        }
        if global.json {
            crate::output::json(&scored)?;
        } else {
            crate::output::data(&render(&scored))?;
        }
        Ok(0)
    }

    async fn measure(
        &self,
        scene: &mut Scene,
        wanted: impl Fn(Contest) -> bool,
    ) -> Result<Vec<Scored>, ApiError> {
        let mut scored = Vec::new();
        if wanted(Contest::FirstCommand) {
            scored.push(cases::first_command(scene, self.rounds).await?);
        }
        if wanted(Contest::Exec) {
            scored.push(cases::exec(scene, self.rounds).await?);
        }
        if wanted(Contest::Workspace) {
            scored.push(cases::workspace(scene, self.rounds).await?);
        }
        if wanted(Contest::Import) {
            scored.push(cases::import(scene, &self.tree, self.rounds.min(cases::IMPORT_ROUNDS)).await?);
        }
        if wanted(Contest::Work) {
            scored.extend(work::work(scene, self.rounds.min(SLOW_ROUNDS)).await?);
        }
        if wanted(Contest::Durable) {
            scored.push(durable::sqlite(scene, self.rounds.min(SLOW_ROUNDS)).await?);
            scored.push(durable::postgres(scene, self.rounds.min(SLOW_ROUNDS)).await?);
        }
        if wanted(Contest::Crowd) {
            scored.push(crowd::crowd(scene).await?);
        }
        if wanted(Contest::Output) {
            scored.push(flow::output(scene, self.rounds.min(SLOW_ROUNDS)).await?);
        }
        if wanted(Contest::Neighbours) {
            scored.push(flow::neighbours(scene).await?);
        }
        if wanted(Contest::Fork) {
            scored.push(branching::fork(scene, self.rounds).await?);
        }
        if self.only.contains(&Contest::Checkpoint) {
            scored.push(branching::checkpoint(scene, self.rounds, self.data_mib).await?);
            scored.push(branching::many(scene).await?);
        }
        if self.only.contains(&Contest::Memory) {
            scored.push(memory::memory(scene, self.rounds).await?);
        }
        if self.only.contains(&Contest::Storm) {
            scored.push(flow::storm(scene, self.seconds).await?);
        }
        Ok(scored)
    }
}

fn render(scored: &[Scored]) -> String {
    let mut parts = Vec::new();
    for contest in scored {
        let mut table = table::table(&["CONTESTANT", "MEDIAN", "P95", "RATIO", "BAR", ""]);
        for line in &contest.lines {
            let each = |show: &dyn Fn(&contest::Judged) -> String| {
                line.bars.iter().map(show).collect::<Vec<_>>().join("\n")
            };
            table.add_row([
                line.name.clone(),
                line.unit.show(line.median),
                line.unit.show(line.p95),
                each(&|bar| match (bar.against, bar.reached) {
                    (Some(_), Some(ratio)) => format!("{ratio:.3}"),
                    _ => String::new(),
                }),
                each(&|bar| bar.show(line.unit)),
                each(&|bar| bar.verdict.to_owned()),
            ]);
        }
        parts.push(format!("{} ({} rounds)\n{}", contest.title, contest.rounds, table.trim_fmt()));
        parts.extend(contest.notes.iter().map(|note| format!("  {note}")));
    }
    parts.join("\n\n")
}
