//! Layers compiled for decisions. An index finds each rule by its host and by a segment of its path.

use std::ops::Deref;
use std::sync::Arc;

use bay_types::reach::HOST_NAME;
use ipnet::IpNet;
use jiff::Timestamp;
use serde::{Serialize, Serializer};

use crate::canonical::Host;
use crate::index::Index;
use crate::layer::{LayerPolicy, NEVER, Otherwise};
use crate::pattern::HostPattern;
use crate::rule::{Grant, Kind, Layer, Matcher, Origin, Outcome, Rule};

/// Whether this is the name that means the host itself. Only [`CompiledPolicy::reaching`] opens something there.
#[must_use]
pub fn is_host_itself(host: &Host) -> bool {
    host.name() == Some(HOST_NAME)
}

/// The layers that a bay has.
#[derive(Debug, Clone, Default)]
pub struct Layers {
    pub host: Option<LayerPolicy>,
    pub project: Option<LayerPolicy>,
    pub bay: Option<LayerPolicy>,
}

/// The parts of a rule that decisions refer to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RuleHead {
    pub id: String,
    pub origin: Origin,
    pub outcome: Outcome,
    pub kind: Kind,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires: Option<Timestamp>,
    /// Whether the bay's files are checkpointed before a person is asked.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub checkpoint: bool,
    /// Networks that the rule names as hosts, and networks that it allows names to resolve to.
    #[serde(skip)]
    pub(crate) named: Vec<IpNet>,
}

/// A rule that several decisions share. It is cheap to copy and lives as long as any of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleRef(Arc<RuleHead>);

impl RuleHead {
    /// Networks that the rule names as hosts, and networks that it allows names to resolve to.
    #[must_use]
    pub fn named(&self) -> &[IpNet] {
        &self.named
    }
}

impl RuleRef {
    /// The pseudo-rule of the operator's word on a port of the host.
    pub(crate) fn reach(kind: Kind) -> Self {
        let origin = Origin { layer: Layer::Bay, file: "reach".to_owned(), line: 1 };
        Self(Arc::new(RuleHead {
            id: "reach".to_owned(),
            origin,
            outcome: Outcome::Allow,
            kind,
            reason: Some("the operator opened this port of the host to the bay".to_owned()),
            expires: None,
            checkpoint: false,
            named: Vec::new(),
        }))
    }

    /// The pseudo-rule of a person's answer. It names no address by itself.
    pub(crate) fn approval(id: &str, kind: Kind) -> Self {
        let origin = Origin { layer: Layer::Bay, file: "approval".to_owned(), line: 1 };
        Self(Arc::new(RuleHead {
            id: id.to_owned(),
            origin,
            outcome: Outcome::Allow,
            kind,
            reason: None,
            expires: None,
            checkpoint: false,
            named: Vec::new(),
        }))
    }
}

impl Deref for RuleRef {
    type Target = RuleHead;

    fn deref(&self) -> &RuleHead {
        &self.0
    }
}

impl Serialize for RuleRef {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.as_ref().serialize(serializer)
    }
}

/// The policy by which every request of a bay is decided. It never changes: a new policy is a new value.
#[derive(Debug, Clone, Default)]
pub struct CompiledPolicy {
    pub(crate) layers: Vec<CompiledLayer>,
    pub(crate) grants: Vec<CompiledGrant>,
    pub(crate) grant_index: Index,
    /// Ports of the host's loopback that an operator opened for the bay.
    pub(crate) reach: Vec<u16>,
}

#[derive(Debug, Clone)]
pub(crate) struct CompiledLayer {
    pub(crate) source: LayerPolicy,
    pub(crate) layer: Layer,
    pub(crate) otherwise: Otherwise,
    pub(crate) rules: Vec<CompiledRule>,
    pub(crate) index: Index,
}

#[derive(Debug, Clone)]
pub(crate) struct CompiledRule {
    pub(crate) outcome: Outcome,
    pub(crate) matcher: Matcher,
    pub(crate) expires: Timestamp,
    pub(crate) head: RuleRef,
}

