//! The verbs on existing bays, and on the daemon itself. A verb that changes a bay stores the desired state and an
//! event in one transaction, wakes the reconciler, and waits for the result. Work that has begun is completed, also
//! if the client leaves.

use std::sync::Arc;
use std::time::Duration;

use bay_backend::Backend;
use bay_store::{BayRow, Draft};
use bay_types::backend::{BackendName, BackendView};
use bay_types::bay::{BayDeleted, BayView, Desired, Health, State};
use bay_types::event::bay::{
    BayDeleteAsked, BayPauseAsked, BayReplaceAsked, BayResumeAsked, BayStartAsked, BayStopAsked,
};
use bay_types::principal::Principal;
use bay_types::top::Top;
use bay_types::{Action, BayName, CoreError, ErrorCode, Hint, ImageId};

use super::checkpoints::{self, Wanted};
use super::{costs, top};
use crate::authorize::Verb;
use crate::background::to_the_end;
use crate::daemon::Daemon;
use crate::fault::Point;
use crate::registry::{BayHandle, MAX_STOP_GRACE, STOP_GRACE};

/// How long a caller waits for a bay, in addition to the grace of a stop. The work continues after that.
pub(super) const VERB_WITHIN: Duration = Duration::from_secs(120);

/// The name of the bay that the caller means, for messages.
pub fn name_of(daemon: &Daemon, given: &str) -> Option<BayName> {
    daemon.bays.find(given).ok().map(|handle| handle.name.clone())
}

/// The state of the daemon, and since when it runs.
pub fn health(daemon: &Daemon, who: &Principal) -> Result<Health, CoreError> {
    daemon.permit(who, Verb::HealthShow)?;
    Ok(Health {
        version: bay_types::VERSION.to_owned(),
        pid: std::process::id(),
        data_dir: daemon.data_dir.clone(),
        pool: daemon.pool_dir.clone(),
        started_at: daemon.started_at,
    })
}

/// The backends that this daemon runs bays with.
pub fn backends(daemon: &Daemon, who: &Principal) -> Result<Vec<BackendView>, CoreError> {
    daemon.permit(who, Verb::BackendList)?;
    let (default, _) = daemon.backends.choose(None)?;
    let view = |driver: &Arc<dyn Backend>| {
        let isolation = driver.isolation();
        let name = BackendName::from(isolation.backend);
        let is_default = name == default;
        BackendView { name, is_default, detail: isolation.detail, capabilities: driver.capabilities() }
    };
    Ok(daemon.backends.all().map(view).collect())
}

/// What all bays and the host use, or one bay.
pub async fn top(daemon: &Arc<Daemon>, who: &Principal, only: Option<&str>) -> Result<Top, CoreError> {
    daemon.permit(who, Verb::TopShow)?;
    let only = only.map(|given| daemon.bays.find(given)).transpose()?;
    let mut top = Top::clone(&*top::top(daemon).await);
    if let Some(handle) = only {
        top.bays.retain(|bay| bay.id == handle.id);
    }
    Ok(top)
}

pub async fn list(daemon: &Daemon, who: &Principal) -> Result<Vec<BayView>, CoreError> {
    daemon.permit(who, Verb::BayList)?;
    let mut views = Vec::new();
    for handle in daemon.bays.list() {
        views.push(daemon.view_now(&handle).await);
    }
    Ok(views)
}

/// One bay, with processor time and memory measured now.
pub async fn show(daemon: &Daemon, who: &Principal, bay: &str) -> Result<BayView, CoreError> {
    let handle = daemon.bay_for(who, Verb::BayShow, bay)?;
    costs::measure(daemon, &handle).await;
    Ok(daemon.view_now(&handle).await)
}

pub async fn start(daemon: &Arc<Daemon>, who: &Principal, bay: &str) -> Result<BayView, CoreError> {
    let handle = daemon.bay_for(who, Verb::BayStart, bay)?;
    to_the_end(start_bay(Arc::clone(daemon), handle, *who)).await
}

/// Stops a bay. `grace` is how long its processes may take to end; if absent, the default.
pub async fn stop(
    daemon: &Arc<Daemon>,
    who: &Principal,
    bay: &str,
    grace: Option<Duration>,
) -> Result<BayView, CoreError> {
    daemon.permit(who, Verb::BayStop)?;
    let grace = grace.unwrap_or(STOP_GRACE);
    if grace > MAX_STOP_GRACE {
        return Err(CoreError::new(
            ErrorCode::InvalidInput,
            format!("a grace period of {} s is too long", grace.as_secs()),
            format!("give at most {} s", MAX_STOP_GRACE.as_secs()),
        ));
    }
    let handle = daemon.bay_for(who, Verb::BayStop, bay)?;
    to_the_end(stop_bay(Arc::clone(daemon), handle, grace, *who)).await
}

