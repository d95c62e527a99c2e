//! The card of an approval: what a person sees of a held request or of a command. The request, its headers and its
//! body are shortened, and nothing of them controls a terminal. The process, the exec and the command are on the
//! card as they are: a front must make them safe.

use bay_gateway::{Beginning, Sight};
use bay_policy::canonical::{HostWarning, Http};
use bay_policy::learn::exactly_this;
use bay_policy::push::{Commands, commands};
use bay_policy::write::rule_to_toml;
use bay_policy::{CanonicalRequest, Explanation, Layer, Outcome, Rule, RuleHead};
use bay_store::Draft;
use bay_text::invisible::misleads;
use bay_text::{clip, escape, hex};
use bay_types::ApprovalId;
use bay_types::approval::{
    Approval, ApprovalState, Asked, AskedRequest, AskingRule, BodySeen, Push, RefChange,
};
use bay_types::egress::Who;
use bay_types::event::approval::{ApprovalAsked, AskedBody};
use bay_types::policy::Origin;
use http::HeaderMap;
use jiff::Timestamp;
use sha2::{Digest, Sha256};

use super::{Approvals, Key, NewQuestion, Parts, pack};
use crate::registry::BayHandle;
use bay_text::shell::quoted;

/// The most bytes of a body that are shown.
const PREVIEW_BYTES: usize = 2048;
/// How many characters of a request, or of a command line, are shown. Of a longer one, the beginning and the end.
const MAX_LINE_CHARS: usize = 2048;
/// How many characters of a commit's id are shown.
const SHORT_ID: usize = 12;
/// The most names of headers that are shown, and the most values.
const MAX_HEADERS: usize = 100;
/// How many characters of a header's value are shown. Of a longer one, the beginning and the end.
const MAX_VALUE_CHARS: usize = 200;
/// Headers that most clients send with most requests. Their values are shown only if they are longer than
/// [`ORDINARY_VALUE_BYTES`], and so may carry something else.
const ORDINARY_HEADERS: [&str; 10] = [
    "accept",
    "accept-encoding",
    "accept-language",
    "connection",
    "content-length",
    "content-type",
    "date",
    "host",
    "te",
    "user-agent",
];
const ORDINARY_VALUE_BYTES: usize = 64;
/// The standard headers for credentials. A card is stored and sent to webhooks, so it shows only the length of
/// their values. A credential in any other header is shown.
const CREDENTIAL_HEADERS: [&str; 3] = ["authorization", "cookie", "proxy-authorization"];

/// A request that needs an approval.
#[derive(Debug)]
pub(crate) struct AboutRequest<'a> {
    pub(crate) request: &'a CanonicalRequest,
    pub(crate) explanation: &'a Explanation,
    pub(crate) who: Option<&'a Who>,
    /// Names of the secrets to attach.
    pub(crate) secrets: Vec<String>,
    pub(crate) checkpoint: bool,
}

impl AboutRequest<'_> {
    /// Makes the question. Waits for the beginning of the body.
    pub(crate) async fn into_question(
        self,
        approvals: &Approvals,
        handle: &BayHandle,
        sight: &mut Sight<'_>,
    ) -> NewQuestion {
        let Self { request, explanation, who, secrets, checkpoint } = self;
        let beginning = sight.beginning().await;
        let line = request.to_string();
        let shown = shortened(&line);
        let push = pushed(request, &beginning);
        let names = sight.headers().map_or(0, |headers| headers.keys_len());
        let mut warnings: Vec<String> = explanation.warnings.iter().map(warning).collect();
        if shown != line {
            warnings.push(format!(
                "it has {} characters, of which the middle is not shown",
                line.chars().count()
            ));
        }
        warnings.extend(push.iter().flat_map(unseen_tips));
        // If only parts of a line are shown, it is allowed only as it is held: no rule or grant is made from it.
        let saved_as = if shown == line { saved_as(request, explanation.rule.as_ref()) } else { None };
        let login = sight.login().map(|login| format!(" {login}")).unwrap_or_default();
        let key = Key::request(&behind(who), &secrets, &format!("{line}{login}"));
        let asked_at = Timestamp::now();
        let exec = match who.and_then(|who| who.exec) {
            Some(exec) => approvals.store.exec_get(handle.id, exec).await.ok().flatten(),
            None => None,
        };
        let rule = explanation.rule.as_ref().map(|rule| AskingRule {
            id: rule.id.clone(),
            origin: Origin {
                layer: rule.origin.layer.to_string(),
                file: rule.origin.file.clone(),
                line: rule.origin.line as u64,
            },
            reason: rule.reason.clone(),
        });
        let card = Approval {
            id: ApprovalId::generate(),
            bay: handle.id,
            bay_name: handle.name.to_string(),
            state: ApprovalState::Open,
            asked_at,
            expires: approvals.until(asked_at),
            asked: Asked::Request(AskedRequest {
                request: shown,
                host: request.host().to_string(),
                port: request.port(),
                headers: header_names(sight),
                body: (!beginning.bytes.is_empty() || beginning.length.is_none_or(|length| length > 0))
                    .then(|| seen(&beginning))
                    .filter(|_| sight.headers().is_some()),
                more_headers: names.saturating_sub(MAX_HEADERS) as u64,
                header_values: sight.headers().map(header_values).unwrap_or_default(),
                push,
                login: sight.login().map(shortened),
            }),
            by: who.cloned(),
            exec_number: exec.as_ref().map(|exec| exec.number),
            exec_argv: exec.as_ref().map(|exec| exec.spec.argv.clone()).unwrap_or_default(),
            tool_call: exec.and_then(|exec| exec.spec.tool_call),
            rule,
            secrets,
            warnings,
            saved_as,
            digest: digest(request, sight, &beginning),
            differs: None,
            checkpoint: None,
            held: 0,
            answer: None,
        };
        NewQuestion { key, card, parts: Parts::of(lasting_headers(request, sight)), checkpoint }
    }
}

