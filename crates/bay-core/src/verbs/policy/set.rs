//! Changing and reading policies and grants. Each change is one transaction with its event.

use std::sync::Arc;

use bay_policy::learn::grant_for;
use bay_policy::rule::Origin;
use bay_policy::write::grant_to_toml;
use bay_policy::{CanonicalRequest, Grant, Layer, Outcome, Place, Preset};
use bay_store::{Draft, GrantRow, PolicyNew, PolicyRow, Scope};
use bay_types::event;
use bay_types::event::policy::{PolicySummary, RuleCounts};
use bay_types::policy::{
    GrantAdd, GrantView, LayerSet, LayerText, MAX_GRANT_S, MAX_GRANTS, MAX_NAME_BYTES, MAX_POLICY_BYTES,
    MAX_REQUEST_BYTES, PolicySet, PolicyView,
};
use bay_types::principal::Principal;
use bay_types::{Action, BayName, CoreError, ErrorCode, Hint};
use jiff::{SignedDuration, Timestamp};

use super::view;
use crate::background::blocking;
use crate::channel::plain_text;
use crate::daemon::Daemon;
use crate::policies::{compile, places, too_many_grants};
use crate::registry::BayHandle;
use crate::verbs::bays::not_deleting;

/// The most problems of one file in an answer.
const MAX_TOLD: usize = 10;
/// The longest id of a grant.
const MAX_ID: usize = 64;
/// The digits of a generated id.
const ID_DIGITS: usize = 8;

/// A policy that was parsed, ready to be stored, with what its event needs.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) new: PolicyNew,
    /// Its name, hash and numbers of rules, for the record.
    pub(crate) summary: PolicySummary,
    pub(crate) layer: bay_policy::LayerPolicy,
}

/// Parses a policy as it will be parsed for bays of this origin. A policy that cannot be parsed is never stored.
pub(crate) async fn prepare(
    layer: Layer,
    given: PolicySet,
    location: Option<String>,
) -> Result<Prepared, CoreError> {
    let forge = location.as_deref().and_then(Place::of_repository);
    blocking(move || prepare_now(layer, given, forge.as_ref())).await
}

fn prepare_now(layer: Layer, given: PolicySet, forge: Option<&Place>) -> Result<Prepared, CoreError> {
    let refuse = |message: String, hint: Hint| Err(CoreError::new(ErrorCode::InvalidInput, message, hint));
    let odd = |c: char| c.is_control();
    if given.name.is_empty() || given.name.len() > MAX_NAME_BYTES || given.name.chars().any(odd) {
        return refuse(
            "the policy's name is empty, too long, or has control characters".to_owned(),
            "give a preset or a file".into(),
        );
    }
    let (name, text) = match (given.text, Preset::named(&given.name)) {
        (Some(text), _) => (given.name, text),
        (None, Some(preset)) => (preset.file_name(), preset.text().to_owned()),
        (None, None) => {
            let known = Preset::ALL.map(Preset::name).join(", ");
            return refuse(
                format!("there is no preset {:?}", plain_text(&given.name)),
                format!("the presets are {known}").into(),
            );
        }
    };
    if text.len() > MAX_POLICY_BYTES {
        return refuse(
            format!("the policy has {} bytes", text.len()),
            format!("at most {MAX_POLICY_BYTES} are read; use wider rules").into(),
        );
    }
    let found = places::checked(&given.places)?;
    let read = compile::read(layer, &name, &text, &places::places(&found, forge));
    let policy = read.map_err(|problems| invalid(&problems))?;
    let count = |outcome| policy.rules.iter().filter(|rule| rule.outcome == outcome).count() as u64;
    let rules =
        RuleCounts { allow: count(Outcome::Allow), ask: count(Outcome::Ask), deny: count(Outcome::Deny) };
    let summary = PolicySummary { name: name.clone(), sha256: compile::sha256(&text), rules };
    let places = serde_json::to_string(&found).map_err(|error| CoreError::internal(&error))?;
    Ok(Prepared { new: PolicyNew { name, text, places }, summary, layer: policy })
}

/// The problems of a file, as many as an answer has.
fn invalid(problems: &[String]) -> CoreError {
    let mut message = problems.iter().take(MAX_TOLD).cloned().collect::<Vec<_>>().join("\n");
    if problems.len() > MAX_TOLD {
        message.push_str(&format!("\nand {} more", problems.len() - MAX_TOLD));
    }
    CoreError::new(
        ErrorCode::PolicyInvalid,
        message,
        "correct the file; nothing was changed. docs/policy.md describes how to write rules",
    )
}

/// The scope of the project that a bay belongs to.
pub(crate) fn scope_of_project(handle: &BayHandle) -> Result<Scope, CoreError> {
    compile::project(&handle.row()).map(Scope::Project).ok_or_else(|| {
        CoreError::new(
            ErrorCode::InvalidInput,
            format!("{} was not made from a repository, so it belongs to no project", handle.name),
            Hint::new("{} sets a policy for this bay alone", [Action::SetPolicy((&handle.name).into())]),
        )
    })
}

