//! The verbs on approvals, for the people who answer them.

use std::sync::Arc;

use bay_policy::write::{Base, file_with_rule};
use bay_policy::{CanonicalRequest, Layer, Outcome, Places, Preset, Rule, decide, parse};
use bay_store::{ApprovalRow, Lasting, Scope};
use bay_types::approval::{
    Allow, Answer, Approval, ApprovalState, Asked, Deny, MAX_ALLOW_S, MAX_WHY_BYTES, Reach,
};
use bay_types::checkpoint::Restore;
use bay_types::policy::{GrantAdd, MAX_GRANTS, PolicySet};
use bay_types::principal::Principal;
use bay_types::{Action, ApprovalId, CoreError, ErrorCode, Hint};
use bytes::Bytes;
use jiff::Timestamp;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc;

use super::bays::not_deleting;
use super::policy::PreparedGrant;
use super::{checkpoints, ends_id, is_id_end, policy};
use crate::approvals::{Question, Settling, Status, is_exec};
use crate::authorize::Verb;
use crate::background::to_the_end;
use crate::byte_stream::{self, ByteStream};
use crate::channel::plain_text;
use crate::daemon::Daemon;
use crate::progress::IN_FLIGHT;

/// Open approvals, or all stored ones, oldest first. `bay` selects those of one bay, also of a removed one.
pub async fn list(
    daemon: &Daemon,
    who: &Principal,
    all: bool,
    bay: Option<&str>,
) -> Result<Vec<Approval>, CoreError> {
    daemon.permit(who, Verb::ApprovalList)?;
    cards(daemon, all, bay).await
}

pub async fn show(daemon: &Daemon, who: &Principal, given: &str) -> Result<Approval, CoreError> {
    daemon.permit(who, Verb::ApprovalShow)?;
    find(daemon, given).await
}

/// Every open approval, and each approval when it changes, as lines of JSON. A reader that is too slow misses
/// changes, and then gets all open approvals again.
pub fn watch(daemon: &Arc<Daemon>, who: &Principal) -> Result<ByteStream, CoreError> {
    daemon.permit(who, Verb::ApprovalWatch)?;
    Ok(byte_stream::received_bytes(changes(Arc::clone(daemon))))
}

pub async fn allow(
    daemon: &Arc<Daemon>,
    who: &Principal,
    given: String,
    wanted: Allow,
) -> Result<Approval, CoreError> {
    daemon.permit(who, Verb::ApprovalAllow)?;
    to_the_end(allow_request(Arc::clone(daemon), given, wanted, *who)).await
}

pub async fn deny(
    daemon: &Arc<Daemon>,
    who: &Principal,
    given: String,
    wanted: Deny,
) -> Result<Approval, CoreError> {
    daemon.permit(who, Verb::ApprovalDeny)?;
    to_the_end(deny_request(Arc::clone(daemon), given, wanted, *who)).await
}

/// Ends an allow that could still be used.
pub async fn revoke(daemon: &Arc<Daemon>, who: &Principal, given: String) -> Result<Approval, CoreError> {
    daemon.permit(who, Verb::ApprovalRevoke)?;
    to_the_end(revoke_allow(Arc::clone(daemon), given, *who)).await
}

async fn cards(daemon: &Daemon, all: bool, bay: Option<&str>) -> Result<Vec<Approval>, CoreError> {
    let of = |card: &Approval| {
        bay.is_none_or(|bay| card.bay_name == bay || card.bay.to_string() == bay || ends_id(&card.bay, bay))
    };
    let mut found: Vec<Approval> = if all {
        let rows = daemon.store.approval_list(false).await.map_err(|e| e.to_api())?;
        rows.into_iter().map(|row| now(daemon, row)).collect()
    } else {
        return Ok(daemon.approvals.open(of));
    };
    found.retain(of);
    Ok(found)
}

/// A stored approval as it is at this moment. The store is the truth about its state: memory may be behind by the
/// time of a write to the disk.
fn now(daemon: &Daemon, row: ApprovalRow) -> Approval {
    let held = daemon.approvals.find(row.card.id).map_or(0, |question| question.view().held);
    Approval { held, ..row.card }
}