/// Which sender in the bay it is, as far as a later request can be recognized as being from the same one.
fn behind(who: Option<&Who>) -> String {
    match who {
        Some(Who { exec: Some(exec), .. }) => exec.to_string(),
        Some(Who { service: Some(service), .. }) => format!("service:{service}"),
        Some(Who { guest: true, .. }) => "guest".to_owned(),
        // The bay chose that name, and in a key the first space ends the sender.
        Some(Who { nested: Some(nested), .. }) => format!("nested:{}", nested.replace(' ', "_")),
        _ => "unknown".to_owned(),
    }
}

/// What a git push would change, if it can be parsed.
fn pushed(request: &CanonicalRequest, beginning: &Beginning) -> Option<Push> {
    let Commands { updates, options, end } = commands(&beginning.bytes).filter(|_| request.is_push())?;
    let (commits, objects) = pack::read(&beginning.bytes[end..]);
    let refs =
        updates.into_iter().map(|update| RefChange { name: update.name, old: update.old, new: update.new });
    let options = options.iter().map(|option| shortened(option)).collect();
    Some(Push { refs: refs.collect(), options, commits, objects })
}

/// Warnings about refs whose new commit is not among those shown: the shown commits may be unrelated to it. If no
/// commits are shown, there is no warning.
fn unseen_tips(push: &Push) -> Vec<String> {
    let seen = |id: &String| push.commits.iter().any(|commit| commit.id == *id);
    let tips = push.refs.iter().filter_map(|change| Some((&change.name, change.new.as_ref()?)));
    let unseen = tips.filter(|(_, new)| !push.commits.is_empty() && !seen(new));
    unseen
        .map(|(name, new)| {
            let new: String = new.chars().take(SHORT_ID).collect();
            format!(
                "{name} would be at {new}, which is not among the commits shown: they may be no part of it"
            )
        })
        .collect()
}

fn header_names(sight: &Sight<'_>) -> Vec<String> {
    let names = sight.headers().into_iter().flat_map(|headers| headers.keys());
    names.take(MAX_HEADERS).map(|name| shortened(name.as_str())).collect()
}

/// The values of headers that a person must see.
fn header_values(headers: &HeaderMap) -> Vec<String> {
    let ordinary =
        |name: &str, value: &[u8]| ORDINARY_HEADERS.contains(&name) && value.len() <= ORDINARY_VALUE_BYTES;
    let carrying = headers.iter().filter(|(name, value)| !ordinary(name.as_str(), value.as_bytes()));
    carrying
        .take(MAX_HEADERS)
        .map(|(name, value)| {
            let (name, value) = (name.as_str(), value.as_bytes());
            if CREDENTIAL_HEADERS.contains(&name) {
                return format!("{name}: {} bytes of credentials", value.len());
            }
            let text = String::from_utf8_lossy(value);
            match clip::ends(&text, MAX_VALUE_CHARS, MAX_VALUE_CHARS / 2) {
                Some((begin, left_out, end)) => format!(
                    "{name}: {} … {left_out} characters … {}",
                    escape::bytes(begin.as_bytes()),
                    escape::bytes(end.as_bytes())
                ),
                None => format!("{name}: {}", escape::bytes(value)),
            }
        })
        .collect()
}

