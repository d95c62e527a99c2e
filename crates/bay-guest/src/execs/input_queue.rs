//! Input of one command, from all clients and all of their connections.
//!
//! ```text
//!  connection ─► source (received) ─┐
//!  connection ─► source (received) ─┴─► one queue ─► feeder ─► pipe or terminal ─► source (taken)
//! ```
//! A source is the input of one client. If the client names it, the source outlives the client's connections: its bytes
//! have offsets, and bytes that were received before are dropped. Queued input reaches the command in the order of
//! arrival, even if the connection has ended.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bay_types::InputId;
use bay_types::frame::INPUT_WINDOW;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};

use super::exec::{Exec, Input};

/// Named sources that are remembered for one exec. If a source is forgotten, its client may send bytes twice.
const MAX_SOURCES: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct InputQueue {
    /// Created with the first input, because most commands get none.
    queue: OnceLock<mpsc::UnboundedSender<Item>>,
    /// Ordered by their last use; the most recent is at the back.
    named: Mutex<VecDeque<(InputId, Arc<Source>)>>,
}

#[derive(Debug)]
enum Item {
    Bytes {
        bytes: Vec<u8>,
        /// Offset after these bytes.
        end: u64,
        source: Arc<Source>,
        room: OwnedSemaphorePermit,
    },
    End,
}

/// The input of one client.
#[derive(Debug)]
pub(crate) struct Source {
    received: Mutex<Received>,
    /// The offset before which the command has taken everything.
    taken: watch::Sender<u64>,
    /// Bytes that may still be added to the queue.
    room: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct Received {
    /// The offset before which all input has been queued.
    to: u64,
    ended: bool,
}

impl Default for Source {
    fn default() -> Self {
        let room = usize::try_from(INPUT_WINDOW).unwrap_or(usize::MAX);
        Self {
            received: Mutex::default(),
            taken: watch::Sender::new(0),
            room: Arc::new(Semaphore::new(room.min(Semaphore::MAX_PERMITS))),
        }
    }
}

impl Source {
    pub(crate) fn received(&self) -> u64 {
        self.lock().to
    }

    /// A receiver of the offset up to which the command has taken the input. Its first value is the present offset.
    pub(crate) fn follow_taken(&self) -> watch::Receiver<u64> {
        let mut taken = self.taken.subscribe();
        taken.mark_changed();
        taken
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Received> {
        self.received.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl InputQueue {
    /// The source with the name that a client gave it. All connections of the client share it.
    pub(crate) fn named(&self, id: InputId) -> Arc<Source> {
        let mut named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        let known = named.iter().position(|(known, _)| *known == id).and_then(|at| named.remove(at));
        let (id, source) = known.unwrap_or_else(|| (id, Arc::default()));
        while named.len() >= MAX_SOURCES {
            named.pop_front();
        }
        named.push_back((id, Arc::clone(&source)));
        source
    }

    fn queue(&self, exec: &Arc<Exec>) -> &mpsc::UnboundedSender<Item> {
        self.queue.get_or_init(|| {
            let (sender, items) = mpsc::unbounded_channel();
            let exec = Arc::clone(exec);
            tokio::spawn(async move {
                let mut life = exec.life.subscribe();
                tokio::select! {
                    () = feed(&exec, items) => {}
                    // A child that keeps the input open without reading it must not keep this task alive.
                    _ = life.wait_for(|life| life.ended.is_some()) => {}
                }
            });
            sender
        })
    }
}

/// Queues input. Without an offset, it follows what its source sent before. Waits while the command has not taken a
/// whole window of this source. If the future is dropped, either all of the bytes are queued or none.
pub(crate) async fn put(exec: &Arc<Exec>, source: &Arc<Source>, offset: Option<u64>, mut bytes: Vec<u8>) {
    let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    let Ok(room) = Arc::clone(&source.room).acquire_many_owned(len).await else { return };
    let mut received = source.lock();
    let offset = offset.unwrap_or(received.to);
    let end = offset.saturating_add(bytes.len() as u64);
    if end <= received.to {
        return;
    }
    let known = usize::try_from(received.to.saturating_sub(offset)).unwrap_or(0);
    // The client is ahead if its bay was restored to an earlier moment, at which less input had arrived.
    received.to = end;
    let bytes = if known == 0 { bytes } else { bytes.split_off(known) };
    let item = Item::Bytes { bytes, end, source: Arc::clone(source), room };
    // Nobody takes input of an exec that has ended.
    let _ = exec.input_queue.queue(exec).send(item);
}

/// Ends the command's input, after what is queued already. A named source can do so once.
pub(crate) fn end(exec: &Arc<Exec>, source: &Source, offset: Option<u64>) {
    let mut received = source.lock();
    // A source without a name may end, go on with more input, and end again.
    if offset.is_some() && std::mem::replace(&mut received.ended, true) {
        return;
    }
    received.to = received.to.max(offset.unwrap_or(0));
    let _ = exec.input_queue.queue(exec).send(Item::End);
}

async fn feed(exec: &Exec, mut items: mpsc::UnboundedReceiver<Item>) {
    let mut next = items.recv().await;
    while let Some(item) = next {
        next = match item {
            Item::Bytes { bytes, end, source, room } => {
                exec.input.write(&bytes).await;
                drop(room);
                source.taken.send_if_modified(|taken| {
                    let further = end > *taken;
                    *taken = end.max(*taken);
                    further
                });
                items.recv().await
            }
            // The end of a terminal's input is repeated until more input comes.
            Item::End if matches!(exec.input, Input::Terminal { .. }) => tokio::select! {
                biased;
                () = exec.input.close() => items.recv().await,
                next = next_bytes(&mut items) => next,
            },
            Item::End => {
                exec.input.close().await;
                items.recv().await
            }
        };
    }
}

async fn next_bytes(items: &mut mpsc::UnboundedReceiver<Item>) -> Option<Item> {
    loop {
        match items.recv().await {
            Some(Item::End) => {}
            next => return next,
        }
    }
}
