//! The steps between running and paused: frozen in memory, or written to disk.

use bay_backend::Seen;
use bay_store::{BayRow, Draft};
use bay_types::CoreError;
use bay_types::bay::{Desired, State};
use bay_types::event::bay::{BayPaused, BayResumed, BayStopped};

use super::Reconciler;
use crate::backends::refusal;
use crate::daemon::paused_on;

impl Reconciler {
    pub(super) async fn pause(&mut self, row: &BayRow) -> Result<(), CoreError> {
        self.handle.backend.pause(row.id).await.map_err(|e| refusal(&e))?;
        self.update(Draft::of(BayPaused { on_disk: false }), |row| {
            row.state = State::Paused;
            row.reason = "frozen in memory".to_owned();
        })
        .await?;
        Ok(())
    }

    pub(super) async fn resume(&mut self, row: &BayRow) -> Result<(), CoreError> {
        self.handle.backend.resume(row.id).await.map_err(|e| refusal(&e))?;
        self.update(Draft::of(BayResumed {}), |row| {
            row.state = State::Running;
            row.reason = "resumed".to_owned();
        })
        .await?;
        // The settings may have changed while the guest was paused.
        self.send_settings(&row.spec.limits, row.spec.durability, Seen::Running).await;
        Ok(())
    }

    /// Ends the runtime of a bay whose processes are on disk, without asking the guest. Its execs stay open: they continue
    /// on resume, and clients that follow them wait.
    pub(super) async fn let_go(&mut self) -> Result<(), CoreError> {
        self.clear_runtime().await?;
        self.update(Draft::of(BayPaused { on_disk: true }), |row| {
            row.runtime = None;
            row.state = State::Paused;
            row.reason =
                row.thaw_from.map_or_else(|| "on disk".to_owned(), |from| paused_on(from.checkpoint));
        })
        .await?;
        Ok(())
    }

    pub(super) async fn forsake(&self) -> Result<(), CoreError> {
        let reason = Some("a paused bay cannot come back".to_owned());
        self.update(Draft::of(BayStopped { reason }), |row| {
            row.desired = Desired::Stopped;
            row.state = State::Stopped;
            row.reason =
                format!("{}; what was paused in memory is lost, the workspace is intact", row.reason);
        })
        .await?;
        Ok(())
    }
}
