//! The one place that waits for children: leaders of execs, and every orphan the kernel hands to PID 1.
//!
//! A leader is registered in the same turn of the one thread that cloned it, before anything can await, so its end
//! cannot be reaped unnoticed. For the same reason [`Leader::is_alive`] is exact: while it says yes, the number still
//! belongs to that process, and a signal to it cannot hit another.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bay_sys::spawn::{Reaped, reap};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Notify, oneshot};

/// Children reaped before others get a turn.
const BATCH: usize = 256;

#[derive(Debug, Default)]
pub(crate) struct Reaper {
    leaders: Mutex<HashMap<i32, Registered>>,
    /// Told after every batch: processes are gone that may have been the last of something.
    pub(crate) reaped: Notify,
}

#[derive(Debug)]
struct Registered {
    alive: Arc<AtomicBool>,
    ended: oneshot::Sender<Reaped>,
}

/// A child somebody waits for.
#[derive(Debug)]
pub(crate) struct Leader {
    pub(crate) pid: i32,
    alive: Arc<AtomicBool>,
}

impl Leader {
    pub(crate) fn is_alive(&self) -> bool {
        self.alive.load(Ordering::Relaxed)
    }
}

impl Reaper {
    /// To be called in the same turn as the clone.
    pub(crate) fn register(&self, pid: i32) -> (Leader, oneshot::Receiver<Reaped>) {
        let alive = Arc::new(AtomicBool::new(true));
        let (ended, when_ended) = oneshot::channel();
        self.lock().insert(pid, Registered { alive: Arc::clone(&alive), ended });
        (Leader { pid, alive }, when_ended)
    }

    /// Installs the signal handler; nothing may be cloned before.
    pub(crate) fn listen() -> io::Result<Signal> {
        signal(SignalKind::child())
    }

    /// Reaps for ever.
    pub(crate) async fn run(&self, mut child_signal: Signal) {
        loop {
            // First, because children may have died before the handler was there.
            while self.reap_batch() {
                self.reaped.notify_waiters();
                tokio::task::yield_now().await;
            }
            self.reaped.notify_waiters();
            if child_signal.recv().await.is_none() {
                return;
            }
        }
    }

    /// True when there may be more.
    fn reap_batch(&self) -> bool {
        for _ in 0..BATCH {
            let Ok(Some(child)) = reap() else {
                return false;
            };
            if let Some(leader) = self.lock().remove(&child.pid) {
                leader.alive.store(false, Ordering::Relaxed);
                // Nobody waits any more when the program never ran.
                let _ = leader.ended.send(child);
            }
        }
        true
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<i32, Registered>> {
        self.leaders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
