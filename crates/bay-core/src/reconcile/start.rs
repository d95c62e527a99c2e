//! The start of a bay. It counts as running when its guest answers.

use std::time::Duration;

use bay_store::{BayRow, Draft};
use bay_types::bay::State;
use bay_types::event::bay::{BayRunning, BayStart};
use bay_types::guest::GuestInfo;
use bay_types::runtime::RuntimeHandle;
use bay_types::{Action, CoreError, ErrorCode, Hint};
use bytes::Bytes;
use http::Method;

use super::Reconciler;
use crate::channel::plain_text;
use crate::fault::Point;

/// How long a new guest may take to answer.
const GUEST_READY_WITHIN: Duration = Duration::from_secs(10);
/// How long to wait for the end of a guest that may have been killed: the kernel frees its memory first.
const DYING_WITHIN: Duration = Duration::from_secs(2);
/// How many of the problems that a guest reports become part of the reason.
const MAX_TROUBLES: usize = 4;

impl Reconciler {
    pub(super) async fn start(&mut self, row: &BayRow) -> Result<(), CoreError> {
        if row.state != State::Starting {
            // A requested start has its event already. This start follows from a loss, a restore, a resume or a replaced
            // root.
            if self.why.is_empty() {
                self.why = match row.thaw_from {
                    Some(from) => format!("resumed from {}", from.checkpoint),
                    None => format!("{}; started again", row.reason),
                };
            }
            let reason = self.why.clone();
            self.update(Draft::of(BayStart { reason: Some(reason.clone()) }), |row| {
                row.state = State::Starting;
                row.reason = reason;
            })
            .await?;
        }
        self.handle.guest.reset();
        let record = self.begin(row).await?;
        self.settings_hold = true;
        self.daemon.fault.at(Point::AfterStart);
        // The state does not change, so there is no event.
        self.handle
            .update(&self.daemon.store, None, |row| {
                row.runtime = Some(record);
                row.thaw_from = None;
                row.restore_wanted = None;
            })
            .await?;
        self.open_egress(row).await;
        Ok(())
    }

    /// Waits until the guest answers; then the bay counts as running.
    pub(super) async fn confirm(&mut self, row: &BayRow) -> Result<(), CoreError> {
        let Some(record) = &row.runtime else { return Ok(()) };
        let info = tokio::select! {
            biased;
            info = self.handle.guest.json::<GuestInfo>(Method::GET, "/v1/info", Bytes::new(), GUEST_READY_WITHIN) => info,
            () = self.handle.backend.wait_gone(record) => Err(CoreError::new(
                ErrorCode::BayFailed,
                "the guest ended before it answered",
                Hint::new("{} shows what this host lacks; the daemon's log has more", [Action::Doctor]),
            )),
        };
        let info = match info {
            Ok(info) => info,
            // A paused guest that died is not a failed start. The next look records its end as a loss.
            Err(_) if row.state == State::Paused && self.is_dying(record).await => return Ok(()),
            Err(error) => {
                // A start that failed leaves nothing.
                self.clear_runtime().await?;
                self.handle.update(&self.daemon.store, None, |row| row.runtime = None).await?;
                return Err(CoreError { code: ErrorCode::BayFailed, ..error });
            }
        };
        let why = std::mem::take(&mut self.why);
        let mut reason = if why.is_empty() { "ready".to_owned() } else { why };
        for trouble in info.troubles.iter().take(MAX_TROUBLES) {
            reason.push_str("; ");
            reason.push_str(&plain_text(trouble));
        }
        let version = plain_text(&info.version);
        // The record proves later how the bay was isolated while it ran.
        let backend = &self.handle.backend;
        let event = Draft::of(BayRunning {
            guest: version,
            reason: reason.clone(),
            backend: Some(row.backend.to_string()),
            capabilities: Some(backend.capabilities()),
        });
        self.update(event, |row| {
            row.state = State::Running;
            row.reason = reason;
        })
        .await?;
        Ok(())
    }

    /// Whether PID 1 is gone within [`DYING_WITHIN`]. A killed process stops answering some moments before it is
    /// gone.
    pub(super) async fn is_dying(&self, record: &RuntimeHandle) -> bool {
        tokio::time::timeout(DYING_WITHIN, self.handle.backend.wait_gone(record)).await.is_ok()
    }
}
