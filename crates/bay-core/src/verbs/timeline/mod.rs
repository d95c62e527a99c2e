//! `bay timeline`: the record of one bay as one ordered stream of lines.
//!
//! Every line is one event, unless the reader wants runs of like events folded. A request that was allowed has no
//! line for its decision, only one for its end. The order is that of the record, and a reader can continue after
//! the number of the last line. Events are read in pages, at the pace of the reader. If the reader wants only the
//! last lines, up to [`MAX_WAITING`] of them wait in memory until they are known to be the last.

use std::collections::VecDeque;
use std::sync::Arc;

use bay_store::Begin;
use bay_story::filter::{self, OfExec};
use bay_story::{Filter, Fold, Item};
use bay_types::event::{EgressEvent, Event, EventBody, TrafficPart};
use bay_types::principal::Principal;
use bay_types::timeline::{TimelineEnd, TimelineLine, TimelineNews};
use bay_types::{BayId, CoreError, ErrorCode, ExecId};
use bytes::Bytes;
use tokio::sync::mpsc;

use super::record_stream::{IN_FLIGHT, PAGE, Wanted, find, wait_for_more};
use super::traffic::ExecNames;
use crate::authorize::Verb;
use crate::byte_stream::{self, ByteStream};
use crate::channel::plain_text;
use crate::daemon::Daemon;

mod descent;
mod event_lines;
mod record_lines;
mod secret_scope;
mod traffic_lines;

use descent::Descent;
use secret_scope::SecretScope;
use traffic_lines::Sent;

/// How many events are read for each line of a folded timeline with a limit.
const EVENTS_PER_LINE: u32 = 8;
/// The most events that are read for the last lines of a filtered or folded timeline.
const MAX_LOOKED_AT: u32 = 100_000;
/// The most lines that wait in memory until the last ones are known. A reader of more lines of the whole record gets them
/// as they are read; a reader of more filtered or folded lines gets no more than these.
const MAX_WAITING: u32 = 2000;
/// The most kinds that one reader names.
const MAX_KINDS: usize = 32;

/// Which lines of a timeline a reader wants, beside the range.
#[derive(Debug, Clone, Default)]
pub struct Shape {
    /// Kinds of events, or areas of kinds, separated by commas.
    pub kinds: Option<String>,
    /// Only events of failures and refusals.
    pub failed: bool,
    /// Only one exec, by its id or number, and what it sent.
    pub exec: Option<String>,
    /// No traffic.
    pub no_egress: bool,
    /// Runs of like events as one line.
    pub folded: bool,
}

impl Shape {
    async fn filter(&self, daemon: &Daemon, bay: BayId) -> Result<Filter, CoreError> {
        let kinds: Vec<String> = self
            .kinds
            .iter()
            .flat_map(|kinds| kinds.split(','))
            .map(|kind| kind.trim().to_owned())
            .filter(|kind| !kind.is_empty())
            .collect();
        if let Some(unknown) = kinds.iter().find(|kind| !filter::is_kind(kind)) {
            return Err(CoreError::new(
                ErrorCode::InvalidInput,
                format!("no event has the kind {:?}", plain_text(unknown)),
                format!("give a kind such as exec.end, or one of {}", filter::areas().join(", ")),
            ));
        }
        if kinds.len() > MAX_KINDS {
            return Err(CoreError::new(
                ErrorCode::InvalidInput,
                format!("{} kinds are too many", kinds.len()),
                format!("give at most {MAX_KINDS}"),
            ));
        }
        let exec = match &self.exec {
            Some(given) => Some(of_exec(daemon, bay, given).await?),
            None => None,
        };
        Ok(Filter { kinds, failed: self.failed, exec, no_egress: self.no_egress })
    }
}

/// The exec that a reader means. An exec whose row was deleted is found in the record by its number.
async fn of_exec(daemon: &Daemon, bay: BayId, given: &str) -> Result<OfExec, CoreError> {
    if let Ok(id) = given.parse::<ExecId>() {
        return Ok(OfExec::Id(id));
    }
    let Ok(number) = given.parse::<u64>() else {
        return Err(CoreError::new(
            ErrorCode::InvalidInput,
            format!("{:?} is neither the number nor the id of an exec", plain_text(given)),
            "give the number that the timeline shows, for example --exec 3",
        ));
    };
    let row = daemon.store.exec_by_number(bay, number).await.map_err(|e| e.to_api())?;
    Ok(row.map_or(OfExec::Number(number), |row| OfExec::Id(row.id)))
}

