//! What a gateway writes into the record. A request is on record before it is let out. Floods of refusals are
//! summed up, and a refusal is answered even if it cannot be recorded.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use bay_gateway::{Ended, Ending, LookUp, RecordId};
use bay_store::{Store, StoreError};
use bay_types::egress::Who;
use bay_types::event::egress::{
    self, EgressDecided, EgressEnded, EgressLookedUp, EgressRefused, EgressRepeated, LookUpAnswer, Outcome,
    Refusal,
};
use bay_types::event::{EgressEvent, EventBody};
use bay_types::{ApprovalId, BayId};
use tokio::sync::oneshot;

use super::floods::{Floods, Kind, Say, WINDOW};
use super::pace::Pace;
use super::record_quota::Room;
use super::spans::RequestSpans;
use crate::registry::BayHandle;
use crate::telemetry::{Counters, Telemetry};

/// The id of something that has no event.
const NOWHERE: &str = "0";

/// The record of one bay's traffic.
#[derive(Debug)]
pub(super) struct Recorder {
    store: Store,
    bay: BayId,
    room: Room,
    floods: Mutex<Floods>,
    /// Separate from refusals: look-ups are cheap for a bay, and must not hide refusals.
    look_ups: Mutex<Floods>,
    /// Decisions that let something out which has not ended.
    under_way: Mutex<HashSet<u64>>,
    counters: Arc<Counters>,
    spans: RequestSpans,
    pace: Mutex<Pace>,
}

/// Why something could not be recorded. A request must not be let out then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NotRecorded(pub(super) String);

impl Recorder {
    pub(super) async fn open(
        store: Store,
        telemetry: &Arc<Telemetry>,
        handle: &BayHandle,
    ) -> Result<Self, StoreError> {
        let room = Room::open(&store, handle.id).await?;
        let now = Instant::now();
        let floods = || Mutex::new(Floods::new(now));
        let spans = RequestSpans {
            store: store.clone(),
            telemetry: Arc::clone(telemetry),
            bay: handle.id,
            name: handle.name.clone(),
        };
        Ok(Self {
            store,
            bay: handle.id,
            room,
            floods: floods(),
            look_ups: floods(),
            under_way: Mutex::default(),
            counters: Arc::clone(&telemetry.counters),
            spans,
            pace: Mutex::new(Pace::new(now)),
        })
    }

    pub(super) fn under_way(&self) -> HashSet<u64> {
        self.not_over().clone()
    }