/// An approval by its id, or by the end of its id.
pub(crate) async fn find(daemon: &Daemon, given: &str) -> Result<Approval, CoreError> {
    let unknown = || {
        CoreError::new(
            ErrorCode::ApprovalNotFound,
            format!("there is no approval {:?}", plain_text(given)),
            Hint::new(
                "{} lists the pending approvals, {} also the answered ones",
                [Action::ListApprovals, Action::ListAllApprovals],
            ),
        )
    };
    if let Ok(id) = given.parse::<ApprovalId>() {
        let row = daemon.store.approval_get(id).await.map_err(|e| e.to_api())?;
        return row.map(|row| now(daemon, row)).ok_or_else(unknown);
    }
    if !is_id_end(given) {
        return Err(unknown());
    }
    let mut found = daemon.store.approval_by_suffix(given).await.map_err(|e| e.to_api())?;
    match (found.pop(), found.is_empty()) {
        (Some(row), true) => Ok(now(daemon, row)),
        (None, _) => Err(unknown()),
        _ => Err(CoreError::new(
            ErrorCode::InvalidInput,
            format!("more than one approval has an id that ends with {given}"),
            "give more characters of the id",
        )),
    }
}

/// The question, if it can still be answered.
async fn open(daemon: &Daemon, given: &str) -> Result<Arc<Question>, CoreError> {
    let card = find(daemon, given).await?;
    if card.state != ApprovalState::Open {
        return Err(answered(&card));
    }
    daemon.approvals.find(card.id).ok_or_else(|| answered(&card))
}

/// The error for an answer that comes too late.
fn answered(card: &Approval) -> CoreError {
    let id = card.id;
    let message = match (&card.state, &card.answer) {
        (ApprovalState::Allowed, Some(Answer { by, .. })) => format!("{by} has already allowed {id}"),
        (ApprovalState::Denied, Some(Answer { by, why, .. })) => {
            let why = why.as_ref().map(|why| format!(": {}", plain_text(why))).unwrap_or_default();
            format!("{by} has already denied {id}{why}")
        }
        (ApprovalState::Expired, _) => format!("nobody answered {id} in time, so it was denied"),
        (ApprovalState::Revoked, _) => format!("{id} was allowed, and the allow was revoked"),
        (_, Some(Answer { why: Some(why), .. })) => format!("{id} was dropped: {why}"),
        _ => format!("{id} was dropped: what asked for it is gone"),
    };
    let next = match card.state {
        ApprovalState::Allowed => "nothing is left to do",
        _ => "if it is still wanted, send the request or run the command again: that makes a new approval",
    };
    CoreError::new(ErrorCode::ApprovalAnswered, message, next)
}

fn invalid(message: impl Into<String>, next: impl Into<Hint>) -> CoreError {
    CoreError::new(ErrorCode::InvalidInput, message, next)
}

async fn allow_request(
    daemon: Arc<Daemon>,
    given: String,
    wanted: Allow,
    caller: Principal,
) -> Result<Approval, CoreError> {
    let question = open(&daemon, &given).await?;
    let card = question.view();
    if let Some(digest) = &wanted.digest
        && *digest != card.digest
    {
        return Err(invalid(
            format!("the card of {} is not the one you saw: its digest is {}", card.id, card.digest),
            Hint::new("{} shows the card as it is now", [Action::ShowApproval(card.id)]),
        ));
    }
    let for_s = checked_time(&wanted)?;
    if wanted.any_body && is_exec(&card) {
        return Err(invalid("a command has no body that could be another one", "allow it without any_body"));
    }
    if wanted.reach == Reach::Save && !wanted.any_body && !is_exec(&card) {
        return Err(invalid(
            "a rule cannot depend on a body or on headers: it would allow any of them",
            "save it with --any-body if that is what you want, or allow exactly this for a time with --for",
        ));
    }
    if wanted.reach == Reach::For && wanted.any_body && card.saved_as.is_none() {
        return Err(invalid(
            "no grant can cover this request alone",
            "allow exactly this for a time (without --any-body), or write a rule yourself",
        ));
    }
    if wanted.reach == Reach::Exec && question.exec().is_none() {
        return Err(invalid(
            "which exec is behind it is not known",
            "allow it once, or for a time with --for",
        ));
    }
    let ended = |exec| daemon.bays.find(&card.bay.to_string()).is_ok_and(|handle| !handle.exec_is_open(exec));
    if matches!(wanted.reach, Reach::Once | Reach::Exec)
        && card.held == 0
        && let (Some(exec), Asked::Request(_)) = (question.exec(), &card.asked)
        && ended(exec)
    {
        let which = card.exec_number.map_or_else(|| exec.to_string(), |number| format!("exec {number}"));
        return Err(invalid(
            format!("{which} has ended, so an allow of its request alone would have no effect"),
            "allow it for a time with --for 10m: then the same request of any command in this bay is allowed",
        ));
    }
    // Checked before anything is decided: a failure must not leave an allow without its rule.
    // If any body is allowed, a grant or a rule covers later requests. This allow is for the request that waits.
    let granted = wanted.reach == Reach::For && wanted.any_body;
    let lasting = match (wanted.reach, &card.asked, for_s) {
        (Reach::Save, ..) => Some(saved(&daemon, &card, caller).await?),
        (Reach::For, Asked::Request(asked), Some(for_s)) if granted => {
            let handle = daemon.bays.find(&card.bay.to_string())?;
            let add = GrantAdd {
                request: asked.request.clone(),
                for_s,
                id: Some(format!("ask-{}", card.id.short())),
                secrets: Some(card.secrets.clone()),
            };
            let PreparedGrant { row, event, .. } = policy::prepare_grant(&handle, add, caller)?;
            Some(Lasting::Grant(row, MAX_GRANTS, event))
        }
        _ => None,
    };
    let until = daemon.approvals.allowed_until(wanted.reach, for_s);
    let uses = match wanted.reach {
        Reach::Once | Reach::Save => Some(1),
        Reach::For if granted => Some(1),
        Reach::Exec | Reach::For => None,
    };
    let status = Status::Allowed { reach: wanted.reach, until, any_body: wanted.any_body };
    let settling = Settling { uses, lasting, ..Settling::new(status, caller.by()) };
    if !daemon.approvals.settle(&question, settling).await? {
        return Err(answered(&find(&daemon, &card.id.to_string()).await?));
    }
    // `held` is the number of clients that waited for the answer. They have it by now.
    Ok(Approval { held: card.held, ..question.view() })
}

