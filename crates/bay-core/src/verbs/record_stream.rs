//! What the streams of a bay's record ([`timeline`](super::timeline), [`traffic`](super::traffic)) have in common:
//! which part of the record a reader requested, when the stream ends, and waiting for more.
//!
//! ```text
//!  a page of events ──► lines ──► not the last page: next page
//!                                 the last page: the bay is removed, or the reader does not follow ──► end of stream
//!                                                the reader follows ──► wait ──► next page
//!                                                                        └─ the reader left ──► nothing more is sent
//! ```

use std::time::Duration;

use bay_store::{Store, StoreError};
use bay_types::principal::Principal;
use bay_types::timeline::EndOfTimeline;
use bay_types::{BayId, CoreError, ErrorCode};
use bytes::Bytes;
use jiff::Timestamp;
use tokio::sync::{mpsc, watch};

use crate::authorize::Verb;
use crate::daemon::Daemon;

/// How many events are read at once. With bodies of the largest size, this is 2 MiB.
pub(super) const PAGE: u32 = 128;
/// The most lines that a reader may request by number. Without a number there is no limit.
const MAX_LIMIT: u32 = 1_000_000;
/// How many lines wait for the reader.
pub(super) const IN_FLIGHT: usize = 32;
/// Events within this time are read together: every event of a busy daemon wakes every reader.
const GATHER: Duration = Duration::from_millis(20);
/// How often a stream checks whether the bay still exists: no event follows a bay's last one.
const LOOK_FOR_END: Duration = Duration::from_secs(1);

/// The bay whose record a verb reads, by its name, or by its id, which also names a removed bay.
pub(super) async fn find(
    daemon: &Daemon,
    who: &Principal,
    verb: Verb,
    given: &str,
    limit: Option<u32>,
) -> Result<BayId, CoreError> {
    daemon.permit(who, verb)?;
    checked_limit(limit)?;
    match daemon.bay_for(who, verb, given) {
        Ok(handle) => Ok(handle.id),
        Err(refused) if refused.code == ErrorCode::NotPermitted => Err(refused),
        Err(unknown) => {
            if let Ok(id) = given.parse::<BayId>()
                && daemon.store.timeline_exists(id).await.map_err(|e| e.to_api())?
            {
                return Ok(id);
            }
            let hint = unknown.hint.and("the timeline of one that was removed is read by its id");
            Err(CoreError { hint, ..unknown })
        }
    }
}

/// Refuses an invalid number of lines.
fn checked_limit(limit: Option<u32>) -> Result<(), CoreError> {
    if limit.is_none_or(|limit| (1..=MAX_LIMIT).contains(&limit)) {
        return Ok(());
    }
    Err(CoreError::new(
        ErrorCode::InvalidInput,
        "the number of lines is zero or too large",
        format!("ask for 1 to {MAX_LIMIT}, or leave it out for all"),
    ))
}

/// Which part of a bay's record a reader requested.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    /// Only lines of events after this number.
    pub since: u64,
    /// Only lines from this time on.
    pub from: Option<Timestamp>,
    /// Only the last so many lines.
    pub limit: Option<u32>,
    /// Whether to continue with new lines.
    pub follow: bool,
}

impl Wanted {
    /// The number of the event after which the part begins.
    pub(super) async fn begins_after(&self, store: &Store, bay: BayId) -> Result<u64, StoreError> {
        match self.from {
            Some(time) => Ok(self.since.max(store.timeline_before(bay, time).await?)),
            None => Ok(self.since),
        }
    }

    /// The most lines to send. Events that are written while the last lines are read do not count.
    pub(super) fn most(&self) -> Option<u32> {
        self.limit.filter(|_| !self.follow)
    }

    /// How the stream ends after the last page; `None` if the reader follows a bay that still exists.
    pub(super) fn end(&self, removed: bool) -> Option<EndOfTimeline> {
        match (removed, self.follow) {
            (true, _) => Some(EndOfTimeline::BayRemoved),
            (false, false) => Some(EndOfTimeline::UpToDate),
            (false, true) => None,
        }
    }
}

/// Waits until there are new events, or until it is time to check whether the bay still exists. Returns `false` if
/// the reader left or the daemon ends.
pub(super) async fn wait_for_more(newest: &mut watch::Receiver<u64>, to: &mpsc::Sender<Bytes>) -> bool {
    tokio::select! {
        changed = newest.changed() => if changed.is_err() { return false },
        () = tokio::time::sleep(LOOK_FOR_END) => {}
        // This notices a reader that left while nothing happens.
        () = to.closed() => return false,
    }
    tokio::time::sleep(GATHER).await;
    newest.mark_unchanged();
    true
}