    fn not_over(&self) -> std::sync::MutexGuard<'_, HashSet<u64>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn append(&self, event: impl Into<EventBody>) -> Result<u64, NotRecorded> {
        let draft = self.room.take(event)?;
        self.store.event_append(Some(self.bay), &draft).await.map_err(|error| unwritten(&error))
    }

    /// Records a decision that lets something out. If it uses a key of the operator, the event is on the disk when
    /// this returns.
    pub(super) async fn allowed(
        self: &Arc<Self>,
        event: EgressDecided,
        with_key: bool,
    ) -> Result<RecordId, NotRecorded> {
        let this = Arc::clone(self);
        let begun = to_its_end(async move {
            let seq = this.append(event).await?;
            let begun = Begun::new(&this, seq);
            if with_key {
                this.store.event_durable(seq).await.map_err(|error| unwritten(&error))?;
            }
            Ok(begun)
        });
        begun.await.map(Begun::claim)
    }

    /// Records a decision that uses an allow; the event is on the disk when this returns. Also returns whether that
    /// was the last use. `None` if the allow is used up already.
    pub(super) async fn allowed_by(
        self: &Arc<Self>,
        approval: ApprovalId,
        event: EgressDecided,
    ) -> Result<Option<(RecordId, bool)>, NotRecorded> {
        let this = Arc::clone(self);
        let begun = to_its_end(async move {
            let draft = this.room.take(event)?;
            let used = this.store.approval_use(approval, this.bay, &draft).await;
            let Some((seq, used_up)) = used.map_err(|error| unwritten(&error))? else { return Ok(None) };
            let begun = Begun::new(&this, seq);
            this.store.event_durable(seq).await.map_err(|error| unwritten(&error))?;
            Ok(Some((begun, used_up)))
        });
        Ok(begun.await?.map(|(begun, used_up)| (begun.claim(), used_up)))
    }

    /// Waits until a decision is on the disk.
    pub(super) async fn durable(&self, id: &RecordId) -> Result<(), NotRecorded> {
        let seq = id.0.parse().map_err(|_| NotRecorded("it is on no record".to_owned()))?;
        self.store.event_durable(seq).await.map_err(|error| unwritten(&error))
    }

    /// Records a decision that lets nothing out. Its content is computed only if it gets its own event.
    pub(super) async fn denied(
        &self,
        what: Outcome,
        of: String,
        event: impl Future<Output = EgressDecided>,
    ) -> RecordId {
        self.wait_turn().await;
        let what = what.as_str();
        self.counters.egress.decided(what);
        self.counted(&self.floods, Kind { what, of }, async { EgressEvent::Decided(event.await) }).await
    }

    /// Records a refusal other than a decision on a request.
    pub(super) async fn refused(
        &self,
        what: Refusal,
        of: String,
        event: impl Future<Output = EgressRefused>,
    ) -> RecordId {
        self.wait_turn().await;
        let what = what.as_str();
        self.counters.egress.refused(what);
        self.counted(&self.floods, Kind { what, of }, async { EgressEvent::Refused(event.await) }).await
    }

    /// Makes the refusals of a flood wait.
    async fn wait_turn(&self) {
        let wait = self.pace.lock().unwrap_or_else(PoisonError::into_inner).wait(Instant::now());
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
    }

    async fn counted(
        &self,
        floods: &Mutex<Floods>,
        kind: Kind,
        event: impl Future<Output = EgressEvent>,
    ) -> RecordId {
        let say = locked(floods).add(kind);
        match say {
            Say::Counted(last) => id(last),
            Say::Record(kind) => {
                let event = event.await;
                match self.append(event.clone()).await {
                    Ok(seq) => {
                        locked(floods).recorded(&kind, seq);
                        if !matches!(event, EgressEvent::LookedUp(_)) {
                            self.spans.refused(seq, &event).await;
                        }
                        id(seq)
                    }
                    Err(NotRecorded(why)) => {
                        tracing::warn!(bay = %self.bay, %why, "a refusal could not be recorded");
                        RecordId(NOWHERE.to_owned())
                    }
                }
            }
        }
    }

    /// Records a look-up. Many look-ups of the same name are a few events and a sum.
    pub(super) async fn looked_up(
        &self,
        peer: SocketAddr,
        name: &str,
        kind: &str,
        answer: LookUp,
        who: Option<Who>,
    ) {
        let answered = match answer {
            LookUp::Answer => LookUpAnswer::Answered,
            LookUp::NoSuchName => LookUpAnswer::NoSuchName,
            LookUp::Refused => LookUpAnswer::Refused,
            LookUp::TooManyNames => LookUpAnswer::TooManyNames,
        };
        let event = async {
            EgressEvent::LookedUp(EgressLookedUp {
                name: name.to_owned(),
                r#type: kind.to_owned(),
                answer: answered.into(),
                port: peer.port(),
                by: who,
            })
        };
        // All names beyond the limit are one kind: in each window, one gets an event, and the others are counted.
        let of = if answer == LookUp::TooManyNames { String::new() } else { name.to_owned() };
        self.counted(&self.look_ups, Kind { what: answered.as_str(), of }, event).await;
    }

    /// Records the end of something that was let out. A refusal has no end.
    pub(super) async fn ended(&self, of: &RecordId, ended: &Ended) {
        let of: u64 = of.0.parse().unwrap_or(0);
        let Some(event) = end(of, ended) else { return };
        self.counters.egress.ended(ended.sent, ended.received, event.failure.is_some());
        let written = async {
            let draft = self.room.take(event)?;
            self.store.event_append_later(Some(self.bay), &draft).await.map_err(|error| unwritten(&error))
        };
        if let Err(NotRecorded(why)) = written.await {
            tracing::warn!(bay = %self.bay, of, %why, "the end of a request could not be recorded");
        }
        // After its event: a reader that finds the decision neither here nor with an end knows that its end was never
        // recorded.
        self.not_over().remove(&of);
        self.spans.ended(of, ended).await;
    }

    /// Records the sums of floods, at the end of each window.
    pub(super) async fn record_sums(&self) {
        loop {
            tokio::time::sleep(WINDOW).await;
            self.turn(false).await;
        }
    }

    pub(super) async fn turn(&self, at_once: bool) {
        let mut sums = locked(&self.floods).turn(Instant::now(), at_once);
        sums.extend(locked(&self.look_ups).turn(Instant::now(), at_once));
        for sum in sums {
            let (distinct, sample) = match sum.names {
                Some(names) => (Some(names.distinct as u64), names.sample),
                None => (None, Vec::new()),
            };
            let event = EgressRepeated {
                what: sum.kind.what.to_owned(),
                of: sum.kind.of,
                like: sum.like,
                count: sum.count.into(),
                within_s: WINDOW.as_secs().into(),
                distinct,
                sample,
            };
            if let Err(NotRecorded(why)) = self.append(event).await {
                tracing::warn!(bay = %self.bay, count = sum.count, %why, "a flood of refusals could not be recorded");
            }
        }
    }
}

