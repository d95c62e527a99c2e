//! `bay story`: what happened in a bay, on one page.
//!
//! The daemon reads the newest part of the record once, and the pure rules of `bay-story` make the page of it. What
//! the record does not have is added: the bay's present state, its costs, and what differs in its workspace, if a
//! short comparison finds out.

use std::time::Duration;

use bay_story::{Changes, Situation, Teller};
use bay_types::bay::State;
use bay_types::principal::Principal;
use bay_types::story::Story;
use bay_types::{BayId, CoreError};
use jiff::Timestamp;
use tokio::time::timeout;

use super::costs;
use super::record_stream::find;
use super::removed_bays;
use crate::authorize::Verb;
use crate::daemon::Daemon;

mod changes;

/// The most events that a story is made from: the newest. Reading as many takes some seconds.
const MAX_EVENTS: u32 = 50_000;
/// How many events are read at once.
const PAGE: u32 = 512;
/// How long a reader waits for the comparison of the workspace.
const COMPARED_WITHIN: Duration = Duration::from_millis(150);
/// The most execs whose traces are collected.
const MAX_TRACES: usize = 1000;

/// The story of a bay, by its name, or by its id, which also names a removed bay.
pub async fn tell(daemon: &Daemon, who: &Principal, bay: &str) -> Result<Story, CoreError> {
    let id = find(daemon, who, Verb::StoryTell, bay, None).await?;
    // The comparison runs while the record is read.
    let (record, situation) = tokio::join!(read(daemon, id), situation(daemon, who, id));
    let (teller, older) = record.map_err(|e| e.to_api())?;
    let name = match daemon.bays.find(&id.to_string()) {
        Ok(handle) => Some(handle.name.clone()),
        Err(_) => removed_bays::name_of(&daemon.store, id).await,
    };
    let name = name.map_or_else(|| id.to_string(), |name| name.to_string());
    Ok(teller.finish(&name, id, Timestamp::now(), older, situation))
}

async fn read(daemon: &Daemon, bay: BayId) -> Result<(Teller, bool), bay_store::StoreError> {
    let begin = daemon.store.story_begin(bay, MAX_EVENTS).await?;
    let mut teller = Teller::default();
    let mut after = begin.after;
    loop {
        let page = daemon.store.story_page(bay, after, PAGE).await?;
        page.iter().for_each(|event| teller.push(event));
        after = page.last().map_or(after, |event| event.seq);
        if page.len() < PAGE as usize {
            return Ok((teller, begin.older));
        }
        // Parsing does not wait for anything, so without this other tasks would have to.
        tokio::task::yield_now().await;
    }
}

/// What the record does not have.
async fn situation(daemon: &Daemon, who: &Principal, id: BayId) -> Situation {
    let Ok(handle) = daemon.bays.find(&id.to_string()) else {
        return Situation {
            state: "removed".to_owned(),
            not_compared: Some("the bay was removed".to_owned()),
            ..Situation::default()
        };
    };
    costs::measure(daemon, &handle).await;
    let view = daemon.view_now(&handle).await;
    let (changes, not_compared) = compared(daemon, who, &handle.id.to_string(), view.state).await;
    Situation {
        state: view.state.to_string(),
        reason: view.reason,
        cost: view.cost,
        traces: traces(daemon, id).await,
        changes,
        not_compared,
    }
}

/// What differs in the workspace, or why that is not known.
async fn compared(
    daemon: &Daemon,
    who: &Principal,
    bay: &str,
    state: State,
) -> (Option<Changes>, Option<String>) {
    if state == State::Deleting {
        return (None, Some("the bay is being deleted".to_owned()));
    }
    match timeout(COMPARED_WITHIN, changes::since_the_beginning(daemon, who, bay)).await {
        Ok(Ok(changes)) => (Some(changes), None),
        Ok(Err(error)) => (None, Some(error.message)),
        Err(_) => (None, Some("the comparison took too long".to_owned())),
    }
}

/// Ids of the traces that commands belong to. Without them the story is still useful.
async fn traces(daemon: &Daemon, bay: BayId) -> Vec<String> {
    let rows = daemon.store.exec_list(bay).await.unwrap_or_default();
    let mut traces: Vec<String> = Vec::new();
    // A trace exists only if a caller sent its context, or the daemon exports spans.
    for trace in rows.iter().filter_map(|row| row.trace).take(MAX_TRACES) {
        let id = trace.trace_id.to_string();
        if trace.parent_span_id.is_some() && !traces.contains(&id) {
            traces.push(id);
        }
    }
    traces
}
