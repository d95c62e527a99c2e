//! The verbs on a bay that exists. Each writes the wish and an event in one transaction, wakes the reconciler, and
//! waits for what comes of it.

use std::sync::Arc;
use std::time::Duration;

use bay_store::{BayRow, Draft};
use bay_types::bay::{BayDeleted, BayView, Desired, State};
use bay_types::event::bay::{
    BayDeleteAsked, BayPauseAsked, BayReplaceAsked, BayResumeAsked, BayStartAsked, BayStopAsked,
};
use bay_types::principal::Principal;
use bay_types::{ApiError, ErrorCode, ImageId};

use super::checkpoints::{self, Wanted};
use crate::daemon::Daemon;
use crate::fault::Point;
use crate::registry::BayHandle;

/// How long a caller waits for a bay to get somewhere, besides the grace of a stop. The work goes on after that.
pub(super) const VERB_WITHIN: Duration = Duration::from_secs(120);

pub(super) fn misfit(row: &BayRow, verb: &str, next: String) -> ApiError {
    ApiError::new(
        ErrorCode::BayState,
        format!("the bay {} is {} ({}): it cannot be {verb}", row.name, row.state, row.reason),
        next,
    )
}

pub(super) fn not_deleting(row: &BayRow, verb: &str) -> Result<(), ApiError> {
    if row.desired == Desired::Deleted {
        return Err(misfit(row, verb, "`bay up` makes a new one".to_owned()));
    }
    Ok(())
}

/// Waits for a wish, and says what came of it.
pub(crate) async fn reach(
    daemon: &Daemon,
    handle: &BayHandle,
    asked: u64,
    wanted: State,
    grace: Duration,
) -> Result<BayView, ApiError> {
    daemon.fault.at(Point::AfterIntent);
    let settled = handle.outcome(asked, VERB_WITHIN + grace).await?;
    if let Some(error) = settled.error {
        return Err(error);
    }
    let view = daemon.view(handle);
    if settled.deleted || view.state != wanted {
        return Err(ApiError::new(
            ErrorCode::BayState,
            format!("the bay {} did not become {wanted}, it is {}: {}", view.name, view.state, view.reason),
            format!("`bay show {}` tells more", view.name),
        ));
    }
    daemon.fault.at(Point::BeforeAck);
    Ok(view)
}

pub(crate) async fn start(
    daemon: Arc<Daemon>,
    handle: Arc<BayHandle>,
    caller: Principal,
) -> Result<BayView, ApiError> {
    if handle.row().state == State::Running && handle.row().desired == Desired::Running {
        // It may have died this moment; then it is started like any other.
        let view = daemon.view_now(&handle).await;
        if view.state == State::Running {
            return Ok(view);
        }
    }
    let fits = |row: &BayRow| {
        not_deleting(row, "started")?;
        match row.state {
            State::Paused => Err(misfit(row, "started", format!("`bay resume {}` thaws it", row.name))),
            _ => Ok(()),
        }
    };
    let asked = handle
        .ask(&daemon.store, fits, Draft::of(BayStartAsked { by: caller.by() }), |row| {
            row.desired = Desired::Running;
            row.stop_why = None;
            // A failed state would keep the reconciler from trying; any other is its own business.
            if matches!(row.state, State::Failed | State::Stopped) {
                row.state = if row.disk_ready { State::Starting } else { State::Creating };
                row.reason = format!("start asked by {}", caller.by());
            }
        })
        .await?;
    reach(&daemon, &handle, asked, State::Running, Duration::ZERO).await
}

pub(crate) async fn stop(
    daemon: Arc<Daemon>,
    handle: Arc<BayHandle>,
    grace: Duration,
    caller: Principal,
) -> Result<BayView, ApiError> {
    if handle.row().state == State::Stopped && handle.row().desired == Desired::Stopped {
        return Ok(daemon.view(&handle));
    }
    handle.set_grace(grace);
    let asked = handle
        .ask(
            &daemon.store,
            |row| not_deleting(row, "stopped"),
            Draft::of(BayStopAsked { by: caller.by() }),
            |row| {
                row.desired = Desired::Stopped;
                row.stop_why = None;
                // What is kept on disk ends like what runs.
                row.thaw_from = None;
            },
        )
        .await?;
    reach(&daemon, &handle, asked, State::Stopped, grace).await
}

