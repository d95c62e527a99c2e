//! Asking a person: finds a question that covers the request, open or answered, or makes a new one.

use std::sync::Arc;
use std::time::Instant;

use bay_types::approval::Approval;
use bay_types::{CheckpointName, CoreError};

use super::{checkpoints, inside};
use crate::approvals::{NewQuestion, Question, Verdict, card, is_of_bay};
use crate::background::to_the_end;
use crate::daemon::Daemon;
use crate::registry::BayHandle;

/// Asks, and waits for an answer until `hold_until`.
pub(crate) async fn ask(
    daemon: &Arc<Daemon>,
    handle: &Arc<BayHandle>,
    new: &NewQuestion,
    hold_until: Instant,
) -> Result<Verdict, CoreError> {
    let policy = daemon.policies.subscribe(handle.id);
    let question = match daemon.approvals.like(handle, new) {
        Some(question) => question,
        None if daemon.approvals.is_closing() => return Ok(Verdict::Ending),
        None => {
            // This must complete even if the bay is removed meanwhile: a question that is on record must be in memory
            // too.
            let (daemon, handle, new) = (Arc::clone(daemon), Arc::clone(handle), new.clone());
            match to_the_end(async move { make(&daemon, &handle, &new).await }).await? {
                Ok(question) => question,
                Err(why) => return Ok(Verdict::Denied(why)),
            }
        }
    };
    Ok(daemon.approvals.wait(question, policy, hold_until).await)
}

/// Makes a new question, unless another request made it meanwhile. The inner error says why it must not be asked.
async fn make(
    daemon: &Arc<Daemon>,
    handle: &Arc<BayHandle>,
    new: &NewQuestion,
) -> Result<Result<Arc<Question>, String>, CoreError> {
    let approvals = &daemon.approvals;
    let _turn = approvals.asking_turn(handle.id).await;
    // Another request may have asked the same meanwhile.
    if let Some(question) = approvals.like(handle, new) {
        return Ok(Ok(question));
    }
    let differs = approvals.unlike(new);
    let of_bay = is_of_bay(&new.card);
    if let Some(why) = approvals.no_room(handle.id, of_bay) {
        return Ok(Err(why));
    }
    if of_bay && let Err(error) = inside::has_record_room(daemon, handle).await {
        return Ok(Err(format!("it is to be asked about, and {}", error.message)));
    }
    // Only now: if the new question is refused, the old one stays.
    let before = approvals.supersede(new).await?;
    let mut card = Approval { differs, ..new.card.clone() };
    if new.checkpoint && before.is_some() {
        // The same was asked before. A denial with a rollback restores the bay as it was then.
        card.checkpoint = before;
    } else if new.checkpoint {
        match checkpoint(daemon, handle, &card).await {
            Ok(name) => card.checkpoint = Some(name),
            Err(error) => card.warnings.push(format!("no checkpoint could be made: {}", error.message)),
        }
    }
    approvals.add(new.key.clone(), card, new.parts.clone()).await.map(Ok)
}

/// Makes a checkpoint of the bay's files before a person is asked.
async fn checkpoint(
    daemon: &Arc<Daemon>,
    handle: &Arc<BayHandle>,
    card: &Approval,
) -> Result<CheckpointName, CoreError> {
    let why = format!("before asking about {}", card::line(card));
    let made = checkpoints::create_before_asking(daemon, handle, why).await?;
    Ok(made.name)
}
