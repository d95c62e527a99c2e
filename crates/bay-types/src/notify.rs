//! Webhooks that announce open approvals.
//!
//! | request                        | body → answer                     |
//! |--------------------------------|-----------------------------------|
//! | `GET /v1/notify`               | → a list of [`Webhook`]           |
//! | `POST /v1/notify`              | [`WebhookAdd`] → [`WebhookMade`]  |
//! | `DELETE /v1/notify/{id}`       | → [`Webhook`]                     |
//! | `POST /v1/notify/{id}/test`    | → [`Delivery`]                    |

use std::net::IpAddr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// The header with the time of sending and the signature: `t=SECONDS,v1=HEX`. The signature is an HMAC-SHA256 over
/// the time, a dot, and the body.
pub const SIGNATURE_HEADER: &str = "workbay-signature";
/// The header with the id of the message, which is the same for each retry.
pub const DELIVERY_HEADER: &str = "workbay-delivery";
/// Longest URL.
pub const MAX_URL_BYTES: usize = 2048;

/// `POST /v1/notify`
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WebhookAdd {
    pub url: String,
    /// Private or other special addresses that its name may resolve to.
    #[serde(default)]
    pub addresses: Vec<IpAddr>,
}

/// A webhook: a URL that gets a message about each open approval.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Webhook {
    pub id: String,
    pub url: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<IpAddr>,
    pub created_at: Timestamp,
    /// The last attempt to send.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<Delivery>,
    /// How many messages were not delivered.
    pub lost: u64,
}

/// A new webhook, with the key that signs its messages. The key is shown only here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WebhookMade {
    #[serde(flatten)]
    pub webhook: Webhook,
    pub secret: String,
}

/// The result of one attempt to send.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delivery {
    pub at: Timestamp,
    pub arrived: bool,
    /// The status of the answer, or why there was none.
    pub said: String,
}
