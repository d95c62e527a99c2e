//! The steps that end a bay's runtime: a stop with a grace period, and the deletion of the bay.

use std::time::Duration;

use bay_backend::Seen;
use bay_store::{BayRow, Draft};
use bay_types::CoreError;
use bay_types::bay::State;
use bay_types::event::bay::{BayDeleted, BayDeleting, BayStopped, BayStopping};
use bay_types::exec::EndReason;
use bay_types::guest::Shutdown;
use http::Method;
use tokio::time::Instant;

use super::{Pass, Reconciler};
use crate::backends::refusal;
use crate::verbs::{costs, execs, policy};

/// How long the guest may outlive its grace before everything is killed.
const STOP_SLACK: Duration = Duration::from_secs(3);
/// How long to wait for the last answer of a guest that is gone.
const LAST_ANSWER_WITHIN: Duration = Duration::from_secs(2);

impl Reconciler {
    pub(super) async fn clear_runtime(&mut self) -> Result<(), CoreError> {
        self.handle.close_egress().await;
        self.follower = None;
        self.idler = None;
        self.handle.guest.reset();
        costs::close(&self.daemon, &self.handle).await;
        self.handle.note_last_limits(self.handle.backend.limit_events(self.handle.id));
        self.handle.backend.clear(self.handle.id).await.map_err(|e| refusal(&e))?;
        self.end_flushes().await;
        Ok(())
    }

    pub(super) async fn stop(&mut self, row: &BayRow, seen: Seen) -> Result<(), CoreError> {
        let replacing = row.replace_with.is_some();
        let restoring = row.restore_wanted.is_some();
        // A failed bay that is tried again keeps its state and reason.
        if row.state != State::Stopping && self.recorded_failure.is_none() {
            let reason = match (restoring, replacing) {
                (true, _) => "a checkpoint is to be restored",
                (_, true) => "its root is to be replaced",
                _ => "its processes are asked to end",
            };
            self.update(Draft::of(BayStopping { reason: reason.to_owned() }), |row| {
                row.state = State::Stopping;
                row.reason = reason.to_owned();
            })
            .await?;
        }
        let grace = self.handle.take_grace();
        // Before a restore, the guest gets no grace: the restore discards anything that it could still write.
        if seen != Seen::Gone
            && !restoring
            && let Some(record) = &row.runtime
        {
            if seen == Seen::Paused
                && let Err(error) = self.handle.backend.resume(row.id).await
            {
                tracing::warn!(bay = %row.name, %error, "a paused bay could not be resumed for its stop; it is killed");
            }
            execs::refresh_open(&self.daemon, &self.handle).await;
            let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
            let body = serde_json::to_vec(&Shutdown { grace_ms }).unwrap_or_default();
            let within = grace + STOP_SLACK;
            let asked = Instant::now();
            let gone = self.handle.backend.wait_gone(record);
            let answer = self.handle.guest.bytes(Method::POST, "/v1/shutdown", body.into(), within);
            tokio::pin!(gone, answer);
            // `ending` is false if the guest is gone already, which may be before its answer is read: then there is nothing
            // to wait for. It is also false if the guest did not take the request: then it will not end by itself.
            let (ending, answer) = tokio::select! {
                biased;
                answer = &mut answer => (answer.is_ok(), answer.ok()),
                () = &mut gone => {
                    let answer = tokio::time::timeout(LAST_ANSWER_WITHIN, answer).await;
                    (false, answer.ok().and_then(Result::ok))
                }
            };
            if let Some(answer) = answer {
                execs::ended_with_bay(&self.daemon, &self.handle, &answer).await;
            }
            if ending && tokio::time::timeout_at(asked + within, gone).await.is_err() {
                tracing::warn!(bay = %row.name, "the guest did not end within its grace; it is killed");
            }
        }
        self.clear_runtime().await?;
        self.update(Draft::of(BayStopped { reason: None }), |row| {
            row.state = State::Stopped;
            row.reason = match row.stop_why.take() {
                _ if restoring => "stopped to restore a checkpoint".to_owned(),
                _ if replacing => "stopped to replace its root".to_owned(),
                Some(why) => why,
                None => "stopped on request".to_owned(),
            };
            row.runtime = None;
            if row.restore_wanted.is_none() {
                // The next start must not resume what was paused on disk.
                row.thaw_from = None;
            }
        })
        .await?;
        execs::close_all(&self.daemon, &self.handle, EndReason::Stopped).await;
        policy::drop_grants(&self.daemon, &self.handle, "the bay was stopped").await
    }

    pub(super) async fn delete(&mut self, row: &BayRow) -> Result<Pass, CoreError> {
        if row.state != State::Deleting {
            self.update(Draft::of(BayDeleting {}), |row| row.state = State::Deleting).await?;
        }
        let removed = match self.clear_runtime().await {
            Ok(()) => {
                let (id, keep) = (row.id, row.keep_workspace.then(|| row.name.to_string()));
                self.handle.with_files(move |files| files.remove(id, keep.as_deref())).await
            }
            Err(error) => Err(error),
        };
        let kept_workspace = match removed {
            Ok(kept) => kept,
            Err(error) => {
                let reason = format!("it could not be removed yet: {}", error.message);
                self.handle.update(&self.daemon.store, None, |row| row.reason = reason).await?;
                return Err(error);
            }
        };
        let cost = self.daemon.telemetry.costs.cost(row.id, row.created_at);
        let event = Draft::of(BayDeleted {
            name: row.name.clone().into(),
            kept_workspace: kept_workspace.clone(),
            cost: cost.into(),
        });
        self.daemon.store.bay_delete(row.id, &event).await.map_err(|e| e.to_api())?;
        self.daemon.telemetry.costs.forget(row.id);
        self.daemon.secrets.forget(row.id);
        if let Err(error) = self.daemon.egress.remove(row.id) {
            tracing::warn!(bay = %row.name, %error, "the files of the bay's gateway could not be removed");
        }
        Ok(Pass::Deleted { kept_workspace })
    }
}
