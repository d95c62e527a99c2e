//! What accompanies a bay that runs: its egress, the task that reads the guest's events, the idle timer, the
//! flushes that its processes skip, and the check that root in the bay did not move the guest.

use std::sync::Arc;
use std::time::Duration;

use bay_backend::Seen;
use bay_store::{BayRow, Draft};
use bay_types::bay::State;
use bay_types::event::bay::BayGuestMoved;
use bay_types::event::egress::EgressClosed;
use tokio::sync::watch;

use super::Reconciler;
use crate::egress::BayEgress;
use crate::{durability, follow, idle};

/// How long to read the events of a guest that is gone. They are in the buffer of a socket. Later ones are lost.
const READ_OUT_WITHIN: Duration = Duration::from_secs(2);

/// A task that ends with its owner.
#[derive(Debug)]
pub(super) struct Follower(pub(super) tokio::task::JoinHandle<()>);

impl Drop for Follower {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Reconciler {
    /// Starts the tasks that accompany a running bay, unless they run already.
    pub(super) fn follow(&mut self, row: &BayRow, seen: Seen) {
        if row.state != State::Running || seen != Seen::Running {
            self.idler = None;
            return;
        }
        if self.idler.as_ref().map(|(seconds, _)| *seconds) != row.spec.idle_stop_s {
            self.idler = row.spec.idle_stop_s.map(|seconds| {
                let task = idle::watch(self.daemon.store.clone(), Arc::clone(&self.handle), seconds);
                (seconds, Follower(tokio::spawn(task)))
            });
        }
        if self.follower.as_ref().is_none_or(|(follower, _)| follower.0.is_finished()) {
            let (gone, is_gone) = watch::channel(false);
            let task = follow::follow(Arc::clone(&self.daemon), Arc::clone(&self.handle), is_gone);
            self.follower = Some((Follower(tokio::spawn(task)), gone));
        }
    }

    /// Flushes the files of a bay whose processes may skip that, until [`Reconciler::end_flushes`].
    pub(super) async fn flush_instead(&mut self, row: &BayRow, seen: Seen) {
        if self.flusher.is_some() || seen != Seen::Running {
            return;
        }
        if self.skips_flushes.is_none() || !row.spec.durability.is_strict() {
            match durability::may_skip_flushes(&self.daemon.store, row).await {
                Ok(skips) => self.skips_flushes = Some(skips),
                Err(error) => {
                    tracing::warn!(bay = %row.name, %error, "it is unknown whether a bay was relaxed once");
                }
            }
        }
        if self.skips_flushes != Some(false) {
            let task = durability::flush_regularly(Arc::clone(&self.handle));
            self.flusher = Some(Follower(tokio::spawn(task)));
        }
    }

    /// The last flush, after all processes of the bay have ended.
    pub(super) async fn end_flushes(&mut self) {
        if self.flusher.take().is_some() {
            durability::flush(&self.handle).await;
        }
    }

    /// Moves the guest back if root in the bay moved it, and records that. Root in the bay can move PID 1 into a control
    /// group of its own and freeze it there, and then nobody can reach the bay.
    pub(super) async fn reclaim_guest(&self, row: &BayRow) {
        let Some(record) = &row.runtime else { return };
        let Some(moved) = self.handle.backend.reclaim_guest(row.id, record).await else { return };
        tracing::warn!(bay = %row.name, ?moved, "root in a bay moved its guest; the daemon moved it back");
        let event = Draft::of(BayGuestMoved { group: moved.group, frozen: moved.frozen, stays: moved.stays });
        if let Err(error) = self.daemon.store.event_append(Some(row.id), &event).await {
            tracing::error!(bay = %row.name, %error, "the move of a guest could not be recorded");
        }
    }

    /// Records what the guest reported before it ended, as far as it is read within [`READ_OUT_WITHIN`].
    pub(super) async fn read_out(&mut self) {
        if let Some((mut follower, gone)) = self.follower.take() {
            gone.send_replace(true);
            let _ = tokio::time::timeout(READ_OUT_WITHIN, &mut follower.0).await;
        }
    }

    /// Opens the egress of a bay that has a runtime, unless it is open. If that fails, the bay runs with closed
    /// egress.
    pub(super) async fn open_egress(&mut self, row: &BayRow) {
        if self.handle.egress().is_some() {
            return;
        }
        match BayEgress::open(&self.daemon, &self.handle).await {
            Ok(open) => {
                self.handle.set_egress(open);
                self.recorded_closed = None;
            }
            Err(error) => {
                tracing::error!(bay = %row.name, message = %error.message, "the egress of a bay could not be opened");
                if self.recorded_closed.as_ref() != Some(&error.message) {
                    let event = Draft::of(EgressClosed { why: error.message.clone() });
                    // The bay may run although this event is not on record.
                    let _ = self.daemon.store.event_append(Some(row.id), &event).await;
                    self.recorded_closed = Some(error.message);
                }
            }
        }
    }
}
