use std::collections::HashMap;
use std::time::{Duration, Instant};

use bay_client::{Client, broken};
use bay_types::approval::{Allow, Approval, ApprovalState, Asked, Deny, Reach};
use bay_types::{ApprovalId, ErrorCode};
use bytes::BytesMut;
use clap::{Args, Subcommand};
use http_body_util::BodyExt;
use jiff::{SignedDuration, Timestamp};

use crate::failure::{Failure, Outcome};
use crate::global_options::GlobalOptions;
use crate::output::{columns, data, json, json_line, talk};
use bay_text::escape::visible;
use bay_text::percent::segment;

use super::record::{AWAY_FOR, POLL};

mod card;

/// How long to wait before each check whether a command needs an approval.
const WAITING_AFTER: [Duration; 2] = [Duration::from_millis(700), Duration::from_secs(3)];

/// Most bytes of an unfinished line of a watch. A line is a card, with a whole command line and the beginning of a
/// body.
const MAX_LINE: usize = 8 << 20;

/// List and answer pending approvals.
///
/// If a policy says ask, or `bay exec` has --ask, the request or command waits until somebody answers. If nobody
/// answers in time, it is refused. Each approval has a card, which shows what would be sent or run, and who wants it.
/// An allow covers exactly what the card shows, unless you give --any-body. If the client has left meanwhile, its
/// next try finds the answer.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:\n  bay approvals                      pending approvals\n  bay approvals --watch              new cards as they appear\n  bay approvals show 1f00ba12        everything about one\n  bay approvals allow 1f00ba12       this one request, exactly as its card shows it\n  bay approvals allow 1f00ba12 --for 10m\n  bay approvals revoke 1f00ba12      revoke that allow early\n  bay approvals deny 1f00ba12 -m \"not to this host\" --rollback\n\nAn id may be shortened to the end of it, as lists show it."
)]
pub(crate) struct Approvals {
    /// Show the pending approvals, then new ones and answers as they come, until Ctrl-C.
    #[arg(long)]
    watch: bool,
    /// Include answered approvals.
    #[arg(long, conflicts_with = "watch")]
    all: bool,
    /// Only approvals of this bay.
    #[arg(long, value_name = "NAME", conflicts_with = "watch")]
    bay: Option<String>,
    #[command(subcommand)]
    verb: Option<Verb>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Show everything about an approval.
    Show {
        /// The id, or the end of it.
        id: String,
    },
    /// Allow exactly what the card shows, or with --any-body other bodies and headers too.
    Allow {
        /// The id, or the end of it.
        id: String,
        #[command(flatten)]
        reach: ReachArgs,
        /// Also allow other bodies and headers than those on the card.
        #[arg(long)]
        any_body: bool,
        /// Allow it only if its card has this digest.
        #[arg(long, value_name = "SHA256")]
        digest: Option<String>,
    },
    /// Revoke an unused or continuing allow, and cut the streams that it permitted.
    Revoke {
        /// The id, or the end of it.
        id: String,
    },
    /// Deny an approval.
    Deny {
        /// The id, or the end of it.
        id: String,
        /// The reason, which the refused client is shown.
        #[arg(short, long, value_name = "WHY")]
        message: Option<String>,
        /// Restore the files of the bay from the checkpoint on the card, if it has one.
        #[arg(long)]
        rollback: bool,
    },
}

#[derive(Debug, Args)]
#[group(multiple = false)]
struct ReachArgs {
    /// This one request [default].
    #[arg(long)]
    once: bool,
    /// The same request of the same exec, any number of times while the exec runs.
    #[arg(long)]
    exec: bool,
    /// The same request of any command in the bay, for a time such as 10m.
    #[arg(long = "for", value_name = "TIME", value_parser = time)]
    for_s: Option<u64>,
    /// Permanently, as a rule in the bay's policy. Rules do not depend on bodies, so this needs --any-body.
    #[arg(long)]
    save: bool,
}

fn time(text: &str) -> Result<u64, String> {
    let wrong = || "give a time such as 90s, 10m or 2h".to_owned();
    let time: SignedDuration = text.parse().map_err(|_| wrong())?;
    u64::try_from(time.as_secs()).ok().filter(|seconds| *seconds > 0).ok_or_else(wrong)
}

impl ReachArgs {
    fn reach(&self) -> Reach {
        match self {
            Self { exec: true, .. } => Reach::Exec,
            Self { for_s: Some(_), .. } => Reach::For,
            Self { save: true, .. } => Reach::Save,
            _ => Reach::Once,
        }
    }
}

fn path(id: &str, rest: &str) -> String {
    format!("/v1/approvals/{}{rest}", segment(id))
}