fn locked(floods: &Mutex<Floods>) -> std::sync::MutexGuard<'_, Floods> {
    floods.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The event of an end. A refusal has none: its decision is the event.
fn end(of: u64, ended: &Ended) -> Option<EgressEnded> {
    let (ending, status, failure) = match ended.ending {
        Ending::Refused => return None,
        Ending::Answered { status } => (egress::Ending::Answered, Some(status), None),
        Ending::Broken { status, failure } => (egress::Ending::Broken, Some(status), Some(failure)),
        Ending::Failed { failure } => (egress::Ending::Failed, None, Some(failure)),
        Ending::Closed => (egress::Ending::Closed, None, None),
        Ending::Abandoned => (egress::Ending::Abandoned, None, None),
        Ending::Revoked => (egress::Ending::Revoked, None, None),
    };
    Some(EgressEnded {
        of: of.into(),
        ending: ending.into(),
        status,
        failure: failure.map(|failure| failure.as_str().to_owned()),
        sent: ended.sent.into(),
        received: ended.received.into(),
        ms: u64::try_from(ended.took.as_millis()).unwrap_or(u64::MAX).into(),
    })
}

/// Runs work to its end even if the request goes away that it is done for: when a client hangs up, everything that
/// waits for it is dropped.
async fn to_its_end<T: Send + 'static>(
    work: impl Future<Output = Result<T, NotRecorded>> + Send + 'static,
) -> Result<T, NotRecorded> {
    let (done, result) = oneshot::channel();
    tokio::spawn(async move {
        // If nobody takes the result, it is dropped, and its destructor handles that.
        let _ = done.send(work.await);
    });
    result.await.unwrap_or_else(|_| Err(NotRecorded("the daemon is about to end".to_owned())))
}

/// A recorded decision by which something may leave, until a caller takes it over. If none does, nothing was sent,
/// and the record says so: the client left before there was an answer.
struct Begun {
    recorder: Arc<Recorder>,
    seq: Option<u64>,
    at: Instant,
}

impl Begun {
    fn new(recorder: &Arc<Recorder>, seq: u64) -> Self {
        recorder.counters.egress.decided("allow");
        recorder.not_over().insert(seq);
        Self { recorder: Arc::clone(recorder), seq: Some(seq), at: Instant::now() }
    }

    /// From now on, the caller must record the end.
    fn claim(mut self) -> RecordId {
        self.seq.take().map_or_else(|| RecordId(NOWHERE.to_owned()), id)
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        let Some(seq) = self.seq.take() else { return };
        let recorder = Arc::clone(&self.recorder);
        let ended = Ended { ending: Ending::Abandoned, sent: 0, received: 0, took: self.at.elapsed() };
        // Without a runtime the daemon has ended. The next one finds the decision without an end.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { recorder.ended(&id(seq), &ended).await });
        }
    }
}

fn unwritten(error: &StoreError) -> NotRecorded {
    NotRecorded(format!("the record cannot be written: {}", error.to_api().message))
}

fn id(seq: u64) -> RecordId {
    RecordId(seq.to_string())
}
