//! `bay timeline`: the record of one bay as one ordered stream of lines.
//!
//! Every line is one event. So the order is that of the record, a line never changes, and a reader can continue after
//! the number of the last one. Pages are read as they are sent: neither a long life nor a slow reader costs memory.

use std::sync::Arc;

use bay_store::Begin;
use bay_types::event::{EgressEvent, Event, EventBody, TrafficPart};
use bay_types::principal::Principal;
use bay_types::timeline::{TimelineEnd, TimelineLine, TimelineNews};
use bay_types::{BayId, CoreError, ExecId};
use bytes::Bytes;
use tokio::sync::mpsc;

use super::record_stream::{IN_FLIGHT, PAGE, Wanted, find, wait_for_more};
use super::traffic::ExecNames;
use crate::authorize::Verb;
use crate::byte_stream::{self, ByteStream};
use crate::daemon::Daemon;

mod descent;
mod event_lines;
mod record_lines;
mod traffic_lines;

use descent::Descent;
use traffic_lines::Sent;

/// The timeline of a bay as lines of JSON, at the pace of the reader. Errors of the request come before the first
/// line.
pub async fn read(
    daemon: &Arc<Daemon>,
    who: &Principal,
    bay: &str,
    wanted: Wanted,
) -> Result<ByteStream, CoreError> {
    let bay = find(daemon, who, Verb::TimelineRead, bay, wanted.limit).await?;
    Ok(byte_stream::received_bytes(open(Arc::clone(daemon), bay, wanted).await?))
}

async fn open(daemon: Arc<Daemon>, bay: BayId, wanted: Wanted) -> Result<mpsc::Receiver<Bytes>, CoreError> {
    let store = &daemon.store;
    let failed = |e: bay_store::StoreError| e.to_api();
    let since = wanted.begins_after(store, bay).await.map_err(failed)?;
    let begin = match wanted.limit {
        Some(limit) => store.timeline_begin(bay, since, limit).await.map_err(failed)?,
        None => Begin { after: since, older: false },
    };
    let (to, from) = mpsc::channel(IN_FLIGHT);
    tokio::spawn(async move {
        if let Err(error) = send_lines(&daemon, bay, begin, wanted, &to).await {
            // The stream has no end line, so the reader reconnects.
            tracing::warn!(%bay, %error, "a timeline ended early");
        }
    });
    Ok(from)
}

async fn send_lines(
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
        // Checked before the page is read: the last event of a bay is written before the bay is forgotten.
        let removed = daemon.bays.find(&bay.to_string()).is_err();
        let page = daemon.store.timeline_page(bay, after, left.map_or(PAGE, |left| left.min(PAGE))).await?;
        left = left.map(|left| left.saturating_sub(u32::try_from(page.len()).unwrap_or(u32::MAX)));
        for event in &page {
            after = event.seq;
            if event.seq > known {
                descent.push(bay, event);
            }
            let Some(told) = read_event(daemon, bay, event, &mut names).await? else { continue };
            let line = TimelineNews::Line(Box::new(line(event, &told, &descent)));
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

/// An event with what belongs to it.
struct Told {
    event: EventBody,
    /// The exec that it is about, or that caused it.
    exec: Option<ExecId>,
    sent: Sent,
}

/// Reads an event and, for traffic, what belongs to it: the decision whose end it is, and the number of the exec.
/// `None` if its end has a line of its own.
async fn read_event(
    daemon: &Daemon,
    bay: BayId,
    event: &Event,
    names: &mut ExecNames,
) -> Result<Option<Told>, bay_store::StoreError> {
    let event = event.read();
    let mut told = Told { exec: event.exec(), sent: Sent::default(), event };
    let EventBody::Egress(egress) = &told.event else { return Ok(Some(told)) };
    if egress.part() == TrafficPart::LetOut {
        return Ok(None);
    }
    if let EgressEvent::Ended(ended) = egress
        && let Some(of) = ended.of.get()
        && let Some(decided) = daemon.store.event_of(bay, *of).await?
        && let EventBody::Egress(EgressEvent::Decided(decided)) = decided.read()
    {
        told.exec = decided.by.as_ref().and_then(|who| who.exec);
        told.sent.decided = Some(Box::new(decided));
    }
    if let Some(exec) = told.exec {
        told.sent.number = names.of(&daemon.store, bay, exec).await?.map(|(number, _)| number);
    }
    Ok(Some(told))
}

fn line(event: &Event, told: &Told, descent: &Descent) -> TimelineLine {
    TimelineLine {
        seq: event.seq,
        at: event.at,
        what: event_lines::what(&told.event, &told.sent),
        exec: told.exec,
        checkpoint: descent.at(event.seq).map(|checkpoint| checkpoint.to_string()),
        details: event.body.clone(),
        kind: event.kind.clone(),
        folded: None,
    }
}