impl Approvals {
    pub(crate) async fn run(self, global: &GlobalOptions) -> Outcome {
        let mut client = global.client();
        match self.verb {
            None if self.watch => watch(global).await?,
            None => {
                let mut query = format!("/v1/approvals?all={}", self.all);
                if let Some(bay) = &self.bay {
                    query = format!("{query}&bay={}", segment(bay));
                }
                list(&client.get::<Vec<Approval>>(&query).await?, global.json)?;
            }
            Some(Verb::Show { id }) => {
                let card: Approval = client.get(&path(&id, "")).await?;
                if global.json {
                    json(&card)?;
                } else {
                    data(&card::whole(&card, Timestamp::now(), columns()))?;
                }
            }
            Some(Verb::Allow { id, reach, any_body, digest }) => {
                let seen: Approval = client.get(&path(&id, "")).await?;
                let digest = digest.or_else(|| Some(seen.digest.clone()));
                let allow = Allow { reach: reach.reach(), for_s: reach.for_s, digest, any_body };
                // Use the whole id: a new approval may meanwhile end in the same characters.
                let target = path(&seen.id.to_string(), "/allow");
                let card: Approval = client.post(&target, &allow).await?;
                print_card(&card, global.json)?;
                if !global.json {
                    talk(&card::allowed(&card, Timestamp::now()));
                }
            }
            Some(Verb::Revoke { id }) => {
                print_card(&client.post::<_, Approval>(&path(&id, "/revoke"), &()).await?, global.json)?;
            }
            Some(Verb::Deny { id, message, rollback }) => {
                let deny = Deny { why: message, rollback };
                let card: Approval = client.post(&path(&id, "/deny"), &deny).await?;
                print_card(&card, global.json)?;
                if let (true, false, Some(checkpoint)) = (rollback, global.json, card.checkpoint) {
                    talk(&format!(
                        "{} was restored to {checkpoint}; its previous state is its newest checkpoint: `bay checkpoints ls {0}`",
                        visible(&card.bay_name)
                    ));
                }
            }
        }
        Ok(0)
    }
}

fn print_card(card: &Approval, as_json: bool) -> Result<(), Failure> {
    if as_json { json(card) } else { data(&card::line(card, Timestamp::now(), columns())) }
}

fn list(cards: &[Approval], as_json: bool) -> Result<(), Failure> {
    if as_json {
        return json(&cards);
    }
    if cards.is_empty() {
        talk("no approval is pending");
    }
    let now = Timestamp::now();
    cards.iter().try_for_each(|card| data(&card::line(card, now, columns())))
}

/// Reports on standard error, at most once, that a command with these arguments needs an approval, if one is still open
/// after a moment.
pub(super) async fn tell_if_waiting(mut client: Client, bay: String, argv: Vec<String>) {
    for after in WAITING_AFTER {
        tokio::time::sleep(after).await;
        let Ok(open) = client.get::<Vec<Approval>>(&format!("/v1/approvals?bay={}", segment(&bay))).await
        else {
            return;
        };
        let mine = open.iter().find(|card| match &card.asked {
            Asked::Exec(asked) => asked.argv == argv && card.held > 0,
            Asked::Request(_) => false,
        });
        if let Some(card) = mine {
            let left = card.expires.duration_since(Timestamp::now()).as_mins().max(0) + 1;
            let id = card.id.short();
            return talk(&format!(
                "bay: waiting for an approval: `bay approvals allow {id}` runs it, `bay approvals deny {id}` refuses it; {left} min left"
            ));
        }
    }
}

/// Shows a card for each open approval and a line for each answer. Waits up to ten minutes for a daemon that restarts.
async fn watch(global: &GlobalOptions) -> Result<(), Failure> {
    let (mut seen, mut away_since) = (HashMap::new(), None::<Instant>);
    if !global.json {
        talk("waiting for approvals; Ctrl-C ends only this display");
    }
    loop {
        match watch_once(global, &mut seen, &mut away_since).await {
            Err(Failure::Api { error, .. })
                if matches!(error.code, ErrorCode::DaemonUnreachable | ErrorCode::Interrupted) => {}
            Err(failure) => return Err(failure),
            Ok(()) => {}
        }
        if away_since.is_none() && !global.json {
            talk("bay: the daemon is unreachable; waiting for it");
        }
        if away_since.get_or_insert_with(Instant::now).elapsed() > AWAY_FOR {
            return Err(broken("the daemon is unreachable").into());
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Shows cards and answers until the connection to the daemon ends. Shows nothing twice.
async fn watch_once(
    global: &GlobalOptions,
    seen: &mut HashMap<ApprovalId, ApprovalState>,
    away_since: &mut Option<Instant>,
) -> Result<(), Failure> {
    let mut body = global.client().download("/v1/approvals/watch").await?;
    *away_since = None;
    // Approvals that were answered while the connection was down.
    for id in seen.keys().copied().collect::<Vec<_>>() {
        let card: Approval = global.client().get(&path(&id.to_string(), "")).await?;
        if card.state != ApprovalState::Open {
            seen.remove(&id);
            show_watched(&card, global.json)?;
        }
    }
    let mut lines = BytesMut::new();
    while let Some(Ok(piece)) = body.frame().await {
        let Some(bytes) = piece.data_ref() else { continue };
        lines.extend_from_slice(bytes);
        while let Some(end) = lines.iter().position(|byte| *byte == b'\n') {
            let line = lines.split_to(end + 1);
            let card: Approval = serde_json::from_slice(&line)
                .map_err(|error| broken(&format!("a line cannot be parsed: {error}")))?;
            let known = seen.insert(card.id, card.state);
            if card.state != ApprovalState::Open {
                seen.remove(&card.id);
            }
            if known != Some(card.state) {
                show_watched(&card, global.json)?;
            }
        }
        if lines.len() > MAX_LINE {
            return Err(broken("a line of its answer is too long").into());
        }
    }
    Ok(())
}

fn show_watched(card: &Approval, as_json: bool) -> Result<(), Failure> {
    match (as_json, card.state) {
        (true, _) => json_line(card),
        (false, ApprovalState::Open) => data(&card::whole(card, Timestamp::now(), columns())),
        (false, _) => data(&card::line(card, Timestamp::now(), columns())),
    }
}
