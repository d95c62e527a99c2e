//! Bays in which flushes return at once: the daemon flushes their files instead.
//!
//! ```text
//!  relaxed ──► every FLUSH_EVERY ──► once more when the runtime has ended
//!     ▲                                 (stopped, paused on disk, lost)
//!     └─ also in a bay that is strict again: what was started before still skips its flushes
//! ```
//!
//! A checkpoint flushes by itself, as in every bay.

use std::sync::Arc;
use std::time::Duration;

use bay_store::{BayRow, Store, StoreError};
use bay_types::durability::Durability;
use bay_types::event::bay::{BayCreate, BayEvent, BaySettingsSet};
use bay_types::event::{EventBody, Recorded};

use crate::registry::BayHandle;

/// How often the files of a relaxed bay are written to the disk. A power cut of the host loses what is newer.
const FLUSH_EVERY: Duration = Duration::from_secs(3);
/// The newest changes of settings that are read. A bay with more of them counts as relaxed.
const MAX_CHANGES: u32 = 1000;

/// For an event, in which `strict` is absent.
pub(crate) fn relaxed(durability: Durability) -> Option<Durability> {
    (!durability.is_strict()).then_some(durability)
}

/// Whether processes of the bay may skip their flushes: it is relaxed, or was once. Their filter cannot be removed, and
/// a memory checkpoint brings it back.
pub(crate) async fn may_skip_flushes(store: &Store, row: &BayRow) -> Result<bool, StoreError> {
    if !row.spec.durability.is_strict() {
        return Ok(true);
    }
    let events = store.events_of(row.id, [BayCreate::KIND, BaySettingsSet::KIND], MAX_CHANGES).await?;
    let made_relaxed = events.iter().any(|event| match event.read() {
        EventBody::Bay(BayEvent::Create(made)) => made.durability.is_some(),
        EventBody::Bay(BayEvent::Set(set)) => set.durability.is_some(),
        _ => false,
    });
    Ok(made_relaxed || u32::try_from(events.len()).is_ok_and(|count| count >= MAX_CHANGES))
}

/// Flushes the files of a bay again and again. Ends when it is dropped.
pub(crate) async fn flush_regularly(handle: Arc<BayHandle>) {
    loop {
        tokio::time::sleep(FLUSH_EVERY).await;
        flush(&handle).await;
    }
}

/// Flushes the files of a bay.
pub(crate) async fn flush(handle: &BayHandle) {
    let id = handle.id;
    if let Err(error) = handle.with_files(move |files| files.flush(id)).await {
        tracing::warn!(bay = %handle.name, message = %error.message, "the files of a relaxed bay could not be flushed");
    }
}
