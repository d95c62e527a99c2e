//! Messages about questions to places outside. Nobody ever waits for them: what cannot be sent is tried again for a while,
//! then given up, and counted.
//!
//! ```text
//!   approvals ── changed ──► follow ──► each webhook's task: a queue for each bay ──► sign, send, schedule again
//! ```
//! A bay cannot delay or displace the messages of others: see `waiting`.
//!
//! Only an operator can name a place. Its name must lead to a public address unless the operator names the other; the
//! address that is checked is the address that is connected to, and redirects are answers like others: a name that leads
//! elsewhere later leads nowhere.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bay_store::Draft;
use bay_text::hex;
use bay_types::approval::Approval;
use bay_types::event::daemon::{NotifyAdded, NotifyRemoved};
use bay_types::notify::{Delivery, MAX_URL_BYTES, Webhook, WebhookAdd, WebhookMade};
use bay_types::principal::Principal;
use bay_types::{ApiError, ErrorCode};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc;
use tokio::time::Instant;
use zeroize::Zeroizing;

use crate::authorize::Verb;
use crate::channel::plain_text;
use crate::daemon::{Daemon, blocking, to_the_end};
use crate::outgoing_http::Trouble;
use send::Target;
use waiting::{AboutApproval, Waiting};

mod send;
mod waiting;

/// Most places that are told.
const MAX_WEBHOOKS: usize = 16;
/// Most deliveries to one place that are under way at the same time, each of another bay.
const MAX_UNDER_WAY: usize = 32;
/// Messages on their way to a webhook's task, which takes them at once whatever its deliveries do.
const HANDED_OVER: usize = 64;
/// Bytes of a secret.
const SECRET_BYTES: usize = 32;

/// A webhook as it is kept, encrypted.
#[derive(Clone, Serialize, Deserialize)]
struct Kept {
    id: String,
    url: String,
    addresses: Vec<IpAddr>,
    created_at: Timestamp,
    secret: String,
}

/// One that is told.
struct Hook {
    kept: Kept,
    target: Target,
    last: Mutex<Option<Delivery>>,
    lost: AtomicU64,
}

/// A webhook with its task, which ends when the last sender is dropped.
#[derive(Clone)]
struct ActiveHook {
    hook: Arc<Hook>,
    to_task: mpsc::Sender<AboutApproval>,
}

/// Something to tell.
#[derive(Debug, Clone)]
struct Message {
    id: String,
    body: Bytes,
}

/// Everybody who is told.
pub(crate) struct Notify {
    path: PathBuf,
    hooks: Mutex<Vec<ActiveHook>>,
    /// Held by whoever changes who is told.
    edit: tokio::sync::Mutex<()>,
}

impl std::fmt::Debug for Notify {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Notify").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        zeroize::Zeroize::zeroize(&mut self.secret);
    }
}

impl Hook {
    fn view(&self) -> Webhook {
        Webhook {
            id: self.kept.id.clone(),
            url: self.kept.url.clone(),
            addresses: self.kept.addresses.clone(),
            created_at: self.kept.created_at,
            last: self.last.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            lost: self.lost.load(Ordering::Relaxed),
        }
    }

    fn count_lost(&self, messages: u64) {
        self.lost.fetch_add(messages, Ordering::Relaxed);
    }

    /// One attempt, and what came of it.
    async fn attempt(&self, daemon: &Daemon, message: &Message) -> Result<(), Trouble> {
        let sent = send::post(daemon, &self.target, &self.kept.secret, message).await;
        let said = match &sent {
            Ok(status) => status.to_string(),
            Err(trouble) => plain_text(&trouble.to_string()),
        };
        let delivery = Delivery { at: Timestamp::now(), arrived: sent.is_ok(), said };
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(delivery);
        sent.map(drop)
    }
}

impl Notify {
    pub(crate) fn new(data_dir: &std::path::Path) -> Self {
        Self {
            path: data_dir.join("notify.age"),
            hooks: Mutex::default(),
            edit: tokio::sync::Mutex::default(),
        }
    }

    fn hooks(&self) -> MutexGuard<'_, Vec<ActiveHook>> {
        self.hooks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn list(&self) -> Vec<Webhook> {
        self.hooks().iter().map(|active| active.hook.view()).collect()
    }
}