/// The rule that would allow this request from now on, with any headers and any body. `None` if no rule covers it
/// alone.
fn saved_as(request: &CanonicalRequest, asking: Option<&RuleHead>) -> Option<String> {
    let mut matcher = exactly_this(request)?;
    // The asking rule defines to which addresses the name may lead.
    matcher.addresses = asking.map(|rule| rule.named().to_vec()).unwrap_or_default();
    // The person saw the request without a secret, or with these. The rule must not allow it with others.
    matcher.secrets = Some(request.secrets().to_vec());
    let rule = Rule {
        id: "approved".to_owned(),
        origin: bay_policy::rule::Origin { layer: Layer::Bay, file: "approved".to_owned(), line: 1 },
        outcome: Outcome::Allow,
        matcher,
        reason: None,
        expires: None,
        checkpoint: false,
        examples: Vec::new(),
        counterexamples: Vec::new(),
    };
    Some(rule_to_toml(&rule))
}

/// Whether a header is known to change with each attempt of one request and to have no other meaning. If it were
/// part of the request, clients could not find their question again. Each value must match its grammar, so that
/// nothing else hides in it: attempt counts (OpenAI, Anthropic, AWS, gRPC), the span of a trace (W3C), and the
/// nonce of a WebSocket handshake, which the gateway has checked.
fn changes_with_each_try(request: &CanonicalRequest, name: &str, value: &[u8]) -> bool {
    let count = |value: &[u8]| (1..=2).contains(&value.len()) && value.iter().all(u8::is_ascii_digit);
    match name {
        "x-stainless-retry-count" | "grpc-previous-rpc-attempts" => count(value),
        "amz-sdk-request" => {
            let text = std::str::from_utf8(value).unwrap_or_default();
            let (attempt, max) = text.split_once("; ").unwrap_or((text, "max=1"));
            let counts = |part: &str, key: &str| part.strip_prefix(key).is_some_and(|n| count(n.as_bytes()));
            counts(attempt, "attempt=") && counts(max, "max=")
        }
        "traceparent" => {
            let text = std::str::from_utf8(value).unwrap_or_default();
            let lengths: Vec<usize> = text.split('-').map(str::len).collect();
            lengths == [2, 32, 16, 2] && text.chars().all(|c| c == '-' || c.is_ascii_hexdigit())
        }
        "sec-websocket-key" => request.http().is_some_and(Http::is_websocket),
        _ => false,
    }
}

/// The headers of a request, without what changes with each attempt.
fn lasting_headers<'a>(
    request: &'a CanonicalRequest,
    sight: &'a Sight<'_>,
) -> impl Iterator<Item = (&'a str, &'a [u8])> {
    // A header that occurs twice is no attempt count, and could carry anything.
    let once = |name: &str| sight.headers().is_some_and(|all| all.get_all(name).iter().count() == 1);
    let headers = sight.headers().into_iter().flatten();
    let all = headers.map(|(name, value)| (name.as_str(), value.as_bytes()));
    // The name stays: whether a request has such a header is part of it. Only clients of gRPC send theirs from the
    // second attempt on.
    all.filter_map(move |(name, value)| match changes_with_each_try(request, name, value) && once(name) {
        true if name == "grpc-previous-rpc-attempts" => None,
        true => Some((name, &b"changes with each try"[..])),
        false => Some((name, value)),
    })
}

/// A hash over what is held: the canonical request, its [`lasting_headers`], a login's user and database, and the
/// part of the body that was seen, with its length.
fn digest(request: &CanonicalRequest, sight: &Sight<'_>, beginning: &Beginning) -> String {
    let mut hash = Sha256::new();
    let mut part = |bytes: &[u8]| {
        // With its length, so that no part can be taken for the beginning of the next.
        hash.update((bytes.len() as u64).to_be_bytes());
        hash.update(bytes);
    };
    part(request.to_string().as_bytes());
    let mut headers: Vec<(&str, &[u8])> = lasting_headers(request, sight).collect();
    // Sorted by name alone: the order of two headers with the same name has a meaning.
    headers.sort_by_key(|(name, _)| *name);
    part(sight.login().unwrap_or_default().as_bytes());
    for (name, value) in headers {
        part(name.as_bytes());
        part(value);
    }
    part(if beginning.whole { b"whole" } else { b"beginning" });
    part(beginning.length.map(|length| length.to_string()).unwrap_or_default().as_bytes());
    part(&beginning.bytes);
    hex::encode(hash.finalize())
}

