//! Warnings about a policy that is valid.

use bay_types::reach::HOST_NAME;
use jiff::Timestamp;
use serde::Serialize;

use crate::address::{self, AddressClass, NameClass};
use crate::canonical::{Host, Scheme};
use crate::compile::CompiledPolicy;
use crate::layer::{LayerPolicy, Otherwise};
use crate::pattern::HostPattern;
use crate::rule::{Kind, Origin, Outcome, Rule};
use crate::show::is_capped;

/// A rule for at least this many ports counts as wide.
const MANY_PORTS: u32 = 16;
/// A network with at least this many free address bits counts as wide.
const WIDE_NETWORK_BITS: u8 = 16;

/// One warning.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub code: FindingCode,
    pub severity: Severity,
    /// The rule that the warning is about, or `None` if it is about the whole layer.
    pub rule: Option<String>,
    pub origin: Origin,
    /// The other rule that causes the problem.
    pub because_of: Option<String>,
    pub message: String,
    pub next: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FindingCode {
    /// A deny covers everything that the rule matches.
    Shadowed,
    /// Another rule has the same outcome and matches at least as much.
    Redundant,
    /// The rule has no effect: it has expired, or another layer permits nothing that it matches.
    Dead,
    /// The rule probably permits more than its author meant.
    TooWide,
    /// A rule for traffic that the gateway does not read: `passthrough`, or `tcp` where rules on requests would apply.
    Passthrough,
    /// Traffic that anyone on the network path can read and change.
    Cleartext,
    /// An address or a name that is not public.
    Special,
    /// A name that looks like another.
    Confusable,
    /// A layer that has rules, and none that allows or asks, and denies all else.
    EmptyLayer,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    Note,
    Warning,
}

/// Checks a policy.
#[must_use]
pub fn lint(policy: &CompiledPolicy, now: Timestamp) -> Vec<Finding> {
    let mut findings = Vec::new();
    for layer in policy.layers() {
        empty_layer(layer, &mut findings);
        for (at, rule) in layer.rules.iter().enumerate() {
            if !rule.is_active(now) {
                findings.push(finding(rule, FindingCode::Dead, None, "it has expired", "remove it"));
                continue;
            }
            overruled(policy, layer, at, now, &mut findings);
            if rule.outcome != Outcome::Deny {
                wide(rule, &mut findings);
                kind_of_traffic(policy, rule, &mut findings);
                special_hosts(rule, &mut findings);
                confusable(policy, rule, &mut findings);
            }
        }
    }
    findings
}

fn finding(rule: &Rule, code: FindingCode, because_of: Option<&Rule>, message: &str, next: &str) -> Finding {
    let severity = match code {
        FindingCode::Redundant | FindingCode::Cleartext => Severity::Note,
        _ => Severity::Warning,
    };
    Finding {
        code,
        severity,
        rule: Some(rule.id.clone()),
        origin: rule.origin.clone(),
        because_of: because_of.map(|rule| format!("{} at {}", rule.id, rule.origin)),
        message: message.to_owned(),
        next: next.to_owned(),
    }
}

fn empty_layer(layer: &LayerPolicy, findings: &mut Vec<Finding>) {
    let permits = layer.rules.iter().any(|rule| rule.outcome != Outcome::Deny);
    if layer.otherwise == Otherwise::Deny && !permits && !layer.rules.is_empty() {
        findings.push(Finding {
            code: FindingCode::EmptyLayer,
            severity: Severity::Warning,
            rule: None,
            origin: Origin { layer: layer.layer, file: layer.file.clone(), line: 1 },
            because_of: None,
            message: "the layer has rules that deny and none that allows, so it denies everything".to_owned(),
            next: "add otherwise = \"inherit\" if it is only meant to narrow".to_owned(),
        });
    }
}

