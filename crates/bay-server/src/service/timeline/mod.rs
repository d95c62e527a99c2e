//! `bay timeline`: the record of one bay as one ordered stream, line by line.
//!
//! Every line is one event, so the order is that of the record, a line never changes, and whoever reads can come back by
//! the number of the last one. Pages are read as they are sent: neither a long life nor a slow reader costs memory.

use std::sync::Arc;
use std::time::Duration;

use bay_store::Begin;
use bay_types::event::Event;
use bay_types::principal::Principal;
use bay_types::timeline::{EndOfTimeline, TimelineEnd, TimelineLine, TimelineNews};
use bay_types::{ApiError, BayId, ErrorCode, ExecId, traffic};
use bytes::Bytes;
use jiff::Timestamp;
use serde_json::Value;
use tokio::sync::mpsc;

use super::traffic::ExecNames;
use crate::authorize::Verb;
use crate::byte_stream::{self, ByteStream};
use crate::daemon::Daemon;

mod descent;
mod sent;
mod words;

use descent::Descent;

/// Events read at once. With bodies of the largest size this is 2 MiB.
const PAGE: u32 = 128;
/// Lines on their way to the reader.
const IN_FLIGHT: usize = 32;
/// What happens within this time is read together: a busy daemon's events wake every reader.
const GATHER: Duration = Duration::from_millis(20);
/// How often it is seen whether the bay is gone, which nothing tells after its last event.
pub(super) const LOOK_FOR_END: Duration = Duration::from_secs(1);

/// What part of a timeline is wanted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    /// Lines after this one.
    pub(crate) since: u64,
    /// Lines from this time on.
    pub(crate) from: Option<Timestamp>,
    /// The last so many of them.
    pub(crate) limit: Option<u32>,
    /// Go on as more happens.
    pub(crate) follow: bool,
}

/// The bay whose record a verb is to read, by name, or by id, which a bay that was removed has too.
pub(super) async fn find(
    daemon: &Daemon,
    who: &Principal,
    verb: Verb,
    given: &str,
    limit: Option<u32>,
) -> Result<BayId, ApiError> {
    daemon.permit(who, verb)?;
    checked_limit(limit)?;
    match daemon.bay_for(who, verb, given) {
        Ok(handle) => Ok(handle.id),
        Err(refused) if refused.code == ErrorCode::NotPermitted => Err(refused),
        Err(mut unknown) => {
            if let Ok(id) = given.parse::<BayId>()
                && daemon.store.timeline_exists(id).await.map_err(|e| e.to_api())?
            {
                return Ok(id);
            }
            unknown.next.push_str("; the timeline of one that was removed is read by its id");
            Err(unknown)
        }
    }
}

/// Most lines that may be asked for by their number; without one there is no bound.
const MAX_LIMIT: u32 = 1_000_000;

/// Refuses a number of lines that makes no sense.
pub(super) fn checked_limit(limit: Option<u32>) -> Result<(), ApiError> {
    if limit.is_none_or(|limit| (1..=MAX_LIMIT).contains(&limit)) {
        return Ok(());
    }
    Err(ApiError::new(
        ErrorCode::InvalidInput,
        "the number of lines is zero or too large",
        format!("ask for 1 to {MAX_LIMIT}, or leave it out for all"),
    ))
}

/// The timeline of a bay as lines of JSON, read from the record at the pace of the reader. Errors of the request come before
/// the first line.
pub(crate) async fn read(
    daemon: &Arc<Daemon>,
    who: &Principal,
    bay: &str,
    wanted: Wanted,
) -> Result<ByteStream, ApiError> {
    let bay = find(daemon, who, Verb::TimelineRead, bay, wanted.limit).await?;
    Ok(byte_stream::received_bytes(open(Arc::clone(daemon), bay, wanted).await?))
}

async fn open(daemon: Arc<Daemon>, bay: BayId, wanted: Wanted) -> Result<mpsc::Receiver<Bytes>, ApiError> {
    let store = &daemon.store;
    let failed = |e: bay_store::StoreError| e.to_api();
    let mut since = wanted.since;
    if let Some(time) = wanted.from {
        since = since.max(store.timeline_before(bay, time).await.map_err(failed)?);
    }
    let begin = match wanted.limit {
        Some(limit) => store.timeline_begin(bay, since, limit).await.map_err(failed)?,
        None => Begin { after: since, older: false },
    };
    let (to, from) = mpsc::channel(IN_FLIGHT);
    tokio::spawn(async move {
        // What happens while the last lines are read is not among them.
        let most = wanted.limit.filter(|_| !wanted.follow);
        if let Err(error) = tell(&daemon, bay, begin, wanted.follow, most, &to).await {
            // The reader sees a stream without an end, and comes back.
            tracing::warn!(%bay, %error, "a timeline broke off");
        }
    });
    Ok(from)
}