/// Freezes a bay. With `to_disk`, its memory is written to disk and freed.
pub async fn pause(
    daemon: &Arc<Daemon>,
    who: &Principal,
    bay: &str,
    to_disk: bool,
) -> Result<BayView, CoreError> {
    let handle = daemon.bay_for(who, Verb::BayPause, bay)?;
    if to_disk {
        return to_the_end(checkpoints::pause_to_disk(Arc::clone(daemon), handle, *who)).await;
    }
    to_the_end(pause_bay(Arc::clone(daemon), handle, *who)).await
}

pub async fn resume(daemon: &Arc<Daemon>, who: &Principal, bay: &str) -> Result<BayView, CoreError> {
    let handle = daemon.bay_for(who, Verb::BayResume, bay)?;
    to_the_end(resume_bay(Arc::clone(daemon), handle, *who)).await
}

/// Gives a bay a fresh root from the newest image of its image's name, or from the same image if none has that name
/// any more. The workspace stays.
pub async fn replace(daemon: &Arc<Daemon>, who: &Principal, bay: &str) -> Result<BayView, CoreError> {
    let handle = daemon.bay_for(who, Verb::BayReplace, bay)?;
    to_the_end(replace_root(Arc::clone(daemon), handle, *who)).await
}

pub async fn delete(
    daemon: &Arc<Daemon>,
    who: &Principal,
    bay: &str,
    keep_workspace: bool,
) -> Result<BayDeleted, CoreError> {
    let handle = daemon.bay_for(who, Verb::BayDelete, bay)?;
    to_the_end(delete_bay(Arc::clone(daemon), handle, keep_workspace, *who)).await
}

pub(super) fn misfit(row: &BayRow, verb: &str, hint: impl Into<Hint>) -> CoreError {
    CoreError::new(
        ErrorCode::BayState,
        format!("the bay {} is {} ({}): it cannot be {verb}", row.name, row.state, row.reason),
        hint,
    )
}

pub(super) fn starts_it(row: &BayRow) -> Hint {
    Hint::new("{} starts it", [Action::StartBay((&row.name).into())])
}

pub(super) fn not_deleting(row: &BayRow, verb: &str) -> Result<(), CoreError> {
    if row.desired == Desired::Deleted {
        return Err(misfit(row, verb, Hint::new("{} makes a new one", [Action::MakeBay])));
    }
    Ok(())
}

/// Waits for the result of a request.
pub(super) async fn reach(
    daemon: &Daemon,
    handle: &BayHandle,
    asked: u64,
    wanted: State,
    grace: Duration,
) -> Result<BayView, CoreError> {
    daemon.fault.at(Point::AfterIntent);
    let settled = handle.outcome(asked, VERB_WITHIN + grace).await?;
    if let Some(error) = settled.error {
        return Err(error);
    }
    let view = daemon.view(handle);
    if settled.deleted || view.state != wanted {
        return Err(CoreError::new(
            ErrorCode::BayState,
            format!("the bay {} did not become {wanted}, it is {}: {}", view.name, view.state, view.reason),
            Hint::new("{} shows more", [Action::ShowBay((&view.name).into())]),
        ));
    }
    daemon.fault.at(Point::BeforeAck);
    Ok(view)
}

async fn start_bay(
    daemon: Arc<Daemon>,
    handle: Arc<BayHandle>,
    caller: Principal,
) -> Result<BayView, CoreError> {
    if handle.row().state == State::Running && handle.row().desired == Desired::Running {
        // The guest may have died just now. Then the bay is started like any other.
        let view = daemon.view_now(&handle).await;
        if view.state == State::Running {
            return Ok(view);
        }
    }
    let fits = |row: &BayRow| {
        not_deleting(row, "started")?;
        match row.state {
            State::Paused => Err(misfit(
                row,
                "started",
                Hint::new("{} resumes it", [Action::ResumeBay((&row.name).into())]),
            )),
            _ => Ok(()),
        }
    };
    let asked = handle
        .ask(&daemon.store, fits, Draft::of(BayStartAsked { by: caller.by() }), |row| {
            row.desired = Desired::Running;
            row.stop_why = None;
            // A failed state would keep the reconciler from trying. Other states do not.
            if matches!(row.state, State::Failed | State::Stopped) {
                row.state = if row.disk_ready { State::Starting } else { State::Creating };
                row.reason = format!("start requested by {}", caller.by());
            }
        })
        .await?;
    reach(&daemon, &handle, asked, State::Running, Duration::ZERO).await
}