/// Takes up who was told before. Without its key a daemon tells nobody, and says so.
pub(crate) async fn restore(daemon: &Arc<Daemon>) {
    let reading = Arc::clone(daemon);
    let found = blocking(move || reading.egress.keyring().read(&reading.notify.path)).await;
    let kept: Vec<Kept> = match found {
        Ok(None) => return,
        Ok(Some(text)) => serde_json::from_slice(&text).unwrap_or_default(),
        Err(error) => {
            tracing::error!(message = %error.message, "nobody outside is told of questions");
            return;
        }
    };
    for kept in kept {
        match Target::parse(&kept.url) {
            Ok(target) => begin(daemon, kept, target),
            Err(why) => tracing::error!(id = %kept.id, why, "a webhook is not used"),
        }
    }
}

/// Has one told from now on.
fn begin(daemon: &Arc<Daemon>, kept: Kept, mut target: Target) {
    target.addresses.clone_from(&kept.addresses);
    let (to_task, messages) = mpsc::channel(HANDED_OVER);
    let hook = Arc::new(Hook { kept, target, last: Mutex::default(), lost: AtomicU64::new(0) });
    tokio::spawn(deliver(Arc::clone(daemon), Arc::clone(&hook), messages));
    daemon.notify.hooks().push(ActiveHook { hook, to_task });
}

/// Sends what waits, each message until it arrives or is given up. Ends with its webhook, and cuts off what is under way.
async fn deliver(daemon: Arc<Daemon>, hook: Arc<Hook>, mut messages: mpsc::Receiver<AboutApproval>) {
    let mut waiting = Waiting::default();
    let mut under_way = FuturesUnordered::new();
    loop {
        while under_way.len() < MAX_UNDER_WAY
            && let Some(about) = waiting.take(Instant::now())
        {
            let (daemon, hook) = (&daemon, &hook);
            under_way.push(async move {
                let sent = hook.attempt(daemon, &about.message).await;
                (about, sent)
            });
        }
        let due = waiting.next_due().filter(|_| under_way.len() < MAX_UNDER_WAY);
        tokio::select! {
            about = messages.recv() => {
                let Some(about) = about else { return };
                let bay = about.bay;
                if !waiting.add(about, Instant::now()) {
                    hook.count_lost(1);
                    tracing::warn!(id = %hook.kept.id, %bay, "a bay has too many messages for a webhook: one is lost");
                }
            }
            Some((about, sent)) = under_way.next() => match sent {
                Ok(()) => waiting.arrived(&about),
                Err(trouble) => {
                    if !waiting.failed(&about, trouble.passes(), Instant::now()) {
                        hook.count_lost(1);
                        tracing::warn!(id = %hook.kept.id, bay = %about.bay, %trouble, "a webhook was not told");
                    }
                }
            },
            () = tokio::time::sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {}
        }
    }
}

fn message(event: &str, approval: Option<&Approval>) -> Message {
    let id = bay_types::ApprovalId::generate().to_string().replacen("ask_", "msg_", 1);
    let body = json!({ "event": event, "id": id, "at": Timestamp::now(), "approval": approval });
    Message { id, body: body.to_string().into() }
}

