//! Which files changed in a workspace while an exec ran: looked at from the outside, after its end, by nobody's request.
//!
//! ```text
//!   exec starts ──► the time by the clock of files, and (beside it) the workspace's generation are noted
//!   exec ends ──► its window waits ──► a round: write out, look, event `exec.files` ──► at least ROUND_EVERY of rest
//! ```
//!
//! No exec waits for any of this. A round serves all windows of all bays with one write-out, and looks at what changed
//! only. What a round finds is what changed *while* an exec ran, by whomever: execs that overlap share it. The daemon's death loses
//! windows that wait, and nothing else.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bay_pool::{Flush, Pool, Window, file_clock};
use bay_store::{Draft, ExecRow, Store};
use bay_types::event::exec::ExecFiles;
use bay_types::timeline::FileChanges;
use bay_types::{BayId, ExecId};
use jiff::{SignedDuration, Timestamp};
use tokio::sync::Notify;

use crate::background::blocking;
use crate::channel::plain_text;

/// Rest between two rounds: so often at most is the pool asked to write out what waits.
const ROUND_EVERY: Duration = Duration::from_secs(1);
/// Windows of one bay that one round looks at. A bay that runs more commands than this in a second gets no summaries for
/// the others.
const MAX_WINDOWS: usize = 64;
/// While less than this waits in memory to be written to the pool, all of it is written out before a look. More is left to
/// the kernel's own pace, and only what costs little is made visible.
const SMALL_WRITE: u64 = 256 << 20;

/// How far the clock of files may run behind, for an exec that an earlier daemon started.
const CLOCK_LAG: SignedDuration = SignedDuration::from_millis(50);
/// Execs for which a beginning is noted at the same time.
const MAX_BEGUN: usize = 65_536;

/// Windows that wait, and what was noted for execs that run.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    began: Mutex<HashMap<ExecId, Began>>,
    waiting: Mutex<HashMap<BayId, Vec<Waiting>>>,
    wake: Notify,
}

#[derive(Debug, Clone, Copy)]
struct Began {
    from: Timestamp,
    /// Where in the workspace's history it was; 0 while nobody has looked.
    generation: u64,
}

#[derive(Debug, Clone, Copy)]
struct Waiting {
    exec: ExecId,
    number: u64,
    window: Window,
    /// Where in the workspace's history the exec began; 0 when nobody noted it.
    since: u64,
}

fn hold<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Changes {
    /// An exec is about to start. Costs a look at a clock, a lock and an insertion.
    pub(crate) fn exec_begins(&self, id: ExecId) {
        let began = Began { from: file_clock(), generation: 0 };
        let mut all = hold(&self.began);
        if all.len() < MAX_BEGUN {
            all.insert(id, began);
        }
    }

    /// Notes where the workspace's history is. Off the path of the exec: without it a look only takes longer.
    pub(crate) fn exec_began(&self, pool: &Pool, bay: BayId, id: ExecId) {
        if let Ok(generation) = pool.workspace_generation(bay)
            && let Some(began) = hold(&self.began).get_mut(&id)
        {
            began.generation = generation;
        }
    }

    /// An exec is over. Costs two locks and a push.
    pub(crate) fn exec_ended(&self, row: &ExecRow) {
        let Began { from, generation: since } = hold(&self.began).remove(&row.id).unwrap_or_else(|| Began {
            from: row.started_at.checked_sub(CLOCK_LAG).unwrap_or(row.started_at),
            generation: 0,
        });
        let Some(to) = row.ended_at else { return };
        let window = Window { from, to };
        let mut waiting = hold(&self.waiting);
        let of_bay = waiting.entry(row.bay).or_default();
        if of_bay.len() < MAX_WINDOWS {
            of_bay.push(Waiting { exec: row.id, number: row.number, window, since });
            drop(waiting);
            self.wake.notify_one();
        }
    }
}

/// Rounds for as long as the daemon lives.
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
            let found = pool.workspace_changes(bay, since, &only).map_err(|e| e.to_api())?;
            Ok(windows.into_iter().zip(found).collect::<Vec<_>>())
        });
        match looked.await {
            Ok(found) => {
                for (exec, mut changes) in found.into_iter().filter(|(_, changes)| !changes.is_empty()) {
                    changes.at_least |= flush == Flush::Names;
                    tell(store, bay, &exec, changes).await;
                }
            }
            // A bay that was removed meanwhile has no workspace to look at.
            Err(error) => tracing::debug!(%bay, message = %error.message, "changes were not looked at"),
        }
    }
    tracing::debug!(?flush, ?written_out, all = ?began.elapsed(), "looked at what execs changed");
}

async fn tell(store: &Store, bay: BayId, exec: &Waiting, mut changes: FileChanges) {
    for name in &mut changes.names {
        *name = plain_text(name);
    }
    let event = Draft::of(ExecFiles {
        exec: exec.exec.into(),
        number: exec.number,
        created: changes.created,
        changed: changes.changed,
        directories: changes.directories,
        at_least: changes.at_least,
        names: changes.names,
    });
    if let Err(error) = store.event_append(Some(bay), &event).await {
        tracing::warn!(%bay, %error, "what an exec changed could not be recorded");
    }
}