fn layer_of(scope: &Scope) -> Layer {
    match scope {
        Scope::Host => Layer::Host,
        Scope::Project(_) => Layer::Project,
        Scope::Bay(_) => Layer::Bay,
    }
}

/// Whether a change of the scope affects this bay.
fn concerns(scope: &Scope, handle: &BayHandle) -> bool {
    match scope {
        Scope::Host => true,
        Scope::Project(location) => compile::project(&handle.row()).as_ref() == Some(location),
        Scope::Bay(bay) => *bay == handle.id,
    }
}

fn touch(daemon: &Daemon, scope: &Scope) {
    for handle in daemon.bays.list().iter().filter(|handle| concerns(scope, handle)) {
        daemon.policies.touch(handle.id);
    }
}

/// The repository of the scope, if it is a project's.
fn location_of(daemon: &Daemon, scope: &Scope) -> Option<String> {
    match scope {
        Scope::Host => None,
        Scope::Project(location) => Some(location.clone()),
        Scope::Bay(bay) => compile::project(&daemon.bays.find(&bay.to_string()).ok()?.row()),
    }
}

pub(crate) async fn set_layer(
    daemon: Arc<Daemon>,
    scope: Scope,
    given: PolicySet,
    caller: Principal,
) -> Result<(), CoreError> {
    if let Scope::Bay(bay) = &scope {
        not_deleting(&daemon.bays.find(&bay.to_string())?.row(), "given a policy")?;
    }
    let prepared = prepare(layer_of(&scope), given, location_of(&daemon, &scope)).await?;
    let event = set_event(&prepared, &scope, caller);
    daemon.store.policy_set(&scope, &prepared.new, &event).await.map_err(|e| e.to_api())?;
    touch(&daemon, &scope);
    Ok(())
}

/// The event that a policy was set.
pub(crate) fn set_event(prepared: &Prepared, scope: &Scope, caller: Principal) -> Draft {
    let summary = prepared.summary.clone();
    Draft::of(event::policy::PolicySet {
        scope: scope.to_string(),
        name: Some(summary.name),
        sha256: Some(summary.sha256),
        rules: Some(summary.rules),
        by: caller.by(),
    })
}

/// Removes a layer. A bay without one has the preset `closed`; a host or project without one has no rules.
pub(crate) async fn unset_layer(
    daemon: Arc<Daemon>,
    scope: Scope,
    caller: Principal,
) -> Result<(), CoreError> {
    let event = Draft::of(event::policy::PolicySet {
        scope: scope.to_string(),
        name: None,
        sha256: None,
        rules: None,
        by: caller.by(),
    });
    daemon.store.policy_unset(&scope, &event).await.map_err(|e| e.to_api())?;
    touch(&daemon, &scope);
    Ok(())
}

/// One layer, as it was set.
pub(crate) async fn layer(daemon: &Daemon, scope: &Scope) -> Result<LayerSet, CoreError> {
    let row = daemon.store.policy_get(scope).await.map_err(|e| e.to_api())?;
    let forge = location_of(daemon, scope).as_deref().and_then(Place::of_repository);
    let told = |row: PolicyRow| {
        let (_, problems) = compile::layer_of(layer_of(scope), &row, forge.as_ref());
        LayerText {
            places: serde_json::from_str(&row.places).unwrap_or_default(),
            sha256: compile::sha256(&row.text),
            name: row.name,
            text: row.text,
            set_at: row.set_at,
            problems,
        }
    };
    Ok(LayerSet { scope: scope.to_string(), set: row.map(told) })
}

pub(crate) async fn show(daemon: &Daemon, handle: &BayHandle) -> PolicyView {
    let effective = super::effective_with_origins(daemon, handle).await;
    view::policy(&handle.name, &effective, Timestamp::now())
}

pub(super) fn request(line: &str) -> Result<CanonicalRequest, CoreError> {
    if line.len() > MAX_REQUEST_BYTES {
        return Err(CoreError::new(
            ErrorCode::InvalidInput,
            format!("the request is too long: it has {} bytes", line.len()),
            format!("give at most {MAX_REQUEST_BYTES} bytes"),
        ));
    }
    CanonicalRequest::from_line(line).map_err(|refusal| {
        CoreError::new(
            ErrorCode::InvalidInput,
            format!("no bay can send such a request: {refusal}"),
            "write METHOD https://HOST/PATH, FETCH ssh://HOST/REPOSITORY, tcp://HOST:PORT or tls://HOST",
        )
    })
}

/// A grant that was parsed, ready to be stored.
#[derive(Debug)]
pub(crate) struct PreparedGrant {
    pub(crate) row: GrantRow,
    /// Its event.
    pub(crate) event: Draft,
    read: Vec<Grant>,
}

