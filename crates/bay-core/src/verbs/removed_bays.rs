//! What the record still knows of bays that were removed: their names, who removed them, and their commands. Their
//! rows and output are gone, and so are their files, except a workspace that was kept.

use bay_store::{Store, StoreError};
use bay_types::bay::BayRemoved;
use bay_types::event::bay::{BayDeleteAsked, BayEvent};
use bay_types::event::exec::{ExecEnd, ExecEvent, ExecStart};
use bay_types::event::{Event, EventBody, Recorded};
use bay_types::exec::{ExecState, ExecView, duration_s};
use bay_types::principal::Principal;
use bay_types::usage::ExecCost;
use bay_types::{Action, BayId, BayName, CoreError, ErrorCode, Hint};

use super::execs::KEPT;
use crate::authorize::Verb;
use crate::daemon::Daemon;

/// Most removed bays in a list, the newest ones.
const MAX_LISTED: u32 = 1000;

/// The removed bays, newest first; only those with this last name, if one is given.
pub async fn list(
    daemon: &Daemon,
    who: &Principal,
    name: Option<&str>,
) -> Result<Vec<BayRemoved>, CoreError> {
    daemon.permit(who, Verb::BayList)?;
    removed(&daemon.store, name, MAX_LISTED).await.map_err(|e| e.to_api())
}

async fn removed(store: &Store, name: Option<&str>, limit: u32) -> Result<Vec<BayRemoved>, StoreError> {
    let mut all = Vec::new();
    for event in store.bays_removed(name, limit).await? {
        let Some(mut bay) = of_event(&event) else { continue };
        let asked = store.events_of(bay.id, [BayDeleteAsked::KIND; 2], 1).await?;
        if let Some(EventBody::Bay(BayEvent::DeleteAsked(asked))) = asked.first().map(Event::read) {
            bay.by = Some(asked.by);
        }
        all.push(bay);
    }
    Ok(all)
}

fn of_event(event: &Event) -> Option<BayRemoved> {
    let EventBody::Bay(BayEvent::Deleted(deleted)) = event.read() else { return None };
    Some(BayRemoved {
        id: event.bay?,
        name: deleted.name.get()?.clone(),
        removed_at: event.at,
        by: None,
        kept_workspace: deleted.kept_workspace,
    })
}

/// The last name of a removed bay, if the record has it.
pub(super) async fn name_of(store: &Store, id: BayId) -> Option<BayName> {
    let ends = store.events_of(id, [bay_types::event::bay::BayDeleted::KIND; 2], 1).await.ok()?;
    of_event(ends.first()?).map(|bay| bay.name)
}

/// The commands of a removed bay, by its id, as the record has them: the newest [`KEPT`]. `unknown` is why no bay
/// was found.
pub(super) async fn execs(
    daemon: &Daemon,
    given: &str,
    unknown: CoreError,
) -> Result<Vec<ExecView>, CoreError> {
    let Some(id) = given.parse::<BayId>().ok().filter(|_| unknown.code == ErrorCode::BayNotFound) else {
        return Err(unknown);
    };
    let kinds = [ExecStart::KIND, ExecEnd::KIND];
    // Each exec has two events.
    let events = daemon.store.events_of(id, kinds, 2 * KEPT).await.map_err(|e| e.to_api())?;
    if events.is_empty() && !daemon.store.timeline_exists(id).await.map_err(|e| e.to_api())? {
        return Err(unknown);
    }
    let mut all: Vec<ExecView> = Vec::new();
    for event in events.iter().rev() {
        match event.read() {
            EventBody::Exec(ExecEvent::Start(start)) => all.extend(started(id, event, start)),
            EventBody::Exec(ExecEvent::End(end)) => {
                let exec = end.exec.get().copied();
                if let Some(view) = all.iter_mut().rev().find(|view| Some(view.id) == exec) {
                    ended(view, event, end);
                }
            }
            _ => {}
        }
    }
    Ok(all)
}

/// One of them, by its id, its number, or the end of its id.
pub(super) async fn exec(
    daemon: &Daemon,
    bay: &str,
    given: &str,
    unknown: CoreError,
) -> Result<ExecView, CoreError> {
    let all = execs(daemon, bay, unknown).await?;
    let number = given.parse::<u64>().ok();
    let found = all
        .iter()
        .find(|view| Some(view.number) == number)
        .or_else(|| all.iter().find(|view| view.id.to_string() == given || super::ends_id(&view.id, given)));
    found.cloned().ok_or_else(|| {
        let shown: String = given.chars().take(64).collect();
        CoreError::new(
            ErrorCode::ExecNotFound,
            format!("the record of the removed bay has no exec {shown:?}"),
            Hint::new("{} shows the execs there are", [Action::ListExecs(bay.into())]),
        )
    })
}

fn started(bay: BayId, event: &Event, start: ExecStart) -> Option<ExecView> {
    Some(ExecView {
        id: *start.exec.get()?,
        bay,
        number: start.number.unwrap_or_default(),
        // Nothing runs in a removed bay. Its end may be missing if the record was cut.
        state: ExecState::Ended,
        argv: start.argv,
        cwd: None,
        user: start.user,
        tty: start.tty,
        tool_call: start.tool_call,
        started_at: event.at,
        ended_at: None,
        exit: None,
        usage: Default::default(),
        output_bytes: 0,
        output_hashes: None,
        limits_hit: Vec::new(),
        blame: Vec::new(),
        files: None,
        trace: None,
        cost: ExecCost::default(),
    })
}

fn ended(view: &mut ExecView, event: &Event, end: ExecEnd) {
    view.ended_at = Some(event.at);
    view.exit = end.exit.get().copied();
    view.state = ExecState::of(view.exit, view.ended_at);
    view.usage = end.usage.unwrap_or_default();
    view.output_bytes = end.output_bytes.unwrap_or_default();
    view.output_hashes = end.output_hashes;
    view.limits_hit = end.limits_hit;
    view.blame = end.blame;
    view.cost = ExecCost::of(&view.usage, Some(duration_s(view.started_at, event.at)));
}
