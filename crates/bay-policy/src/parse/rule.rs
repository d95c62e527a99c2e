//! The table of one rule or grant.

use std::collections::BTreeMap;

use ipnet::IpNet;
use jiff::Timestamp;
use toml::de::DeTable;

use super::reader::{Reader, Value, Word, quoted};
use crate::canonical::host::parse_port;
use crate::canonical::{CanonicalRequest, Scheme};
use crate::pattern::query::ValuePattern;
use crate::pattern::{HostPattern, Methods, PathPattern, Ports, QueryPattern};
use crate::place::{Place, Places};
use crate::push::RefPattern;
use crate::rule::{Kind, Matcher, Outcome};

mod git;

const KEYS: [&str; 19] = [
    "id",
    "outcome",
    "kind",
    "place",
    "scheme",
    "host",
    "port",
    "method",
    "path",
    "query",
    "header",
    "branch",
    "secret",
    "address",
    "reason",
    "expires",
    "checkpoint",
    "match",
    "not_match",
];
/// Longest id and longest reason.
const MAX_ID_BYTES: usize = 128;
const MAX_REASON_BYTES: usize = 1024;

/// The content of a table, before it becomes a rule or a grant.
#[derive(Debug)]
pub(super) struct RuleTable {
    pub(super) id: Option<String>,
    pub(super) outcome: Option<Outcome>,
    /// One matcher, or one for each destination of a placeholder.
    pub(super) matchers: Vec<Matcher>,
    /// Whether their number depends on the settings found on the machine.
    pub(super) from_places: bool,
    pub(super) reason: Option<String>,
    pub(super) expires: Option<Timestamp>,
    pub(super) checkpoint: bool,
    pub(super) examples: Vec<Word>,
    pub(super) counterexamples: Vec<Word>,
}

/// The keys that say what a rule matches, as written.
#[derive(Debug, Default)]
struct Fields {
    kind: Option<(Kind, usize)>,
    places: Option<Vec<Word>>,
    /// Whether the key is present, even if its value is invalid.
    host_written: bool,
    hosts: Option<Vec<HostPattern>>,
    ports: Option<(Ports, usize)>,
    schemes: Option<(Vec<Scheme>, usize)>,
    methods: Option<(Methods, usize)>,
    paths: Option<Vec<Word>>,
    query: Option<(QueryPattern, usize)>,
    headers: Option<(Vec<String>, usize)>,
    branches: Option<(Vec<RefPattern>, usize)>,
    secrets: Option<Vec<String>>,
    addresses: Vec<IpNet>,
}

pub(super) fn read_table<'t>(
    reader: &mut Reader<'t>,
    table: &DeTable<'t>,
    at: usize,
    places: &Places,
    of: &str,
) -> Option<RuleTable> {
    let mut read = RuleTable {
        id: None,
        outcome: None,
        matchers: Vec::new(),
        from_places: false,
        reason: None,
        expires: None,
        checkpoint: false,
        examples: Vec::new(),
        counterexamples: Vec::new(),
    };
    let mut fields = Fields::default();
    let is_rule = of == "a rule";
    for (key, value) in table {
        match &**key.get_ref() {
            "id" => read.id = read_id(reader, value),
            "outcome" if is_rule => {
                let choices = [("allow", Outcome::Allow), ("ask", Outcome::Ask), ("deny", Outcome::Deny)];
                let word = reader.string("outcome", value);
                read.outcome = word.and_then(|word| reader.choice("outcome", &word, &choices));
            }
            "reason" => read.reason = read_reason(reader, value),
            "expires" => read.expires = read_expires(reader, value),
            "checkpoint" if is_rule => read.checkpoint = reader.boolean("checkpoint", value).unwrap_or(false),
            "match" => read.examples = reader.strings("match", value).unwrap_or_default(),
            "not_match" => read.counterexamples = reader.strings("not_match", value).unwrap_or_default(),
            _ if fields.read(reader, key.get_ref(), value) => {}
            _ => {
                let known: Vec<&str> = KEYS
                    .iter()
                    .copied()
                    .filter(|key| is_rule || !["outcome", "checkpoint"].contains(key))
                    .collect();
                reader.unknown_key(key, &known, of);
            }
        }
    }
    if is_rule && read.outcome.is_none() && !table.keys().any(|key| key.get_ref() == "outcome") {
        reader.problem(
            at,
            "a rule has no outcome",
            "it must say what happens to a request",
            "add outcome = \"allow\", \"ask\" or \"deny\"",
        );
    }
    let outcome = if is_rule { read.outcome? } else { Outcome::Allow };
    if read.checkpoint && outcome != Outcome::Ask {
        reader.problem(
            at,
            "a rule that does not ask has `checkpoint`",
            "files are kept before a person is asked",
            "leave it out, or use outcome = \"ask\"",
        );
    }
    read.from_places = fields.places.iter().flatten().any(|word| word.text.starts_with('@'));
    read.matchers = fields.matchers(reader, at, outcome, places)?;
    Some(read)
}

