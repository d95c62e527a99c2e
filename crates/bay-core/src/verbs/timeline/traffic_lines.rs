//! Lines for what a bay sent or tried to send.

use bay_text::clip;
use bay_types::egress::Who;
use bay_types::event::egress::{EgressDecided, EgressEnded, EgressEvent, EgressRepeated, Ending, Outcome};

use super::event_lines::{after, duration, shown, text};
use crate::channel::plain_text;

/// The most characters of the name of a program, a service or a container.
const PROGRAM: usize = 40;
/// The most characters of the names listed in a line for many refusals.
const SAMPLE: usize = 200;

/// What belongs to an event of traffic and is not in its body.
#[derive(Debug, Default)]
pub(super) struct Sent {
    /// For an end: the decision that allowed this request.
    pub(super) decided: Option<Box<EgressDecided>>,
    /// The number of the exec that caused it.
    pub(super) number: Option<u64>,
}

/// The line for an event of traffic. `None` for look-ups, and for the opening of a gateway, which is not recorded
/// any more: the caller then prints the generic line.
pub(super) fn what(event: &EgressEvent, sent: &Sent) -> Option<String> {
    Some(match event {
        EgressEvent::Decided(decided) => {
            let outcome = match decided.outcome.get() {
                Some(Outcome::Ask) => "refused, because nobody approved it",
                Some(Outcome::Allow) => "allowed",
                Some(Outcome::Deny) | None => "refused",
            };
            let why = after(": ", decided.reason().unwrap_or_default());
            let with = match decided.secrets.as_slice() {
                [] => String::new(),
                names => format!(" with {}", plain_text(&names.join(", "))),
            };
            format!("{} {outcome}{with}{why}{}", request(Some(decided)), by(decided.by.as_ref(), sent))
        }
        EgressEvent::Refused(refused) => {
            let to = destination(&refused.host, refused.port);
            format!("{to} refused{}{}", after(": ", &refused.why), by(refused.by.as_ref(), sent))
        }
        EgressEvent::Ended(ended) => {
            let decided = sent.decided.as_deref();
            let who = decided.and_then(|decided| decided.by.as_ref());
            format!("{} {}{}", request(decided), end(ended), by(who, sent))
        }
        EgressEvent::Repeated(sum) => repeated(sum),
        EgressEvent::Closed(closed) => format!("egress closed{}", after(": ", &closed.why)),
        EgressEvent::LookedUp(_) | EgressEvent::Opened(_) => return None,
    })
}

fn request(decided: Option<&EgressDecided>) -> String {
    match decided {
        Some(decided) if !decided.request.is_empty() => text(&decided.request),
        Some(decided) => destination(&decided.host, decided.port),
        None => "a connection".to_owned(),
    }
}

fn destination(host: &str, port: u16) -> String {
    if host.is_empty() { "a connection".to_owned() } else { format!("{}:{port}", text(host)) }
}

fn end(ended: &EgressEnded) -> String {
    let failure = ended.failure.as_deref().map(text);
    let mut line = match (ended.ending.get(), ended.status, failure) {
        (Some(Ending::Answered), Some(status), _) => format!("answered {status}"),
        (Some(Ending::Broken), Some(status), failure) => {
            format!("answered {status}, then failed ({})", failure.unwrap_or_default())
        }
        (Some(Ending::Failed), _, Some(failure)) => format!("failed ({failure})"),
        (Some(Ending::Revoked), ..) => "ended by a change of policy".to_owned(),
        (Some(Ending::Abandoned), ..) => "aborted by the bay".to_owned(),
        (Some(Ending::Closed), ..) => "closed".to_owned(),
        _ => "ended".to_owned(),
    };
    for (bytes, word) in [(&ended.sent, "sent"), (&ended.received, "received")] {
        if let Some(bytes) = bytes.get().filter(|bytes| **bytes > 0) {
            line.push_str(&format!(" · {} {word}", amount(*bytes)));
        }
    }
    #[allow(clippy::cast_precision_loss)] // Only for showing.
    if let Some(ms) = ended.ms.get() {
        line.push_str(&format!(" · {}", duration(*ms as f64 / 1000.0)));
    }
    line
}

fn repeated(sum: &EgressRepeated) -> String {
    let (count, within_s) = (shown(&sum.count), shown(&sum.within_s));
    if let Some(distinct) = sum.distinct {
        let sample = clip(&plain_text(&sum.sample.join(", ")), SAMPLE);
        return format!("{count} more of {distinct} different names ({sample}) within {within_s} s");
    }
    let of = if sum.of.is_empty() { String::new() } else { format!(" ({})", text(&sum.of)) };
    if sum.like == 0 {
        return format!("{count} more without events of their own{of} within {within_s} s");
    }
    format!("{count} more like {}{of} within {within_s} s", sum.like)
}

