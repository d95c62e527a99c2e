//! Policies as the API shows them.

use bay_policy::show::{Effect, describe};
use bay_policy::write::{grant_to_toml, rule_to_toml};
use bay_policy::{ExecRule, Explanation, Grant, Layer, Rule, show};
use bay_store::GrantRow;
use bay_types::policy::{Explained, GrantView, LayerView, Origin, PolicyView, RuleView};
use bay_types::{BayName, CoreError};
use jiff::Timestamp;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::policies::Effective;
use bay_text::shell::quoted;

/// Converts a type of `bay-policy` to the API's. Both have the same JSON shape, as tests check.
pub(super) fn converted<T: DeserializeOwned>(said: &impl Serialize) -> Result<T, CoreError> {
    serde_json::to_value(said).and_then(serde_json::from_value).map_err(|error| CoreError::internal(&error))
}

pub(super) fn explained(explanation: &Explanation) -> Result<Explained, CoreError> {
    converted(explanation)
}

/// The name of a unit variant in JSON.
pub(super) fn word(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(text)) => text,
        _ => String::new(),
    }
}

fn origin(layer: Layer, file: &str, line: usize) -> Origin {
    Origin { layer: layer.to_string(), file: file.to_owned(), line: line as u64 }
}

pub(super) fn rule(rule: &Rule, effect: Effect) -> RuleView {
    RuleView {
        id: rule.id.clone(),
        origin: origin(rule.origin.layer, &rule.origin.file, rule.origin.line),
        outcome: rule.outcome.to_string(),
        kind: rule.matcher.kind.as_str().to_owned(),
        what: describe(&rule.matcher),
        toml: rule_to_toml(rule),
        reason: rule.reason.clone(),
        expires: rule.expires,
        effect: word(&effect),
    }
}

/// A rule on commands.
fn exec_rule(rule: &ExecRule) -> RuleView {
    let words: Vec<String> = rule.argv.iter().map(|word| quoted(word)).collect();
    let argv = serde_json::json!(rule.argv);
    RuleView {
        id: rule.id.clone(),
        origin: origin(rule.origin.layer, &rule.origin.file, rule.origin.line),
        outcome: rule.outcome.to_string(),
        kind: "exec".to_owned(),
        what: format!("run {}", words.join(" ")),
        toml: format!("[[exec]]\nid = \"{}\"\noutcome = \"{}\"\nargv = {argv}\n", rule.id, rule.outcome),
        reason: rule.reason.clone(),
        expires: None,
        effect: word(&Effect::Active),
    }
}

pub(super) fn grant(grant: &Grant, row: Option<&GrantRow>, now: Timestamp) -> GrantView {
    GrantView {
        id: grant.id.clone(),
        what: describe(&grant.matcher),
        toml: grant_to_toml(grant),
        expires: grant.expires,
        active: now < grant.expires,
        created_at: row.map(|row| row.created_at),
    }
}

/// A grant whose text cannot be parsed. It is shown, and has no effect.
pub(super) fn unreadable_grant(row: &GrantRow) -> GrantView {
    GrantView {
        id: row.id.clone(),
        what: "cannot be read, and allows nothing".to_owned(),
        toml: row.text.clone(),
        expires: row.expires,
        active: false,
        created_at: Some(row.created_at),
    }
}

pub(super) fn policy(bay: &BayName, effective: &Effective, now: Timestamp) -> PolicyView {
    let shown = show(&effective.policy, now);
    let layers = shown.layers.into_iter().map(|layer| {
        let source = effective.sources.iter().find(|source| source.layer == layer.layer);
        let set = source.and_then(|source| source.set.as_ref());
        LayerView {
            layer: layer.layer.to_string(),
            name: layer.file,
            description: layer.description,
            extends: layer.extends,
            otherwise: word(&layer.otherwise),
            set_at: set.map(|(at, _)| *at),
            sha256: set.map(|(_, hash)| hash.clone()),
            problems: source.map(|source| source.problems.clone()).unwrap_or_default(),
            rules: {
                let sources = effective.policy.layers().filter(|source| source.layer == layer.layer);
                let execs = sources.flat_map(|source| &source.execs).map(exec_rule);
                layer.rules.iter().map(|shown| rule(&shown.rule, shown.effect)).chain(execs).collect()
            },
        }
    });
    let row = |id: &str| effective.grants.iter().find(|row| row.id == id);
    let mut grants: Vec<GrantView> =
        shown.grants.iter().map(|shown| grant(&shown.grant, row(&shown.grant.id), now)).collect();
    for row in &effective.grants {
        if !grants.iter().any(|grant| grant.id == row.id) {
            grants.push(unreadable_grant(row));
        }
    }
    PolicyView {
        bay: bay.to_string(),
        ingress: shown.ingress,
        reach: shown.reach,
        layers: layers.collect(),
        grants,
    }
}
