//! Why a decision was made, and what would change it.

use jiff::Timestamp;
use serde::Serialize;

use crate::address::{self, AddressClass, NameClass};
use crate::canonical::request::options_in_words;
use crate::canonical::{CanonicalRequest, Host, HostWarning, Scheme};
use crate::compile::{CompiledLayer, CompiledPolicy, RuleHead};
use crate::decide::{Cause, Decision, LayerVerdict};
use crate::index::Wanted;
use crate::learn::narrowest;
use crate::pattern::{HostPattern, Strictness};
use crate::preset::Preset;
use crate::rule::{Kind, Layer, Matcher, Origin, Outcome, Rule};
use crate::write::rule_to_toml;

/// Most near misses that are reported, times the number of layers. Also most paths or branches that one of them lists.
pub const MAX_NEAR_MISSES: usize = 3;

/// An explanation of a decision. Agents and people see it as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Explanation {
    pub request: String,
    pub outcome: Outcome,
    /// One sentence.
    pub reason: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<RuleHead>,
    pub layers: Vec<LayerVerdict>,
    /// The known steps that would together allow the request.
    pub would_allow: Vec<Remedy>,
    /// Allow and ask rules that match the host but not the request, in the layers where no rule matches it.
    pub near_misses: Vec<NearMiss>,
    /// What is unusual about the name.
    pub warnings: Vec<HostWarning>,
    pub credentials: bool,
}

