//! Decisions.
//!
//! Within a layer a deny beats everything. An allow beats an ask only if it is narrower in every respect: the ask
//! must match everything that the allow matches, and more. Otherwise the request is asked about. Between layers the
//! most restrictive outcome wins, so each layer can narrow what the others allow, and never widen it. If a path can
//! be divided in two ways, both are decided on, and again the most restrictive outcome wins. A grant in the bay's
//! layer can turn an ask, or a missing rule below the host's layer, into an allow ([`Grant`](crate::rule::Grant)).
//! The host itself has decisions of its own (`decide/host_itself.rs`).

use std::net::{IpAddr, Ipv4Addr};

use jiff::Timestamp;
use serde::Serialize;

use crate::address::{self, AddressClass};
use crate::canonical::path::Reading;
use crate::canonical::request::Pushing;
use crate::canonical::{CanonicalRequest, Host, Scheme};
use crate::compile::{CompiledLayer, CompiledPolicy, CompiledRule, RuleHead, RuleRef, is_host_itself};
use crate::exec::ExecRule;
use crate::index::Wanted;
use crate::rule::{Kind, Layer, Outcome};

mod host_itself;

/// Where [`HOST_NAME`](bay_types::reach::HOST_NAME) leads. It is never looked up.
pub const HOST_LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// The outcome and its cause.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Decision {
    pub outcome: Outcome,
    pub cause: Cause,
    /// The verdict of each layer.
    pub layers: Vec<LayerVerdict>,
    /// Whether the gateway may put credentials into the request. It may only if it allowed, reads and encrypts the
    /// request.
    pub credentials: bool,
}

/// The reason for a decision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "because")]
pub enum Cause {
    /// A rule. If several layers have the same outcome, the rule of the first of them.
    Rule { rule: RuleRef },
    /// An allow and an ask of one layer. Neither is narrower than the other.
    Tie { rule: RuleRef, allow: RuleRef },
    /// A grant or an approval, which answered an ask, or a grant that replaced a missing rule.
    Grant { grant: RuleRef },
    /// No rule of this layer matches the request.
    NoRule { layer: Layer, file: String },
    /// There is no policy, or each of its layers leaves the request to the others.
    NoPolicy,
    /// The host itself is meant, and no operator opened this port of it to the bay. Also git over SSH to the host
    /// itself.
    NotReached { port: u16 },
}

/// The verdict of one layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LayerVerdict {
    pub layer: Layer,
    /// `None` if this layer leaves the decision to the other layers.
    pub outcome: Option<Outcome>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<RuleRef>,
    #[serde(skip)]
    allow_in_tie: Option<RuleRef>,
}

impl Decision {
    /// The decision after a person approved an ask. No other outcome becomes an allow.
    #[must_use]
    pub fn approved(&self, request: &CanonicalRequest, approval: &str) -> Self {
        if self.outcome != Outcome::Ask {
            return self.clone();
        }
        let credentials = !is_host_itself(request.host())
            && request.http().is_some_and(|http| http.scheme() == Scheme::Https);
        let grant = RuleRef::approval(approval, request.kind());
        Self {
            outcome: Outcome::Allow,
            cause: Cause::Grant { grant },
            layers: self.layers.clone(),
            credentials,
        }
    }

    /// The rule or grant that caused the decision.
    #[must_use]
    pub fn rule(&self) -> Option<&RuleHead> {
        match &self.cause {
            Cause::Rule { rule } | Cause::Tie { rule, .. } | Cause::Grant { grant: rule } => Some(rule),
            Cause::NoRule { .. } | Cause::NoPolicy | Cause::NotReached { .. } => None,
        }
    }
}

/// Decides on a request.
#[must_use]
pub fn decide(policy: &CompiledPolicy, request: &CanonicalRequest, now: Timestamp) -> Decision {
    // A push of several refs counts as one push for each ref, and the most restrictive outcome wins.
    if let Pushing::Refs(refs) = request.pushing()
        && refs.len() > 1
    {
        let each =
            refs.iter().map(|name| decide_one(policy, &request.clone().with_refs(vec![name.clone()]), now));
        return each
            .reduce(|worst, next| if worst.outcome < next.outcome { next } else { worst })
            .unwrap_or_else(|| denied(Cause::NoPolicy, Vec::new()));
    }
    decide_one(policy, request, now)
}