/// Shadowed, redundant and capped rules.
fn overruled(
    policy: &CompiledPolicy,
    layer: &LayerPolicy,
    at: usize,
    now: Timestamp,
    findings: &mut Vec<Finding>,
) {
    let rule = &layer.rules[at];
    let outlives = |other: &Rule| match (other.expires, rule.expires) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(other), Some(own)) => other >= own,
    };
    let is_itself = |other: &Rule| other.origin.layer == rule.origin.layer && other.id == rule.id;
    let deny = policy.rules().find(|other| {
        let denies =
            other.outcome == Outcome::Deny && other.is_active(now) && outlives(other) && !is_itself(other);
        denies && rule.outcome != Outcome::Deny && other.matcher.forbids_all_of(&rule.matcher)
    });
    if let Some(deny) = deny {
        let message = "a deny covers everything that this rule covers, and a deny wins";
        findings.push(finding(rule, FindingCode::Shadowed, Some(deny), message, "remove one of the two"));
        return;
    }
    let same = layer.rules.iter().enumerate().find(|(other_at, other)| {
        let says_the_same =
            other.outcome == rule.outcome && other.is_active(now) && outlives(other) && !is_itself(other);
        let covers = if rule.outcome == Outcome::Deny {
            other.matcher.forbids_all_of(&rule.matcher)
        } else {
            other.matcher.covers(&rule.matcher)
        };
        // Report an exact copy once, at the later of the two. Addresses that a name may resolve to belong to each rule.
        let earlier = *other_at < at || !rule.matcher.covers(&other.matcher);
        says_the_same
            && covers
            && earlier
            && rule.matcher.addresses.iter().all(|own| other.matcher.addresses.contains(own))
    });
    // An allow that an ask covers, which a wider allow covers, is not redundant: it is the exception.
    let exception = rule.outcome == Outcome::Allow
        && layer
            .rules
            .iter()
            .any(|other| other.outcome == Outcome::Ask && other.matcher.overlaps(&rule.matcher));
    if let Some((_, same)) = same.filter(|_| !exception) {
        let message = "another rule decides the same for everything that this rule covers";
        findings.push(finding(rule, FindingCode::Redundant, Some(same), message, "remove it"));
    }
    if is_capped(policy, rule, now) {
        let message = "another layer permits nothing that this rule covers";
        findings.push(finding(
            rule,
            FindingCode::Dead,
            None,
            message,
            "remove it, or permit it in the other layer too",
        ));
    }
}

fn wide(rule: &Rule, findings: &mut Vec<Finding>) {
    let matcher = &rule.matcher;
    let mut tell =
        |message: &str, next: &str| findings.push(finding(rule, FindingCode::TooWide, None, message, next));
    let every_path = matcher.paths.iter().any(|path| path.is_any());
    let writes = !matcher.kind.has_paths() || !matcher.methods.only_read();
    if matcher.kind == Kind::GitSsh && every_path {
        let message = "it permits every repository that the key for the host may read";
        tell(message, "name the repositories");
    }
    for host in &matcher.hosts {
        match host {
            HostPattern::Any if writes => {
                tell("it permits more than reading from every host", "name the hosts");
            }
            HostPattern::Below(suffix) if !suffix.contains('.') => {
                tell("it permits every name of a top-level domain", "name the domain");
            }
            HostPattern::Network(network)
                if network.max_prefix_len() - network.prefix_len() > WIDE_NETWORK_BITS =>
            {
                tell("it permits a large network", "name the addresses");
            }
            HostPattern::Name(_) | HostPattern::Below(_)
                if matcher.kind == Kind::Http && writes && every_path =>
            {
                tell("it permits more than reading on every path of a host", "name the paths or the methods");
            }
            _ => {}
        }
    }
    if matcher.ports.count() > MANY_PORTS {
        tell("it permits many ports", "name the ports");
    }
}