#[derive(Debug, Clone)]
pub(crate) struct CompiledGrant {
    pub(crate) grant: Grant,
    pub(crate) head: RuleRef,
}

impl CompiledPolicy {
    /// The time when the next rule or grant expires, after which a decision may differ.
    #[must_use]
    pub fn next_end(&self, now: Timestamp) -> Option<Timestamp> {
        let rules = self.layers.iter().flat_map(|layer| &layer.rules).map(|rule| rule.expires);
        let grants = self.grants.iter().map(|grant| grant.grant.expires);
        rules.chain(grants).filter(|end| now < *end && *end < NEVER).min()
    }

    #[must_use]
    pub fn new(layers: Layers) -> Self {
        let mut policy = Self::default();
        for (layer, source) in
            [(Layer::Host, layers.host), (Layer::Project, layers.project), (Layer::Bay, layers.bay)]
        {
            let Some(source) = source else { continue };
            let mut index = Index::default();
            for (at, rule) in source.rules.iter().enumerate() {
                index.insert(at, &rule.matcher);
            }
            if layer == Layer::Bay {
                policy.grants = source.grants.iter().map(CompiledGrant::new).collect();
            }
            let rules = source.rules.iter().map(CompiledRule::new).collect();
            policy.layers.push(CompiledLayer { layer, otherwise: source.otherwise, rules, index, source });
        }
        for (at, grant) in policy.grants.iter().enumerate() {
            policy.grant_index.insert(at, &grant.grant.matcher);
        }
        policy
    }

    /// Opens ports of the host's loopback to the bay, under the name [`HOST_NAME`]. No rule can do that under this
    /// name.
    #[must_use]
    pub fn reaching(mut self, ports: &[u16]) -> Self {
        self.reach = ports.to_vec();
        self
    }

    /// The ports of the host's loopback that the bay may use.
    #[must_use]
    pub fn reach(&self) -> &[u16] {
        &self.reach
    }

    /// Whether ports of the bay may be reached from outside: no layer may deny it.
    #[must_use]
    pub fn ingress(&self) -> bool {
        self.layers.iter().all(|layer| layer.source.ingress.unwrap_or(true))
    }

    /// The layers that the policy was compiled from.
    pub fn layers(&self) -> impl Iterator<Item = &LayerPolicy> {
        self.layers.iter().map(|layer| &layer.source)
    }

    /// All rules, host layer first.
    pub fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.layers().flat_map(|layer| &layer.rules)
    }
}

fn named(matcher: &Matcher) -> Vec<IpNet> {
    let hosts = matcher.hosts.iter().filter_map(|host| match host {
        HostPattern::Network(network) => Some(*network),
        _ => None,
    });
    hosts.chain(matcher.addresses.iter().copied()).collect()
}

impl CompiledRule {
    fn new(rule: &Rule) -> Self {
        let head = RuleHead {
            id: rule.id.clone(),
            origin: rule.origin.clone(),
            outcome: rule.outcome,
            kind: rule.matcher.kind,
            reason: rule.reason.clone(),
            expires: rule.expires,
            checkpoint: rule.checkpoint,
            named: named(&rule.matcher),
        };
        Self {
            outcome: rule.outcome,
            matcher: rule.matcher.clone(),
            expires: rule.expires.unwrap_or(NEVER),
            head: RuleRef(Arc::new(head)),
        }
    }
}

impl CompiledGrant {
    fn new(grant: &Grant) -> Self {
        let head = RuleHead {
            id: grant.id.clone(),
            origin: grant.origin.clone(),
            outcome: Outcome::Allow,
            kind: grant.matcher.kind,
            reason: grant.reason.clone(),
            expires: Some(grant.expires),
            checkpoint: false,
            named: named(&grant.matcher),
        };
        Self { grant: grant.clone(), head: RuleRef(Arc::new(head)) }
    }
}