/// Tells every change of a question. Never returns.
pub(crate) async fn follow(daemon: Arc<Daemon>) {
    let mut changed = daemon.approvals.watch();
    loop {
        let id = match changed.recv().await {
            Ok(id) => id,
            Err(RecvError::Lagged(missed)) => {
                daemon.notify.hooks().iter().for_each(|active| active.hook.count_lost(missed));
                tracing::warn!(missed, "webhooks were not told of questions: there were too many at once");
                continue;
            }
            Err(RecvError::Closed) => return,
        };
        let hooks = daemon.notify.hooks().clone();
        if hooks.is_empty() {
            continue;
        }
        let card = match crate::service::approvals::find(&daemon, &id.to_string()).await {
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

async fn save(daemon: &Arc<Daemon>, kept: Vec<Kept>) -> Result<(), ApiError> {
    let daemon = Arc::clone(daemon);
    blocking(move || {
        let text = Zeroizing::new(serde_json::to_vec(&kept).map_err(|error| ApiError::internal(&error))?);
        daemon.egress.keyring().write(&daemon.notify.path, &text)
    })
    .await
}

fn all_kept(notify: &Notify) -> Vec<Kept> {
    notify.hooks().iter().map(|active| active.hook.kept.clone()).collect()
}

/// The webhooks that are notified of approvals.
pub(crate) fn list(daemon: &Daemon, who: &Principal) -> Result<Vec<Webhook>, ApiError> {
    daemon.permit(who, Verb::WebhookList)?;
    Ok(daemon.notify.list())
}

/// Adds a webhook. The answer has the secret that its messages are signed with.
pub(crate) async fn add(
    daemon: &Arc<Daemon>,
    who: &Principal,
    wanted: WebhookAdd,
) -> Result<WebhookMade, ApiError> {
    daemon.permit(who, Verb::WebhookAdd)?;
    to_the_end(add_webhook(Arc::clone(daemon), wanted, *who)).await
}

/// Deletes a webhook; messages that wait for it are dropped.
pub(crate) async fn delete(daemon: &Arc<Daemon>, who: &Principal, id: String) -> Result<Webhook, ApiError> {
    daemon.permit(who, Verb::WebhookDelete)?;
    to_the_end(remove_webhook(Arc::clone(daemon), id, *who)).await
}

/// Sends a test message to a webhook, and reports how it was taken.
pub(crate) async fn test(daemon: &Daemon, who: &Principal, id: &str) -> Result<Delivery, ApiError> {
    daemon.permit(who, Verb::WebhookTest)?;
    send_test(daemon, id).await
}

async fn add_webhook(
    daemon: Arc<Daemon>,
    wanted: WebhookAdd,
    caller: Principal,
) -> Result<WebhookMade, ApiError> {
    let invalid = |why: String| ApiError::new(ErrorCode::InvalidInput, why, "give https://HOST/PATH");
    if wanted.url.len() > MAX_URL_BYTES {
        return Err(invalid(format!("the URL is longer than {MAX_URL_BYTES} bytes")));
    }
    let mut target = Target::parse(&wanted.url).map_err(invalid)?;
    target.addresses.clone_from(&wanted.addresses);
    let _edit = daemon.notify.edit.lock().await;
    let mut kept = all_kept(&daemon.notify);
    if kept.len() >= MAX_WEBHOOKS {
        return Err(ApiError::new(
            ErrorCode::NotEnough,
            format!("{MAX_WEBHOOKS} webhooks are told already"),
            "`bay notify rm ID` takes one away",
        ));
    }
    let mut random = Zeroizing::new([0; SECRET_BYTES]);
    rustix::rand::getrandom(&mut random[..], rustix::rand::GetRandomFlags::empty())
        .map_err(|error| ApiError::internal(&error))?;
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
    save(&daemon, kept).await?;
    begin(&daemon, new.clone(), target);
    find(&daemon, &new.id).map(|hook| WebhookMade { webhook: hook.view(), secret })
}

fn find(daemon: &Daemon, id: &str) -> Result<Arc<Hook>, ApiError> {
    let hooks = daemon.notify.hooks();
    let found = hooks.iter().map(|active| &active.hook).find(|hook| hook.kept.id == id);
    found.cloned().ok_or_else(|| {
        ApiError::new(
            ErrorCode::WebhookNotFound,
            format!("there is no webhook {:?}", plain_text(id)),
            "`bay notify ls` lists them",
        )
    })
}

async fn remove_webhook(daemon: Arc<Daemon>, id: String, caller: Principal) -> Result<Webhook, ApiError> {
    let _edit = daemon.notify.edit.lock().await;
    let gone = find(&daemon, &id)?;
    let event = Draft::of(NotifyRemoved { id: id.clone(), by: caller.by() });
    daemon.store.event_append(None, &event).await.map_err(|e| e.to_api())?;
    let mut kept = all_kept(&daemon.notify);
    kept.retain(|kept| kept.id != id);
    save(&daemon, kept).await?;
    daemon.notify.hooks().retain(|active| active.hook.kept.id != id);
    Ok(gone.view())
}

/// Sends a message that means nothing, once, and tells what came of it.
async fn send_test(daemon: &Daemon, id: &str) -> Result<Delivery, ApiError> {
    let hook = find(daemon, id)?;
    let _ = hook.attempt(daemon, &message("test", None)).await;
    let last = hook.last.lock().unwrap_or_else(PoisonError::into_inner).clone();
    last.ok_or_else(|| ApiError::new(ErrorCode::Interrupted, "nothing was sent", "try again"))
}
