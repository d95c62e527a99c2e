//! Webhooks: messages about approvals to servers outside. No request waits for them. If a failure may pass, the
//! daemon repeats the message for a while. It counts the messages that it gives up.
//!
//! ```text
//!   approvals ── changed ──► follow ──► each webhook's task: a queue for each bay ──► sign, send, schedule again
//! ```
//! A bay cannot delay or displace the messages of others: see `delivery_queue`.
//!
//! No bay can add a webhook. Its name must lead to a public address, unless whoever added it named the address.
//! The daemon connects to the same address that it checked, and follows no redirects. So a name that later leads
//! to a private address reaches nothing there.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bay_types::CoreError;
use bay_types::approval::Approval;
use bay_types::notify::{Delivery, Webhook};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::Instant;
use zeroize::Zeroizing;

use crate::background::blocking;
use crate::channel::plain_text;
use crate::gateway_settings::GatewaySettings;
use crate::outgoing_http::Trouble;
use delivery_queue::{AboutApproval, DeliveryQueue};
use send::Target;

pub(crate) mod delivery_queue;
pub(crate) mod send;

/// The most deliveries to one webhook at the same time, each of another bay.
const MAX_UNDER_WAY: usize = 32;
/// Messages on their way to a webhook's task, which takes them at once, whatever its deliveries do.
const HANDED_OVER: usize = 64;

/// A webhook as it is stored, encrypted.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Kept {
    pub(crate) id: String,
    pub(crate) url: String,
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) created_at: Timestamp,
    pub(crate) secret: String,
}

/// A webhook in use.
pub(crate) struct Hook {
    pub(crate) kept: Kept,
    pub(crate) target: Target,
    pub(crate) last: Mutex<Option<Delivery>>,
    pub(crate) lost: AtomicU64,
}

/// A webhook with its task, which ends when the last sender is dropped.
#[derive(Clone)]
pub(crate) struct ActiveHook {
    pub(crate) hook: Arc<Hook>,
    pub(crate) to_task: mpsc::Sender<AboutApproval>,
}

/// A message to send.
#[derive(Debug, Clone)]
pub(crate) struct Message {
    id: String,
    body: Bytes,
}

/// All webhooks in use.
pub(crate) struct Notify {
    pub(crate) path: PathBuf,
    pub(crate) hooks: Mutex<Vec<ActiveHook>>,
    /// Held while webhooks are added or removed.
    pub(crate) edit: tokio::sync::Mutex<()>,
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
    pub(crate) fn view(&self) -> Webhook {
        Webhook {
            id: self.kept.id.clone(),
            url: self.kept.url.clone(),
            addresses: self.kept.addresses.clone(),
            created_at: self.kept.created_at,
            last: self.last.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            lost: self.lost.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn count_lost(&self, messages: u64) {
        self.lost.fetch_add(messages, Ordering::Relaxed);
    }

    /// Makes one attempt and records its result.
    pub(crate) async fn attempt(&self, settings: &GatewaySettings, message: &Message) -> Result<(), Trouble> {
        let sent = send::post(settings, &self.target, &self.kept.secret, message).await;
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

    pub(crate) fn hooks(&self) -> MutexGuard<'_, Vec<ActiveHook>> {
        self.hooks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn list(&self) -> Vec<Webhook> {
        self.hooks().iter().map(|active| active.hook.view()).collect()
    }
}

/// Takes up the stored webhooks. A daemon without its key sends no messages, and logs that.
pub(crate) async fn restore(notify: &Notify, settings: &Arc<GatewaySettings>) {
    let (path, reading) = (notify.path.clone(), Arc::clone(settings));
    let found = blocking(move || reading.keyring().read(&path)).await;
    let kept: Vec<Kept> = match found {
        Ok(None) => return,
        // The parser's message could contain a part of an address.
        Ok(Some(text)) => serde_json::from_slice(&text).unwrap_or_else(|_| {
            tracing::error!("the stored webhooks are not of this release; no messages are sent");
            Vec::new()
        }),
        Err(error) => {
            tracing::error!(message = %error.message, "the stored webhooks cannot be used; no messages are sent");
            return;
        }
    };
    for kept in kept {
        match Target::parse(&kept.url) {
            Ok(target) => begin(notify, settings, kept, target),
            Err(why) => tracing::error!(id = %kept.id, why, "a webhook is not used"),
        }
    }
}

/// Starts to send messages to a webhook.
pub(crate) fn begin(notify: &Notify, settings: &Arc<GatewaySettings>, kept: Kept, mut target: Target) {
    target.addresses.clone_from(&kept.addresses);
    let (to_task, messages) = mpsc::channel(HANDED_OVER);
    let hook = Arc::new(Hook { kept, target, last: Mutex::default(), lost: AtomicU64::new(0) });
    tokio::spawn(deliver(Arc::clone(settings), Arc::clone(&hook), messages));
    notify.hooks().push(ActiveHook { hook, to_task });
}

/// Sends the queued messages, each until it arrives or is given up. Ends when the webhook is removed, and then
/// aborts deliveries that are under way.
async fn deliver(
    settings: Arc<GatewaySettings>,
    hook: Arc<Hook>,
    mut messages: mpsc::Receiver<AboutApproval>,
) {
    let mut queue = DeliveryQueue::default();
    let mut under_way = FuturesUnordered::new();
    loop {
        while under_way.len() < MAX_UNDER_WAY
            && let Some(about) = queue.take(Instant::now())
        {
            let (settings, hook) = (&settings, &hook);
            under_way.push(async move {
                let sent = hook.attempt(settings, &about.message).await;
                (about, sent)
            });
        }
        let due = queue.next_due().filter(|_| under_way.len() < MAX_UNDER_WAY);
        tokio::select! {
            about = messages.recv() => {
                let Some(about) = about else { return };
                let bay = about.bay;
                if !queue.add(about, Instant::now()) {
                    hook.count_lost(1);
                    tracing::warn!(id = %hook.kept.id, %bay, "a bay has too many messages for a webhook; one is lost");
                }
            }
            Some((about, sent)) = under_way.next() => match sent {
                Ok(()) => queue.arrived(&about),
                Err(trouble) => {
                    if !queue.failed(&about, trouble.passes(), Instant::now()) {
                        hook.count_lost(1);
                        tracing::warn!(id = %hook.kept.id, bay = %about.bay, %trouble, "a message to a webhook was given up");
                    }
                }
            },
            () = tokio::time::sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {}
        }
    }
}

pub(crate) fn message(event: &str, approval: Option<&Approval>) -> Message {
    let id = bay_types::ApprovalId::generate().to_string().replacen("ask_", "msg_", 1);
    let body = json!({ "event": event, "id": id, "at": Timestamp::now(), "approval": approval });
    Message { id, body: body.to_string().into() }
}

/// Stores the webhooks, encrypted.
pub(crate) async fn save(
    notify: &Notify,
    settings: &Arc<GatewaySettings>,
    kept: Vec<Kept>,
) -> Result<(), CoreError> {
    let (path, settings) = (notify.path.clone(), Arc::clone(settings));
    blocking(move || {
        let text = Zeroizing::new(serde_json::to_vec(&kept).map_err(|error| CoreError::internal(&error))?);
        settings.keyring().write(&path, &text)
    })
    .await
}

pub(crate) fn all_kept(notify: &Notify) -> Vec<Kept> {
    notify.hooks().iter().map(|active| active.hook.kept.clone()).collect()
}