fn decide_one(policy: &CompiledPolicy, request: &CanonicalRequest, now: Timestamp) -> Decision {
    let mut decision: Option<Decision> = None;
    let readings = request.path().map_or(&[][..], |path| path.readings());
    let readings = readings.iter().map(Some).chain(readings.is_empty().then_some(None));
    for reading in readings {
        let next = decide_reading(policy, request, reading, now);
        if decision.as_ref().is_none_or(|decision| decision.outcome < next.outcome) {
            decision = Some(next);
        }
    }
    // There is always a reading: a path has at least one, and a request without a path counts as one.
    decision.unwrap_or_else(|| denied(Cause::NoPolicy, Vec::new()))
}

fn denied(cause: Cause, layers: Vec<LayerVerdict>) -> Decision {
    Decision { outcome: Outcome::Deny, cause, layers, credentials: false }
}

fn decide_reading(
    policy: &CompiledPolicy,
    request: &CanonicalRequest,
    reading: Option<&Reading>,
    now: Timestamp,
) -> Decision {
    if is_host_itself(request.host()) {
        return host_itself::decide(policy, request, reading, now);
    }
    let layers: Vec<LayerVerdict> =
        policy.layers.iter().map(|layer| layer.judge(request, reading, now)).collect();
    let worst = layers.iter().filter_map(|verdict| verdict.outcome).max();
    let Some(worst) = worst else { return denied(Cause::NoPolicy, layers) };
    let credentials = matches!(request.scheme(), Some(Scheme::Https | Scheme::Ssh));
    if worst != Outcome::Allow
        && layers.iter().all(LayerVerdict::may_be_granted)
        && let Some(grant) = policy.grant_for(request, reading, now)
    {
        return Decision { outcome: Outcome::Allow, cause: Cause::Grant { grant }, layers, credentials };
    }
    // Name the first layer with this outcome. Its owner is the one to ask first for a change.
    let cause =
        layers.iter().find(|verdict| verdict.outcome == Some(worst)).map(|verdict| verdict.cause(policy));
    let credentials = credentials && worst == Outcome::Allow;
    Decision { outcome: worst, cause: cause.unwrap_or(Cause::NoPolicy), layers, credentials }
}

impl LayerVerdict {
    fn may_be_granted(&self) -> bool {
        match (self.outcome, &self.rule) {
            (None | Some(Outcome::Allow | Outcome::Ask), _) => true,
            (Some(Outcome::Deny), None) => self.layer != Layer::Host,
            (Some(Outcome::Deny), Some(_)) => false,
        }
    }

    fn cause(&self, policy: &CompiledPolicy) -> Cause {
        match (&self.rule, &self.allow_in_tie) {
            (Some(rule), Some(allow)) => Cause::Tie { rule: rule.clone(), allow: allow.clone() },
            (Some(rule), None) => Cause::Rule { rule: rule.clone() },
            (None, _) => {
                let source = policy.layers.iter().find(|layer| layer.layer == self.layer);
                Cause::NoRule {
                    layer: self.layer,
                    file: source.map(|layer| layer.source.file.clone()).unwrap_or_default(),
                }
            }
        }
    }
}

