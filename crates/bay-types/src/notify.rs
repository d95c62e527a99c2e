//! Who is told of questions that wait for a person.
//!
//! | request                        | body → answer                     |
//! |--------------------------------|-----------------------------------|
//! | `GET`, `POST /v1/notify`       | [`WebhookAdd`] → [`WebhookMade`]  |
//! | `DELETE /v1/notify/{id}`       | → [`Webhook`]                     |
//! | `POST /v1/notify/{id}/test`    | → [`Delivery`]                    |

use std::net::IpAddr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// The header with the time of sending and the signature: `t=SECONDS,v1=HEX`. Signed with HMAC-SHA256 is the time, a dot,
/// and the body.
pub const SIGNATURE_HEADER: &str = "workbay-signature";
/// The header with the number of the message: the same for each time it is sent.
pub const DELIVERY_HEADER: &str = "workbay-delivery";
/// Longest URL.
pub const MAX_URL_BYTES: usize = 2048;

/// `POST /v1/notify`
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WebhookAdd {
    pub url: String,
    /// Private or other special addresses to which its name may lead.
    #[serde(default)]
    pub addresses: Vec<IpAddr>,
}

/// A place that is told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Webhook {
    pub id: String,
    pub url: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<IpAddr>,
    pub created_at: Timestamp,
    /// The last time that something was sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<Delivery>,
    /// Messages that were given up.
    pub lost: u64,
}

/// A new one, with what its messages are signed with. It is shown this one time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WebhookMade {
    #[serde(flatten)]
    pub webhook: Webhook,
    pub secret: String,
}

/// What came of one attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delivery {
    pub at: Timestamp,
    pub arrived: bool,
    /// The status it was answered with, or why there was no answer.
    pub said: String,
}
