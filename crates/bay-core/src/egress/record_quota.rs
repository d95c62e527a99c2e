//! The quota of a bay's traffic in the record. A request that does not fit into it is not let out.

use std::sync::atomic::{AtomicU64, Ordering};

use bay_store::{Draft, MAX_BODY, Store, StoreError};
use bay_types::BayId;
use bay_types::event::EventBody;

use super::record::NotRecorded;

/// The quota of one bay: about a million requests, unless they are long. It keeps a bay from filling the disk with
/// its traffic, which would stop the others.
const QUOTA_MIB: u64 = 1024;
/// About what an event needs in the record beside its body: the row, its index and its hashes.
const BESIDE: u64 = 256;

/// The quota of one bay.
#[derive(Debug)]
pub(super) struct Room {
    /// Bytes.
    used: AtomicU64,
}

impl Room {
    pub(super) async fn open(store: &Store, bay: BayId) -> Result<Self, StoreError> {
        Ok(Self { used: AtomicU64::new(store.traffic_bytes(bay, BESIDE).await?) })
    }

    /// Takes the room that an event needs, and returns the event to write. The last event may exceed the quota.
    pub(super) fn take(&self, event: impl Into<EventBody>) -> Result<Draft, NotRecorded> {
        let draft = Draft::of(event).shortened();
        let length = draft.body_bytes();
        if length > MAX_BODY {
            return Err(NotRecorded("what the record would say of it is too long".to_owned()));
        }
        if self.used.fetch_add(length as u64 + BESIDE, Ordering::Relaxed) >= QUOTA_MIB << 20 {
            return Err(NotRecorded(format!(
                "this bay has used up the {QUOTA_MIB} MiB of traffic that the record keeps for one bay"
            )));
        }
        Ok(draft)
    }
}

#[cfg(test)]
mod tests {
    use bay_types::event::egress::EgressDecided;
    use bay_types::event::{OtherEvent, Recorded};
    use serde_json::{Value, json};

    use super::*;

    fn decided(body: Value) -> OtherEvent {
        OtherEvent::new(EgressDecided::KIND, body)
    }

    fn fit(body: Value) -> (Value, usize) {
        let draft = Draft::of(decided(body)).shortened();
        (draft.body().clone(), draft.body_bytes())
    }

    #[test]
    fn no_length_of_a_command_line_or_of_an_explanation_hides_what_was_asked_for() {
        let odd = "\u{1}".repeat(4096);
        let process = json!({ "pid": 1, "host_pid": 2, "exe": odd, "argv": [odd] });
        let body = json!({
            "request": "GET https://a.test/x", "outcome": "allow", "explanation": { "reason": odd.repeat(10) },
            "by": { "exec": "exec_1", "process": process },
        });
        let (kept, length) = fit(body);
        assert!(length <= MAX_BODY && kept.to_string().len() == length);
        assert_eq!((&kept["request"], &kept["outcome"]), (&json!("GET https://a.test/x"), &json!("allow")));
        assert_eq!(kept["by"]["exec"], "exec_1");
        let (kept, _) =
            fit(json!({ "request": "x", "explanation": odd, "by": { "process": { "argv": ["a"] } } }));
        assert_eq!(
            (&kept["by"]["process"]["argv"], &kept["left_out"]),
            (&json!(["a"]), &json!("/explanation"))
        );
        let small = json!({ "request": "x", "by": null });
        assert_eq!(fit(small.clone()).0, small);
    }

    #[tokio::test]
    async fn a_bay_that_has_used_up_its_part_of_the_record_is_let_out_no_more() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("bay.db")).await.unwrap();
        let bay = BayId::generate();
        let room = Room::open(&store, bay).await.unwrap();
        let body = || json!({ "request": "GET https://a.test/", "outcome": "allow" });
        let kept = room.take(decided(body())).unwrap();
        store.event_append(Some(bay), &kept).await.unwrap();
        // The next daemon knows what was used before.
        let again = Room::open(&store, bay).await.unwrap();
        let used = again.used.load(Ordering::Relaxed);
        assert_eq!(used, room.used.load(Ordering::Relaxed));
        assert_eq!(used, body().to_string().len() as u64 + BESIDE);
        again.used.store(QUOTA_MIB << 20, Ordering::Relaxed);
        let NotRecorded(why) = again.take(decided(body())).unwrap_err();
        assert!(why.contains("used up"), "{why}");
        Room::open(&store, BayId::generate()).await.unwrap().take(decided(body())).unwrap();
        let endless = json!({ "request": "x".repeat(MAX_BODY) });
        assert!(room.take(decided(endless)).is_err(), "what the record would not show is not let out");
    }
}
