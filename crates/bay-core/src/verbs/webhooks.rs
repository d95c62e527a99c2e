//! Webhooks that are notified of approvals.

use std::sync::{Arc, PoisonError};

use bay_store::Draft;
use bay_text::hex;
use bay_types::event::daemon::{NotifyAdded, NotifyRemoved};
use bay_types::notify::{Delivery, MAX_URL_BYTES, Webhook, WebhookAdd, WebhookMade};
use bay_types::principal::Principal;
use bay_types::{Action, CoreError, ErrorCode, Hint};
use jiff::Timestamp;
use tokio::sync::broadcast::error::RecvError;
use zeroize::Zeroizing;

use crate::authorize::Verb;
use crate::background::to_the_end;
use crate::channel::plain_text;
use crate::daemon::Daemon;
use crate::notify::delivery_queue::AboutApproval;
use crate::notify::send::Target;
use crate::notify::{ActiveHook, Hook, Kept, all_kept, begin, message, save};

/// The bytes of a secret.
const SECRET_BYTES: usize = 32;
/// The most webhooks.
const MAX_WEBHOOKS: usize = 16;

/// The webhooks that are notified of approvals.
pub fn list(daemon: &Daemon, who: &Principal) -> Result<Vec<Webhook>, CoreError> {
    daemon.permit(who, Verb::WebhookList)?;
    Ok(daemon.notify.list())
}

/// Adds a webhook. The answer has the secret that its messages are signed with.
pub async fn add(
    daemon: &Arc<Daemon>,
    who: &Principal,
    wanted: WebhookAdd,
) -> Result<WebhookMade, CoreError> {
    daemon.permit(who, Verb::WebhookAdd)?;
    to_the_end(add_webhook(Arc::clone(daemon), wanted, *who)).await
}

/// Deletes a webhook; messages that wait for it are dropped.
pub async fn delete(daemon: &Arc<Daemon>, who: &Principal, id: String) -> Result<Webhook, CoreError> {
    daemon.permit(who, Verb::WebhookDelete)?;
    to_the_end(remove_webhook(Arc::clone(daemon), id, *who)).await
}

/// Sends a test message to a webhook, and reports the result.
pub async fn test(daemon: &Daemon, who: &Principal, id: &str) -> Result<Delivery, CoreError> {
    daemon.permit(who, Verb::WebhookTest)?;
    send_test(daemon, id).await
}

async fn add_webhook(
    daemon: Arc<Daemon>,
    wanted: WebhookAdd,
    caller: Principal,
) -> Result<WebhookMade, CoreError> {
    let invalid = |why: String| CoreError::new(ErrorCode::InvalidInput, why, "give https://HOST/PATH");
    if wanted.url.len() > MAX_URL_BYTES {
        return Err(invalid(format!("the URL is longer than {MAX_URL_BYTES} bytes")));
    }
    let mut target = Target::parse(&wanted.url).map_err(invalid)?;
    target.addresses.clone_from(&wanted.addresses);
    let _edit = daemon.notify.edit.lock().await;
    let mut kept = all_kept(&daemon.notify);
    if kept.len() >= MAX_WEBHOOKS {
        return Err(CoreError::new(
            ErrorCode::NotEnough,
            format!("there are already {MAX_WEBHOOKS} webhooks, the most allowed"),
            Hint::new("{} removes one", [Action::RemoveWebhook]),
        ));
    }
    let mut random = Zeroizing::new([0; SECRET_BYTES]);
    rustix::rand::getrandom(&mut random[..], rustix::rand::GetRandomFlags::empty())
        .map_err(|error| CoreError::internal(&error))?;
    let secret: String = hex::encode(random);
    let new = Kept {
        id: format!("hook-{}", bay_types::ApprovalId::generate().short()),
        url: wanted.url,
        addresses: wanted.addresses,
        created_at: Timestamp::now(),
        secret: secret.clone(),
    };
    let event = Draft::of(NotifyAdded { id: new.id.clone(), url: new.url.clone(), by: caller.by() });
    daemon.store.event_append(None, &event).await.map_err(|e| e.to_api())?;
    kept.push(new.clone());
    save(&daemon.notify, &daemon.egress, kept).await?;
    begin(&daemon.notify, &daemon.egress, new.clone(), target);
    find(&daemon, &new.id).map(|hook| WebhookMade { webhook: hook.view(), secret })
}

fn find(daemon: &Daemon, id: &str) -> Result<Arc<Hook>, CoreError> {
    let hooks = daemon.notify.hooks();
    let found = hooks.iter().map(|active| &active.hook).find(|hook| hook.kept.id == id);
    found.cloned().ok_or_else(|| {
        CoreError::new(
            ErrorCode::WebhookNotFound,
            format!("there is no webhook {:?}", plain_text(id)),
            Hint::new("{} lists them", [Action::ListWebhooks]),
        )
    })
}

async fn remove_webhook(daemon: Arc<Daemon>, id: String, caller: Principal) -> Result<Webhook, CoreError> {
    let _edit = daemon.notify.edit.lock().await;
    let gone = find(&daemon, &id)?;
    let event = Draft::of(NotifyRemoved { id: id.clone(), by: caller.by() });
    daemon.store.event_append(None, &event).await.map_err(|e| e.to_api())?;
    let mut kept = all_kept(&daemon.notify);
    kept.retain(|kept| kept.id != id);
    save(&daemon.notify, &daemon.egress, kept).await?;
    daemon.notify.hooks().retain(|active| active.hook.kept.id != id);
    Ok(gone.view())
}

/// Sends a test message once, and reports the result.
async fn send_test(daemon: &Daemon, id: &str) -> Result<Delivery, CoreError> {
    let hook = find(daemon, id)?;
    let _ = hook.attempt(&daemon.egress, &message("test", None)).await;
    let last = hook.last.lock().unwrap_or_else(PoisonError::into_inner).clone();
    last.ok_or_else(|| {
        CoreError::new(
            ErrorCode::Interrupted,
            "the result of the test message is not known",
            "test the webhook again",
        )
    })
}

/// Queues a message for each webhook when an approval changes. If too many change at once, some changes have no
/// message, and each webhook counts them as lost.
pub(crate) async fn follow(daemon: Arc<Daemon>) {
    let mut changed = daemon.approvals.watch();
    loop {
        let id = match changed.recv().await {
            Ok(id) => id,
            Err(RecvError::Lagged(missed)) => {
                daemon.notify.hooks().iter().for_each(|active| active.hook.count_lost(missed));
                tracing::warn!(missed, "webhooks missed changes of approvals: there were too many at once");
                continue;
            }
            Err(RecvError::Closed) => return,
        };
        let hooks = daemon.notify.hooks().clone();
        if hooks.is_empty() {
            continue;
        }
        let card = match super::approvals::find(&daemon, &id.to_string()).await {
            Ok(card) => card,
            Err(_) => continue,
        };
        let message = message(&format!("approval.{}", card.state), Some(&card));
        for ActiveHook { hook, to_task } in hooks {
            let about = AboutApproval { bay: card.bay, approval: card.id, message: message.clone() };
            if to_task.send(about).await.is_err() {
                hook.count_lost(1);
            }
        }
    }
}