pub(super) fn read_id(reader: &mut Reader<'_>, value: &Value<'_>) -> Option<String> {
    let word = reader.string("id", value)?;
    let letters = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if word.text.is_empty() || word.text.len() > MAX_ID_BYTES || !word.text.bytes().all(letters) {
        let why = format!("{} is not an id", quoted(&word.text));
        let next = format!("use up to {MAX_ID_BYTES} letters, digits, hyphens, dots and underscores");
        reader.problem(word.at, "wrong value of `id`", why, next);
        return None;
    }
    Some(word.text)
}

pub(super) fn read_reason(reader: &mut Reader<'_>, value: &Value<'_>) -> Option<String> {
    let word = reader.string("reason", value)?;
    if word.text.len() > MAX_REASON_BYTES || word.text.chars().any(char::is_control) {
        let why = format!("it is longer than {MAX_REASON_BYTES} bytes or has control characters");
        reader.problem(word.at, "wrong value of `reason`", why, "write one line");
        return None;
    }
    Some(word.text)
}

fn read_expires(reader: &mut Reader<'_>, value: &Value<'_>) -> Option<Timestamp> {
    let text = match value.get_ref().as_datetime() {
        Some(datetime) => datetime.to_string(),
        None => reader.string("expires", value)?.text,
    };
    let parsed = text.parse::<Timestamp>();
    if parsed.is_err() {
        reader.problem(
            value.span().start,
            "wrong value of `expires`",
            format!("{} is not a moment with its offset from UTC", quoted(&text)),
            "write it as 2030-01-31T18:00:00Z",
        );
    }
    parsed.ok()
}

impl Fields {
    /// Parses the key if it is one of these, and returns whether it was.
    fn read(&mut self, reader: &mut Reader<'_>, key: &str, value: &Value<'_>) -> bool {
        let at = value.span().start;
        match key {
            "kind" => {
                let choices = [
                    ("http", Kind::Http),
                    ("tcp", Kind::Tcp),
                    ("passthrough", Kind::Passthrough),
                    ("git-ssh", Kind::GitSsh),
                ];
                let word = reader.string(key, value);
                self.kind = word.and_then(|word| reader.choice(key, &word, &choices)).map(|kind| (kind, at));
            }
            "place" => self.places = reader.strings(key, value),
            "scheme" => {
                let choices = [("https", Scheme::Https), ("http", Scheme::Http)];
                let words = reader.strings(key, value).unwrap_or_default();
                let schemes = words.iter().filter_map(|word| reader.choice(key, word, &choices)).collect();
                self.schemes = Some((schemes, at));
            }
            "host" => {
                self.host_written = true;
                self.hosts = read_hosts(reader, value);
            }
            "port" => self.ports = read_ports(reader, value).map(|ports| (ports, at)),
            "method" => self.methods = read_methods(reader, value).map(|methods| (methods, at)),
            "path" => self.paths = reader.strings(key, value),
            "query" => self.query = read_query(reader, value).map(|query| (query, at)),
            "header" => self.headers = read_headers(reader, value).map(|headers| (headers, at)),
            "branch" => self.branches = read_branches(reader, value).map(|branches| (branches, at)),
            "secret" => self.secrets = read_secrets(reader, value),
            "address" => self.addresses = read_addresses(reader, value),
            _ => return false,
        }
        true
    }