fn seen(beginning: &Beginning) -> BodySeen {
    let shown = &beginning.bytes[..beginning.bytes.len().min(PREVIEW_BYTES)];
    BodySeen {
        preview: escape::bytes(shown),
        previewed: shown.len() as u64,
        length: beginning.length,
        whole: beginning.whole,
    }
}

fn warning(warning: &HostWarning) -> String {
    let text = match warning {
        HostWarning::Unicode { reads } => format!("the name has letters beyond ASCII: it reads {reads}"),
        HostWarning::MixedScripts { label } => format!("{label} has letters of several scripts"),
        HostWarning::UnusualLetters { label } => format!("{label} has letters that are hardly used in names"),
        HostWarning::LooksLike { name } => format!("to the eye it is {name}, and it is another name"),
    };
    escape::bytes(text.as_bytes())
}

/// A line of foreign text, made safe to show.
pub(super) fn shown(text: &str) -> String {
    let short: String = text.chars().take(MAX_LINE_CHARS).collect();
    escape::bytes(short.as_bytes())
}

/// A line, or its beginning and its end: what matters may be at either.
fn shortened(text: &str) -> String {
    match clip::ends(text, MAX_LINE_CHARS, MAX_LINE_CHARS / 2) {
        Some((begin, left_out, end)) => {
            let (begin, end) = (escape::bytes(begin.as_bytes()), escape::bytes(end.as_bytes()));
            format!("{begin} … {left_out} characters … {end}")
        }
        None if text.chars().any(misleads) => escape::bytes(text.as_bytes()),
        None => text.to_owned(),
    }
}

/// The question in one line.
pub(crate) fn line(card: &Approval) -> String {
    match &card.asked {
        Asked::Request(asked) => asked.request.clone(),
        Asked::Exec(asked) => {
            let words: Vec<String> = asked.argv.iter().map(|word| quoted(word)).collect();
            format!("exec {}", shortened(&words.join(" ")))
        }
    }
}

/// The event that a person is asked.
pub(super) fn asked(card: &Approval) -> Draft {
    let body = match &card.asked {
        Asked::Request(AskedRequest { body: Some(body), .. }) => {
            Some(AskedBody { length: body.length, whole: body.whole })
        }
        _ => None,
    };
    let event = ApprovalAsked {
        approval: card.id.into(),
        request: line(card),
        digest: card.digest.clone(),
        rule: card.rule.clone(),
        expires: card.expires.into(),
        by: card.by.clone(),
        secrets: card.secrets.clone(),
        checkpoint: card.checkpoint,
        body,
        warnings: card.warnings.clone(),
        differs: card.differs.clone(),
        left_out: None,
    };
    // A bay chooses the length of its command lines. They must not push the request out of the record.
    Draft::of(event).shortened()
}

#[cfg(test)]
mod tests {
    use bay_types::approval::PushedCommit;
    use serde_json::json;

    use super::*;

    #[test]
    fn nothing_of_a_body_controls_a_terminal() {
        let odd = b"a\x1b]52;c;x\x07\r\n\t\\ \xff\xfe \xe2\x80\xae\xc2\x9b31m \xe2\x80\x8b ok";
        let text = escape::bytes(odd);
        assert_eq!(text, "a\\u{1b}]52;c;x\\u{7}\\r\\n\\t\\\\ \\xff\\xfe \\u{202e}\\u{9b}31m \\u{200b} ok");
        assert!(!text.chars().any(misleads));
    }

    #[test]
    fn no_command_line_pushes_a_request_out_of_its_event() {
        let card: Approval = serde_json::from_value(json!({
            "id": ApprovalId::generate(), "bay": bay_types::BayId::generate(), "bay_name": "b", "state": "open",
            "asked_at": Timestamp::UNIX_EPOCH, "expires": Timestamp::UNIX_EPOCH, "digest": "d", "held": 0,
            "asked": { "what": "request", "request": "POST https://a.test/pay", "host": "a.test", "port": 443 },
            "by": { "process": { "pid": 1, "host_pid": 2, "exe": "x", "argv": ["\u{1}".repeat(4050)] } },
        }))
        .unwrap();
        let recorded = asked(&card).body().to_string();
        assert!(recorded.len() <= bay_store::MAX_BODY, "{}", recorded.len());
        assert!(recorded.contains("POST https://a.test/pay") && recorded.contains("\"digest\":\"d\""));
    }

