//! Finds the rules of a layer that can match a request, without comparing all of them.

use std::collections::HashMap;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::address;
use crate::canonical::path::{Reading, Segment};
use crate::canonical::{CanonicalRequest, Host, Scheme};
use crate::pattern::path::Landmark;
use crate::pattern::{HostPattern, Methods, Ports};
use crate::rule::{Kind, Matcher};

/// Rules by what they can match. A lookup may return rules that do not match, and never misses one that does.
#[derive(Debug, Clone, Default)]
pub(crate) struct Index {
    names: HashMap<Box<str>, Bucket>,
    below: HashMap<Box<str>, Bucket>,
    /// The number of labels of the longest key of `below`. It bounds the cost of a request whose host has a thousand
    /// labels.
    below_labels: usize,
    addresses: HashMap<IpAddr, Bucket>,
    networks: Vec<(IpNet, Bucket)>,
    any: Bucket,
}

/// Rules of one host pattern, by a segment of their paths.
#[derive(Debug, Clone, Default)]
struct Bucket {
    /// By the index of a segment, then by the folded segment.
    literals: Vec<(usize, Literals)>,
    /// By the index of a segment, then in a list. A lookup compares the whole list, so its entries are small and
    /// contiguous.
    prefixes: Vec<(usize, Vec<Prefix>)>,
    others: Vec<Entry>,
}

type Literals = HashMap<Box<str>, Vec<Entry>>;

/// A rule, and a few bytes that rule it out for most requests that it cannot match.
#[derive(Debug, Clone, Copy)]
struct Entry {
    rule: u32,
    kinds: u8,
    schemes: u8,
    methods: u8,
    /// The lowest and the highest.
    ports: (u16, u16),
}

/// The beginning of a segment, as a number. Only this many bytes are compared.
#[derive(Debug, Clone, Copy)]
struct Prefix {
    bytes: u128,
    mask: u128,
    entry: Entry,
}

/// The rules of a bucket that a lookup wants.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Wanted<'a> {
    /// The rules that can match this request, with its path divided in this way.
    Matching {
        kind: u8,
        scheme: u8,
        method: u8,
        port: u16,
        reading: Option<&'a Reading>,
    },
    Everything,
}

impl<'a> Wanted<'a> {
    pub(crate) fn matching(request: &CanonicalRequest, reading: Option<&'a Reading>) -> Self {
        Self::Matching {
            kind: kinds(request.kind()),
            scheme: request.scheme().map_or(u8::MAX, scheme),
            method: match request.http() {
                // Ask and deny rules may also match the GET that a handshake begins with.
                Some(http) if http.is_websocket() => method(http.method()) | method(http.sent_method()),
                _ => request.method().map_or(u8::MAX, method),
            },
            port: request.port(),
            reading,
        }
    }

    fn may_match(&self, entry: &Entry) -> bool {
        match self {
            Self::Everything => true,
            Self::Matching { kind, scheme, method, port, .. } => {
                entry.kinds & kind != 0
                    && entry.schemes & scheme != 0
                    && entry.methods & method != 0
                    && (entry.ports.0..=entry.ports.1).contains(port)
            }
        }
    }
}

fn kinds(kind: Kind) -> u8 {
    match kind {
        Kind::Http => 1,
        Kind::Tcp => 2,
        Kind::Passthrough => 4,
        Kind::GitSsh => 8,
        Kind::Any => u8::MAX,
    }
}

fn scheme(scheme: Scheme) -> u8 {
    match scheme {
        Scheme::Http => 1,
        Scheme::Https => 2,
        Scheme::Ssh => 4,
    }
}

/// A bit for each common method, and one for all others.
fn method(method: &str) -> u8 {
    const COMMON: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"];
    1 << COMMON.iter().position(|common| *common == method).unwrap_or(COMMON.len())
}

impl Entry {
    fn new(at: usize, matcher: &Matcher) -> Self {
        let ports = match &matcher.ports {
            Ports::Any => (1, u16::MAX),
            Ports::Default if matcher.kind == Kind::GitSsh => {
                (Scheme::Ssh.default_port(), Scheme::Ssh.default_port())
            }
            Ports::Default => (Scheme::Http.default_port(), Scheme::Https.default_port()),
            Ports::Ranges(ranges) => {
                (ranges.first().map_or(1, |range| range.0), ranges.last().map_or(0, |range| range.1))
            }
        };
        let methods = match &matcher.methods {
            Methods::Any => u8::MAX,
            Methods::Set(methods) => methods.iter().fold(0, |bits, own| bits | method(own)),
        };
        Self {
            // Never truncated: a layer has at most `MAX_RULES` rules.
            rule: u32::try_from(at).unwrap_or(u32::MAX),
            kinds: kinds(matcher.kind),
            schemes: matcher.schemes.iter().fold(0, |bits, own| bits | scheme(*own)),
            methods,
            ports,
        }
    }
}

