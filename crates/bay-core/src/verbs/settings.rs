//! `bay set`: other settings for an existing bay, running or not.

use std::sync::Arc;

use bay_store::{BayRow, Draft};
use bay_types::bay::BayView;
use bay_types::event::bay::BaySetAsked;
use bay_types::principal::Principal;
use bay_types::settings::BaySet;
use bay_types::{Action, CoreError, ErrorCode, Hint};

use super::bays::{VERB_WITHIN, not_deleting};
use crate::authorize::Verb;
use crate::backends::refusal;
use crate::background::to_the_end;
use crate::daemon::Daemon;
use crate::fault::Point;
use crate::registry::BayHandle;
use crate::validate;

pub async fn set(
    daemon: &Arc<Daemon>,
    who: &Principal,
    bay: &str,
    change: BaySet,
) -> Result<BayView, CoreError> {
    let handle = daemon.bay_for(who, Verb::BaySet, bay)?;
    to_the_end(change_settings(Arc::clone(daemon), handle, change, *who)).await
}

async fn change_settings(
    daemon: Arc<Daemon>,
    handle: Arc<BayHandle>,
    change: BaySet,
    caller: Principal,
) -> Result<BayView, CoreError> {
    if change.is_empty() {
        return Err(CoreError::new(
            ErrorCode::InvalidInput,
            "no setting to change was given",
            Hint::new("name a limit, such as {}", [Action::SetMemoryLimit((&handle.name).into())]),
        ));
    }
    let fits = |row: &BayRow| {
        not_deleting(row, "set")?;
        let wanted = change.over(&row.settings());
        validate::limits(&wanted.limits, daemon.room())?;
        validate::idle_stop(wanted.idle_stop_s)?;
        handle.backend.can_keep(&wanted.limits).map_err(|e| refusal(&e))
    };
    let draft = Draft::of(BaySetAsked { change: change.clone().into(), by: caller.by() });
    let asked = handle
        .ask(&daemon.store, fits, draft, |row| row.settings_wanted = Some(change.over(&row.settings())))
        .await?;
    daemon.fault.at(Point::AfterIntent);
    let settled = handle.outcome(asked, VERB_WITHIN).await?;
    if let Some(error) = settled.error {
        return Err(error);
    }
    daemon.fault.at(Point::BeforeAck);
    Ok(daemon.view(&handle))
}
