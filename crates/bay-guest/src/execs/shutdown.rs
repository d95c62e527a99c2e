//! The end of all execs, when the bay stops.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bay_types::exec::ExecStatus;
use bay_types::guest::ExecEnded;

use super::exec::Exec;
use super::{Execs, KILL_GRACE, SIGKILL, SIGTERM, lock};
use crate::spool;

const SIGCONT: i32 = 18;
const LOOK_AGAIN: Duration = Duration::from_millis(100);

impl Execs {
    /// Ends everything: TERM, then KILL after `grace`. Records the execs that ran as stopped, and returns those whose
    /// end it saw.
    pub(crate) async fn stop(&self, grace: Duration) -> Vec<ExecEnded> {
        self.stopping.store(true, Ordering::Relaxed);
        let ran: Vec<Arc<Exec>> = lock(&self.live).values().filter(|e| !e.has_ended()).cloned().collect();
        self.signal_all(SIGTERM);
        // A stopped process does not handle TERM.
        self.signal_all(SIGCONT);
        if tokio::time::timeout(grace, self.all_gone()).await.is_err() {
            self.signal_all(SIGKILL);
            if tokio::time::timeout(KILL_GRACE, self.all_gone()).await.is_err() {
                self.context.log.line("stop.incomplete", format_args!("processes hang in the kernel"));
            }
        }
        // If the leader of an exec did not end, its record has no end yet.
        let running: Vec<Arc<Exec>> = lock(&self.live).values().filter(|e| !e.has_ended()).cloned().collect();
        for exec in running {
            let status = self.as_ended(ExecStatus { ended_at: None, exit: None, ..exec.status() });
            if let Err(error) = spool::save_status(self.context.state.as_fd(), &status) {
                self.context.log.line("record.refused", format_args!("exec={} error={error}", exec.id()));
            }
        }
        let ended = |exec: Arc<Exec>| {
            let status = exec.status();
            Some(ExecEnded { id: exec.id(), exit: status.exit?, end: status.end()? })
        };
        ran.into_iter().filter_map(ended).collect()
    }

    fn signal_all(&self, signal: i32) {
        if std::process::id() == 1 {
            // ESRCH: no other process is left.
            let _ = bay_sys::spawn::signal_everything(signal);
            return;
        }
        // The guest is not init of a PID namespace (in tests): signal only its own execs.
        let live: Vec<Arc<Exec>> = lock(&self.live).values().cloned().collect();
        for exec in live {
            exec.signal_tree(signal);
        }
        for leaf in lock(&self.leftovers).iter() {
            for pid in leaf.pids() {
                let _ = bay_sys::spawn::signal_process(pid, signal);
            }
        }
    }

    /// Returns when no process but the guest is left, and the end of every leader is recorded.
    async fn all_gone(&self) {
        loop {
            let reaped = self.reaper.reaped.notified();
            let ended = lock(&self.live).values().all(|e| e.has_ended());
            let alone = std::process::id() != 1
                || bay_sys::spawn::signal_everything(0).is_err_and(|e| e.raw_os_error() == Some(3));
            if ended && alone {
                return;
            }
            // With a deadline: if another process is a child's parent (a tracer), its end does not wake the guest.
            let _ = tokio::time::timeout(LOOK_AGAIN, reaped).await;
        }
    }
}
