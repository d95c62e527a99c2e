//! Words for what a bay sent or tried to send.

use bay_text::clip;
use bay_types::egress::Who;
use bay_types::traffic::{CLOSED, DECIDED, ENDED, REFUSED, REPEATED};

use super::words::{Body, duration};
use crate::channel::plain_text;

/// Characters of the name of a program.
const PROGRAM: usize = 40;
/// Characters of the names that a sum of several names lists.
const SAMPLE: usize = 200;

/// The line for an event of traffic, unless it is of a kind without words.
pub(super) fn what(kind: &str, body: &Body<'_>) -> Option<String> {
    let request =
        body.text("request").or_else(|| Some(format!("{}:{}", body.text("host")?, body.text("port")?)));
    let request = request.unwrap_or_else(|| "a connection".to_owned());
    let by = by(body);
    Some(match kind {
        DECIDED => {
            let outcome = match body.text("outcome").as_deref() {
                Some("ask") => "refused, because nobody approved it",
                Some("allow") => "let out",
                _ => "refused",
            };
            let why = body.0.get("explanation").map(|said| Body(said).after(": ", "reason"));
            let names: Vec<String> = body.read("secrets").unwrap_or_default();
            let with = match names.as_slice() {
                [] => String::new(),
                names => format!(" with {}", plain_text(&names.join(", "))),
            };
            format!("{request} {outcome}{with}{}{by}", why.unwrap_or_default())
        }
        REFUSED => format!("{request} refused{}{by}", body.after(": ", "why")),
        ENDED => {
            let mut ended = match (body.text("ending").as_deref(), body.text("status"), body.text("failure"))
            {
                (Some("answered"), Some(status), _) => format!("answered {status}"),
                (Some("broken"), Some(status), failure) => {
                    format!("answered {status} and broke off ({})", failure.unwrap_or_default())
                }
                (Some("failed"), _, Some(failure)) => format!("came to nothing ({failure})"),
                (Some("revoked"), ..) => "ended by a change of policy".to_owned(),
                (Some("abandoned"), ..) => "given up by the bay".to_owned(),
                (Some("closed"), ..) => "closed".to_owned(),
                _ => "ended".to_owned(),
            };
            for (bytes, word) in [(body.read::<u64>("sent"), "sent"), (body.read("received"), "received")] {
                if let Some(bytes) = bytes.filter(|bytes| *bytes > 0) {
                    ended.push_str(&format!(" · {} {word}", amount(bytes)));
                }
            }
            #[allow(clippy::cast_precision_loss)] // Only for showing.
            if let Some(ms) = body.read::<u64>("ms") {
                ended.push_str(&format!(" · {}", duration(ms as f64 / 1000.0)));
            }
            format!("{request} {ended}{by}")
        }
        REPEATED if body.text("distinct").is_some() => {
            let sample: Vec<String> = body.read("sample").unwrap_or_default();
            format!(
                "{} more of {} different names ({}) within {} s",
                body.text("count").unwrap_or_default(),
                body.text("distinct").unwrap_or_default(),
                clip(&plain_text(&sample.join(", ")), SAMPLE),
                body.text("within_s").unwrap_or_default()
            )
        }
        REPEATED => format!(
            "{} more like {}{} within {} s",
            body.text("count").unwrap_or_default(),
            body.text("like").unwrap_or_default(),
            body.after(" (", "of") + if body.text("of").is_some_and(|of| !of.is_empty()) { ")" } else { "" },
            body.text("within_s").unwrap_or_default()
        ),
        CLOSED => format!("nothing can leave it{}", body.after(": ", "why")),
        _ => return None,
    })
}

/// ` · by exec 3 (curl)`
fn by(body: &Body<'_>) -> String {
    let Some(who) = body.read::<Who>("by") else { return String::new() };
    let name = if let Some(number) = body.read::<u64>("number") {
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
    let program = who.process.and_then(|process| {
        let path = process.argv.into_iter().next().filter(|word| !word.is_empty()).unwrap_or(process.exe);
        path.rsplit('/').next().map(|name| clip(&plain_text(name), PROGRAM))
    });
    match program {
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
    use serde_json::{Value, json};

    use super::super::words;

    fn said(kind: &str, body: &Value) -> String {
        words::what(kind, body)
    }

    #[test]
    fn what_left_is_told_by_its_end_and_what_did_not_by_why() {
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
            "GET https://a.example/ came to nothing (certificate) · by service web"
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
        assert_eq!(said("egress.closed", &json!({ "why": "no key" })), "nothing can leave it: no key");
    }

    #[test]
    fn nothing_that_a_bay_says_reaches_a_terminal_that_would_obey_it() {
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
