//! What differs between two policies.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde::Serialize;

use crate::canonical::CanonicalRequest;
use crate::compile::CompiledPolicy;
use crate::decide::decide;
use crate::layer::Otherwise;
use crate::rule::{Layer, Outcome, Rule};
use crate::write::rule_to_toml;

/// What differs, from the old policy to the new one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PolicyDiff {
    pub added: Vec<Rule>,
    pub removed: Vec<Rule>,
    pub changed: Vec<ChangedRule>,
    pub layers: Vec<ChangedLayer>,
    /// The setting before and after, if it changed.
    pub ingress: Option<(bool, bool)>,
    /// Example requests of either policy whose decision changed.
    pub decisions: Vec<ChangedDecision>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ChangedRule {
    pub layer: Layer,
    pub id: String,
    pub before: Rule,
    pub after: Rule,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ChangedLayer {
    pub layer: Layer,
    /// `None` if the old policy has no such layer.
    pub before: Option<Otherwise>,
    pub after: Option<Otherwise>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ChangedDecision {
    pub request: String,
    pub before: Outcome,
    pub after: Outcome,
}

impl PolicyDiff {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.added.is_empty()
            && self.removed.is_empty()
            && self.changed.is_empty()
            && self.layers.is_empty()
            && self.ingress.is_none()
            && self.decisions.is_empty()
    }
}

/// Compares two policies. The file and line of a rule make no difference, nor does its id if all else is the same.
#[must_use]
pub fn diff(before: &CompiledPolicy, after: &CompiledPolicy, now: Timestamp) -> PolicyDiff {
    // The content of a rule without its id.
    let said = |rule: &Rule| (rule.origin.layer, rule_to_toml(&Rule { id: String::new(), ..rule.clone() }));
    let all_said = |policy: &CompiledPolicy| policy.rules().map(said).collect::<BTreeSet<_>>();
    let missing = |policy: &CompiledPolicy, from: &BTreeSet<_>| -> Vec<Rule> {
        policy.rules().filter(|rule| !from.contains(&said(rule))).cloned().collect()
    };
    let mut removed = missing(before, &all_said(after));
    let mut added = missing(after, &all_said(before));
    let mut changed = Vec::new();
    removed.retain(|rule| {
        let same =
            added.iter().position(|other| other.id == rule.id && other.origin.layer == rule.origin.layer);
        if let Some(at) = same {
            let after = added.remove(at);
            changed.push(ChangedRule {
                layer: rule.origin.layer,
                id: rule.id.clone(),
                before: rule.clone(),
                after,
            });
        }
        same.is_none()
    });
    let otherwise = |policy: &CompiledPolicy, layer| {
        policy.layers().find(|own| own.layer == layer).map(|own| own.otherwise)
    };
    let layers = Layer::ALL.into_iter().filter_map(|layer| {
        let (before, after) = (otherwise(before, layer), otherwise(after, layer));
        (before != after).then_some(ChangedLayer { layer, before, after })
    });
    let ingress = (before.ingress() != after.ingress()).then_some((before.ingress(), after.ingress()));
    PolicyDiff {
        layers: layers.collect(),
        ingress,
        decisions: decisions(before, after, now),
        added,
        removed,
        changed,
    }
}

fn decisions(before: &CompiledPolicy, after: &CompiledPolicy, now: Timestamp) -> Vec<ChangedDecision> {
    let mut lines: Vec<&String> = before
        .rules()
        .chain(after.rules())
        .flat_map(|rule| rule.examples.iter().chain(&rule.counterexamples))
        .collect();
    lines.sort_unstable();
    lines.dedup();
    lines
        .into_iter()
        .filter_map(|line| {
            let request = CanonicalRequest::from_line(line).ok()?;
            let (before, after) =
                (decide(before, &request, now).outcome, decide(after, &request, now).outcome);
            (before != after).then(|| ChangedDecision { request: request.to_string(), before, after })
        })
        .collect()
}