pub(crate) fn prepare_grant(
    handle: &BayHandle,
    wanted: GrantAdd,
    caller: Principal,
) -> Result<PreparedGrant, CoreError> {
    not_deleting(&handle.row(), "granted anything")?;
    if wanted.for_s == 0 || wanted.for_s > MAX_GRANT_S {
        return Err(CoreError::new(
            ErrorCode::InvalidInput,
            format!("a grant cannot last {} s", wanted.for_s),
            format!("give 1 to {MAX_GRANT_S} s; for a longer permission, write a rule into the policy"),
        ));
    }
    let request = request(&wanted.request)?;
    let created_at = rounded(Timestamp::now());
    let expires = created_at + SignedDuration::from_secs(i64::try_from(wanted.for_s).unwrap_or(1));
    let id = match wanted.id {
        Some(id) => id,
        None => {
            format!("g-{}", &compile::sha256(&format!("{} {request} {created_at}", handle.id))[..ID_DIGITS])
        }
    };
    let letters = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if id.is_empty() || id.len() > MAX_ID || !id.bytes().all(letters) {
        return Err(CoreError::new(
            ErrorCode::InvalidName,
            format!("{:?} is not an id of a grant", plain_text(&id)),
            format!("use up to {MAX_ID} letters, digits, hyphens, dots and underscores"),
        ));
    }
    let origin = Origin { layer: Layer::Bay, file: format!("grant {id}"), line: 1 };
    let mut grant: Grant = grant_for(&request, &id, origin, expires).ok_or_else(|| {
        CoreError::new(
            ErrorCode::InvalidInput,
            format!("no rule can cover exactly {request}"),
            "write a rule into the bay's policy instead",
        )
    })?;
    grant.matcher.secrets = wanted.secrets.map(|mut names| {
        names.sort_unstable();
        names
    });
    let row = GrantRow { id, text: grant_to_toml(&grant), expires, created_at };
    // What is stored must be what will be parsed.
    let read = compile::grants_of(&row).map_err(|problems| invalid(&problems))?;
    let event = Draft::of(event::policy::GrantAdd {
        id: row.id.clone(),
        request: request.to_string(),
        expires: expires.into(),
        sha256: compile::sha256(&row.text),
        by: caller.by(),
    });
    Ok(PreparedGrant { row, event, read })
}

pub(crate) async fn grant_add(
    daemon: Arc<Daemon>,
    handle: Arc<BayHandle>,
    wanted: GrantAdd,
    caller: Principal,
) -> Result<GrantView, CoreError> {
    let PreparedGrant { row, event, read } = prepare_grant(&handle, wanted, caller)?;
    let added = daemon.store.grant_add(handle.id, &row, MAX_GRANTS, &event).await.map_err(|e| e.to_api())?;
    if added.is_none() {
        return Err(too_many_grants(handle.name.as_str()));
    }
    daemon.policies.touch(handle.id);
    Ok(read
        .first()
        .map_or_else(|| view::unreadable_grant(&row), |grant| view::grant(grant, Some(&row), row.created_at)))
}

/// With the precision of the store.
fn rounded(time: Timestamp) -> Timestamp {
    time.round(jiff::Unit::Microsecond).unwrap_or(time)
}

pub(crate) async fn grant_rm(
    daemon: Arc<Daemon>,
    handle: Arc<BayHandle>,
    id: String,
    caller: Principal,
) -> Result<GrantView, CoreError> {
    let event =
        Draft::of(event::policy::GrantRemove { ids: vec![id.clone()], why: None, by: Some(caller.by()) });
    let gone = daemon.store.grant_rm(handle.id, &id, &event).await.map_err(|e| e.to_api())?;
    let row = gone.ok_or_else(|| no_grant(&handle.name, &id))?;
    daemon.policies.touch(handle.id);
    let now = Timestamp::now();
    let read = compile::grants_of(&row).unwrap_or_default();
    Ok(read.first().map_or_else(|| view::unreadable_grant(&row), |grant| view::grant(grant, Some(&row), now)))
}

fn no_grant(bay: &BayName, id: &str) -> CoreError {
    CoreError::new(
        ErrorCode::GrantNotFound,
        format!("{bay} has no grant {:?}", plain_text(id)),
        Hint::new(
            "{} lists its grants; to remove a grant that is written in the bay's policy, change the policy",
            [Action::ListGrants(bay.into())],
        ),
    )
}

/// Revokes all grants of a bay that are not part of a policy, and drops its open questions and allows: the
/// processes that they were made for are gone, and the next ones must ask again.
pub(crate) async fn drop_grants(daemon: &Daemon, handle: &BayHandle, why: &str) -> Result<(), CoreError> {
    if daemon.store.grants_drop(handle.id, why).await.map_err(|e| e.to_api())? {
        daemon.policies.touch(handle.id);
    }
    daemon.approvals.drop_all(handle.id, why).await
}
