//! Events of no change of a row, from many callers at once: those that wait are written together, in one transaction.
//! A transaction costs as much as a dozen events.
//!
//! Some events must be there before something is done, others only tell what was done: those wait for a transaction that
//! is made anyway, and have one of their own only when none comes.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use bay_types::BayId;
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::event::{Draft, Entry};
use crate::write::Desk;
use crate::{Result, Store, StoreError};

/// Events in one transaction.
const MAX_TOGETHER: usize = 256;
/// Events that wait for theirs; whoever comes with one more waits to be let in.
const QUEUE: usize = 4 * MAX_TOGETHER;
/// Events that may be late, at a time.
const LATE: u32 = 1024;
/// How long an event that nobody waits for waits for others.
const LATER_WITHIN: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub(crate) struct Waiting {
    entry: Entry,
    done: oneshot::Sender<Result<u64>>,
}

/// The ways to the task that writes.
#[derive(Debug)]
pub(crate) struct Appends {
    now: mpsc::Sender<Waiting>,
    later: mpsc::Sender<Waiting>,
    /// Held by each that may be late, until it is written.
    late: Semaphore,
}

impl Appends {
    /// Waits for what may be late.
    pub(crate) async fn settled(&self) {
        let _all = self.late.acquire_many(LATE).await;
    }
}

/// What that task takes from.
#[derive(Debug)]
pub(crate) struct Queues {
    now: mpsc::Receiver<Waiting>,
    later: mpsc::Receiver<Waiting>,
    /// The first of those that may wait.
    held: Option<Waiting>,
}

pub(crate) fn queues() -> (Appends, Queues) {
    let (now, now_queue) = mpsc::channel(QUEUE);
    let (later, later_queue) = mpsc::channel(QUEUE);
    let late = Semaphore::new(LATE as usize);
    (Appends { now, later, late }, Queues { now: now_queue, later: later_queue, held: None })
}

impl Queues {
    /// Fills `waiting` with what is to be written next; leaves it empty when nobody can come any more.
    async fn next(&mut self, waiting: &mut Vec<Waiting>) {
        let Self { now, later, held } = self;
        let due = async {
            if held.is_none() {
                *held = later.recv().await;
            }
            match held {
                Some(_) => tokio::time::sleep(LATER_WITHIN).await,
                None => pending().await,
            }
        };
        tokio::select! {
            biased;
            _ = now.recv_many(waiting, MAX_TOGETHER) => {}
            () = due => {}
        }
        waiting.extend(held.take());
        while waiting.len() < MAX_TOGETHER
            && let Ok(one) = later.try_recv()
        {
            waiting.push(one);
        }
    }
}

pub(crate) async fn append_forever(desk: Arc<Desk>, mut queues: Queues) {
    let mut waiting = Vec::with_capacity(MAX_TOGETHER);
    loop {
        queues.next(&mut waiting).await;
        if waiting.is_empty() {
            return;
        }
        let (entries, mut callers): (Vec<_>, Vec<_>) =
            waiting.drain(..).map(|one| (one.entry, one.done)).unzip();
        match together(&desk, &entries).await {
            Ok(last) => {
                let first = last + 1 - callers.len() as u64;
                for (seq, done) in (first..).zip(callers) {
                    // A caller may be gone; its event is on record all the same.
                    let _ = done.send(Ok(seq));
                }
            }
            Err(error) if callers.len() == 1 => {
                let _ = callers.remove(0).send(Err(error));
            }
            // Each gets its own chance, and its own error.
            Err(_) => {
                for (entry, done) in entries.iter().zip(callers) {
                    let _ = done.send(together(&desk, std::slice::from_ref(entry)).await);
                }
            }
        }
    }
}

async fn together(desk: &Desk, entries: &[Entry]) -> Result<u64> {
    desk.writer().await.append(entries).await
}

impl Store {
    /// Writes an event that belongs to no change of a row: an import, a decision. It survives the end of the daemon when
    /// this returns, and a power cut after [`Store::event_durable`]. It is written also when the caller stops waiting.
    ///
    /// # Errors
    /// When the database cannot be written.
    pub async fn event_append(&self, bay: Option<BayId>, draft: &Draft) -> Result<u64> {
        handed_in(&self.inner.appends.now, draft.entry(bay)).await
    }

    /// The same for an event that only tells what was done, and so may be some milliseconds late.
    ///
    /// # Errors
    /// When the database cannot be written.
    pub async fn event_append_later(&self, bay: Option<BayId>, draft: &Draft) -> Result<u64> {
        let appends = &self.inner.appends;
        let _late = appends.late.acquire().await;
        handed_in(&appends.later, draft.entry(bay)).await
    }
}

async fn handed_in(queue: &mpsc::Sender<Waiting>, entry: Entry) -> Result<u64> {
    let (done, answer) = oneshot::channel();
    let closed = || StoreError::Query { what: "writing an event", source: sqlx::Error::PoolClosed };
    queue.send(Waiting { entry, done }).await.map_err(|_| closed())?;
    answer.await.map_err(|_| closed())?
}