/// The timeline of a bay as lines of JSON, at the pace of the reader. Errors of the request come before the first
/// line.
pub async fn read(
    daemon: &Arc<Daemon>,
    who: &Principal,
    bay: &str,
    wanted: Wanted,
    shape: &Shape,
) -> Result<ByteStream, CoreError> {
    let bay = find(daemon, who, Verb::TimelineRead, bay, wanted.limit).await?;
    let filter = shape.filter(daemon, bay).await?;
    let lines = open(Arc::clone(daemon), bay, wanted, filter, shape.folded).await?;
    Ok(byte_stream::received_bytes(lines))
}

async fn open(
    daemon: Arc<Daemon>,
    bay: BayId,
    wanted: Wanted,
    filter: Filter,
    folded: bool,
) -> Result<mpsc::Receiver<Bytes>, CoreError> {
    let store = &daemon.store;
    let failed = |e: bay_store::StoreError| e.to_api();
    let since = wanted.begins_after(store, bay).await.map_err(failed)?;
    let (to, from) = mpsc::channel(IN_FLIGHT);
    let begin = match wanted.limit {
        None => Begin { after: since, older: false },
        Some(limit) => {
            let most = if folded { limit.saturating_mul(EVENTS_PER_LINE).min(MAX_LOOKED_AT) } else { limit };
            let begin = if filter.is_all() {
                store.timeline_begin(bay, since, most).await
            } else {
                begin_of_last(&daemon, bay, since, most, &filter).await
            };
            begin.map_err(failed)?
        }
    };
    let whole = filter.is_all() && !folded;
    let last = wanted.limit.filter(|limit| *limit <= MAX_WAITING || !whole);
    tokio::spawn(async move {
        let lines = Lines {
            daemon: &daemon,
            bay,
            to,
            filter,
            fold: folded.then(Fold::default),
            last: last.map(|limit| (limit.min(MAX_WAITING) as usize, VecDeque::new())),
            older: begin.older,
        };
        if let Err(error) = lines.send(begin, wanted).await {
            // The stream has no end line, so the reader reconnects.
            tracing::warn!(%bay, %error, "a timeline ended early");
        }
    });
    Ok(from)
}

/// Where to begin to have the last `most` events that a filter lets through, or as many of them as there are among
/// the last [`MAX_LOOKED_AT`] events.
async fn begin_of_last(
    daemon: &Daemon,
    bay: BayId,
    since: u64,
    most: u32,
    filter: &Filter,
) -> Result<Begin, bay_store::StoreError> {
    let mut filter = filter.clone();
    let mut names = ExecNames::default();
    let (mut up_to, mut looked_at, mut found) = (u64::MAX, 0, 0);
    loop {
        let page = daemon.store.timeline_page_back(bay, up_to, PAGE).await?;
        for event in &page {
            if event.seq <= since {
                return Ok(Begin { after: since, older: false });
            }
            if found == most || looked_at == MAX_LOOKED_AT {
                return Ok(Begin { after: event.seq, older: true });
            }
            up_to = event.seq - 1;
            looked_at += 1;
            if let Some(told) = read_event(daemon, bay, event, &mut names).await? {
                found += u32::from(filter.wants(&told.event, told.exec));
            }
        }
        if page.len() < PAGE as usize {
            return Ok(Begin { after: since, older: false });
        }
    }
}

/// The lines for one reader.
struct Lines<'a> {
    daemon: &'a Daemon,
    bay: BayId,
    to: mpsc::Sender<Bytes>,
    filter: Filter,
    fold: Option<Fold>,
    /// If the reader wants only the last so many lines: those, until the present is reached.
    last: Option<(usize, VecDeque<TimelineLine>)>,
    older: bool,
}

