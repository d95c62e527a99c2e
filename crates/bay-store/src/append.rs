//! Events of no change of a row, from many callers at once: those that wait are written together, in one transaction.
//! A transaction costs as much as a dozen events.

use std::sync::Arc;

use bay_types::BayId;
use tokio::sync::{mpsc, oneshot};

use crate::event::Draft;
use crate::write::Desk;
use crate::{Result, Store, StoreError};

/// Events in one transaction.
const MAX_TOGETHER: usize = 256;
/// Events that wait for theirs; whoever comes with one more waits to be let in.
const QUEUE: usize = 4 * MAX_TOGETHER;

#[derive(Debug)]
pub(crate) struct Waiting {
    bay: Option<BayId>,
    draft: Draft,
    done: oneshot::Sender<Result<u64>>,
}

pub(crate) fn queue() -> (mpsc::Sender<Waiting>, mpsc::Receiver<Waiting>) {
    mpsc::channel(QUEUE)
}

pub(crate) async fn append_forever(desk: Arc<Desk>, mut queue: mpsc::Receiver<Waiting>) {
    let mut waiting = Vec::with_capacity(MAX_TOGETHER);
    while queue.recv_many(&mut waiting, MAX_TOGETHER).await > 0 {
        match together(&desk, &waiting).await {
            Ok(last) => {
                let first = last + 1 - waiting.len() as u64;
                for (seq, one) in (first..).zip(waiting.drain(..)) {
                    // A caller may be gone; its event is on record all the same.
                    let _ = one.done.send(Ok(seq));
                }
            }
            Err(error) if waiting.len() == 1 => {
                let _ = waiting.remove(0).done.send(Err(error));
            }
            // Each gets its own chance, and its own error.
            Err(_) => {
                for one in waiting.drain(..) {
                    let written = together(&desk, std::slice::from_ref(&one)).await;
                    let _ = one.done.send(written);
                }
            }
        }
    }
}

async fn together(desk: &Desk, waiting: &[Waiting]) -> Result<u64> {
    let drafts: Vec<(Option<BayId>, &Draft)> = waiting.iter().map(|one| (one.bay, &one.draft)).collect();
    let mut writer = desk.writer().await;
    writer.begin().await?.commit_with_all(&drafts).await
}

impl Store {
    /// Writes an event that belongs to no change of a row: an import, a decision. It survives the end of the daemon when
    /// this returns, and a power cut after [`Store::event_durable`]. It is written also when the caller stops waiting.
    ///
    /// # Errors
    /// When the database cannot be written.
    pub async fn event_append(&self, bay: Option<BayId>, draft: &Draft) -> Result<u64> {
        let (done, answer) = oneshot::channel();
        let waiting = Waiting { bay, draft: draft.clone(), done };
        let closed = || StoreError::Query { what: "writing an event", source: sqlx::Error::PoolClosed };
        self.inner.appends.send(waiting).await.map_err(|_| closed())?;
        answer.await.map_err(|_| closed())?
    }
}
