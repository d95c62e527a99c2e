//! Asking a person: joins a question that is open or answered already, or makes a new one.

use std::sync::Arc;
use std::time::Instant;

use bay_types::approval::Approval;
use bay_types::{CheckpointName, CoreError};

use super::{checkpoints, inside};
use crate::approvals::{Question, Verdict, Wish, card, is_of_bay};
use crate::background::to_the_end;
use crate::daemon::Daemon;
use crate::registry::BayHandle;

/// Asks, and waits for an answer until `hold_until`.
pub(crate) async fn ask(
    daemon: &Arc<Daemon>,
    handle: &Arc<BayHandle>,
    wish: &Wish,
    hold_until: Instant,
) -> Result<Verdict, CoreError> {
    let policy = daemon.policies.subscribe(handle.id);
    let question = match daemon.approvals.like(handle, wish) {
        Some(question) => question,
        None if daemon.approvals.is_closing() => return Ok(Verdict::Ending),
        None => {
            // To its end, even if the bay goes away meanwhile: a question that is on record must be in memory too.
            let (daemon, handle, wish) = (Arc::clone(daemon), Arc::clone(handle), wish.clone());
            match to_the_end(async move { make(&daemon, &handle, &wish).await }).await? {
                Ok(question) => question,
                Err(why) => return Ok(Verdict::Denied(why)),
            }
        }
    };
    Ok(daemon.approvals.wait(question, policy, hold_until).await)
}

/// Makes a new question. The inner error is why it is not asked.
async fn make(
    daemon: &Arc<Daemon>,
    handle: &Arc<BayHandle>,
    wish: &Wish,
) -> Result<Result<Arc<Question>, String>, CoreError> {
    let approvals = &daemon.approvals;
    let _turn = approvals.asking_turn(handle.id).await;
    // The same may have been asked meanwhile.
    if let Some(question) = approvals.like(handle, wish) {
        return Ok(Ok(question));
    }
    let differs = approvals.unlike(wish);
    let before = approvals.supersede(wish).await?;
    let of_bay = is_of_bay(&wish.card);
    if let Some(why) = approvals.no_room(handle.id, of_bay) {
        return Ok(Err(why));
    }
    if of_bay && let Err(error) = inside::has_record_room(daemon, handle).await {
        return Ok(Err(format!("it is to be asked about, and {}", error.message)));
    }
    let mut card = Approval { differs, ..wish.card.clone() };
    if wish.checkpoint && before.is_some() {
        // The same was asked before: a denial restores the bay as it was then.
        card.checkpoint = before;
    } else if wish.checkpoint {
        match checkpoint(daemon, handle, &card).await {
            Ok(name) => card.checkpoint = Some(name),
            Err(error) => card.warnings.push(format!("no checkpoint could be made: {}", error.message)),
        }
    }
    approvals.add(wish.key.clone(), card, wish.parts.clone()).await.map(Ok)
}

/// Keeps the files of the bay as they are before a person is asked.
async fn checkpoint(
    daemon: &Arc<Daemon>,
    handle: &Arc<BayHandle>,
    card: &Approval,
) -> Result<CheckpointName, CoreError> {
    let why = format!("before asking about {}", card::line(card));
    let made = checkpoints::create_before_asking(daemon, handle, why).await?;
    Ok(made.name)
}