impl CompiledLayer {
    fn judge(&self, request: &CanonicalRequest, reading: Option<&Reading>, now: Timestamp) -> LayerVerdict {
        let mut deny: Option<&CompiledRule> = None;
        let (mut allows, mut asks): (Vec<&CompiledRule>, Vec<&CompiledRule>) = (Vec::new(), Vec::new());
        self.index.visit(request.host(), &Wanted::matching(request, reading), &mut |at| {
            let rule = &self.rules[at];
            let outcome = rule.outcome_for(request);
            if now < rule.expires && rule.matcher.matches_reading(request, reading, outcome) {
                match outcome {
                    Outcome::Deny => deny = deny.or(Some(rule)),
                    Outcome::Ask => asks.push(rule),
                    Outcome::Allow => allows.push(rule),
                }
            }
        });
        let (rule, allow_in_tie) = match deny {
            Some(deny) => (Some(deny), None),
            None => most_restrictive_unless_narrower(&allows, &asks),
        };
        LayerVerdict {
            layer: self.layer,
            outcome: match rule {
                Some(rule) => Some(rule.outcome_for(request)),
                None if request.git().is_some() && request.pushing() == Pushing::Preparing => {
                    self.otherwise.outcome().map(|outcome| outcome.unless_asked_later(true))
                }
                None => self.otherwise.outcome(),
            },
            rule: rule.map(|rule| rule.head.clone()),
            allow_in_tie: allow_in_tie.map(|rule| rule.head.clone()),
        }
    }
}

impl CompiledRule {
    /// A person is asked about a push only when the refs that it changes are known, and for that the client needs the
    /// server's list of refs. So the request before the push is allowed if the push itself will be asked about. That
    /// applies to SSH, and to rules that name branches.
    fn outcome_for(&self, request: &CanonicalRequest) -> Outcome {
        let about_refs = request.git().is_some() || !self.matcher.branches.is_empty();
        self.outcome.unless_asked_later(about_refs && request.pushing() == Pushing::Preparing)
    }
}

impl Outcome {
    fn unless_asked_later(self, later: bool) -> Self {
        if later && self == Self::Ask { Self::Allow } else { self }
    }
}