    fn matchers(
        self,
        reader: &mut Reader<'_>,
        at: usize,
        outcome: Outcome,
        places: &Places,
    ) -> Option<Vec<Matcher>> {
        let needs_http = self.first_http_key();
        let kind = match (self.kind, outcome) {
            (Some((kind, _)), _) => kind,
            (None, Outcome::Deny) if needs_http.is_none() && self.places.is_none() => Kind::Any,
            (None, _) => Kind::Http,
        };
        if matches!(kind, Kind::Tcp | Kind::Passthrough)
            && let Some((key, at)) = needs_http
        {
            let why = format!("of `{}` the gateway sees the host and the port only", kind.as_str());
            reader.problem(
                at,
                format!("`{key}` does not fit the kind"),
                why,
                "leave it out, or use kind = \"http\"",
            );
            return None;
        }
        if kind == Kind::GitSsh {
            return self.git_ssh(reader, at, outcome);
        }
        if self.places.is_some() {
            return self.matchers_of_places(reader, at, outcome, kind, places);
        }
        let Some(hosts) = self.hosts else {
            if !self.host_written {
                reader.problem(
                    at,
                    "a rule has no host",
                    "it must say where to",
                    "add host = \"NAME\" or place = \"https://NAME/\"",
                );
            }
            return None;
        };
        let addresses = hosts.iter().any(|host| matches!(host, HostPattern::Network(_)));
        if kind == Kind::Passthrough && addresses {
            let why = "an address has no server name to compare";
            reader.problem(at, "`passthrough` with an address", why, "use names, or kind = \"tcp\"");
            return None;
        }
        if kind == Kind::Tcp && self.ports.is_none() {
            reader.problem(
                at,
                "a `tcp` rule has no port",
                "no protocol implies a default one",
                "add port = NUMBER",
            );
            return None;
        }
        let deny = outcome == Outcome::Deny;
        let paths = match &self.paths {
            Some(words) => read_paths(reader, words, PathPattern::parse)?,
            None => vec![PathPattern::parse("/**").ok()?],
        };
        let both = || match kind {
            Kind::Any => vec![Scheme::Https, Scheme::Http, Scheme::Ssh],
            _ => vec![Scheme::Https, Scheme::Http],
        };
        Some(vec![Matcher {
            kind,
            hosts,
            ports: self.ports.map_or(if deny { Ports::Any } else { Ports::Default }, |(ports, _)| ports),
            schemes: match self.schemes {
                Some((schemes, _)) => schemes,
                None if deny => both(),
                None => vec![Scheme::Https],
            },
            methods: self
                .methods
                .map_or(default_methods(outcome, self.branches.is_some()), |(methods, _)| methods),
            paths,
            query: self.query.map(|(query, _)| query).unwrap_or_default(),
            headers: self.headers.map(|(headers, _)| headers).unwrap_or_default(),
            branches: self.branches.map(|(branches, _)| branches).unwrap_or_default(),
            secrets: self.secrets,
            addresses: self.addresses,
        }])
    }

    fn first_http_key(&self) -> Option<(&'static str, usize)> {
        let paths = self.paths.as_ref().and_then(|words| words.first()).map(|word| ("path", word.at));
        let places = self.places.as_ref().and_then(|words| words.first()).map(|word| ("place", word.at));
        [
            self.schemes.as_ref().map(|(_, at)| ("scheme", *at)),
            self.methods.as_ref().map(|(_, at)| ("method", *at)),
            paths,
            places,
            self.query.as_ref().map(|(_, at)| ("query", *at)),
            self.headers.as_ref().map(|(_, at)| ("header", *at)),
            self.branches.as_ref().map(|(_, at)| ("branch", *at)),
        ]
        .into_iter()
        .flatten()
        .next()
    }

    fn matchers_of_places(
        self,
        reader: &mut Reader<'_>,
        at: usize,
        outcome: Outcome,
        kind: Kind,
        places: &Places,
    ) -> Option<Vec<Matcher>> {
        if self.host_written || self.ports.is_some() || self.schemes.is_some() {
            let why = "a place already contains host, port and scheme";
            reader.problem(
                at,
                "a rule has `place` and also `host`, `port` or `scheme`",
                why,
                "use one way or the other",
            );
            return None;
        }
        let mut matchers = Vec::new();
        for word in self.places.iter().flatten() {
            for place in resolve_place(reader, word, places)? {
                let below = match &self.paths {
                    Some(words) => read_paths(reader, words, |below| place.pattern(below))?,
                    None => vec![
                        place
                            .pattern("/**")
                            .map_err(|refusal| reader.refusal(word.at, "wrong place", &refusal))
                            .ok()?,
                    ],
                };
                let host = HostPattern::parse(&place.host().to_string());
                matchers.push(Matcher {
                    kind,
                    hosts: vec![
                        host.map_err(|refusal| reader.refusal(word.at, "wrong place", &refusal)).ok()?,
                    ],
                    ports: Ports::ranges(vec![(place.port(), place.port())]),
                    schemes: vec![place.scheme()],
                    methods: self
                        .methods
                        .clone()
                        .map_or(default_methods(outcome, self.branches.is_some()), |(methods, _)| methods),
                    paths: below,
                    query: self.query.clone().map(|(query, _)| query).unwrap_or_default(),
                    headers: self.headers.clone().map(|(headers, _)| headers).unwrap_or_default(),
                    branches: self.branches.clone().map(|(branches, _)| branches).unwrap_or_default(),
                    secrets: self.secrets.clone(),
                    addresses: self
                        .addresses
                        .iter()
                        .copied()
                        .chain(place.addresses().iter().map(|address| IpNet::from(*address)))
                        .collect(),
                });
            }
        }
        Some(matchers)
    }
}

