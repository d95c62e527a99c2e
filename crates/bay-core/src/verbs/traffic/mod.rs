//! `bay egress`: what a bay sent and tried to send, entry by entry, from its record.
//!
//! Something that was let out has two events, its decision and its end, which make one entry. The entry is sent
//! when it is over. If it is not over when all others were sent, it is sent as under way, and to a reader that
//! follows again when it is over. Events are read in pages, at the pace of the reader. Up to [`MAX_BEGUN`] entries
//! that are not over wait in memory. If there are more, the oldest is sent as it is.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use bay_store::{Begin, TrafficWanted};
use bay_types::principal::Principal;
use bay_types::timeline::TimelineEnd;
use bay_types::traffic::{EgressEntry, EgressNews, EgressOutcome, EgressState};
use bay_types::{BayId, CoreError};
use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};
use tokio::sync::mpsc;

use super::record_stream::{self, IN_FLIGHT, PAGE, wait_for_more};
use crate::authorize::Verb;
use crate::byte_stream::{self, ByteStream};
use crate::daemon::Daemon;

mod entry;
mod names;
#[cfg(test)]
mod tests;

use entry::Meaning;
pub(crate) use names::ExecNames;

/// The most entries that wait for their end.
const MAX_BEGUN: usize = 1024;
/// A reader that follows gets an entry that takes longer than this as under way, before it is over.
const LONG: SignedDuration = SignedDuration::from_secs(2);
/// A decision that is younger may not be known as under way yet.
const YOUNG: SignedDuration = SignedDuration::from_secs(5);

/// Which part of the traffic a reader requested.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    pub range: record_stream::Wanted,
    /// Only refusals.
    pub refused: bool,
    /// Also look-ups of names.
    pub look_ups: bool,
}

impl Wanted {
    fn part(&self) -> TrafficWanted {
        TrafficWanted { refused: self.refused, look_ups: self.look_ups }
    }
}

/// Whether the bay's gateway runs, and how many packets it has dropped.
pub fn show(daemon: &Daemon, who: &Principal, bay: &str) -> Result<EgressState, CoreError> {
    let open = daemon.bay_for(who, Verb::EgressShow, bay)?.egress();
    let dropped = open.as_ref().map(|open| open.dropped()).unwrap_or_default();
    Ok(EgressState { open: open.is_some(), dropped })
}

/// What a bay sent and tried to send as lines of JSON, at the pace of the reader. Errors of the request come before
/// the first line.
pub async fn read(
    daemon: &Arc<Daemon>,
    who: &Principal,
    bay: &str,
    wanted: Wanted,
) -> Result<ByteStream, CoreError> {
    let bay = record_stream::find(daemon, who, Verb::EgressShow, bay, wanted.range.limit).await?;
    Ok(byte_stream::received_bytes(open(Arc::clone(daemon), bay, wanted).await?))
}

async fn open(daemon: Arc<Daemon>, bay: BayId, wanted: Wanted) -> Result<mpsc::Receiver<Bytes>, CoreError> {
    let store = &daemon.store;
    let failed = |e: bay_store::StoreError| e.to_api();
    let since = wanted.range.begins_after(store, bay).await.map_err(failed)?;
    let begin = match wanted.range.limit {
        Some(limit) => store.traffic_begin(bay, since, wanted.part(), limit).await.map_err(failed)?,
        None => Begin { after: since, older: false },
    };
    let (to, from) = mpsc::channel(IN_FLIGHT);
    tokio::spawn(async move {
        let teller = EntrySender {
            daemon: &daemon,
            bay,
            wanted,
            to,
            names: ExecNames::default(),
            begun: BTreeMap::new(),
            under_way: HashSet::new(),
            left: wanted.range.most(),
        };
        match teller.run(begin).await {
            Ok(()) | Err(Stop::Unheard) => {}
            // The stream has no end line, so the reader reconnects.
            Err(Stop::Store(error)) => tracing::warn!(%bay, %error, "a list of a bay's traffic ended early"),
        }
    });
    Ok(from)
}

/// Something that was let out, whose end was not read yet.
#[derive(Debug)]
struct Begun {
    entry: Box<EgressEntry>,
    told: bool,
}

/// Why nothing more is sent.
enum Stop {
    /// The reader left.
    Unheard,
    Store(bay_store::StoreError),
}

impl From<bay_store::StoreError> for Stop {
    fn from(error: bay_store::StoreError) -> Self {
        Self::Store(error)
    }
}

/// One reader's progress through the record.
struct EntrySender<'a> {
    daemon: &'a Daemon,
    bay: BayId,
    wanted: Wanted,
    to: mpsc::Sender<Bytes>,
    names: ExecNames,
    begun: BTreeMap<u64, Begun>,
    /// What was under way in the gateway before the last page was read.
    under_way: HashSet<u64>,
    /// How many entries may still be sent.
    left: Option<u32>,
}