/// The time of an allow, if the request has one.
fn checked_time(wanted: &Allow) -> Result<Option<u64>, CoreError> {
    match (wanted.reach, wanted.for_s) {
        (Reach::For, Some(seconds)) if (1..=MAX_ALLOW_S).contains(&seconds) => Ok(Some(seconds)),
        (Reach::For, _) => Err(invalid(
            "the time of the allow is missing, zero or too long",
            format!("give 1 to {MAX_ALLOW_S} s; --save makes a permanent rule"),
        )),
        (_, Some(_)) => {
            Err(invalid("a time was given for an allow without a time limit", "use the reach \"for\""))
        }
        (_, None) => Ok(None),
    }
}

/// The bay's policy with a rule for this request, if that rule would allow it.
async fn saved(daemon: &Arc<Daemon>, card: &Approval, caller: Principal) -> Result<Lasting, CoreError> {
    let refuse = |why: String| invalid(why, "allow it once or for a time, or write a rule yourself");
    let (Asked::Request(asked), Some(rule)) = (&card.asked, &card.saved_as) else {
        return Err(refuse("no rule can cover exactly this request".to_owned()));
    };
    let request = CanonicalRequest::from_line(&asked.request)
        .map_err(|refusal| refuse(format!("no rule can cover exactly this request: {refusal}")))?
        .with_secrets(card.secrets.clone());
    let handle = daemon.bays.find(&card.bay.to_string())?;
    not_deleting(&handle.row(), "given a policy")?;
    let set = daemon.store.policy_get(&Scope::Bay(handle.id)).await.map_err(|e| e.to_api())?;
    let rule = rule_with_id(rule, card.id)
        .ok_or_else(|| refuse("the rule on the card cannot be read as one rule".to_owned()))?;
    let mut wanted = PolicySet { name: "saved.toml".to_owned(), ..PolicySet::default() };
    let base = match &set {
        Some(row) => {
            wanted.places = serde_json::from_str(&row.places).map_err(|error| CoreError::internal(&error))?;
            // A file of the operator's may have the name of a preset's.
            match Preset::of_file(&row.name).filter(|preset| preset.text() == row.text) {
                Some(preset) => Base::Preset(preset),
                None => {
                    wanted.name.clone_from(&row.name);
                    Base::File(&row.text)
                }
            }
        }
        None => Base::Nothing,
    };
    let note = format!("Allowed by a person at {}.", Timestamp::now());
    wanted.text = Some(file_with_rule(base, &note, &rule));
    let location = handle.row().origin.map(|origin| origin.location);
    let prepared = policy::prepare(Layer::Bay, wanted, location).await?;
    let compiled = policy::replaced(daemon, &handle, prepared.layer.clone()).await?;
    let decision = decide(&compiled, &request, Timestamp::now());
    if decision.outcome != Outcome::Allow {
        let by =
            decision.rule().map(|rule| format!(": rule {} at {}", rule.id, rule.origin)).unwrap_or_default();
        return Err(refuse(format!(
            "a rule of the bay would not allow it, because another has the last word{by}"
        )));
    }
    let event = policy::set_event(&prepared, &Scope::Bay(handle.id), caller);
    Ok(Lasting::Policy(prepared.new, event))
}

