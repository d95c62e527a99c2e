//! `bay timeline`: the record of one bay as one ordered stream, line by line.
//!
//! Every line is one event, so the order is that of the record, a line never changes, and whoever reads can come back by
//! the number of the last one. Pages are read as they are sent: neither a long life nor a slow reader costs memory.

use std::sync::Arc;

use bay_store::Begin;
use bay_types::event::Event;
use bay_types::principal::Principal;
use bay_types::timeline::{TimelineEnd, TimelineLine, TimelineNews};
use bay_types::{ApiError, BayId, ExecId, traffic};
use bytes::Bytes;
use serde_json::Value;
use tokio::sync::mpsc;

use super::record_stream::{IN_FLIGHT, PAGE, Wanted, find, wait_for_more};
use super::traffic::ExecNames;
use crate::authorize::Verb;
use crate::byte_stream::{self, ByteStream};
use crate::daemon::Daemon;

mod descent;
mod sent;
mod words;

use descent::Descent;

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
    let since = wanted.begins_after(store, bay).await.map_err(failed)?;
    let begin = match wanted.limit {
        Some(limit) => store.timeline_begin(bay, since, limit).await.map_err(failed)?,
        None => Begin { after: since, older: false },
    };
    let (to, from) = mpsc::channel(IN_FLIGHT);
    tokio::spawn(async move {
        if let Err(error) = tell(&daemon, bay, begin, wanted, &to).await {
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
    wanted: Wanted,
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
    let mut left = wanted.most();
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
            if to.send(byte_stream::json_line(&line)).await.is_err() {
                return Ok(());
            }
        }
        if page.len() == PAGE as usize && left != Some(0) {
            continue;
        }
        let Some(end) = wanted.end(removed) else {
            if !wait_for_more(&mut newest, to).await {
                return Ok(());
            }
            continue;
        };
        let _ = to
            .send(byte_stream::json_line(&TimelineNews::End(TimelineEnd { end, older: begin.older })))
            .await;
        return Ok(());
    }
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
