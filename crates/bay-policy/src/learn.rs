//! Narrow rules that would allow requests that were refused.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::Serialize;

use crate::address::{self, AddressClass, NameClass};
use crate::canonical::path::Reading;
use crate::canonical::request::Pushing;
use crate::canonical::{CanonicalPath, CanonicalRequest, Host, Http, Scheme, What};
use crate::compile::CompiledPolicy;
use crate::decide::{Cause, decide};
use crate::pattern::query::ValuePattern;
use crate::pattern::{HostPattern, Methods, PathPattern, Ports, QueryPattern};
use crate::push::RefPattern;
use crate::rule::{Grant, Kind, Layer, Matcher, Origin, Outcome, Rule};
use crate::write::rule_to_toml;

/// If the requests for one rule have more paths than this, one pattern replaces them.
pub const MAX_PATHS_BEFORE_PATTERN: usize = 12;
/// Most requests that one lesson covers.
pub const MAX_REQUESTS: usize = 10_000;

/// Rules that would allow the refused requests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Lesson {
    pub rules: Vec<Rule>,
    /// The rules in the form of a policy file.
    pub toml: String,
    /// Requests for which no rule is proposed, with the reasons.
    pub not_learned: Vec<NotLearned>,
    /// The number of requests beyond the limit, which the lesson does not cover.
    pub left_out: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NotLearned {
    pub request: String,
    pub why: String,
}

/// What requests must have in common to become one rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Group {
    host: String,
    port: u16,
    kind: Kind,
    scheme: Option<Scheme>,
    method: String,
    /// The git service, which distinguishes fetching from pushing.
    git_service: Option<String>,
    /// The refs that a push changes.
    refs: Vec<String>,
    has_query: bool,
}

/// Proposes rules for `layer` that allow these requests, and little else: many paths become one pattern, and a request
/// with a query becomes a rule for any query.
#[must_use]
pub fn learn(policy: &CompiledPolicy, refused: &[CanonicalRequest], layer: Layer, now: Timestamp) -> Lesson {
    let mut groups: BTreeMap<Group, (HostPattern, BTreeMap<String, &CanonicalPath>)> = BTreeMap::new();
    let mut not_learned = Vec::new();
    for request in refused.iter().take(MAX_REQUESTS) {
        if let Some(why) = obstacle(policy, request, layer, now) {
            not_learned.push(NotLearned { request: request.to_string(), why });
            continue;
        }
        let mut cannot = |why: &str| {
            not_learned.push(NotLearned { request: request.to_string(), why: why.to_owned() });
        };
        let Ok(host) = HostPattern::parse(&request.host().to_string()) else {
            cannot("its host cannot be written as a pattern, and a wider one is for a person to write");
            continue;
        };
        if request.push_options() > 0 {
            cannot("it has push options, and no rule by branch allows those");
            continue;
        }
        if request.path().is_some_and(|path| alone(path).is_none()) {
            cannot("no pattern can be written for its path alone, and a wider one is for a person to write");
            continue;
        }
        let (_, paths) = groups.entry(group(request)).or_insert((host, BTreeMap::new()));
        if let Some(path) = request.path() {
            paths.insert(path.as_str().to_owned(), path);
        }
    }
    not_learned.sort_by(|a, b| a.request.cmp(&b.request));
    not_learned.dedup();
    let groups = merge_reading(groups);
    let mut rules: Vec<Rule> = Vec::new();
    for (group, (methods, host, paths)) in groups {
        let matcher = matcher(&group, methods, host, patterns(&paths));
        if rules.iter().any(|rule| rule.matcher.covers(&matcher)) {
            continue;
        }
        rules.push(Rule {
            id: format!("learned-{}", rules.len() + 1),
            origin: Origin { layer, file: "learned".to_owned(), line: 0 },
            outcome: Outcome::Allow,
            matcher,
            reason: None,
            expires: None,
            checkpoint: false,
            examples: Vec::new(),
            counterexamples: Vec::new(),
        });
    }
    let toml = rules.iter().map(rule_to_toml).collect::<Vec<_>>().join("\n");
    Lesson { rules, toml, not_learned, left_out: refused.len().saturating_sub(MAX_REQUESTS) }
}

/// The rule that allows this request and none with another host, port, method, path or query. `None` if the language
/// cannot express it. If a person allows one request, a star that the bay put into it must not widen the permission.
#[must_use]
pub fn exactly_this(request: &CanonicalRequest) -> Option<Matcher> {
    let matcher = narrowest(request)?;
    let one_query = request.http().is_none_or(|_| matcher.query != QueryPattern::Any);
    one_query.then_some(matcher)
}