async fn tell(
    daemon: &Daemon,
    bay: BayId,
    begin: Begin,
    follow: bool,
    most: Option<u32>,
    to: &mpsc::Sender<Bytes>,
) -> Result<(), bay_store::StoreError> {
    let mut newest = daemon.store.events_told();
    let known = *newest.borrow_and_update();
    let mut descent = Descent::default();
    for event in daemon.store.timeline_descent(bay, known).await? {
        descent.push(bay, &event);
    }
    let mut names = ExecNames::default();
    let mut after = begin.after;
    let mut left = most;
    loop {
        // Asked before the page is read: the last event of a bay is written before it is forgotten.
        let removed = daemon.bays.find(&bay.to_string()).is_err();
        let page = daemon.store.timeline_page(bay, after, left.map_or(PAGE, |left| left.min(PAGE))).await?;
        left = left.map(|left| left.saturating_sub(u32::try_from(page.len()).unwrap_or(u32::MAX)));
        for event in &page {
            after = event.seq;
            if event.seq > known {
                descent.push(bay, event);
            }
            if is_let_out(event) {
                continue;
            }
            let about = about(daemon, bay, event, &mut names).await?;
            let line = TimelineNews::Line(Box::new(line(event, about.as_ref(), &descent)));
            if to.send(bytes(&line)).await.is_err() {
                return Ok(());
            }
        }
        if page.len() == PAGE as usize && left != Some(0) {
            continue;
        }
        let end = match (removed, follow) {
            (true, _) => EndOfTimeline::BayRemoved,
            (false, false) => EndOfTimeline::UpToDate,
            (false, true) => {
                tokio::select! {
                    changed = newest.changed() => if changed.is_err() { return Ok(()) },
                    () = tokio::time::sleep(LOOK_FOR_END) => {}
                    // Also while nothing happens, a reader that left is noticed.
                    () = to.closed() => return Ok(()),
                }
                tokio::time::sleep(GATHER).await;
                newest.mark_unchanged();
                continue;
            }
        };
        let _ = to.send(bytes(&TimelineNews::End(TimelineEnd { end, older: begin.older }))).await;
        return Ok(());
    }
}

fn bytes(news: &TimelineNews) -> Bytes {
    let mut line = serde_json::to_vec(news).unwrap_or_default();
    line.push(b'\n');
    line.into()
}

/// Whether this is of traffic whose end is a line of its own.
fn is_let_out(event: &Event) -> bool {
    event.kind == traffic::DECIDED && event.body.get("outcome").and_then(Value::as_str) == Some("allow")
}

/// The body of an event of traffic, with what was decided where it only tells the end, and the number of the exec.
async fn about(
    daemon: &Daemon,
    bay: BayId,
    event: &Event,
    names: &mut ExecNames,
) -> Result<Option<Value>, bay_store::StoreError> {
    if !event.kind.starts_with(traffic::KINDS) {
        return Ok(None);
    }
    let mut body = event.body.clone();
    if event.kind == traffic::ENDED
        && let Some(of) = body.get("of").and_then(Value::as_u64)
        && let Some(Value::Object(decided)) = daemon.store.event_of(bay, of).await?.map(|event| event.body)
        && let Some(body) = body.as_object_mut()
    {
        for (key, value) in decided {
            body.entry(key).or_insert(value);
        }
    }
    let number = match exec(&body) {
        Some(exec) => names.of(&daemon.store, bay, exec).await?.map(|(number, _)| number),
        None => None,
    };
    if let (Some(number), Some(body)) = (number, body.as_object_mut()) {
        body.insert("number".to_owned(), number.into());
    }
    Ok(Some(body))
}

/// The exec that an event is about, or that is behind it.
fn exec(body: &Value) -> Option<ExecId> {
    let id = body.get("exec").or_else(|| body.get("by")?.get("exec"))?;
    id.as_str()?.parse().ok()
}

fn line(event: &Event, about: Option<&Value>, descent: &Descent) -> TimelineLine {
    let about = about.unwrap_or(&event.body);
    TimelineLine {
        seq: event.seq,
        at: event.at,
        what: words::what(&event.kind, about),
        exec: exec(about),
        checkpoint: descent.at(event.seq).map(ToOwned::to_owned),
        details: event.body.clone(),
        kind: event.kind.clone(),
    }
}
