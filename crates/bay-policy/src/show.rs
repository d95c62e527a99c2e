//! The effective policy, each rule with its origin.

use jiff::Timestamp;
use serde::Serialize;

use crate::compile::CompiledPolicy;
use crate::layer::Otherwise;
use crate::pattern::query::ValuePattern;
use crate::pattern::{Methods, Ports, QueryPattern};
use crate::rule::{Grant, Kind, Layer, Matcher, Outcome, Rule};

/// A policy in the form that is shown to people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Shown {
    pub ingress: bool,
    /// Ports of the host's loopback that are open to the bay.
    pub reach: Vec<u16>,
    /// Host layer first. A later layer can only narrow.
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
    /// By precedence: deny, ask, allow. Within these, in the order of the file.
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

/// The effect of a rule at this moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Effect {
    Active,
    Expired,
    /// Another layer permits nothing that this rule permits.
    Capped,
}

/// The effective policy at a moment.
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
        reach: policy.reach.clone(),
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

/// Whether another layer denies everything that a rule permits: it denies by default, and none of its active allow or
/// ask rules overlaps with the rule.
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

/// Most values of one key that a description lists.
const MAX_NAMED: usize = 4;

/// The conditions of a rule or a grant in one line for a person: `GET|HEAD https://host/path/**`.
#[must_use]
pub fn describe(matcher: &Matcher) -> String {
    let hosts = named(matcher.hosts.iter().map(ToString::to_string));
    let port = match &matcher.ports {
        Ports::Default => String::new(),
        Ports::Any => ":*".to_owned(),
        // Omit the default port if there is one scheme.
        Ports::Ranges(ranges) => match (matcher.schemes.as_slice(), ranges.as_slice()) {
            ([scheme], [(first, last)]) if first == last && *first == scheme.default_port() => String::new(),
            _ => format!(":{}", matcher.ports),
        },
    };
    let mut text = match matcher.kind {
        Kind::Any => format!("everything to {hosts}{port}"),
        Kind::Tcp => format!("tcp to {hosts}{port}"),
        Kind::Passthrough => format!("unread TLS to {hosts}{port}"),
        Kind::Http | Kind::GitSsh => {
            let methods = match &matcher.methods {
                Methods::Any => "any method".to_owned(),
                methods => methods.as_strings().join("|"),
            };
            let schemes: Vec<&str> = matcher.schemes.iter().map(|scheme| scheme.as_str()).collect();
            let paths = if matcher.paths.iter().any(|path| path.is_any()) {
                "/**".to_owned()
            } else {
                named(matcher.paths.iter().map(|path| path.as_str().to_owned()))
            };
            format!("{methods} {}://{hosts}{port}{paths}", schemes.join("|"))
        }
    };
    match &matcher.query {
        QueryPattern::Any => {}
        QueryPattern::Nothing => text.push_str(" without a query"),
        QueryPattern::Exactly(query) => text.push_str(&format!(" with the query {query} and no other")),
        QueryPattern::Pairs(pairs) => {
            let pairs = pairs.iter().map(|(name, value)| match value {
                ValuePattern::Any => format!("{name}=*"),
                ValuePattern::OneOf(values) => format!("{name}={}", values.join("|")),
            });
            text.push_str(&format!(" with {}", named(pairs)));
        }
    }
    if !matcher.headers.is_empty() {
        text.push_str(&format!(" with the header {}", named(matcher.headers.iter().cloned())));
    }
    if !matcher.branches.is_empty() {
        text.push_str(&format!(
            " pushing {}",
            named(matcher.branches.iter().map(|branch| branch.as_str().to_owned()))
        ));
    }
    match matcher.secrets.as_deref() {
        None => {}
        Some([]) => text.push_str(" without a secret"),
        Some(names) => text.push_str(&format!(" with the secret {}", named(names.iter().cloned()))),
    }
    if !matcher.addresses.is_empty() {
        let addresses = matcher.addresses.iter().map(|network| {
            let alone = network.prefix_len() == network.max_prefix_len();
            if alone { network.addr().to_string() } else { network.to_string() }
        });
        text.push_str(&format!(", also at {}", named(addresses)));
    }
    text
}

/// The first few values, and how many more there are.
fn named(values: impl Iterator<Item = String>) -> String {
    let all: Vec<String> = values.collect();
    let more = all.len().saturating_sub(MAX_NAMED);
    let mut text = all[..all.len() - more].join(", ");
    if all.len() > 1 {
        text = format!("{{{text}{}}}", if more > 0 { format!(", {more} more") } else { String::new() });
    }
    text
}
