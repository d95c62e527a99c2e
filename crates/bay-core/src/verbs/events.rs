//! The record as it is, for clients that read all of it, and its verification by the daemon.

use bay_store::Verdict;
use bay_types::event::{Event, EventsVerified};
use bay_types::principal::Principal;
use bay_types::{BayId, CoreError};

use crate::authorize::Verb;
use crate::daemon::Daemon;

/// A page of the events after a number, oldest first, of one bay if the request names one.
pub async fn list(
    daemon: &Daemon,
    who: &Principal,
    since: u64,
    bay: Option<&str>,
) -> Result<Vec<Event>, CoreError> {
    daemon.permit(who, Verb::EventList)?;
    // A removed bay can be named only by its id.
    let bay = match bay {
        None => None,
        Some(given) => match given.parse::<BayId>() {
            Ok(id) => Some(id),
            Err(_) => Some(daemon.bays.find(given)?.id),
        },
    };
    daemon.store.events_list(since, bay).await.map_err(|e| e.to_api())
}

/// Checks every hash of the record, and that the record continues the head that was signed last.
pub async fn verify(daemon: &Daemon, who: &Principal) -> Result<EventsVerified, CoreError> {
    daemon.permit(who, Verb::EventVerify)?;
    let verdict = daemon.store.events_verify().await.map_err(|e| e.to_api())?;
    Ok(match verdict {
        Verdict::Intact { events, root } => match daemon.ledger.sound().await {
            Ok(()) => {
                let head_hash = Some(root.to_string());
                EventsVerified { ok: true, events, head_hash, first_bad: None, why: None }
            }
            Err(error) => EventsVerified {
                ok: false,
                events: 0,
                head_hash: None,
                first_bad: None,
                why: Some(error.message),
            },
        },
        Verdict::Broken { seq, why } => EventsVerified {
            ok: false,
            events: seq.saturating_sub(1),
            head_hash: None,
            first_bad: Some(seq),
            why: Some(why),
        },
    })
}
