//! How much of the record one bay fills by what its own processes cause: restores, checkpoints, services, holds, and
//! approvals. The bay's traffic has a share of its own ([`crate::egress`]).

use bay_store::{Store, StoreError};
use bay_types::{BayId, CoreError, ErrorCode};
use tokio::sync::Mutex;

/// The share of one bay: about fifteen thousand restores. It keeps a bay from filling the disk of the record
/// with such events.
const QUOTA_MIB: u64 = 64;
/// About what an event needs in the record beside its body: the row, its index and its hashes.
const BESIDE: u64 = 256;
/// About what a restore causes in the record later: a bay that stops, starts and runs again, and execs that end.
const AFTER_RESTORE: u64 = 4096;

/// The share of one bay in the record.
#[derive(Debug, Default)]
pub(crate) struct RecordShare {
    /// The counted bytes up to an event, and the number of that event.
    counted: Mutex<(u64, u64)>,
}

impl RecordShare {
    /// Whether there is room for one more event.
    pub(crate) async fn has_room(&self, store: &Store, bay: BayId) -> Result<bool, StoreError> {
        let mut counted = self.counted.lock().await;
        let (bytes, since) = &mut *counted;
        let (more, last) = store.events_caused_bytes(bay, *since, BESIDE, AFTER_RESTORE).await?;
        *bytes = bytes.saturating_add(more);
        *since = last;
        Ok(*bytes < QUOTA_MIB << 20)
    }
}

/// The error for a bay that has used up its share.
pub(crate) fn used_up() -> CoreError {
    CoreError::new(
        ErrorCode::NotEnough,
        format!(
            "this bay has used up the {QUOTA_MIB} MiB that requests from inside it may add to the record"
        ),
        "ask the operator to do it from outside; a fork of the bay has a quota of its own",
    )
}

#[cfg(test)]
mod tests {
    use bay_store::Draft;
    use bay_types::event::OtherEvent;
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn only_events_caused_from_inside_count() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("bay.db")).await.unwrap();
        let (bay, other) = (BayId::generate(), BayId::generate());
        let share = RecordShare::default();
        let bytes = async || {
            assert!(share.has_room(&store, bay).await.unwrap());
            share.counted.lock().await.0
        };
        let add = async |bay, kind, body| {
            store.event_append(Some(bay), &Draft::of(OtherEvent::new(kind, body))).await.unwrap()
        };
        assert_eq!(bytes().await, 0);
        add(bay, "service.define", json!({ "by": "uid 0" })).await;
        add(bay, "egress.decided", json!({ "by": "inside" })).await;
        add(other, "hold.taken", json!({ "by": "inside" })).await;
        assert_eq!(bytes().await, 0);
        let own = json!({ "by": "inside", "service": "web" });
        add(bay, "service.define", own.clone()).await;
        let one = own.to_string().len() as u64 + BESIDE;
        assert_eq!(bytes().await, one);
        let restore = json!({ "by": "inside", "checkpoint": "v1" });
        add(bay, "bay.restore-asked", restore.clone()).await;
        let two = one + restore.to_string().len() as u64 + BESIDE + AFTER_RESTORE;
        assert_eq!(bytes().await, two);
        let asked = json!({ "by": null, "request": "POST https://a.test/" });
        add(bay, "approval.asked", asked.clone()).await;
        add(bay, "checkpoint.made", json!({ "by": "approval" })).await;
        let all = bytes().await;
        assert!(all > two + asked.to_string().len() as u64 + 2 * BESIDE, "{all}");
        // The next daemon counts the same.
        let again = RecordShare::default();
        assert!(again.has_room(&store, bay).await.unwrap());
        assert_eq!(*again.counted.lock().await, *share.counted.lock().await);
        // Counted bytes stay counted.
        share.counted.lock().await.0 = QUOTA_MIB << 20;
        assert!(!share.has_room(&store, bay).await.unwrap());
        assert!(RecordShare::default().has_room(&store, other).await.unwrap());
    }
}