impl Lines<'_> {
    async fn send(mut self, begin: Begin, wanted: Wanted) -> Result<(), bay_store::StoreError> {
        let store = &self.daemon.store;
        let mut newest = store.events_told();
        let known = *newest.borrow_and_update();
        let mut descent = Descent::default();
        for event in store.timeline_descent(self.bay, known).await? {
            descent.push(self.bay, &event);
        }
        let mut secrets = SecretScope::of(self.daemon, self.bay, begin.after).await?;
        let mut names = ExecNames::default();
        let mut after = begin.after;
        // The events of secrets from before the bay existed do not concern it.
        let born = store.timeline_page(self.bay, 0, 1).await?.first().map_or(u64::MAX, |event| event.seq);
        loop {
            // Checked before the page is read: the last event of a bay is written before the bay is forgotten.
            let removed = self.daemon.bays.find(&self.bay.to_string()).is_err();
            let head = store.events_head().await?;
            let mut page = store.timeline_page(self.bay, after, PAGE).await?;
            let full = page.len() == PAGE as usize;
            let up_to = match page.last() {
                Some(last) if full || removed => last.seq,
                // No event after the last one of a removed bay concerns it.
                None if removed => after,
                // Events that are newer than the head belong to the next page, with those of secrets between them.
                _ => head.max(after),
            };
            page.retain(|event| event.seq <= up_to);
            let of_secrets = secrets.read(store, after, up_to).await?;
            page.extend(of_secrets.into_iter().filter(|event| event.seq > born));
            page.sort_by_key(|event| event.seq);
            for event in &page {
                if event.seq > known {
                    descent.push(self.bay, event);
                }
                if let Some(told) = read_event(self.daemon, self.bay, event, &mut names).await?
                    && !self.event(event, told, &descent, &mut names).await?
                {
                    return Ok(());
                }
            }
            after = up_to.max(after);
            if full {
                continue;
            }
            if let Some(fold) = &mut self.fold {
                let rest = fold.flush();
                if !self.lines(rest).await {
                    return Ok(());
                }
            }
            if let Some((_, waiting)) = self.last.take() {
                for line in waiting {
                    if !self.line(line).await {
                        return Ok(());
                    }
                }
            }
            let Some(end) = wanted.end(removed) else {
                if !wait_for_more(&mut newest, &self.to).await {
                    return Ok(());
                }
                continue;
            };
            let end = TimelineNews::End(TimelineEnd { end, older: self.older });
            let _ = self.to.send(byte_stream::json_line(&end)).await;
            return Ok(());
        }
    }

    /// Handles an event. Returns false if the reader left.
    async fn event(
        &mut self,
        event: &Event,
        told: Told,
        descent: &Descent,
        names: &mut ExecNames,
    ) -> Result<bool, bay_store::StoreError> {
        if !self.filter.wants(&told.event, told.exec) {
            return Ok(true);
        }
        let line = line(event, &told, descent);
        let Some(fold) = &mut self.fold else { return Ok(self.lines(vec![line]).await) };
        // The start of the exec may lie before this part of the record, so its command is read from the list of
        // execs.
        let name = match (&told.event, told.exec) {
            (EventBody::Exec(_), Some(exec)) => names.of(&self.daemon.store, self.bay, exec).await?,
            _ => None,
        };
        let (number, argv) =
            name.map_or((told.sent.number, Vec::new()), |(number, argv)| (Some(number), argv));
        let decided = told.sent.decided.as_deref();
        let certain = fold.push(Item { line, event: &told.event, decided, number, argv: &argv });
        Ok(self.lines(certain).await)
    }

    /// Sends lines, or lets them wait if the reader wants only the last ones. Returns false if the reader left.
    async fn lines(&mut self, lines: Vec<TimelineLine>) -> bool {
        for line in lines {
            match &mut self.last {
                Some((most, waiting)) => {
                    if waiting.len() >= *most {
                        waiting.pop_front();
                        self.older = true;
                    }
                    waiting.push_back(line);
                }
                None => {
                    if !self.line(line).await {
                        return false;
                    }
                }
            }
        }
        true
    }

    async fn line(&self, line: TimelineLine) -> bool {
        let news = TimelineNews::Line(Box::new(line));
        self.to.send(byte_stream::json_line(&news)).await.is_ok()
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
/// `None` for a decision that let something out: its end has the line.
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