/// The rule that allows this path and method of this host alone, and this query if the language can express it. `None`
/// if no pattern matches exactly this path, or if the request is a push with push options.
#[must_use]
pub fn narrowest(request: &CanonicalRequest) -> Option<Matcher> {
    if request.push_options() > 0 {
        // A rule by branch would not allow it, and a rule without branches would allow every push.
        return None;
    }
    let host = HostPattern::parse(&request.host().to_string()).ok()?;
    let group = group(request);
    let paths = request.path().map_or(Some(Vec::new()), alone)?;
    let methods = BTreeSet::from([group.method.clone()]);
    let mut matcher = matcher(&group, methods, host, paths);
    if let (Some(http), QueryPattern::Any) = (request.http(), &matcher.query) {
        matcher.query = exact_query(http);
    }
    Some(matcher)
}

/// A grant for exactly this request, which an approval makes. `None` as for [`exactly_this`].
#[must_use]
pub fn grant_for(request: &CanonicalRequest, id: &str, origin: Origin, expires: Timestamp) -> Option<Grant> {
    Some(Grant { id: id.to_owned(), origin, matcher: exactly_this(request)?, reason: None, expires })
}

/// Exactly this query, unless a name occurs twice in it.
fn exact_query(http: &Http) -> QueryPattern {
    let mut names = BTreeSet::new();
    for (name, value) in http.query().pairs() {
        if !names.insert(name.to_owned()) || value == "*" {
            return QueryPattern::Any;
        }
    }
    let pattern = match http.query().as_str() {
        None => QueryPattern::Nothing,
        // A rule cannot express a query that is a bare word.
        Some(text) if !text.contains('=') => return QueryPattern::Any,
        Some(text) => QueryPattern::Exactly(text.to_owned()),
    };
    if pattern.matches(http.query(), crate::pattern::Strictness::Exact) { pattern } else { QueryPattern::Any }
}

/// Why a rule in this layer would not allow the request.
fn obstacle(
    policy: &CompiledPolicy,
    request: &CanonicalRequest,
    layer: Layer,
    now: Timestamp,
) -> Option<String> {
    let special = match request.host() {
        Host::Address(address) => Some(address::classify(*address))
            .filter(|class| *class != AddressClass::Public)
            .map(AddressClass::describe),
        Host::Name(name) => {
            (address::classify_name(name) == NameClass::Metadata).then_some(AddressClass::Metadata.describe())
        }
    };
    if let Some(special) = special {
        return Some(format!("{} is {special}, and such a rule is for a person to write", request.host()));
    }
    let decision = decide(policy, request, now);
    if decision.outcome == Outcome::Allow {
        return Some("it is allowed by now".to_owned());
    }
    if let Cause::Rule { rule } = &decision.cause
        && rule.outcome == Outcome::Deny
    {
        return Some(format!("{} denies it ({})", rule.id, rule.origin));
    }
    if matches!(decision.cause, Cause::NotReached { .. }) {
        return Some("no rule opens a port of the host: only its operator does".to_owned());
    }
    let before = decision
        .layers
        .iter()
        .find(|verdict| verdict.layer != layer && !matches!(verdict.outcome, None | Some(Outcome::Allow)));
    before.map(|verdict| format!("the {} layer does not allow it, and no other layer can", verdict.layer))
}

fn group(request: &CanonicalRequest) -> Group {
    let mut group = Group {
        host: request.host().to_string(),
        port: request.port(),
        kind: request.kind(),
        scheme: request.scheme(),
        method: request.method().unwrap_or_default().to_owned(),
        git_service: None,
        refs: match request.pushing() {
            Pushing::Refs(refs) => refs.to_vec(),
            _ => Vec::new(),
        },
        has_query: false,
    };
    if let What::Http(http) = request.what() {
        group.has_query = http.query().as_str().is_some();
        if http.path().as_str().ends_with("/info/refs") {
            let service = http.query().pairs().find(|(name, _)| *name == "service");
            group.git_service = service.map(|(_, value)| value.to_owned());
        }
    }
    group
}

type Merged<'a> = (BTreeSet<String>, HostPattern, BTreeMap<String, &'a CanonicalPath>);