/// For example ` · by exec 3 (curl)`.
fn by(who: Option<&Who>, sent: &Sent) -> String {
    let Some(who) = who else { return String::new() };
    let name = if let Some(number) = sent.number {
        format!("exec {number}")
    } else if let Some(service) = &who.service {
        format!("service {}", clip(&plain_text(service), PROGRAM))
    } else if let Some(nested) = &who.nested {
        format!("container {}", clip(&plain_text(nested), PROGRAM))
    } else if who.guest {
        "its guest".to_owned()
    } else {
        "a process".to_owned()
    };
    let program = who.process.as_ref().map(|process| clip(&plain_text(&process.program()), PROGRAM));
    match program.filter(|program| !program.is_empty()) {
        Some(program) => format!(" · by {name} ({program})"),
        None => format!(" · by {name}"),
    }
}

fn amount(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{} KiB", bytes >> 10),
        _ => format!("{} MiB", bytes.div_ceil(1 << 20)),
    }
}

#[cfg(test)]
mod tests {
    use bay_types::event::EventBody;
    use serde_json::{Value, json};

    use super::super::event_lines;
    use super::*;

    /// The line for an event. `body` also has what belongs to the event and is elsewhere in the record.
    fn said(kind: &str, body: &Value) -> String {
        let EventBody::Egress(EgressEvent::Decided(decided)) = EventBody::read("egress.decided", body) else {
            panic!("{body}")
        };
        let sent =
            Sent { decided: Some(Box::new(decided)), number: body.get("number").and_then(Value::as_u64) };
        event_lines::what(&EventBody::read(kind, body), &sent)
    }

    #[test]
    fn a_sent_request_is_shown_with_its_end_and_a_refused_one_with_the_reason() {
        let ended = json!({
            "of": 7, "ending": "answered", "status": 200, "sent": 0, "received": 4096, "ms": 35,
            "request": "GET https://a.example/x", "number": 3,
            "by": { "exec": "exec_0190000000007000800000000000abcd", "process": { "pid": 9, "host_pid": 99, "exe": "/usr/bin/curl", "argv": ["curl", "-s"] } },
        });
        assert_eq!(
            said("egress.ended", &ended),
            "GET https://a.example/x answered 200 · 4 KiB received · 35 ms · by exec 3 (curl)"
        );
        let failed = json!({ "of": 7, "ending": "failed", "failure": "certificate", "request": "GET https://a.example/", "by": { "service": "web" } });
        assert_eq!(
            said("egress.ended", &failed),
            "GET https://a.example/ failed (certificate) · by service web"
        );
        let denied = json!({ "request": "POST https://a.example/", "outcome": "deny", "explanation": { "reason": "no rule allows it" } });
        assert_eq!(said("egress.decided", &denied), "POST https://a.example/ refused: no rule allows it");
        let refused = json!({ "what": "connection", "host": "192.0.2.1", "port": 22, "why": "no rule covers this host and port" });
        assert_eq!(
            said("egress.refused", &refused),
            "192.0.2.1:22 refused: no rule covers this host and port"
        );
        let more = json!({ "what": "deny", "of": "a.example:443", "like": 12, "count": 980, "within_s": 10 });
        assert_eq!(said("egress.repeated", &more), "980 more like 12 (a.example:443) within 10 s");
        let many = json!({ "what": "deny", "of": "", "like": 0, "count": 300, "within_s": 10, "distinct": 2, "sample": ["a:1", "b:2"] });
        assert_eq!(said("egress.repeated", &many), "300 more of 2 different names (a:1, b:2) within 10 s");
        assert_eq!(said("egress.closed", &json!({ "why": "no key" })), "egress closed: no key");
    }

    #[test]
    fn nothing_that_a_bay_chose_controls_a_terminal() {
        let evil = "a\u{1b}]0;t\u{7}\r\n\u{202e}b";
        let who = json!({ "service": evil, "nested": evil, "process": { "pid": 1, "host_pid": 1, "exe": evil, "argv": [evil] } });
        for kind in [
            "egress.decided",
            "egress.refused",
            "egress.ended",
            "egress.repeated",
            "egress.closed",
            "egress.odd",
        ] {
            let body = json!({
                "request": evil, "host": evil, "port": evil, "why": evil, "of": evil, "like": evil, "failure": evil,
                "ending": "failed", "status": evil, "explanation": { "reason": evil }, "by": who, "count": evil,
                "distinct": evil, "sample": [evil],
            });
            let line = said(kind, &body);
            assert!(!line.chars().any(|c| c.is_control() || c == '\u{202e}'), "{line:?}");
        }
    }
}
