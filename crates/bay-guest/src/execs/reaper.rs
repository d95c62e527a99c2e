//! The only module that waits for children: leaders of execs, and every orphan that the kernel gives to PID 1.
//!
//! The code that clones a leader registers it before it awaits anything, and everything runs on one thread. So no
//! leader is reaped before it is registered. For the same reason [`Leader::is_alive`] is exact: while it returns true,
//! the pid still belongs to that process, and a signal cannot reach another process.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bay_sys::spawn::{Reaped, reap};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Notify, oneshot};

/// Children that are reaped before other tasks get a turn.
const BATCH: usize = 256;

#[derive(Debug, Default)]
pub(crate) struct Reaper {
    leaders: Mutex<HashMap<i32, Registered>>,
    /// Notified after every batch: an ended process may have been the last of its exec.
    pub(crate) reaped: Notify,
}

#[derive(Debug)]
struct Registered {
    alive: Arc<AtomicBool>,
    ended: oneshot::Sender<Reaped>,
}

/// A child that is the leader of an exec.
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
    /// Must be called before anything awaits after the clone.
    pub(crate) fn register(&self, pid: i32) -> (Leader, oneshot::Receiver<Reaped>) {
        let alive = Arc::new(AtomicBool::new(true));
        let (ended, when_ended) = oneshot::channel();
        self.lock().insert(pid, Registered { alive: Arc::clone(&alive), ended });
        (Leader { pid, alive }, when_ended)
    }

    /// Installs the signal handler. Nothing may be cloned before.
    pub(crate) fn listen() -> io::Result<Signal> {
        signal(SignalKind::child())
    }

    /// Reaps for ever.
    pub(crate) async fn run(&self, mut child_signal: Signal) {
        loop {
            // First, because children may have died before the handler was installed.
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

    /// True if there may be more to reap.
    fn reap_batch(&self) -> bool {
        for _ in 0..BATCH {
            let Ok(Some(child)) = reap() else {
                return false;
            };
            if let Some(leader) = self.lock().remove(&child.pid) {
                leader.alive.store(false, Ordering::Relaxed);
                // The receiver is gone if the program never ran.
                let _ = leader.ended.send(child);
            }
        }
        true
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<i32, Registered>> {
        self.leaders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
