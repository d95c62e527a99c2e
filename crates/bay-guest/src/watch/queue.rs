//! Changes that wait for a reader, bounded in bytes.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::{Change, Kind};

/// Memory for waiting changes: about 50,000 of usual length.
const MAX_BYTES: usize = 8 << 20;
/// What a change costs in addition to its path.
const OVERHEAD: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Queue {
    inner: Mutex<Inner>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    waiting: VecDeque<Change>,
    bytes: usize,
    closed: bool,
}

fn cost(change: &Change) -> usize {
    match change {
        Change::Event { path, .. } => OVERHEAD + path.as_os_str().len(),
        // Never two in a row, so they cannot outnumber the other changes.
        Change::Dropped => 0,
    }
}

impl Queue {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a change, and never waits. Without room, it becomes [`Change::Dropped`]. It is left out if it repeats the
    /// last change and adds no information.
    pub(super) fn push(&self, change: Change) {
        let mut inner = self.inner();
        let repeats =
            matches!(change, Change::Dropped | Change::Event { kind: Kind::Write | Kind::Chmod, .. });
        if repeats && inner.waiting.back() == Some(&change) {
            return;
        }
        let cost = cost(&change);
        if inner.bytes + cost <= MAX_BYTES {
            inner.bytes += cost;
            inner.waiting.push_back(change);
        } else if inner.waiting.back() != Some(&Change::Dropped) {
            inner.waiting.push_back(Change::Dropped);
        }
        drop(inner);
        self.changed.notify_one();
    }

    /// No more changes will come. Waiting changes are still delivered.
    pub(super) fn close(&self) {
        self.inner().closed = true;
        self.changed.notify_one();
    }

    /// The next change. None when the queue is closed and empty. For one reader only.
    pub(super) async fn next(&self) -> Option<Change> {
        loop {
            {
                let mut inner = self.inner();
                if let Some(change) = inner.waiting.pop_front() {
                    inner.bytes -= cost(&change);
                    return Some(change);
                }
                if inner.closed {
                    return None;
                }
            }
            self.changed.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: Kind, path: &str) -> Change {
        Change::Event { kind, path: path.into(), is_dir: false }
    }

    #[tokio::test]
    async fn a_full_queue_reports_once_that_changes_were_dropped() {
        let queue = Queue::default();
        let long = "x".repeat(4000);
        for n in 0..5000 {
            queue.push(event(Kind::Create, &format!("{n}{long}")));
        }
        queue.close();
        let (mut events, mut dropped) = (0, 0);
        while let Some(change) = queue.next().await {
            if change == Change::Dropped { dropped += 1 } else { events += 1 }
        }
        assert_eq!(dropped, 1);
        assert!(events > 1000 && events < 5000, "{events}");
    }

    #[tokio::test]
    async fn writes_in_a_row_are_one_and_creations_are_not() {
        let queue = Queue::default();
        for kind in [Kind::Write, Kind::Write, Kind::Create, Kind::Create] {
            queue.push(event(kind, "a"));
        }
        queue.close();
        let mut told = 0;
        while queue.next().await.is_some() {
            told += 1;
        }
        assert_eq!(told, 3);
    }
}