/// One step towards an allow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "step")]
pub enum Remedy {
    /// Add this rule to the file of the layer.
    AddRule { layer: Layer, file: String, toml: String },
    /// While this rule stays as it is, nothing allows the request.
    ChangeRule { rule: String, origin: Origin },
    /// A person approves the request, once or with a grant.
    Approve { rule: Option<String> },
    /// Set a policy: there is none.
    SetPolicy,
    /// Open this port of the host to the bay: only an operator can, and no rule does.
    Reach { port: u16 },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NearMiss {
    pub rule: String,
    pub origin: Origin,
    pub outcome: Outcome,
    /// The first part of the rule that does not match.
    pub differs_in: &'static str,
    pub why: String,
}

impl Explanation {
    /// One line for an answer: the outcome, the request, the reason, and the first of the known steps.
    #[must_use]
    pub fn line(&self) -> String {
        let next = match self.would_allow.first() {
            None => String::new(),
            // Nobody edits a preset. A policy file can begin with one and add rules.
            Some(Remedy::AddRule { layer, file, .. }) => match Preset::of_file(file) {
                Some(preset) => {
                    let preset = preset.name();
                    format!(
                        "; to allow it, set a policy that extends {preset} and has a rule for it ({layer} layer)"
                    )
                }
                None => format!("; to allow it, add a rule to {file} ({layer} layer)"),
            },
            Some(Remedy::ChangeRule { rule, origin }) => format!("; to allow it, change {rule} at {origin}"),
            Some(Remedy::Approve { .. }) => "; it waits for a person to approve it".to_owned(),
            Some(Remedy::SetPolicy) => "; to allow it, set a policy for the bay".to_owned(),
            Some(Remedy::Reach { port }) => {
                format!("; to allow it, an operator of the host gives the bay --reach host:{port}")
            }
        };
        format!("{}: {}: {}{next}", self.outcome, self.request, self.reason)
    }
}

/// Explains a decision on a request.
#[must_use]
pub fn explain(
    policy: &CompiledPolicy,
    request: &CanonicalRequest,
    decision: &Decision,
    now: Timestamp,
) -> Explanation {
    let allowed = decision.outcome == Outcome::Allow;
    let trusted = policy.rules().flat_map(|rule| &rule.matcher.hosts).filter_map(|host| match host {
        HostPattern::Name(name) | HostPattern::Below(name) => Some(&**name),
        HostPattern::Any | HostPattern::Network(_) => None,
    });
    Explanation {
        request: request.to_string(),
        outcome: decision.outcome,
        reason: reason(request, decision) + &on_options(request, decision),
        rule: decision.rule().cloned(),
        layers: decision.layers.clone(),
        would_allow: if allowed { Vec::new() } else { remedies(policy, request, decision) },
        near_misses: if allowed { Vec::new() } else { near_misses(policy, request, decision, now) },
        warnings: request.host().warnings(trusted),
        credentials: decision.credentials,
    }
}

fn reason(request: &CanonicalRequest, decision: &Decision) -> String {
    let why = |rule: &RuleHead| rule.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
    match &decision.cause {
        Cause::Rule { rule } => {
            format!("rule {} at {} says {}{}", rule.id, rule.origin, rule.outcome, why(rule))
        }
        Cause::Tie { rule, allow } => format!(
            "rule {} at {} says ask and rule {} at {} says allow, and the allow is not narrower in every respect",
            rule.id, rule.origin, allow.id, allow.origin
        ),
        Cause::Grant { grant } => {
            let until = grant.expires.map(|expires| format!(" until {expires}")).unwrap_or_default();
            format!("grant {} allows it{until}{}", grant.id, why(grant))
        }
        Cause::NotReached { port } => match request.kind() {
            Kind::GitSsh => "keys of the host are never used at the host itself".to_owned(),
            _ => format!("port {port} of the host is not open to this bay, and no rule can open it"),
        },
        Cause::NoPolicy => "there is no policy, and what is not allowed is denied".to_owned(),
        Cause::NoRule { layer, file } => {
            let special = special(request.host());
            format!("no rule of the {layer} layer ({file}) covers it{special}")
        }
    }
}

/// Why rules by branch allow nothing of a push with push options.
fn on_options(request: &CanonicalRequest, decision: &Decision) -> String {
    match request.push_options() {
        count if count > 0 && decision.outcome != Outcome::Allow => {
            format!("; the push has {}, and no rule by branch allows those", options_in_words(count))
        }
        _ => String::new(),
    }
}

/// What to know about hosts that wide rules do not match.
fn special(host: &Host) -> String {
    match host {
        Host::Address(address) => match address::classify(*address) {
            AddressClass::Public => "; a rule must name an address; `*` matches names only".to_owned(),
            class => format!("; it is {}, which a rule must name", class.describe()),
        },
        Host::Name(name) => match address::classify_name(name) {
            NameClass::Ordinary => String::new(),
            NameClass::Local => {
                "; it is a name of the host or the local network, which `*` does not match".to_owned()
            }
            NameClass::Metadata => "; it is a cloud's metadata service, which a rule must name".to_owned(),
        },
    }
}

fn remedies(policy: &CompiledPolicy, request: &CanonicalRequest, decision: &Decision) -> Vec<Remedy> {
    if let Cause::NotReached { port } = decision.cause {
        let open = policy.reach.contains(&port);
        return if open { Vec::new() } else { vec![Remedy::Reach { port }] };
    }
    if decision.layers.iter().all(|verdict| verdict.outcome.is_none()) {
        return vec![Remedy::SetPolicy];
    }
    let mut remedies = Vec::new();
    for verdict in &decision.layers {
        match (verdict.outcome, &verdict.rule) {
            (None | Some(Outcome::Allow), _) => {}
            (Some(Outcome::Ask), rule) => {
                remedies.push(Remedy::Approve { rule: rule.as_ref().map(|rule| rule.id.clone()) });
            }
            (Some(Outcome::Deny), Some(rule)) => {
                remedies.push(Remedy::ChangeRule { rule: rule.id.clone(), origin: rule.origin.clone() });
            }
            (Some(Outcome::Deny), None) => {
                let source = policy.layers.iter().find(|layer| layer.layer == verdict.layer);
                let file = source.map(|layer| layer.source.file.clone()).unwrap_or_default();
                let Some(matcher) = narrowest(request) else { continue };
                let rule = Rule {
                    id: "allow-this".to_owned(),
                    origin: Origin { layer: verdict.layer, file: file.clone(), line: 0 },
                    outcome: Outcome::Allow,
                    matcher,
                    reason: None,
                    expires: None,
                    checkpoint: false,
                    examples: Vec::new(),
                    counterexamples: Vec::new(),
                };
                remedies.push(Remedy::AddRule { layer: verdict.layer, file, toml: rule_to_toml(&rule) });
            }
        }
    }
    // One approval answers every layer that asks.
    remedies.sort_by_key(|remedy| matches!(remedy, Remedy::Approve { .. }));
    remedies.dedup_by(|a, b| matches!((a, b), (Remedy::Approve { .. }, Remedy::Approve { .. })));
    remedies
}

fn near_misses(
    policy: &CompiledPolicy,
    request: &CanonicalRequest,
    decision: &Decision,
    now: Timestamp,
) -> Vec<NearMiss> {
    let silent = |layer: &CompiledLayer| {
        decision.layers.iter().any(|verdict| verdict.layer == layer.layer && verdict.rule.is_none())
    };
    let mut misses = Vec::new();
    for layer in policy.layers.iter().filter(|layer| silent(layer)) {
        let mut found = Vec::new();
        layer.index.visit(request.host(), &Wanted::Everything, &mut |at| {
            let rule = &layer.rules[at];
            let permits = rule.outcome != Outcome::Deny
                && rule.matcher.hosts.iter().any(|host| host.permits(request.host()));
            if permits && !found.contains(&at) {
                found.push(at);
            }
        });
        found.sort_unstable();
        for at in found {
            let rule = &layer.rules[at];
            let Some((differs_in, why)) = difference(&rule.matcher, request, now >= rule.expires) else {
                continue;
            };
            misses.push(NearMiss {
                rule: rule.head.id.clone(),
                origin: rule.head.origin.clone(),
                outcome: rule.outcome,
                differs_in,
                why,
            });
        }
    }
    // The later a part is compared, the nearer is a rule that differs only in it.
    let order = ["expires", "branch", "header", "query", "method", "path", "port", "scheme", "kind"];
    misses.sort_by_key(|miss| order.iter().position(|part| *part == miss.differs_in));
    misses.truncate(MAX_NEAR_MISSES * policy.layers.len());
    misses
}

fn first_paths(matcher: &Matcher) -> String {
    let paths: Vec<&str> = matcher.paths.iter().take(MAX_NEAR_MISSES).map(|path| path.as_str()).collect();
    paths.join(", ")
}

/// The first part in which a rule for the same host does not match.
fn difference(
    matcher: &Matcher,
    request: &CanonicalRequest,
    expired: bool,
) -> Option<(&'static str, String)> {
    let port = request.port();
    if !matcher.kind.includes(request.kind()) {
        return Some((
            "kind",
            format!("it is for {}, not for {}", matcher.kind.as_str(), request.kind().as_str()),
        ));
    }
    let scheme = request.scheme().unwrap_or(Scheme::Https);
    if let Some(http) = request.http().filter(|_| matcher.kind == Kind::Http) {
        if !matcher.schemes.contains(&http.scheme()) {
            return Some(("scheme", format!("it is not for {}", http.scheme().as_str())));
        }
        if !matcher.ports.contains(port, scheme) {
            return Some(("port", format!("it is for port {}, not for {port}", matcher.ports)));
        }
        let fits = |reading| matcher.paths.iter().any(|path| path.matches(reading, Strictness::Exact));
        if !http.path().readings().iter().all(fits) {
            return Some(("path", format!("it is for {}", first_paths(matcher))));
        }
        if !matcher.methods.contains(http.method()) {
            return Some(("method", format!("it is for {}", matcher.methods.as_strings().join(", "))));
        }
        if !matcher.query.matches(http.query(), Strictness::Exact) {
            return Some(("query", "it wants another query".to_owned()));
        }
        if let Some(header) = matcher.headers.iter().find(|header| !http.has_header(header)) {
            return Some(("header", format!("it wants the header {header}")));
        }
        if let Some(branch) = other_branch(matcher, request) {
            return Some(branch);
        }
    } else if let Some(git) = request.git().filter(|_| matcher.kind == Kind::GitSsh) {
        if !matcher.ports.contains(port, scheme) {
            return Some(("port", format!("it is for port {}, not for {port}", matcher.ports)));
        }
        let fits = |reading| matcher.paths.iter().any(|path| path.matches(reading, Strictness::Exact));
        if !git.path().readings().iter().all(fits) {
            return Some(("path", format!("it is for {}", first_paths(matcher))));
        }
        if !matcher.methods.contains(git.service().method()) {
            return Some(("method", format!("it is for {}", matcher.methods.as_strings().join(", "))));
        }
        if let Some(branch) = other_branch(matcher, request) {
            return Some(branch);
        }
    } else if !matcher.ports.contains(port, scheme) {
        return Some(("port", format!("it is for port {}, not for {port}", matcher.ports)));
    }
    if matcher.secrets.as_ref().is_some_and(|secrets| secrets != request.secrets()) {
        let names = matcher.secrets.iter().flatten().cloned().collect::<Vec<_>>().join(", ");
        let names = if names.is_empty() { "no secret".to_owned() } else { format!("the secret {names}") };
        return Some(("secret", format!("it is for requests with {names}")));
    }
    expired.then(|| ("expires", "it has expired".to_owned()))
}

/// The branches of a rule that the request does not push to, or `None` if branches are not what differs.
fn other_branch(matcher: &Matcher, request: &CanonicalRequest) -> Option<(&'static str, String)> {
    let named = matcher.branches.iter().take(MAX_NEAR_MISSES).map(|branch| branch.as_str());
    let named: Vec<&str> = named.collect();
    let other = !matcher.matches_push(request, Strictness::Exact);
    let without = if request.push_options() > 0 { " without push options" } else { "" };
    other.then(|| ("branch", format!("it is for pushes of {}{without}", named.join(", "))))
}
