//! The effective policy, each rule with its origin.

use jiff::Timestamp;
use serde::Serialize;

use crate::compile::CompiledPolicy;
use crate::parse::Otherwise;
use crate::rule::{Grant, Layer, Outcome, Rule};

/// A policy to look at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Shown {
    pub ingress: bool,
    /// Host layer first; a later one can only narrow.
    pub layers: Vec<ShownLayer>,
    pub grants: Vec<ShownGrant>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ShownLayer {
    pub layer: Layer,
    pub file: String,
    pub description: Option<String>,
    pub extends: Option<String>,
    pub otherwise: Otherwise,
    /// In the order in which they prevail: deny, ask, allow; as written within these.
    pub rules: Vec<ShownRule>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ShownRule {
    #[serde(flatten)]
    pub rule: Rule,
    pub effect: Effect,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ShownGrant {
    #[serde(flatten)]
    pub grant: Grant,
    pub active: bool,
}

/// What a rule does at this moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Effect {
    Active,
    Expired,
    /// Another layer has nothing that it could permit together with.
    Capped,
}

/// Shows a policy as it is at a moment.
#[must_use]
pub fn show(policy: &CompiledPolicy, now: Timestamp) -> Shown {
    let layers = policy.layers.iter().map(|layer| {
        let mut rules: Vec<ShownRule> = layer
            .source
            .rules
            .iter()
            .map(|rule| ShownRule { effect: effect(policy, rule, now), rule: rule.clone() })
            .collect();
        rules.sort_by_key(|shown| std::cmp::Reverse(shown.rule.outcome));
        ShownLayer {
            layer: layer.layer,
            file: layer.source.file.clone(),
            description: layer.source.description.clone(),
            extends: layer.source.extends.clone(),
            otherwise: layer.otherwise,
            rules,
        }
    });
    Shown {
        ingress: policy.ingress(),
        layers: layers.collect(),
        grants: policy
            .grants
            .iter()
            .map(|grant| ShownGrant { active: now < grant.grant.expires, grant: grant.grant.clone() })
            .collect(),
    }
}

fn effect(policy: &CompiledPolicy, rule: &Rule, now: Timestamp) -> Effect {
    if !rule.is_active(now) {
        return Effect::Expired;
    }
    if is_capped(policy, rule, now) { Effect::Capped } else { Effect::Active }
}

/// Whether another layer denies all that a rule permits, by having no rule for any of it.
pub(crate) fn is_capped(policy: &CompiledPolicy, rule: &Rule, now: Timestamp) -> bool {
    rule.outcome != Outcome::Deny
        && policy.layers.iter().filter(|layer| layer.layer != rule.origin.layer).any(|layer| {
            let permits = |other: &Rule| {
                other.outcome != Outcome::Deny
                    && other.is_active(now)
                    && other.matcher.overlaps(&rule.matcher)
            };
            layer.otherwise == Otherwise::Deny && !layer.source.rules.iter().any(permits)
        })
}