async fn stop_bay(
    daemon: Arc<Daemon>,
    handle: Arc<BayHandle>,
    grace: Duration,
    caller: Principal,
) -> Result<BayView, CoreError> {
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
                // A stop discards processes that are on disk too.
                row.thaw_from = None;
            },
        )
        .await?;
    reach(&daemon, &handle, asked, State::Stopped, grace).await
}

async fn pause_bay(
    daemon: Arc<Daemon>,
    handle: Arc<BayHandle>,
    caller: Principal,
) -> Result<BayView, CoreError> {
    let fits = |row: &BayRow| {
        not_deleting(row, "paused")?;
        match row.state {
            State::Running | State::Paused => Ok(()),
            State::Stopped | State::Failed => Err(misfit(row, "paused", starts_it(row))),
            _ => Err(misfit(row, "paused", "repeat the command in a moment")),
        }
    };
    let asked = handle
        .ask(&daemon.store, fits, Draft::of(BayPauseAsked { to_disk: None, by: caller.by() }), |row| {
            row.desired = Desired::Paused;
        })
        .await?;
    reach(&daemon, &handle, asked, State::Paused, Duration::ZERO).await
}

async fn resume_bay(
    daemon: Arc<Daemon>,
    handle: Arc<BayHandle>,
    caller: Principal,
) -> Result<BayView, CoreError> {
    let fits = |row: &BayRow| {
        not_deleting(row, "resumed")?;
        match row.state {
            State::Running | State::Paused => Ok(()),
            State::Stopped | State::Failed => Err(misfit(row, "resumed", starts_it(row))),
            _ => Err(misfit(row, "resumed", "repeat the command in a moment")),
        }
    };
    let asked = handle
        .ask(&daemon.store, fits, Draft::of(BayResumeAsked { by: caller.by() }), |row| {
            row.desired = Desired::Running;
        })
        .await?;
    reach(&daemon, &handle, asked, State::Running, Duration::ZERO).await
}

async fn replace_root(
    daemon: Arc<Daemon>,
    handle: Arc<BayHandle>,
    caller: Principal,
) -> Result<BayView, CoreError> {
    let row = handle.row();
    not_deleting(&row, "replaced")?;
    if row.disk_ready {
        // A fresh root repairs many problems, so it is not refused because there is no checkpoint.
        let why = Wanted::automatic("before its root was replaced".to_owned());
        if let Err(error) = checkpoints::take(&daemon, &handle, why, caller).await {
            tracing::warn!(bay = %row.name, message = %error.message, "a root is replaced without a checkpoint");
        }
    }
    // Held until the row names the image. From then on, the image counts as used.
    let making = daemon.making.read().await;
    let wanted = row.spec.image.clone();
    let newest = daemon.with_pool(move |pool| pool.image_find(&wanted)).await?;
    let image: ImageId = newest.map_or(row.image_id, |image| image.id);
    // A bay that should be stopped stays stopped. A fresh root discards the memory of a paused bay.
    let wanted = if row.desired == Desired::Stopped { State::Stopped } else { State::Running };
    let draft = Draft::of(BayReplaceAsked { image: image.into(), by: caller.by() });
    let asked = handle
        .ask(
            &daemon.store,
            |row| not_deleting(row, "replaced"),
            draft,
            |row| {
                row.replace_with = Some(image);
                // Processes that are on disk ran on the old root.
                row.thaw_from = None;
                if row.desired == Desired::Paused {
                    row.desired = Desired::Running;
                }
                if row.state == State::Failed {
                    row.state = State::Stopped;
                    row.reason = format!("replacement requested by {}", caller.by());
                }
            },
        )
        .await?;
    drop(making);
    reach(&daemon, &handle, asked, wanted, STOP_GRACE).await
}

async fn delete_bay(
    daemon: Arc<Daemon>,
    handle: Arc<BayHandle>,
    keep_workspace: bool,
    caller: Principal,
) -> Result<BayDeleted, CoreError> {
    let draft = Draft::of(BayDeleteAsked { keep_workspace, by: caller.by() });
    let asked = handle
        .ask(
            &daemon.store,
            |_| Ok(()),
            draft,
            |row| {
                // Keeping the workspace is honoured, also if an earlier request did not ask for it.
                row.keep_workspace |= keep_workspace;
                row.desired = Desired::Deleted;
                row.state = State::Deleting;
                row.reason = format!("removal requested by {}", caller.by());
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
