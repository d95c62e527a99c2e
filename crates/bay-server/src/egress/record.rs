//! What a gateway writes into the record. An act is on record before it is done; refusals in floods are added up.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use bay_gateway::{Ended, Ending, LookUp, RecordId};
use bay_store::{Draft, MAX_BODY, Store};
use bay_types::BayId;
use bay_types::egress::Who;
use bay_types::traffic::{DECIDED, ENDED, KINDS, LOOKED_UP, REFUSED, REPEATED};
use serde_json::{Value, json};

use super::floods::{Floods, Kind, Say, WINDOW};

/// What the record keeps of one bay's traffic: a million requests, unless they are long. It cannot stop the others by
/// filling the disk.
const QUOTA_MIB: u64 = 1024;
/// What an event takes in the record beside its body: the row, its index and its hashes.
const BESIDE: u64 = 256;
/// The id of something of which there is no event, because there is no room for one.
const NOWHERE: &str = "0";

/// The record of one bay's traffic.
#[derive(Debug)]
pub(super) struct Recorder {
    store: Store,
    bay: BayId,
    /// Bytes.
    written: AtomicU64,
    refusals: Mutex<Floods>,
    /// On their own: they cost a bay nothing, and must not hide what it was refused.
    look_ups: Mutex<Floods>,
}

/// Why something could not be put on record, and so must not be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NotRecorded(pub(super) String);

impl Recorder {
    pub(super) async fn open(store: Store, bay: BayId) -> Result<Self, bay_store::StoreError> {
        let written = AtomicU64::new(store.events_bytes(bay, KINDS, BESIDE).await?);
        let floods = || Mutex::new(Floods::new(Instant::now()));
        Ok(Self { store, bay, written, refusals: floods(), look_ups: floods() })
    }

    async fn append(&self, kind: &'static str, body: Value) -> Result<u64, NotRecorded> {
        let (body, length) = fit(body);
        if length > MAX_BODY {
            return Err(NotRecorded("what the record would say of it is too long".to_owned()));
        }
        let size = length as u64 + BESIDE;
        if self.written.fetch_add(size, Ordering::Relaxed) >= QUOTA_MIB << 20 {
            return Err(NotRecorded(format!(
                "this bay has used up the {QUOTA_MIB} MiB of traffic that the record keeps for one bay"
            )));
        }
        self.store
            .event_append(Some(self.bay), &Draft::new(kind, body))
            .await
            .map_err(|error| NotRecorded(format!("the record cannot be written: {}", error.to_api().message)))
    }

    /// Puts a decision on record that lets something leave.
    pub(super) async fn allowed(&self, body: Value) -> Result<RecordId, NotRecorded> {
        self.append(DECIDED, body).await.map(id)
    }

    /// Puts one on record that does not.
    pub(super) async fn denied(&self, what: &'static str, of: String, body: Value) -> RecordId {
        self.counted(&self.refusals, Kind { what, of }, DECIDED, body).await
    }

    /// Puts on record what never became a request.
    pub(super) async fn refused(&self, what: &'static str, of: String, body: Value) -> RecordId {
        self.counted(&self.refusals, Kind { what, of }, REFUSED, body).await
    }

    async fn counted(
        &self,
        floods: &Mutex<Floods>,
        kind: Kind,
        event: &'static str,
        body: Value,
    ) -> RecordId {
        let say = locked(floods).add(kind);
        match say {
            Say::Counted(last) => id(last),
            Say::Tell(kind) => match self.append(event, body).await {
                Ok(seq) => {
                    locked(floods).told(&kind, seq);
                    id(seq)
                }
                Err(NotRecorded(why)) => {
                    tracing::warn!(bay = %self.bay, %why, "a refusal is not on record");
                    RecordId(NOWHERE.to_owned())
                }
            },
        }
    }

    /// The same name asked for again and again is one line and a number.
    pub(super) async fn looked_up(
        &self,
        peer: SocketAddr,
        name: &str,
        kind: &str,
        answer: LookUp,
        who: Option<Who>,
    ) {
        let answered = match answer {
            LookUp::Answer => "answered",
            LookUp::NoSuchName => "no-such-name",
            LookUp::Refused => "refused",
        };
        let body = json!({ "name": name, "type": kind, "answer": answered, "port": peer.port(), "by": who });
        self.counted(&self.look_ups, Kind { what: answered, of: name.to_owned() }, LOOKED_UP, body).await;
    }

    /// Puts the end of what was let out on record. That of a refusal is the refusal.
    pub(super) async fn ended(&self, of: &RecordId, ended: &Ended) {
        if ended.ending == Ending::Refused {
            return;
        }
        let of: u64 = of.0.parse().unwrap_or(0);
        let mut body = json!(ended);
        if let Some(body) = body.as_object_mut() {
            body.insert("of".to_owned(), of.into());
            let ms = u64::try_from(ended.took.as_millis()).unwrap_or(u64::MAX);
            body.insert("ms".to_owned(), ms.into());
        }
        if let Err(NotRecorded(why)) = self.append(ENDED, body).await {
            tracing::warn!(bay = %self.bay, of, %why, "how a request ended is not on record");
        }
    }

    /// Writes the sums of floods down, now and then.
    pub(super) async fn tell_sums(&self) {
        loop {
            tokio::time::sleep(WINDOW).await;
            self.turn(false).await;
        }
    }

    pub(super) async fn turn(&self, at_once: bool) {
        let now = Instant::now();
        let mut sums = locked(&self.refusals).turn(now, at_once);
        sums.extend(locked(&self.look_ups).turn(now, at_once));
        for sum in sums {
            let body = json!({
                "what": sum.kind.what, "of": sum.kind.of, "like": sum.like, "count": sum.count, "within_s": WINDOW.as_secs(),
            });
            if let Err(NotRecorded(why)) = self.append(REPEATED, body).await {
                tracing::warn!(bay = %self.bay, count = sum.count, %why, "a flood of refusals is not on record");
            }
        }
    }
}

fn locked(floods: &Mutex<Floods>) -> std::sync::MutexGuard<'_, Floods> {
    floods.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A body that the record takes, and its length. What a bay can make as long as it likes is left out of it, least
/// important first; what was asked for and what was decided stays.
fn fit(mut body: Value) -> (Value, usize) {
    let mut length = body.to_string().len();
    for (what, instead) in [
        ("/explanation", Value::Null),
        ("/by/process/argv", json!([])),
        ("/by/process", Value::Null),
        ("/by", Value::Null),
    ] {
        if length <= MAX_BODY {
            break;
        }
        if let Some(long) = body.pointer_mut(what) {
            *long = instead;
            body["left_out"] = json!(what);
            length = body.to_string().len();
        }
    }
    (body, length)
}

fn id(seq: u64) -> RecordId {
    RecordId(seq.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