    #[test]
    fn approval_header_values_are_shown_unless_they_are_short_and_ordinary() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("accept", "*/*"),
            ("user-agent", "curl/8.0"),
            ("x-amount", "1000000"),
            ("authorization", "Bearer of-the-bays-own"),
        ] {
            headers.insert(name, value.parse().unwrap());
        }
        headers.insert("accept-language", "x".repeat(ORDINARY_VALUE_BYTES + 1).parse().unwrap());
        headers.insert("x-data", format!("begin{}end", "y".repeat(5000)).parse().unwrap());
        let mut shown = header_values(&headers);
        shown.sort();
        assert_eq!(shown.len(), 4, "{shown:#?}");
        assert!(shown[0].starts_with("accept-language: xxx"), "{shown:#?}");
        assert_eq!(shown[1], "authorization: 22 bytes of credentials");
        assert_eq!(shown[2], "x-amount: 1000000");
        let data = &shown[3];
        assert!(data.starts_with("x-data: beginyyy") && data.ends_with("yyyend"), "{data}");
        assert!(data.contains(" characters … ") && data.len() < 400, "{data}");
    }

    #[test]
    fn commits_that_may_not_belong_to_the_push_are_pointed_out() {
        let change = |new: Option<&str>| RefChange {
            name: "refs/heads/main".to_owned(),
            old: None,
            new: new.map(str::to_owned),
        };
        let commit =
            |id: &str| PushedCommit { id: id.to_owned(), author: String::new(), subject: String::new() };
        let push =
            |refs: Vec<RefChange>, commits: Vec<PushedCommit>| Push { refs, commits, ..Push::default() };
        let (tip, decoy) = ("a".repeat(40), "b".repeat(40));
        let odd = unseen_tips(&push(vec![change(Some(&tip))], vec![commit(&decoy)]));
        assert!(odd.len() == 1 && odd[0].contains("aaaaaaaaaaaa"), "{odd:?}");
        for fine in [
            push(vec![change(Some(&tip))], vec![commit(&decoy), commit(&tip)]),
            push(vec![change(None)], vec![commit(&decoy)]),
            // The server has the commits already, so the push brings none.
            push(vec![change(Some(&tip))], Vec::new()),
        ] {
            assert!(unseen_tips(&fine).is_empty());
        }
    }

    #[test]
    fn a_digest_is_of_the_request_its_headers_and_what_was_seen_of_its_body() {
        let request = |line: &str| CanonicalRequest::from_line(line).unwrap();
        let beginning = |bytes: &[u8], whole| Beginning {
            bytes: bytes.to_vec(),
            whole,
            length: Some(bytes.len() as u64),
        };
        let of = |line: &str, bytes: &[u8], whole| {
            digest(&request(line), &Sight::nothing(), &beginning(bytes, whole))
        };
        let one = of("POST https://a.test/x", b"pay 1", true);
        assert_eq!(one, of("POST https://a.test/x", b"pay 1", true));
        assert_ne!(one, of("POST https://a.test/x", b"pay 9", true));
        assert_ne!(one, of("POST https://a.test/y", b"pay 1", true));
        assert_ne!(one, of("POST https://a.test/x", b"pay 1", false));
    }

    #[test]
    fn only_attempt_counts_spans_and_nonces_are_no_part_of_a_request() {
        let read = CanonicalRequest::from_line("GET https://a.test/x").unwrap();
        let talk = CanonicalRequest::from_line("WEBSOCKET https://a.test/x").unwrap();
        let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        for (name, value) in [
            ("x-stainless-retry-count", "0"),
            ("x-stainless-retry-count", "12"),
            ("grpc-previous-rpc-attempts", "1"),
            ("amz-sdk-request", "attempt=2; max=3"),
            ("amz-sdk-request", "attempt=1"),
            ("traceparent", trace),
        ] {
            assert!(changes_with_each_try(&read, name, value.as_bytes()), "{name}: {value}");
        }
        for (name, value) in [
            ("x-stainless-retry-count", "-1"),
            ("x-stainless-retry-count", "1 "),
            ("x-stainless-retry-count", ""),
            ("x-stainless-retry-count", "123"),
            ("x-retry-count", "1"),
            ("amz-sdk-request", "attempt=2; max=3; to=mallory"),
            ("amz-sdk-request", "attempt=x"),
            ("traceparent", &format!("{trace}-x")),
            ("traceparent", "00-to-mallory-01"),
            ("tracestate", "a=b"),
            ("idempotency-key", "1"),
        ] {
            assert!(!changes_with_each_try(&read, name, value.as_bytes()), "{name}: {value}");
        }
        assert!(changes_with_each_try(&talk, "sec-websocket-key", b"dGhlIHNhbXBsZSBub25jZQ=="));
        assert!(!changes_with_each_try(&read, "sec-websocket-key", b"dGhlIHNhbXBsZSBub25jZQ=="));
    }
}