fn kind_of_traffic(policy: &CompiledPolicy, rule: &Rule, findings: &mut Vec<Finding>) {
    let matcher = &rule.matcher;
    if matches!(matcher.kind, Kind::Passthrough | Kind::Tcp) {
        let hidden = policy.rules().find(|other| {
            let hosts =
                || matcher.hosts.iter().any(|own| other.matcher.hosts.iter().any(|host| own.overlaps(host)));
            let ports = || {
                let schemes = &other.matcher.schemes;
                schemes.iter().any(|scheme| matcher.ports.overlaps(&other.matcher.ports, *scheme))
            };
            other.outcome != Outcome::Allow && other.matcher.kind.has_paths() && hosts() && ports()
        });
        match (matcher.kind, hidden) {
            (kind, Some(hidden)) => findings.push(finding(
                rule,
                FindingCode::Passthrough,
                Some(hidden),
                &format!("requests to the same host by `{}` are not read, so the other rule does not see them", kind.as_str()),
                "use kind = \"http\", or deny the whole host",
            )),
            (Kind::Passthrough, None) => findings.push(finding(
                rule,
                FindingCode::Passthrough,
                None,
                "nothing but the name is seen of it: no method, no path, no credentials, no record of requests",
                "use kind = \"http\" unless the client pins its certificate",
            )),
            _ => {}
        }
    }
    if matcher.kind == Kind::Http && matcher.schemes.contains(&Scheme::Http) {
        let message = "what it permits over http is neither secret nor protected from change on its way";
        findings.push(finding(
            rule,
            FindingCode::Cleartext,
            None,
            message,
            "use https if the host offers it",
        ));
    }
}

/// A rule for `127.0.0.1` most often means one service of the host, and then permits too little or too much.
fn hosts_loopback(rule: &Rule, named: &str) -> Finding {
    let message = format!(
        "{named} is the bay's own loopback for its processes; for the gateway it is the host's, with all that listens there"
    );
    let next = format!(
        "to use one service of the host, remove it and give the bay --reach host:PORT: the service is then at {HOST_NAME}:PORT"
    );
    finding(rule, FindingCode::Special, None, &message, &next)
}

fn is_localhost(name: &str) -> bool {
    name == "localhost" || name.ends_with(".localhost") || name == "localhost.localdomain"
}

fn special_hosts(rule: &Rule, findings: &mut Vec<Finding>) {
    let networks = rule.matcher.hosts.iter().filter_map(|host| match host {
        HostPattern::Network(network) => Some(network),
        _ => None,
    });
    for network in networks.chain(&rule.matcher.addresses) {
        let class = address::classify(network.addr());
        if network.addr().is_loopback() {
            findings.push(hosts_loopback(rule, &network.to_string()));
        } else if class != AddressClass::Public {
            let message = format!("{network} is, or begins with, {}", class.describe());
            findings.push(finding(
                rule,
                FindingCode::Special,
                None,
                &message,
                "keep it only if a service there is meant",
            ));
        }
    }
    for name in rule.matcher.hosts.iter().filter_map(|host| match host {
        HostPattern::Name(name) => Some(name),
        _ => None,
    }) {
        if is_localhost(name) {
            findings.push(hosts_loopback(rule, name));
        }
        if address::classify_name(name) == NameClass::Metadata {
            let message = "it permits a cloud's metadata service, which hands out the machine's credentials";
            findings.push(finding(rule, FindingCode::Special, None, message, "remove it"));
        }
    }
}

fn confusable(policy: &CompiledPolicy, rule: &Rule, findings: &mut Vec<Finding>) {
    for host in &rule.matcher.hosts {
        let (HostPattern::Name(name) | HostPattern::Below(name)) = host else { continue };
        let host = Host::Name(name.clone());
        // Only names beyond ASCII are checked.
        let Some(reads) = host.unicode() else { continue };
        let trusted = policy.rules().flat_map(|rule| &rule.matcher.hosts).filter_map(|host| match host {
            HostPattern::Name(name) | HostPattern::Below(name) => Some(&**name),
            _ => None,
        });
        let odd = host.warnings(trusted).len() > 1;
        if odd {
            let message = format!("{name} reads {reads} and may be taken for another name");
            findings.push(finding(
                rule,
                FindingCode::Confusable,
                None,
                &message,
                "make sure it is the name that is meant",
            ));
        }
    }
}
