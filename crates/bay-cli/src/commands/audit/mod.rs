//! `bay audit`: the record of events, verified without trust in the daemon.

mod known_heads;
mod verify;

use std::path::PathBuf;

use bay_client::broken;
use bay_types::event::{LedgerHead, LedgerKey};
use clap::{Args, Subcommand};
use http_body_util::BodyExt;

use crate::failure::{Failure, Outcome};
use crate::global_options::GlobalOptions;
use crate::output::streams::Streams;
use crate::output::{data, json, written};

/// Check, here or on another machine, that no event in the record of actions and decisions was changed.
///
/// Every event is a leaf of a Merkle tree (RFC 6962), and the daemon signs its root. With the public key anyone can
/// check a bundle without the daemon. An older head, kept elsewhere, reveals a record that was truncated or forked
/// since.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  bay audit verify                              the live record\n  bay audit key > ledger.pub                    for the verifier\n  bay audit export > events.bundle\n  bay audit verify events.bundle --key ledger.pub    on any machine, without a daemon\n  bay audit proof 1041 > event-1041.proof       one event, and that it is in the record\n\ndocs/audit.md describes the proofs."
)]
pub(crate) struct Audit {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Verify(verify::Verify),
    /// Print events as a bundle: a signed head, the proof that the events belong to it, and the events as lines of
    /// JSON.
    Export {
        /// Number of the first event [default: 1].
        #[arg(long, value_name = "N")]
        from: Option<u64>,
        /// Number of the last event [default: the newest].
        #[arg(long, value_name = "M")]
        to: Option<u64>,
    },
    /// Print one event with the proof that it is in the record, as a bundle that `verify` checks.
    Proof {
        /// Number of the event, as `bay timeline` shows it.
        #[arg(value_name = "EVENT", required_unless_present = "since")]
        event: Option<u64>,
        /// Instead: a proof that the record still begins with this many events of an older head that you kept.
        #[arg(long, value_name = "EVENTS", conflicts_with = "event")]
        since: Option<u64>,
    },
    /// Print the newest signed head. If you keep it elsewhere, it reveals any later change to the events that it
    /// covers.
    Head,
    /// Print this daemon's public key, with which `bay audit verify --key` checks its heads and bundles on any machine.
    Key,
}

impl Audit {
    pub(crate) async fn run(self, global: &GlobalOptions) -> Outcome {
        match self.verb {
            Verb::Verify(verb) => verb.run(global).await,
            Verb::Export { from, to } => {
                let mut query = Vec::new();
                query.extend(from.map(|from| format!("from={from}")));
                query.extend(to.map(|to| format!("to={to}")));
                print(global, &format!("/v1/audit/export?{}", query.join("&"))).await
            }
            Verb::Proof { event: Some(event), .. } => {
                print(global, &format!("/v1/audit/proof/{event}")).await
            }
            Verb::Proof { since, .. } => {
                print(global, &format!("/v1/audit/consistency?old={}", since.unwrap_or(0))).await
            }
            Verb::Head => {
                let head: LedgerHead = global.client().get("/v1/audit/head").await?;
                if global.json {
                    json(&head)?;
                } else {
                    data(head.note.trim_end_matches('\n'))?;
                }
                Ok(0)
            }
            Verb::Key => {
                let key: LedgerKey = global.client().get("/v1/audit/key").await?;
                if global.json {
                    json(&key)?;
                } else {
                    data(&key.key)?;
                }
                Ok(0)
            }
        }
    }
}

/// Copies a bundle unchanged: it is JSON already, and a copy must have the same bytes. Only on a terminal, which stores
/// nothing, control sequences are shown as text.
async fn print(global: &GlobalOptions, path: &str) -> Outcome {
    let mut body = global.client().download(path).await?;
    let mut streams = Streams::new(false);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| broken(&format!("the bundle was cut short: {error}")))?;
        if let Some(bytes) = frame.data_ref() {
            written(streams.write(false, bytes))?;
        }
    }
    written(streams.end())?;
    Ok(0)
}

/// The whole content of a file that is no longer than `longest`.
fn read(path: &PathBuf, longest: usize) -> Result<String, Failure> {
    use std::io::Read;
    let doing = format!("reading {}", path.display());
    let failed = |error: std::io::Error| bay_client::local(&doing, &error);
    let file = std::fs::File::open(path).map_err(failed)?;
    let mut text = String::new();
    file.take(longest as u64 + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() > longest {
        return Err(bay_client::invalid(
            format!("{doing}: the file is longer than a valid one can be"),
            "check that this is the right file",
        )
        .into());
    }
    Ok(text)
}