/// The rule in this text, with the id of its approval.
fn rule_with_id(text: &str, id: ApprovalId) -> Option<Rule> {
    let mut rules = parse(Layer::Bay, "approved", text, &Places::default()).ok()?.rules;
    let mut rule = rules.pop().filter(|_| rules.is_empty())?;
    rule.id = id.to_string();
    Some(rule)
}

async fn deny_request(
    daemon: Arc<Daemon>,
    given: String,
    wanted: Deny,
    caller: Principal,
) -> Result<Approval, CoreError> {
    let question = open(&daemon, &given).await?;
    let card = question.view();
    let odd = |why: &String| why.len() > MAX_WHY_BYTES || why.chars().any(char::is_control);
    if wanted.why.as_ref().is_some_and(odd) {
        return Err(invalid(
            format!("the reason is longer than {MAX_WHY_BYTES} bytes, or has control characters"),
            "write one line",
        ));
    }
    let back = match (wanted.rollback, card.checkpoint) {
        (false, _) => None,
        (true, Some(checkpoint)) => {
            let handle = daemon.bays.find(&card.bay.to_string())?;
            // Checked before the denial is on record: a failure must not leave a denial without its restore.
            checkpoints::find(&daemon, &handle, checkpoint).await?;
            Some((handle, checkpoint))
        }
        (true, None) => {
            return Err(invalid(
                format!("no checkpoint was made before {} was asked", card.id),
                Hint::new(
                    "set checkpoint = true in the rule that asks; {} restores any other checkpoint",
                    [Action::RestoreAny],
                ),
            ));
        }
    };
    let status = Status::Denied { by: caller.by(), why: wanted.why.clone() };
    let settling = Settling { why: wanted.why, ..Settling::new(status, caller.by()) };
    if !daemon.approvals.settle(&question, settling).await? {
        return Err(answered(&find(&daemon, &card.id.to_string()).await?));
    }
    let view = question.view();
    if let Some((handle, checkpoint)) = back {
        checkpoints::restore_to(daemon, handle, Restore { checkpoint, files_only: true }, caller).await?;
    }
    Ok(view)
}

async fn revoke_allow(daemon: Arc<Daemon>, given: String, caller: Principal) -> Result<Approval, CoreError> {
    let card = find(&daemon, &given).await?;
    if daemon.approvals.revoke(&card, &caller.by()).await? {
        return find(&daemon, &card.id.to_string()).await;
    }
    let (id, now) = (card.id, find(&daemon, &card.id.to_string()).await?);
    let (message, hint) = match now.state {
        ApprovalState::Open => (
            format!("{id} is not answered yet"),
            Hint::new("deny it with {}", [Action::DenyApproval(id.short().to_owned())]),
        ),
        ApprovalState::Allowed => (
            format!("the allow {id} is used up, so it cannot be revoked"),
            Hint::new(
                "{} revokes a grant, {} changes a saved rule",
                [Action::RemoveAnyGrant, Action::EditPolicy],
            ),
        ),
        state => (format!("{id} is {state}, not allowed"), "nothing is left to do".into()),
    };
    Err(CoreError::new(ErrorCode::ApprovalAnswered, message, hint))
}

fn changes(daemon: Arc<Daemon>) -> mpsc::Receiver<Bytes> {
    let (to, lines) = mpsc::channel(IN_FLIGHT);
    let mut changed = daemon.approvals.watch();
    tokio::spawn(async move {
        let mut cards = daemon.approvals.open(|_| true);
        loop {
            for card in cards.drain(..) {
                if to.send(byte_stream::json_line(&card)).await.is_err() {
                    return;
                }
            }
            let id = tokio::select! {
                () = to.closed() => return,
                id = changed.recv() => id,
            };
            match id {
                Ok(id) => cards.extend(find(&daemon, &id.to_string()).await),
                // The watcher missed changes, so all open approvals are sent again.
                Err(RecvError::Lagged(_)) => cards = daemon.approvals.open(|_| true),
                Err(RecvError::Closed) => return,
            }
        }
    });
    lines
}