/// The methods of a rule that names none. A push is a POST after a GET.
fn default_methods(outcome: Outcome, of_pushes: bool) -> Methods {
    match outcome {
        Outcome::Deny => Methods::Any,
        _ if of_pushes => Methods::set(["GET", "HEAD", "POST"].map(str::to_owned).to_vec()),
        _ => Methods::reading(),
    }
}

/// Names of secrets; `none` for requests without any.
fn read_secrets(reader: &mut Reader<'_>, value: &Value<'_>) -> Option<Vec<String>> {
    let words = reader.strings("secret", value)?;
    let letters = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    let mut names = Vec::new();
    for word in &words {
        if word.text.is_empty() || !word.text.bytes().all(letters) {
            let why = format!("{} is not the name of a secret", quoted(&word.text));
            reader.problem(
                word.at,
                "wrong value of `secret`",
                why,
                "write the names of secrets, or \"none\"",
            );
            return None;
        }
        names.push(word.text.clone());
    }
    if names.len() > 1
        && let Some(none) = words.iter().find(|word| word.text == "none")
    {
        reader.problem(
            none.at,
            "wrong value of `secret`",
            "\"none\" stands beside names of secrets".to_owned(),
            "write one rule for requests without a secret, and another for those with one",
        );
        return None;
    }
    names.retain(|name| name != "none");
    names.sort_unstable();
    names.dedup();
    Some(names)
}

fn read_branches(reader: &mut Reader<'_>, value: &Value<'_>) -> Option<Vec<RefPattern>> {
    let words = reader.strings("branch", value)?;
    let mut branches = Vec::with_capacity(words.len());
    for word in &words {
        match RefPattern::parse(&word.text) {
            Some(branch) => branches.push(branch),
            None => reader.problem(
                word.at,
                "wrong value of `branch`",
                format!("{} is not a name of a branch or a ref", quoted(&word.text)),
                "write main, agent/*, agent/** or refs/tags/*",
            ),
        }
    }
    (branches.len() == words.len()).then_some(branches)
}

fn resolve_place(reader: &mut Reader<'_>, word: &Word, places: &Places) -> Option<Vec<Place>> {
    let Some(name) = word.text.strip_prefix('@') else {
        return Place::parse(&word.text)
            .map(|place| vec![place])
            .map_err(|refusal| reader.refusal(word.at, "wrong value of `place`", &refusal))
            .ok();
    };
    let found = places.named(name);
    if found.is_none() {
        let why = format!("there are no places called {}", quoted(&word.text));
        reader.problem(
            word.at,
            "wrong value of `place`",
            why,
            format!("use a URL or one of @{}", Places::NAMES.join(", @")),
        );
    }
    found
}

fn read_paths(
    reader: &mut Reader<'_>,
    words: &[Word],
    parse: impl Fn(&str) -> Result<PathPattern, crate::canonical::Refusal>,
) -> Option<Vec<PathPattern>> {
    let mut paths = Vec::with_capacity(words.len());
    for word in words {
        match parse(&word.text) {
            Ok(path) => paths.push(path),
            Err(refusal) => reader.refusal(word.at, "wrong value of `path`", &refusal),
        }
    }
    (paths.len() == words.len()).then_some(paths)
}

fn read_hosts(reader: &mut Reader<'_>, value: &Value<'_>) -> Option<Vec<HostPattern>> {
    let words = reader.strings("host", value)?;
    let mut hosts = Vec::with_capacity(words.len());
    for word in &words {
        match HostPattern::parse(&word.text) {
            Ok(host) => hosts.push(host),
            Err(refusal) => reader.refusal(word.at, "wrong value of `host`", &refusal),
        }
    }
    (hosts.len() == words.len()).then_some(hosts)
}

