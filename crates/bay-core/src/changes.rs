//! Which files changed in a workspace while an exec ran. The daemon compares from outside, after the exec ended,
//! without a request.
//!
//! ```text
//!   exec starts ──► the time by the clock of files, and (beside it) the workspace's generation are noted
//!   exec ends ──► its window waits ──► a round: write out, look, event `exec.files` ──► at least ROUND_EVERY of rest
//! ```
//!
//! No exec waits for this. A round serves all waiting execs of all bays with one flush. If the generation is
//! known, it reads only what changed since then. A round finds what changed *while* an exec ran, whoever changed
//! it: execs that overlap share it. If nothing changed, there is no event. If the pool cannot be flushed, or the
//! daemon dies, the execs whose windows wait get no event either.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bay_diff::IgnoredPaths;
use bay_pool::{Flush, Pool, Window, file_clock};
use bay_store::{Draft, ExecRow, Store};
use bay_types::event::exec::ExecFiles;
use bay_types::timeline::FileChanges;
use bay_types::{BayId, ExecId};
use jiff::{SignedDuration, Timestamp};
use tokio::sync::Notify;

use crate::background::blocking;
use crate::channel::plain_text;

/// The pause between two rounds, each of which flushes the pool.
const ROUND_EVERY: Duration = Duration::from_secs(1);
/// How many windows of one bay one round serves. If more commands of a bay end between two rounds, the earlier
/// ones get no summary: a command that follows a flood keeps its own.
const MAX_WINDOWS: usize = 64;
/// If less than this waits in memory for the pool, a round flushes all of it first. If more waits, the kernel writes
/// it at its own pace, and the round makes visible only what costs little.
const SMALL_WRITE: u64 = 256 << 20;

/// How far the clock of files may be behind, for an exec that an earlier daemon started.
const CLOCK_LAG: SignedDuration = SignedDuration::from_millis(50);
/// For how many running execs the daemon notes the beginning. Of further ones, their stored start counts.
const MAX_BEGUN: usize = 65_536;

/// Windows that wait, and what was noted for running execs.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    began: Mutex<HashMap<ExecId, Began>>,
    waiting: Mutex<HashMap<BayId, Vec<Waiting>>>,
    wake: Notify,
}

#[derive(Debug, Clone, Copy)]
struct Began {
    from: Timestamp,
    /// The workspace's generation at that time; 0 if it was not read.
    generation: u64,
}

#[derive(Debug, Clone, Copy)]
struct Waiting {
    exec: ExecId,
    number: u64,
    window: Window,
    /// The workspace's generation when the exec began; 0 if nobody noted it.
    since: u64,
}

fn hold<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Changes {
    /// Notes that an exec is about to start. This costs reading a clock, a lock and an insertion.
    pub(crate) fn exec_begins(&self, id: ExecId) {
        let began = Began { from: file_clock(), generation: 0 };
        let mut all = hold(&self.began);
        if all.len() < MAX_BEGUN {
            all.insert(id, began);
        }
    }

    /// Notes the workspace's generation, beside the start of the exec. Without it, the comparison only takes longer.
    pub(crate) fn exec_began(&self, pool: &Pool, bay: BayId, id: ExecId) {
        if let Ok(generation) = pool.workspace_generation(bay)
            && let Some(began) = hold(&self.began).get_mut(&id)
        {
            began.generation = generation;
        }
    }

    /// Queues the window of an exec that ended. This costs two locks and a push.
    pub(crate) fn exec_ended(&self, row: &ExecRow) {
        let Began { from, generation: since } = hold(&self.began).remove(&row.id).unwrap_or_else(|| Began {
            from: row.started_at.checked_sub(CLOCK_LAG).unwrap_or(row.started_at),
            generation: 0,
        });
        let Some(to) = row.ended_at else { return };
        let window = Window { from, to };
        let mut waiting = hold(&self.waiting);
        let of_bay = waiting.entry(row.bay).or_default();
        if of_bay.len() >= MAX_WINDOWS {
            of_bay.remove(0);
        }
        of_bay.push(Waiting { exec: row.id, number: row.number, window, since });
        drop(waiting);
        self.wake.notify_one();
    }
}

/// Runs rounds for the life of the daemon.
pub(crate) async fn watch(all: Arc<Changes>, store: Store, pool: Pool) {
    loop {
        all.wake.notified().await;
        let waiting = std::mem::take(&mut *hold(&all.waiting));
        round(&store, &pool, waiting).await;
        tokio::time::sleep(ROUND_EVERY).await;
    }
}

async fn round(store: &Store, pool: &Pool, waiting: HashMap<BayId, Vec<Waiting>>) {
    let began = Instant::now();
    let flushing = pool.clone();
    let flushed = blocking(move || {
        let small = flushing.unwritten_bytes().is_ok_and(|bytes| bytes < SMALL_WRITE);
        let flush = if small { Flush::All } else { Flush::Names };
        flushing.flush(flush).map(|()| flush).map_err(|e| e.to_api())
    });
    let flush = match flushed.await {
        Ok(flush) => flush,
        Err(error) => {
            tracing::debug!(message = %error.message, "what execs changed cannot be looked at");
            return;
        }
    };
    let written_out = began.elapsed();
    for (bay, windows) in waiting {
        let pool = pool.clone();
        let looked = blocking(move || {
            let since = windows.iter().map(|one| one.since).min().unwrap_or(0);
            let only: Vec<Window> = windows.iter().map(|one| one.window).collect();
            // A file from the beginning of the work is the repository's, whatever pattern matches it.
            let beginning = pool.beginning_open(bay).map_err(|e| e.to_api())?;
            let mut ignored = IgnoredPaths::default();
            let found = pool.workspace_changes(bay, since, &only, &mut |top, path, is_directory| {
                ignored.has(top, beginning.as_ref().map(AsFd::as_fd), path, is_directory)
            });
            let found = found.map_err(|e| e.to_api())?;
            Ok(windows.into_iter().zip(found).collect::<Vec<_>>())
        });
        match looked.await {
            Ok(found) => {
                for (exec, mut changes) in found.into_iter().filter(|(_, changes)| !changes.is_empty()) {
                    changes.at_least |= flush == Flush::Names;
                    record(store, bay, &exec, changes).await;
                }
            }
            // A bay that was removed meanwhile has no workspace.
            Err(error) => tracing::debug!(%bay, message = %error.message, "changes were not looked at"),
        }
    }
    tracing::debug!(?flush, ?written_out, all = ?began.elapsed(), "looked at what execs changed");
}

async fn record(store: &Store, bay: BayId, exec: &Waiting, mut changes: FileChanges) {
    for name in &mut changes.names {
        *name = plain_text(name);
    }
    let event = Draft::of(ExecFiles {
        exec: exec.exec.into(),
        number: exec.number,
        created: changes.created,
        changed: changes.changed,
        directories: changes.directories,
        git: Some(changes.git),
        ignored: Some(changes.ignored).filter(|ignored| *ignored > 0),
        at_least: changes.at_least,
        names: changes.names,
    });
    if let Err(error) = store.event_append(Some(bay), &event).await {
        tracing::warn!(%bay, %error, "what an exec changed could not be recorded");
    }
}
