//! The loss of a guest that nobody stopped: the daemon records it, clears what the runtime left, and closes the execs.

use std::time::Duration;

use bay_store::{BayRow, Draft};
use bay_types::bay::{Desired, State};
use bay_types::event::bay::{BayCleared, BayLost};
use bay_types::exec::EndReason;
use bay_types::{Action, CoreError, ErrorCode, Hint};
use tokio::time::Instant;

use super::Reconciler;
use crate::backends::refusal;
use crate::daemon::Daemon;
use crate::registry::BayHandle;
use crate::restarts::{MAX_RESTARTS, RESTART_WINDOW};
use crate::verbs::{costs, execs};

impl Reconciler {
    /// Records the loss of the guest and clears what it left. An error if the bay should run, and its guest died
    /// too often to start it again.
    pub(super) async fn note_loss(&mut self, row: &BayRow) -> Result<(), CoreError> {
        self.handle.close_egress().await;
        self.read_out().await;
        self.idler = None;
        self.end_flushes().await;
        self.handle.guest.reset();
        let died = if row.state == State::Paused { "the paused guest died" } else { "the guest died" };
        let restart = if row.desired == Desired::Running && row.replace_with.is_none() {
            self.restarts.count(Instant::now())
        } else {
            Some(Duration::ZERO)
        };
        let died = note_loss(&self.daemon, &self.handle, died).await?;
        self.why = format!("{died}; started again");
        if restart.is_none() {
            return Err(CoreError::new(
                ErrorCode::BayFailed,
                format!(
                    "the guest died {} times within {} minutes",
                    MAX_RESTARTS + 1,
                    RESTART_WINDOW.as_secs() / 60
                ),
                Hint::new(
                    "{} tries again; {} gives it a fresh root",
                    [Action::StartBay((&row.name).into()), Action::ReplaceBay((&row.name).into())],
                ),
            ));
        }
        Ok(())
    }

    pub(super) async fn clear(&mut self) -> Result<(), CoreError> {
        self.clear_runtime().await?;
        self.update(Draft::of(BayCleared {}), |row| row.runtime = None).await?;
        execs::close_all(&self.daemon, &self.handle, EndReason::Lost).await;
        Ok(())
    }
}

/// Records that a bay's PID 1 ended by itself, clears what it left, and closes its execs. Returns the recorded reason.
pub(crate) async fn note_loss(
    daemon: &Daemon,
    handle: &BayHandle,
    reason: &str,
) -> Result<String, CoreError> {
    // Clearing removes the bay's groups and their counters. The counters tell why PID 1 was killed: the end of a process
    // does not free memory in /dev/shm, so the kernel kills one process after the other, and PID 1 last.
    let counted = handle.backend.limit_events(handle.id);
    let reason = match counted.oom_kills {
        0 => reason.to_owned(),
        _ => format!("{reason} after the bay had used up its memory"),
    };
    handle.note_last_limits(counted);
    handle
        .update(&daemon.store, Some(Draft::of(BayLost { reason: reason.clone() })), |row| {
            row.state = State::Stopped;
            row.reason.clone_from(&reason);
        })
        .await?;
    costs::close(daemon, handle).await;
    handle.backend.clear(handle.id).await.map_err(|e| refusal(&e))?;
    // After the clearing: a daemon that dies before this line clears again.
    handle.update(&daemon.store, None, |row| row.runtime = None).await?;
    execs::close_all(daemon, handle, EndReason::Lost).await;
    Ok(reason)
}