fn read_ports(reader: &mut Reader<'_>, value: &Value<'_>) -> Option<Ports> {
    let words = reader.numbers_or_strings("port", value)?;
    if let [Word { text, .. }] = words.as_slice()
        && text == "*"
    {
        return Some(Ports::Any);
    }
    let mut ranges = Vec::with_capacity(words.len());
    for word in &words {
        let (first, last) = word.text.split_once('-').unwrap_or((&word.text, &word.text));
        match (parse_port(first), parse_port(last)) {
            (Ok(first), Ok(last)) if first <= last => ranges.push((first, last)),
            _ => reader.problem(
                word.at,
                "wrong value of `port`",
                format!("{} is neither a port nor a range of ports", quoted(&word.text)),
                "write 443, \"8000-8099\" or \"*\", with numbers from 1 to 65535",
            ),
        }
    }
    (ranges.len() == words.len()).then(|| Ports::ranges(ranges))
}

fn read_methods(reader: &mut Reader<'_>, value: &Value<'_>) -> Option<Methods> {
    let words = reader.strings("method", value)?;
    if let [Word { text, .. }] = words.as_slice()
        && text == "*"
    {
        return Some(Methods::Any);
    }
    let mut methods = Vec::with_capacity(words.len());
    for word in &words {
        // The canonical form of requests decides which methods are valid, so that a rule cannot name an impossible one.
        match CanonicalRequest::from_line(&format!("{} https://host.invalid/", word.text)) {
            Ok(request) => methods.extend(request.http().map(|http| http.method().to_owned())),
            Err(refusal) => reader.refusal(word.at, "wrong value of `method`", &refusal),
        }
    }
    (methods.len() == words.len()).then(|| Methods::set(methods))
}

fn read_query(reader: &mut Reader<'_>, value: &Value<'_>) -> Option<QueryPattern> {
    if value.get_ref().as_str().is_some() {
        let word = reader.string("query", value)?;
        if !word.text.contains('=') {
            return reader.choice("query", &word, &[("none", ())]).map(|()| QueryPattern::Nothing);
        }
        let request = CanonicalRequest::from_line(&format!("GET https://host.invalid/?{}", word.text));
        let canonical = request.as_ref().ok().and_then(|request| request.http()?.query().as_str());
        if canonical != Some(&word.text) {
            reader.problem(
                word.at,
                "wrong value of `query`",
                "it is neither \"none\" nor a query in its canonical form",
                "write { NAME = \"VALUE\" } for one parameter among others, \"none\", or the whole query such as \"a=1&b=2\"",
            );
            return None;
        }
        return Some(QueryPattern::Exactly(word.text));
    }
    let table = value.get_ref().as_table();
    let Some(table) = table.filter(|table| !table.is_empty()) else {
        let why = "it is neither \"none\" nor a table with names";
        reader.problem(
            value.span().start,
            "wrong value of `query`",
            why,
            "write { NAME = \"VALUE\" } or \"none\"",
        );
        return None;
    };
    let mut pairs = BTreeMap::new();
    for (name, value) in table {
        let words = reader.strings("query", value)?;
        let values: Vec<String> = words.into_iter().map(|word| word.text).collect();
        let any = values.len() == 1 && values[0] == "*";
        pairs.insert(
            name.get_ref().to_string(),
            if any { ValuePattern::Any } else { ValuePattern::OneOf(values) },
        );
    }
    Some(QueryPattern::Pairs(pairs))
}

fn read_headers(reader: &mut Reader<'_>, value: &Value<'_>) -> Option<Vec<String>> {
    let words = reader.strings("header", value)?;
    let mut headers = Vec::with_capacity(words.len());
    for word in &words {
        match CanonicalRequest::from_line(&format!("GET https://host.invalid/ with {}", word.text)) {
            Ok(request) if request.http().is_some_and(|http| http.headers().len() == 1) => {
                headers.extend(request.http().into_iter().flat_map(|http| http.headers().to_vec()));
            }
            Ok(_) => {
                let why = format!("{} is not one name of a header", quoted(&word.text));
                reader.problem(word.at, "wrong value of `header`", why, "list names one by one");
            }
            Err(refusal) => reader.refusal(word.at, "wrong value of `header`", &refusal),
        }
    }
    (headers.len() == words.len()).then_some(headers)
}

fn read_addresses(reader: &mut Reader<'_>, value: &Value<'_>) -> Vec<IpNet> {
    let mut addresses = Vec::new();
    for word in reader.strings("address", value).unwrap_or_default() {
        match HostPattern::parse(&word.text) {
            Ok(HostPattern::Network(network)) => addresses.push(network),
            Ok(_) => {
                let why = format!("{} is a name", quoted(&word.text));
                reader.problem(word.at, "wrong value of `address`", why, "write addresses or networks");
            }
            Err(refusal) => reader.refusal(word.at, "wrong value of `address`", &refusal),
        }
    }
    addresses
}