/// The winning rule, and the allow that lost against it if it was not narrower.
fn most_restrictive_unless_narrower<'r>(
    allows: &[&'r CompiledRule],
    asks: &[&'r CompiledRule],
) -> (Option<&'r CompiledRule>, Option<&'r CompiledRule>) {
    let nearest = |rules: &[&'r CompiledRule]| -> Option<&'r CompiledRule> {
        // Of equally specific rules, the one written first.
        rules.iter().rev().copied().max_by_key(|rule| specificity(rule))
    };
    if asks.is_empty() {
        return (nearest(allows), None);
    }
    let narrower = |allow: &CompiledRule, ask: &CompiledRule| {
        ask.matcher.covers(&allow.matcher) && !allow.matcher.covers(&ask.matcher)
    };
    let narrower_than_all: Vec<&CompiledRule> =
        allows.iter().copied().filter(|allow| asks.iter().all(|ask| narrower(allow, ask))).collect();
    match nearest(&narrower_than_all) {
        Some(allow) => (Some(allow), None),
        None => (nearest(asks), nearest(allows)),
    }
}

/// How specifically a rule names a request. If several rules have the same outcome, the most specific one is named.
fn specificity(rule: &CompiledRule) -> impl Ord + use<> {
    let matcher = &rule.matcher;
    (
        matcher.hosts.iter().map(|host| host.specificity()).max(),
        matcher.paths.iter().map(|path| path.specificity()).max(),
        matcher.query.specificity(),
        matcher.headers.len(),
        !matcher.branches.is_empty(),
    )
}

impl CompiledPolicy {
    fn grant_for(
        &self,
        request: &CanonicalRequest,
        reading: Option<&Reading>,
        now: Timestamp,
    ) -> Option<RuleRef> {
        let mut found = None;
        self.grant_index.visit(request.host(), &Wanted::matching(request, reading), &mut |at| {
            let grant = &self.grants[at];
            let fits = now < grant.grant.expires
                && grant.grant.matcher.matches_reading(request, reading, Outcome::Allow);
            if fits && found.is_none() {
                found = Some(grant.head.clone());
            }
        });
        found
    }
}

/// How the gateway handles a connection of which it knows only host and port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "route")]
pub enum Route {
    /// Read its requests and decide on each.
    Inspect,
    /// Forward bytes, if the decision allows it.
    Tcp { decision: Decision },
    /// Forward TLS without decrypting it, if the SNI is the name and the decision allows it.
    Passthrough { decision: Decision },
    /// A service of the host: read HTTP/1 and decide on each request; forward the bytes of every other protocol, if the
    /// decision allows it.
    HostItself { decision: Decision },
    /// Answer as an SSH server, and decide on each git command.
    GitSsh,
    /// Nothing on this connection can be allowed. If the client speaks a protocol in which the gateway can give the
    /// reason, the gateway still reads the request and answers it.
    Refuse { decision: Decision },
}

/// Chooses how to handle a connection before anything was sent on it. If rules of several kinds match, the one that
/// names the host most specifically wins. Of equally specific kinds, the ones that the gateway reads win.
#[must_use]
pub fn route(policy: &CompiledPolicy, host: &Host, port: u16, now: Timestamp) -> Route {
    if is_host_itself(host) {
        return host_itself::route(policy, host, port, now);
    }
    let destination = host.to_string();
    let tcp = CanonicalRequest::tcp(&destination, port);
    let passthrough = CanonicalRequest::passthrough(&crate::canonical::Connection {
        destination: &destination,
        port,
        sni: host.name(),
    });
    let decided =
        |request: Result<CanonicalRequest, _>| request.ok().map(|request| decide(policy, &request, now));
    let (tcp, passthrough) = (decided(tcp), decided(passthrough));
    let not_denied = |decision: &Option<Decision>| {
        decision.as_ref().is_some_and(|decision| decision.outcome != Outcome::Deny)
    };
    let inspect = policy.most_specific_on_connection(host, port, Kind::Http, now);
    let git_ssh = policy.most_specific_on_connection(host, port, Kind::GitSsh, now);
    let reach = |kind, possible: bool| {
        if possible { policy.most_specific_on_connection(host, port, kind, now) } else { None }
    };
    let tcp_reach = reach(Kind::Tcp, not_denied(&tcp));
    let passthrough_reach = reach(Kind::Passthrough, not_denied(&passthrough));
    let best = inspect.max(git_ssh).max(tcp_reach).max(passthrough_reach);
    match (best, tcp, passthrough) {
        // The first bytes on the connection distinguish HTTP from SSH.
        (Some(_), _, _) if best == inspect => Route::Inspect,
        (Some(_), _, _) if best == git_ssh => Route::GitSsh,
        (Some(_), _, Some(decision)) if best == passthrough_reach => Route::Passthrough { decision },
        (Some(_), Some(decision), _) => Route::Tcp { decision },
        // If an ask is still possible, the gateway reads the connection and decides on each request.
        (None, Some(decision), _) if decision.outcome != Outcome::Deny => Route::Inspect,
        (_, Some(decision), _) => Route::Refuse { decision },
        (_, None, _) => Route::Refuse { decision: denied(Cause::NoPolicy, Vec::new()) },
    }
}

impl CompiledPolicy {
    /// How specifically the host is named by the rules that may permit traffic of this kind. `None` unless every layer
    /// has such a rule.
    fn most_specific_on_connection(
        &self,
        host: &Host,
        port: u16,
        kind: Kind,
        now: Timestamp,
    ) -> Option<crate::pattern::host::Specificity> {
        let fits = |matcher: &crate::rule::Matcher| {
            let port_fits = match kind {
                Kind::Http | Kind::GitSsh => {
                    matcher.schemes.iter().any(|scheme| matcher.ports.contains(port, *scheme))
                }
                _ => matcher.ports.contains(port, Scheme::Https),
            };
            let near = matcher
                .hosts
                .iter()
                .filter(|pattern| pattern.permits(host))
                .map(|pattern| pattern.specificity());
            near.max().filter(|_| matcher.kind == kind && port_fits)
        };
        let mut nearest = None;
        let mut granted = None;
        self.grant_index.visit(host, &Wanted::Everything, &mut |at| {
            let grant = &self.grants[at].grant;
            granted = granted.max(fits(&grant.matcher).filter(|_| now < grant.expires));
        });
        for layer in &self.layers {
            let (mut reach, mut denied) = (None, false);
            layer.index.visit(host, &Wanted::Everything, &mut |at| {
                let rule = &layer.rules[at];
                if now >= rule.expires {
                    return;
                }
                match rule.outcome {
                    Outcome::Allow | Outcome::Ask => reach = reach.max(fits(&rule.matcher)),
                    Outcome::Deny => denied |= forbids_all(&rule.matcher, host, port),
                }
            });
            if denied {
                return None;
            }
            let Some(silent) = layer.otherwise.outcome() else {
                nearest = nearest.max(reach);
                continue;
            };
            // A layer without a matching rule that asks by default lets a connection be read, but not forwarded unread.
            let asks = (silent == Outcome::Ask && kind == Kind::Http).then_some((0, 0));
            let granted = granted.filter(|_| layer.layer != Layer::Host);
            let reach = reach.max(granted).max(asks)?;
            nearest = nearest.max(Some(reach));
        }
        nearest
    }
}

/// Whether a deny covers everything that a connection could carry.
fn forbids_all(matcher: &crate::rule::Matcher, host: &Host, port: u16) -> bool {
    matcher.kind == Kind::Any
        && matcher.hosts.iter().any(|pattern| pattern.forbids(host))
        && matcher.ports.contains(port, Scheme::Https)
}

/// An address that the gateway must not connect to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, thiserror::Error)]
#[error("{host} resolves to {address}, {}; {next}", class.describe())]
pub struct AddressRefusal {
    pub host: Host,
    pub address: IpAddr,
    pub class: AddressClass,
    pub next: String,
}

/// Whether the gateway may connect to this address for an allowed request. The address is the very one that it dials.
/// `own` are the addresses of the host. A public address that is not one of them may be dialled. Any other address must
/// be named by every rule that the decision rests on. The name of the host itself leads to [`HOST_LOOPBACK`] only.
pub fn check_address(
    decision: &Decision,
    request: &CanonicalRequest,
    address: IpAddr,
    own: &[IpAddr],
) -> Result<(), AddressRefusal> {
    let class = address::classify_with(address, own);
    let refuse = |next: String| Err(AddressRefusal { host: request.host().clone(), address, class, next });
    if decision.outcome != Outcome::Allow {
        return refuse("the request is not allowed in the first place".to_owned());
    }
    if let Host::Address(wanted) = request.host()
        && *wanted != address
    {
        return refuse("connect to the address that was asked for".to_owned());
    }
    // The operator opened this port. No rule has to name the address.
    if is_host_itself(request.host()) {
        return if address == HOST_LOOPBACK {
            Ok(())
        } else {
            refuse(format!("only {HOST_LOOPBACK} is meant"))
        };
    }
    if class == AddressClass::Public {
        return Ok(());
    }
    let grant = match &decision.cause {
        Cause::Grant { grant } => Some(grant),
        _ => None,
    };
    let names_it =
        |rule: &RuleHead| rule.named.iter().any(|network| address::named_by(network, address, class));
    for verdict in decision.layers.iter().filter(|verdict| verdict.outcome.is_some()) {
        let responsible = verdict.rule.as_ref().or(grant);
        if !responsible.is_some_and(|rule| names_it(rule)) {
            return refuse(match responsible {
                Some(rule) => {
                    format!("if that is wanted, add address = \"{address}\" to {} ({})", rule.id, rule.origin)
                }
                None => format!("if that is wanted, name {address} in a rule"),
            });
        }
    }
    Ok(())
}

/// The most restrictive rule that covers the command, if any does.
#[must_use]
pub fn decide_exec<'p>(policy: &'p CompiledPolicy, argv: &[String]) -> Option<&'p ExecRule> {
    let rules = policy.layers().flat_map(|layer| &layer.execs).filter(|rule| rule.matches(argv));
    // Of equally restrictive rules, the first one.
    rules.fold(None, |worst: Option<&ExecRule>, rule| match worst {
        Some(worst) if worst.outcome >= rule.outcome => Some(worst),
        _ => Some(rule),
    })
}