impl Index {
    pub(crate) fn insert(&mut self, at: usize, matcher: &Matcher) {
        for host in &matcher.hosts {
            let bucket = match host {
                HostPattern::Any => &mut self.any,
                HostPattern::Name(name) => self.names.entry(name.clone()).or_default(),
                HostPattern::Below(suffix) => {
                    self.below_labels = self.below_labels.max(suffix.split('.').count());
                    self.below.entry(suffix.clone()).or_default()
                }
                HostPattern::Network(network) if network.prefix_len() == network.max_prefix_len() => {
                    self.addresses.entry(network.addr()).or_default()
                }
                HostPattern::Network(network) => {
                    let found = self.networks.iter().position(|(own, _)| own == network);
                    let found = found.unwrap_or_else(|| {
                        self.networks.push((*network, Bucket::default()));
                        self.networks.len() - 1
                    });
                    &mut self.networks[found].1
                }
            };
            bucket.insert(&Entry::new(at, matcher), matcher);
        }
    }

    /// Calls `visit` with every rule that can match, some of them more than once.
    pub(crate) fn visit(&self, host: &Host, wanted: &Wanted<'_>, visit: &mut dyn FnMut(usize)) {
        match host {
            Host::Name(name) => {
                if let Some(bucket) = self.names.get(name) {
                    bucket.visit(wanted, visit);
                }
                // From the shortest suffix that can be a key to the longest.
                let dots = name.rmatch_indices('.').take(self.below_labels);
                for (dot, _) in dots {
                    if let Some(bucket) = self.below.get(&name[dot + 1..]) {
                        bucket.visit(wanted, visit);
                    }
                }
            }
            Host::Address(address) => {
                let inner = match address {
                    IpAddr::V4(_) => None,
                    IpAddr::V6(address) => address::embedded(*address).map(IpAddr::V4),
                };
                for address in [Some(*address), inner].into_iter().flatten() {
                    if let Some(bucket) = self.addresses.get(&address) {
                        bucket.visit(wanted, visit);
                    }
                    for (network, bucket) in &self.networks {
                        if network.contains(&address) {
                            bucket.visit(wanted, visit);
                        }
                    }
                }
            }
        }
        self.any.visit(wanted, visit);
    }
}

impl Bucket {
    fn insert(&mut self, entry: &Entry, matcher: &Matcher) {
        if !matcher.kind.has_paths() {
            self.others.push(*entry);
            return;
        }
        for path in &matcher.paths {
            match path.landmark() {
                Landmark::Literal(segment, literal) => {
                    of_segment(&mut self.literals, segment).entry(literal.into()).or_default().push(*entry);
                }
                Landmark::Prefix(segment, prefix) => {
                    let length = prefix.len().min(size_of::<u128>());
                    let (bytes, mask) = (number(prefix), number_of_ones(length));
                    of_segment(&mut self.prefixes, segment).push(Prefix {
                        bytes: bytes & mask,
                        mask,
                        entry: *entry,
                    });
                }
                Landmark::Nothing => self.others.push(*entry),
            }
        }
    }

    fn visit(&self, wanted: &Wanted<'_>, visit: &mut dyn FnMut(usize)) {
        let mut visit = |entry: &Entry| {
            if wanted.may_match(entry) {
                visit(entry.rule as usize);
            }
        };
        match wanted {
            Wanted::Matching { reading: Some(reading), .. } => {
                let segment = |at: usize| reading.segments.get(at).map(Segment::folded);
                for (at, rules) in &self.literals {
                    segment(*at)
                        .and_then(|segment| rules.get(segment))
                        .into_iter()
                        .flatten()
                        .for_each(&mut visit);
                }
                for (at, prefixes) in &self.prefixes {
                    let Some(begins) = segment(*at).map(number) else { continue };
                    prefixes
                        .iter()
                        .filter(|prefix| begins & prefix.mask == prefix.bytes)
                        .for_each(|prefix| visit(&prefix.entry));
                }
            }
            Wanted::Matching { reading: None, .. } => {}
            Wanted::Everything => {
                self.literals.iter().flat_map(|(_, rules)| rules.values()).flatten().for_each(&mut visit);
                self.prefixes
                    .iter()
                    .flat_map(|(_, prefixes)| prefixes)
                    .for_each(|prefix| visit(&prefix.entry));
            }
        }
        self.others.iter().for_each(visit);
    }
}

fn of_segment<T: Default>(by_segment: &mut Vec<(usize, T)>, segment: usize) -> &mut T {
    let found = by_segment.iter().position(|(number, _)| *number == segment);
    let found = found.unwrap_or_else(|| {
        by_segment.push((segment, T::default()));
        by_segment.len() - 1
    });
    &mut by_segment[found].1
}

/// The first bytes of a text as a number, the first byte in the most significant position. A shorter text is padded
/// with zeros. No text contains a zero byte, because paths that do are refused.
fn number(text: &str) -> u128 {
    let mut bytes = [0; size_of::<u128>()];
    let length = text.len().min(bytes.len());
    bytes[..length].copy_from_slice(&text.as_bytes()[..length]);
    u128::from_be_bytes(bytes)
}

/// A mask of ones for this many leading bytes.
fn number_of_ones(length: usize) -> u128 {
    let zeros = (size_of::<u128>() - length) * 8;
    u128::MAX.checked_shl(zeros as u32).unwrap_or(0)
}