pub(crate) async fn pause(
    daemon: Arc<Daemon>,
    handle: Arc<BayHandle>,
    caller: Principal,
) -> Result<BayView, ApiError> {
    let fits = |row: &BayRow| {
        not_deleting(row, "paused")?;
        match row.state {
            State::Running | State::Paused => Ok(()),
            State::Stopped | State::Failed => {
                Err(misfit(row, "paused", format!("`bay start {}` starts it", row.name)))
            }
            _ => Err(misfit(row, "paused", "repeat the command in a moment".to_owned())),
        }
    };
    let asked = handle
        .ask(&daemon.store, fits, Draft::of(BayPauseAsked { to_disk: None, by: caller.by() }), |row| {
            row.desired = Desired::Paused
        })
        .await?;
    reach(&daemon, &handle, asked, State::Paused, Duration::ZERO).await
}

pub(crate) async fn resume(
    daemon: Arc<Daemon>,
    handle: Arc<BayHandle>,
    caller: Principal,
) -> Result<BayView, ApiError> {
    let fits = |row: &BayRow| {
        not_deleting(row, "resumed")?;
        match row.state {
            State::Running | State::Paused => Ok(()),
            State::Stopped | State::Failed => {
                Err(misfit(row, "resumed", format!("`bay start {}` starts it", row.name)))
            }
            _ => Err(misfit(row, "resumed", "repeat the command in a moment".to_owned())),
        }
    };
    let asked = handle
        .ask(&daemon.store, fits, Draft::of(BayResumeAsked { by: caller.by() }), |row| {
            row.desired = Desired::Running
        })
        .await?;
    reach(&daemon, &handle, asked, State::Running, Duration::ZERO).await
}

/// A fresh root from the newest image of the bay's name for it; the workspace stays.
pub(crate) async fn replace(
    daemon: Arc<Daemon>,
    handle: Arc<BayHandle>,
    caller: Principal,
) -> Result<BayView, ApiError> {
    let row = handle.row();
    not_deleting(&row, "replaced")?;
    if row.disk_ready {
        // A fresh root is the way out of much, so it is not refused for want of a way back.
        let why = Wanted::automatic("before its root was replaced".to_owned());
        if let Err(error) = checkpoints::take(&daemon, &handle, why, caller).await {
            tracing::warn!(bay = %row.name, message = %error.message, "a root is replaced without a checkpoint before");
        }
    }
    // Held until the row names the image: from then on it counts as used.
    let making = daemon.making.read().await;
    let wanted = row.spec.image.clone();
    let newest = daemon.with_pool(move |pool| pool.image_find(&wanted)).await?;
    let image: ImageId = newest.map_or(row.image_id, |image| image.id);
    // A bay that was asked to be stopped stays so; memory of a paused one is gone with its root.
    let wanted = if row.desired == Desired::Stopped { State::Stopped } else { State::Running };
    let draft = Draft::of(BayReplaceAsked { image: image.into(), by: caller.by() });
    let asked = handle
        .ask(
            &daemon.store,
            |row| not_deleting(row, "replaced"),
            draft,
            |row| {
                row.replace_with = Some(image);
                // What was kept on disk ran on the root that goes.
                row.thaw_from = None;
                if row.desired == Desired::Paused {
                    row.desired = Desired::Running;
                }
                if row.state == State::Failed {
                    row.state = State::Stopped;
                    row.reason = format!("replace asked by {}", caller.by());
                }
            },
        )
        .await?;
    drop(making);
    reach(&daemon, &handle, asked, wanted, crate::registry::STOP_GRACE).await
}

pub(crate) async fn delete(
    daemon: Arc<Daemon>,
    handle: Arc<BayHandle>,
    keep_workspace: bool,
    caller: Principal,
) -> Result<BayDeleted, ApiError> {
    let draft = Draft::of(BayDeleteAsked { keep_workspace, by: caller.by() });
    let asked = handle
        .ask(
            &daemon.store,
            |_| Ok(()),
            draft,
            |row| {
                // Whoever asked to keep it is heard, also when somebody else asked first.
                row.keep_workspace |= keep_workspace;
                row.desired = Desired::Deleted;
                row.state = State::Deleting;
                row.reason = format!("removal asked by {}", caller.by());
            },
        )
        .await?;
    daemon.fault.at(Point::AfterIntent);
    let settled = handle.outcome(asked, VERB_WITHIN).await?;
    if let Some(error) = settled.error {
        return Err(error);
    }
    daemon.fault.at(Point::BeforeAck);
    Ok(BayDeleted { id: handle.id, name: handle.name.clone(), kept_workspace: settled.kept_workspace })
}
