//! Events that record no change of a row, from many callers at once. A transaction costs as much as a dozen events,
//! so one task writes the waiting events together, up to [`MAX_TOGETHER`] in one transaction.
//!
//! Urgent events (`now`) must be stored before the daemon acts. The others (`later`) only report what the daemon
//! did: they join the next transaction of urgent ones, and get one of their own if none begins within
//! [`LATER_WITHIN`].

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::draft::Entry;
use crate::error::{Result, StoreError};
use crate::writer::Writer;

/// Most events in one transaction, besides one `later` event that waited for it.
const MAX_TOGETHER: usize = 256;
/// Most events that wait in a queue. A caller with one more waits until the queue has room.
const QUEUE: usize = 4 * MAX_TOGETHER;
/// Most `later` events that are not stored yet.
const LATE: u32 = 1024;
/// How long a `later` event waits for a transaction to join.
const LATER_WITHIN: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub(crate) struct Waiting {
    entry: Entry,
    done: oneshot::Sender<Result<u64>>,
}

/// The sending ends of the queues to the task that writes.
#[derive(Debug)]
pub(crate) struct Appends {
    now: mpsc::Sender<Waiting>,
    later: mpsc::Sender<Waiting>,
    /// One permit per `later` event, held until the event is stored.
    late: Semaphore,
}

impl Appends {
    /// Writes an event together with others that wait. Returns its number.
    pub(crate) async fn append(&self, entry: Entry) -> Result<u64> {
        send_and_wait(&self.now, entry).await
    }

    /// Writes an event in a transaction that urgent events need anyway, or after [`LATER_WITHIN`] in one of its
    /// own. Returns its number.
    pub(crate) async fn append_later(&self, entry: Entry) -> Result<u64> {
        let _late = self.late.acquire().await;
        send_and_wait(&self.later, entry).await
    }

    /// Waits until every `later` event is stored.
    pub(crate) async fn drain(&self) {
        let _all = self.late.acquire_many(LATE).await;
    }
}

/// The receiving ends of the queues.
#[derive(Debug)]
pub(crate) struct Queues {
    now: mpsc::Receiver<Waiting>,
    later: mpsc::Receiver<Waiting>,
    /// The first `later` event, which waits for a transaction.
    held: Option<Waiting>,
}

pub(crate) fn queues() -> (Appends, Queues) {
    let (now, now_queue) = mpsc::channel(QUEUE);
    let (later, later_queue) = mpsc::channel(QUEUE);
    let late = Semaphore::new(LATE as usize);
    (Appends { now, later, late }, Queues { now: now_queue, later: later_queue, held: None })
}

impl Queues {
    /// Fills `waiting` with the events to write next. Leaves it empty when all senders are gone.
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

pub(crate) async fn append_forever(writer: Arc<Writer>, mut queues: Queues) {
    let mut waiting = Vec::with_capacity(MAX_TOGETHER);
    loop {
        queues.next(&mut waiting).await;
        if waiting.is_empty() {
            return;
        }
        let (entries, mut callers): (Vec<_>, Vec<_>) =
            waiting.drain(..).map(|one| (one.entry, one.done)).unzip();
        match append_all(&writer, &entries).await {
            Ok(last) => {
                let first = last + 1 - callers.len() as u64;
                for (seq, done) in (first..).zip(callers) {
                    // The caller may have stopped waiting. Its event is recorded all the same.
                    let _ = done.send(Ok(seq));
                }
            }
            Err(error) if callers.len() == 1 => {
                let _ = callers.remove(0).send(Err(error));
            }
            // Each event is tried alone, so that each caller gets its own error.
            Err(_) => {
                for (entry, done) in entries.iter().zip(callers) {
                    let _ = done.send(append_all(&writer, std::slice::from_ref(entry)).await);
                }
            }
        }
    }
}

async fn append_all(writer: &Writer, entries: &[Entry]) -> Result<u64> {
    writer.lock().await.append(entries).await
}

async fn send_and_wait(queue: &mpsc::Sender<Waiting>, entry: Entry) -> Result<u64> {
    let (done, answer) = oneshot::channel();
    let closed = || StoreError::Query { what: "writing an event", source: sqlx::Error::PoolClosed };
    queue.send(Waiting { entry, done }).await.map_err(|_| closed())?;
    answer.await.map_err(|_| closed())?
}