/// Merges GET and HEAD of the same paths into one rule: HEAD reveals no more than GET.
fn merge_reading(
    groups: BTreeMap<Group, (HostPattern, BTreeMap<String, &CanonicalPath>)>,
) -> Vec<(Group, Merged<'_>)> {
    let mut merged: Vec<(Group, Merged<'_>)> = Vec::new();
    for (group, (host, paths)) in groups {
        let same = merged.iter_mut().find(|(other, (methods, _, known))| {
            let alike = Group { method: other.method.clone(), ..group.clone() } == *other;
            alike && methods.contains("GET") && group.method == "HEAD" && *known == paths
        });
        match same {
            Some((_, (methods, _, _))) => {
                methods.insert(group.method);
            }
            None => merged.push((group.clone(), (BTreeSet::from([group.method]), host, paths))),
        }
    }
    merged
}

/// The paths themselves, or, if there are too many, patterns of what they share. The caller has checked with [`alone`]
/// that each path can be a pattern.
fn patterns(paths: &BTreeMap<String, &CanonicalPath>) -> Vec<PathPattern> {
    // A path that can be divided in two ways must be allowed in both.
    let readings = || paths.values().flat_map(|path| path.readings());
    if readings().count() <= MAX_PATHS_BEFORE_PATTERN {
        return readings().filter_map(exactly).collect();
    }
    let mut paths = readings();
    let Some(first) = paths.next() else { return Vec::new() };
    let mut common: Vec<&str> = first.segments.iter().map(|segment| &*segment.exact).collect();
    // `*` matches one segment that is not empty.
    let mut one_more: Vec<(usize, bool)> = vec![shape(first)];
    for reading in paths {
        let alike =
            common.iter().zip(&reading.segments).take_while(|(own, other)| ***own == *other.exact).count();
        common.truncate(alike);
        one_more.push(shape(reading));
    }
    let plain = |segment: &&&str| !segment.is_empty() && !segment.contains('/');
    let mut fixed: Vec<String> =
        common.iter().take_while(plain).map(|segment| format!("/{}", escape(segment))).collect();
    loop {
        let one_level =
            one_more.iter().all(|(length, ends_in_a_name)| *length == fixed.len() + 1 && *ends_in_a_name);
        let text = format!("{}{}", fixed.concat(), if one_level { "/*" } else { "/**" });
        // If the pattern with the star is too long, drop its last segment. A rule without any pattern would match every
        // path.
        match PathPattern::parse(&text) {
            Ok(pattern) => return vec![pattern],
            Err(_) if fixed.is_empty() => return Vec::new(),
            Err(_) => drop(fixed.pop()),
        }
    }
}

/// The patterns that match only this path, one for each way to divide it. `None` if one of them cannot be expressed.
fn alone(path: &CanonicalPath) -> Option<Vec<PathPattern>> {
    path.readings().iter().map(exactly).collect()
}

/// The pattern that matches only this reading of a path. Its stars are encoded, so that they match only stars.
fn exactly(reading: &Reading) -> Option<PathPattern> {
    let segments = reading.segments.iter().map(|segment| format!("/{}", escape(&segment.exact)));
    PathPattern::parse(&segments.collect::<String>()).ok()
}

/// The number of segments, and whether the last one has content.
fn shape(reading: &Reading) -> (usize, bool) {
    (reading.segments.len(), reading.segments.last().is_some_and(|last| !last.exact.is_empty()))
}

/// A decoded segment, encoded for a path.
fn escape(segment: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~!$&'()+,=:@".contains(&byte);
    segment
        .bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

fn matcher(group: &Group, methods: BTreeSet<String>, host: HostPattern, paths: Vec<PathPattern>) -> Matcher {
    let usual = group.scheme.map(Scheme::default_port) == Some(group.port)
        || (group.kind == Kind::Passthrough && group.port == Scheme::Https.default_port());
    let query = match (&group.git_service, group.has_query) {
        (Some(service), _) => {
            QueryPattern::Pairs([("service".to_owned(), ValuePattern::OneOf(vec![service.clone()]))].into())
        }
        (None, false) if group.kind == Kind::Http => QueryPattern::Nothing,
        (None, _) => QueryPattern::Any,
    };
    let has_paths = group.kind.has_paths();
    Matcher {
        kind: group.kind,
        hosts: vec![host],
        ports: if usual { Ports::Default } else { Ports::ranges(vec![(group.port, group.port)]) },
        schemes: vec![group.scheme.unwrap_or(Scheme::Https)],
        methods: if has_paths { Methods::set(methods.into_iter().collect()) } else { Methods::reading() },
        paths: if group.kind == Kind::GitSsh {
            PathPattern::of_repositories(paths)
        } else if has_paths {
            paths
        } else {
            PathPattern::parse("/**").into_iter().collect()
        },
        query,
        headers: Vec::new(),
        branches: group.refs.iter().filter_map(|name| RefPattern::exactly(name)).collect(),
        secrets: None,
        addresses: Vec::new(),
    }
}