impl EntrySender<'_> {
    async fn run(mut self, begin: Begin) -> Result<(), Stop> {
        let mut newest = self.daemon.store.events_told();
        newest.mark_unchanged();
        let mut after = begin.after;
        let mut caught_up = false;
        loop {
            // Both are read before the page: the last event of a bay is written before the bay is forgotten, and the
            // end of a request before the request is no longer under way.
            let handle = self.daemon.bays.find(&self.bay.to_string()).ok();
            let open = handle.as_ref().and_then(|handle| handle.egress());
            self.under_way = open.map(|open| open.under_way()).unwrap_or_default();
            let page = self.daemon.store.traffic_page(self.bay, after, self.wanted.part(), PAGE).await?;
            for event in &page {
                if self.left == Some(0) {
                    break;
                }
                after = event.seq;
                match entry::meaning(event) {
                    Meaning::Nothing => {}
                    Meaning::Whole(entry) => self.send(*entry).await?,
                    Meaning::Begun(entry) => self.begin(entry).await?,
                    Meaning::Over(of) => {
                        let begun = match self.begun.remove(&of) {
                            Some(begun) => Some(begun.entry),
                            None => self.recall(of).await?,
                        };
                        self.send(entry::over(begun, of, event)).await?;
                    }
                }
            }
            if page.len() == PAGE as usize && self.left != Some(0) {
                continue;
            }
            if !caught_up && !self.wanted.refused {
                self.recall_older(begin.after).await?;
            }
            // At the first time, everything that is not over is sent. After that, a reader that follows gets what
            // takes long.
            let at_once = !self.wanted.range.follow || !caught_up;
            caught_up = true;
            let now = Timestamp::now();
            self.send_under_way(|entry| at_once || now.duration_since(entry.at) >= LONG, now).await?;

            let Some(end) = self.wanted.range.end(handle.is_none()) else {
                // This also finds an entry that has taken long meanwhile: the wait is shorter than `LONG`.
                if !wait_for_more(&mut newest, &self.to).await {
                    return Ok(());
                }
                continue;
            };
            let last = EgressNews::End(TimelineEnd { end, older: begin.older });
            return self.to.send(byte_stream::json_line(&last)).await.map_err(|_| Stop::Unheard);
        }
    }

    async fn send(&mut self, mut entry: EgressEntry) -> Result<(), Stop> {
        if let Some(exec) = entry.by.as_ref().and_then(|who| who.exec)
            && let Some((number, argv)) = self.names.of(&self.daemon.store, self.bay, exec).await?
        {
            (entry.exec_number, entry.exec_argv) = (Some(number), argv);
        }
        self.left = self.left.map(|left| left.saturating_sub(1));
        let line = byte_stream::json_line(&EgressNews::Entry(Box::new(entry)));
        self.to.send(line).await.map_err(|_| Stop::Unheard)
    }

    async fn begin(&mut self, entry: Box<EgressEntry>) -> Result<(), Stop> {
        self.begun.insert(entry.id, Begun { entry, told: false });
        if self.begun.len() > MAX_BEGUN
            && let Some((_, oldest)) = self.begun.pop_first()
            && !oldest.told
        {
            let entry = self.not_over(&oldest.entry, Timestamp::now());
            self.send(entry).await?;
        }
        Ok(())
    }

    /// A decision from before the requested part.
    async fn recall(&self, id: u64) -> Result<Option<Box<EgressEntry>>, Stop> {
        let event = self.daemon.store.event_of(self.bay, id).await?;
        Ok(event.as_ref().map(entry::meaning).and_then(|meaning| match meaning {
            Meaning::Begun(entry) => Some(entry),
            Meaning::Whole(_) | Meaning::Over(_) | Meaning::Nothing => None,
        }))
    }

    /// What was let out before that part and is still under way.
    async fn recall_older(&mut self, after: u64) -> Result<(), Stop> {
        if self.wanted.range.since > 0 || self.wanted.range.from.is_some() {
            return Ok(());
        }
        let older: Vec<u64> =
            self.under_way.iter().copied().filter(|id| *id <= after).take(MAX_BEGUN).collect();
        for id in older {
            if let Some(entry) = self.recall(id).await? {
                self.begun.insert(id, Begun { entry, told: false });
            }
        }
        Ok(())
    }

    async fn send_under_way(
        &mut self,
        due: impl Fn(&EgressEntry) -> bool,
        now: Timestamp,
    ) -> Result<(), Stop> {
        let due: Vec<u64> = self
            .begun
            .iter()
            .filter(|(_, begun)| !begun.told && due(&begun.entry))
            .map(|(id, _)| *id)
            .collect();
        for id in due {
            let Some(begun) = self.begun.get_mut(&id) else { continue };
            begun.told = true;
            let entry = begun.entry.clone();
            let entry = self.not_over(&entry, now);
            if entry.outcome == EgressOutcome::EndUnknown {
                self.begun.remove(&id);
            }
            self.send(entry).await?;
        }
        Ok(())
    }

    fn not_over(&self, entry: &EgressEntry, now: Timestamp) -> EgressEntry {
        let young = now.duration_since(entry.at) < YOUNG;
        let outcome = if young || self.under_way.contains(&entry.id) {
            EgressOutcome::UnderWay
        } else {
            EgressOutcome::EndUnknown
        };
        EgressEntry { outcome, ..entry.clone() }
    }
}
