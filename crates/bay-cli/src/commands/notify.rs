use std::net::IpAddr;

use bay_types::notify::{Delivery, Webhook, WebhookAdd, WebhookMade};
use clap::{Args, Subcommand};

use crate::failure::Outcome;
use crate::global_options::GlobalOptions;
use crate::output::{data, json, talk};
use bay_text::escape::visible;
use bay_text::percent::segment;

/// Notify somebody of pending approvals.
///
/// A webhook gets a signed message for each approval and each answer. If a message does not arrive, it is sent again
/// for up to 15 minutes, and then it is lost. Approvals work without the notification.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  bay notify add webhook https://hooks.example.com/workbay\n  bay notify test hook-1f00ba12\n  bay notify ls\n  bay notify rm hook-1f00ba12"
)]
pub(crate) struct Notify {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Add a destination for notifications.
    Add {
        #[command(subcommand)]
        kind: Kind,
    },
    /// List the destinations.
    Ls,
    /// Remove a destination.
    Rm {
        /// Id of the destination, from `bay notify ls`.
        #[arg(value_name = "ID")]
        id: String,
    },
    /// Send a test message, and show the receiver's HTTP response.
    Test {
        /// Id of the destination, from `bay notify ls`.
        #[arg(value_name = "ID")]
        id: String,
    },
}

#[derive(Debug, Subcommand)]
enum Kind {
    /// Add a webhook: a URL to which the daemon posts messages. The signing key is shown once.
    Webhook {
        /// The URL to post to.
        url: String,
        /// A private address that the URL's host may resolve to; repeatable.
        #[arg(long = "address", value_name = "ADDRESS")]
        addresses: Vec<IpAddr>,
    },
}

fn path(id: &str, rest: &str) -> String {
    format!("/v1/notify/{}{rest}", segment(id))
}

fn line(hook: &Webhook) -> String {
    let last = hook.last.as_ref().map_or_else(
        || "nothing sent yet".to_owned(),
        |last| format!("{}: {}", if last.arrived { "arrived" } else { "failed" }, visible(&last.said)),
    );
    let lost = if hook.lost == 0 { String::new() } else { format!(", {} not delivered", hook.lost) };
    format!("{}  {}  ({last}{lost})", visible(&hook.id), visible(&hook.url))
}

impl Notify {
    pub(crate) async fn run(self, global: &GlobalOptions) -> Outcome {
        let mut client = global.client();
        match self.verb {
            Verb::Add { kind: Kind::Webhook { url, addresses } } => {
                let made: WebhookMade = client.post("/v1/notify", &WebhookAdd { url, addresses }).await?;
                if global.json {
                    json(&made)?;
                } else {
                    data(&line(&made.webhook))?;
                    data(&format!("messages are signed with {}", visible(&made.secret)))?;
                    talk("this key is shown only once: give it to the program that checks the signatures");
                }
            }
            Verb::Ls => {
                let all: Vec<Webhook> = client.get("/v1/notify").await?;
                if global.json {
                    json(&all)?;
                } else if all.is_empty() {
                    talk("no destinations: `bay notify add webhook URL` adds one");
                } else {
                    all.iter().try_for_each(|hook| data(&line(hook)))?;
                }
            }
            Verb::Rm { id } => {
                let gone: Webhook = client.delete(&path(&id, "")).await?;
                if global.json {
                    json(&gone)?;
                } else {
                    data(&format!("{} is removed", visible(&gone.id)))?;
                }
            }
            Verb::Test { id } => {
                let sent: Delivery = client.post(&path(&id, "/test"), &()).await?;
                let arrived = sent.arrived;
                if global.json {
                    json(&sent)?;
                } else {
                    data(&format!(
                        "{}: {}",
                        if arrived { "arrived" } else { "failed" },
                        visible(&sent.said)
                    ))?;
                }
                return Ok(u8::from(!arrived));
            }
        }
        Ok(0)
    }
}
