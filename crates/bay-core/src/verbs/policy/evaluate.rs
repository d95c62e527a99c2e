//! What a policy decides: on a request that is not sent, for a person who checks it, and with another layer.

use std::sync::Arc;

use bay_policy::show::Effect;
use bay_policy::{
    CanonicalRequest, CompiledPolicy, Layer, LayerPolicy, Layers, Rule, decide, diff as compare, explain,
    lint as look_over,
};
use bay_types::CoreError;
use bay_types::policy::{
    DecisionChange, Explained, Finding, MAX_REQUEST_BYTES, OtherwiseChange, PolicyChange, PolicySet,
    RuleChange,
};
use jiff::Timestamp;

use super::set::{self, Prepared};
use super::{recorded_decisions, view};
use crate::background::blocking;
use crate::channel::plain_text;
use crate::daemon::Daemon;
use crate::policies::compile;
use crate::registry::BayHandle;

/// The most recorded requests that a comparison decides again.
const MAX_COMPARED: u32 = 1000;
/// The most changed decisions in one answer.
const MAX_CHANGED: usize = 200;

/// Decides on a request as a person writes it, with an explanation. A request that can never be sent is explained
/// too.
pub(super) fn decided(policy: &CompiledPolicy, line: &str, now: Timestamp) -> Result<Explained, CoreError> {
    match CanonicalRequest::from_line(line) {
        Ok(request) => {
            let decision = decide(policy, &request, now);
            view::explained(&explain(policy, &request, &decision, now))
        }
        Err(refusal) => Ok(Explained {
            request: plain_text(line),
            outcome: "refused".to_owned(),
            reason: format!("no bay can send such a request: {refusal}"),
            ..Explained::default()
        }),
    }
}

pub(crate) async fn check(daemon: &Daemon, handle: &BayHandle, line: &str) -> Result<Explained, CoreError> {
    if line.len() > MAX_REQUEST_BYTES {
        // The error has the longest length that is read.
        return set::request(line).map(|_| Explained::default());
    }
    let effective = super::effective_with_origins(daemon, handle).await;
    decided(&effective.policy, line, Timestamp::now())
}

pub(crate) async fn lint(daemon: &Daemon, handle: &BayHandle) -> Result<Vec<Finding>, CoreError> {
    let policy = Arc::clone(&super::effective_with_origins(daemon, handle).await.policy);
    blocking(move || view::converted(&look_over(&policy, Timestamp::now()))).await
}

/// What would change if the bay's own layer were this one.
pub(crate) async fn diff(
    daemon: &Daemon,
    handle: &BayHandle,
    given: PolicySet,
) -> Result<PolicyChange, CoreError> {
    let before = Arc::clone(&super::effective_with_origins(daemon, handle).await.policy);
    let Prepared { layer, .. } = set::prepare(Layer::Bay, given, compile::project(&handle.row())).await?;
    let requests = recorded_decisions::requests(daemon, handle, MAX_COMPARED).await?;
    blocking(move || Ok(change(&before, layer, &requests))).await
}

/// The policy of a bay with another layer of its own.
pub(crate) async fn replaced(
    daemon: &Daemon,
    handle: &BayHandle,
    layer: LayerPolicy,
) -> Result<CompiledPolicy, CoreError> {
    let before = Arc::clone(&super::effective_with_origins(daemon, handle).await.policy);
    blocking(move || Ok(with_layer(&before, layer))).await
}

fn with_layer(before: &CompiledPolicy, mut bay: LayerPolicy) -> CompiledPolicy {
    let mut layers = Layers::default();
    for layer in before.layers() {
        match layer.layer {
            Layer::Host => layers.host = Some(layer.clone()),
            Layer::Project => layers.project = Some(layer.clone()),
            // Grants are not part of the file, so the new layer gets them too.
            Layer::Bay => bay.grants.extend(layer.grants.iter().cloned()),
        }
    }
    CompiledPolicy::new(Layers { bay: Some(bay), ..layers }).reaching(before.reach())
}

fn change(before: &CompiledPolicy, bay: LayerPolicy, requests: &[CanonicalRequest]) -> PolicyChange {
    let now = Timestamp::now();
    let after = with_layer(before, bay);
    let found = compare(before, &after, now);
    let rule =
        |rule: &Rule| view::rule(rule, if rule.is_active(now) { Effect::Active } else { Effect::Expired });
    let mut decisions: Vec<DecisionChange> = found
        .decisions
        .iter()
        .map(|changed| DecisionChange {
            request: changed.request.clone(),
            before: changed.before.to_string(),
            after: changed.after.to_string(),
        })
        .collect();
    for request in requests {
        let (then, next) = (decide(before, request, now).outcome, decide(&after, request, now).outcome);
        let text = request.to_string();
        if then != next && !decisions.iter().any(|known| known.request == text) {
            let (before, after) = (then.to_string(), next.to_string());
            decisions.push(DecisionChange { request: text, before, after });
        }
        if decisions.len() >= MAX_CHANGED {
            break;
        }
    }
    decisions.truncate(MAX_CHANGED);
    PolicyChange {
        added: found.added.iter().map(rule).collect(),
        removed: found.removed.iter().map(rule).collect(),
        changed: found
            .changed
            .iter()
            .map(|changed| RuleChange {
                layer: changed.layer.to_string(),
                id: changed.id.clone(),
                before: rule(&changed.before),
                after: rule(&changed.after),
            })
            .collect(),
        otherwise: found
            .layers
            .iter()
            .map(|changed| OtherwiseChange {
                layer: changed.layer.to_string(),
                before: changed.before.as_ref().map(view::word),
                after: changed.after.as_ref().map(view::word),
            })
            .collect(),
        ingress: found.ingress,
        decisions,
    }
}
