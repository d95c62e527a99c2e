//! How a request differs from an earlier one that looks like it.
//!
//! An allow covers one digest. If a request arrives that differs from an earlier one only in headers or body, the
//! approver is asked again. The approver must see at a glance what changed: an agent may have shown one payment to
//! send another.

use std::collections::{BTreeMap, BTreeSet};

use bay_types::approval::{Approval, Asked, AskedRequest, BodySeen, Push};
use sha2::{Digest, Sha256};

/// The most lines in one comparison. Another line has the number of the rest.
const MAX_LINES: usize = 20;
/// The most characters of each body in a comparison.
const EXCERPT_CHARS: usize = 100;
/// The most characters that both bodies share, shown before the first difference.
const EXCERPT_CONTEXT: usize = 30;
/// Characters of a commit's id.
const SHORT_ID: usize = 12;

/// Hashes of a request's headers, held in memory with its question.
#[derive(Debug, Clone, Default)]
pub(crate) struct Parts {
    /// By name; one hash over all values of that name, in order.
    headers: BTreeMap<String, [u8; 32]>,
}

impl Parts {
    /// `headers` in the order in which they are sent.
    pub(super) fn of<'a>(headers: impl Iterator<Item = (&'a str, &'a [u8])>) -> Self {
        let mut values: BTreeMap<String, Sha256> = BTreeMap::new();
        for (name, value) in headers {
            let hash = values.entry(name.to_owned()).or_default();
            hash.update((value.len() as u64).to_be_bytes());
            hash.update(value);
        }
        Self { headers: values.into_iter().map(|(name, hash)| (name, hash.finalize().into())).collect() }
    }
}

/// One line for each difference, at least one. The two cards have different digests.
pub(super) fn between(
    (earlier, before): (&Approval, Option<&Parts>),
    (later, after): (&Approval, &Parts),
) -> Vec<String> {
    let (Asked::Request(earlier), Asked::Request(later)) = (&earlier.asked, &later.asked) else {
        return vec!["it is another command".to_owned()];
    };
    let mut lines = pushes(earlier.push.as_ref(), later.push.as_ref());
    if lines.is_empty() {
        lines.extend(bodies(earlier.body.as_ref(), later.body.as_ref()));
    }
    lines.extend(headers((earlier, before), (later, after)));
    if lines.is_empty() {
        lines.push(
            "a part that the cards do not show differs: a header's value, or the body beyond its beginning"
                .to_owned(),
        );
    }
    if lines.len() > MAX_LINES {
        let more = lines.len() - MAX_LINES;
        lines.truncate(MAX_LINES);
        lines.push(format!("and {more} more differences"));
    }
    lines
}

fn pushes(earlier: Option<&Push>, later: Option<&Push>) -> Vec<String> {
    let (Some(earlier), Some(later)) = (earlier, later) else { return Vec::new() };
    let place = |id: Option<&String>| match id {
        Some(id) => id.chars().take(SHORT_ID).collect(),
        None => "deleted".to_owned(),
    };
    let mut lines = Vec::new();
    for change in &later.refs {
        match earlier.refs.iter().find(|other| other.name == change.name) {
            Some(other) if other.new == change.new && other.old == change.old => {}
            Some(other) => lines.push(format!(
                "{}: {} → {}",
                change.name,
                place(other.new.as_ref()),
                place(change.new.as_ref())
            )),
            None => lines.push(format!("{}: added, {}", change.name, place(change.new.as_ref()))),
        }
    }
    let gone = earlier.refs.iter().filter(|other| later.refs.iter().all(|change| change.name != other.name));
    lines.extend(gone.map(|other| format!("{}: no longer in the push", other.name)));
    let added = later.options.iter().filter(|option| !earlier.options.contains(option));
    lines.extend(added.map(|option| format!("push option {option}: added")));
    let gone = earlier.options.iter().filter(|option| !later.options.contains(option));
    lines.extend(gone.map(|option| format!("push option {option}: no longer in the push")));
    lines
}

fn bodies(earlier: Option<&BodySeen>, later: Option<&BodySeen>) -> Option<String> {
    match (earlier, later) {
        (None, None) => None,
        (Some(_), None) => Some("body: none any more".to_owned()),
        (None, Some(later)) => Some(format!("body: added, {}", excerpt(&later.preview, 0))),
        (Some(earlier), Some(later)) if earlier.preview != later.preview => {
            let shared =
                earlier.preview.chars().zip(later.preview.chars()).take_while(|(a, b)| a == b).count();
            Some(format!("body: {} → {}", excerpt(&earlier.preview, shared), excerpt(&later.preview, shared)))
        }
        (Some(earlier), Some(later)) if earlier.length != later.length => {
            let length = |body: &BodySeen| {
                body.length.map_or("of unknown length".to_owned(), |length| format!("{length} B"))
            };
            Some(format!("body: {} → {}, with the same beginning", length(earlier), length(later)))
        }
        _ => None,
    }
}

/// The part of a body in which it first differs, quoted. Previews are escaped already.
fn excerpt(preview: &str, shared: usize) -> String {
    let from = shared.saturating_sub(EXCERPT_CONTEXT);
    let part: String = preview.chars().skip(from).take(EXCERPT_CHARS).collect();
    let (before, after) = (from > 0, preview.chars().count() > from + EXCERPT_CHARS);
    format!("{}\"{part}\"{}", if before { "…" } else { "" }, if after { "…" } else { "" })
}

fn headers(
    (earlier, before): (&AskedRequest, Option<&Parts>),
    (later, after): (&AskedRequest, &Parts),
) -> Vec<String> {
    // If the daemon was restarted since, only the names on the card are known.
    let names = |asked: &AskedRequest| asked.headers.iter().cloned().collect::<BTreeSet<_>>();
    let (was, is) = match before {
        Some(before) => (before.headers.keys().cloned().collect(), after.headers.keys().cloned().collect()),
        None => (names(earlier), names(later)),
    };
    let mut lines: Vec<String> = is.difference(&was).map(|name| format!("header {name}: added")).collect();
    lines.extend(was.difference(&is).map(|name| format!("header {name}: removed")));
    if let Some(before) = before {
        let changed = after
            .headers
            .iter()
            .filter(|(name, hash)| before.headers.get(*name).is_some_and(|other| other != *hash));
        lines.extend(changed.map(|(name, _)| format!("header {name}: another value")));
    }
    lines
}

#[cfg(test)]
mod tests {
    use bay_types::approval::RefChange;

    use super::*;

    fn body(preview: &str) -> BodySeen {
        let length = preview.len() as u64;
        BodySeen { preview: preview.to_owned(), previewed: length, length: Some(length), whole: true }
    }

    #[test]
    fn a_body_is_shown_from_where_it_first_differs() {
        let (alice, mallory) = (body("amount=1&to=alice"), body("amount=1000000&to=mallory"));
        assert_eq!(
            bodies(Some(&alice), Some(&mallory)).unwrap(),
            "body: \"amount=1&to=alice\" → \"amount=1000000&to=mallory\""
        );
        let (long, other) = (body(&format!("{}1", "a".repeat(500))), body(&format!("{}2", "a".repeat(500))));
        let shown = bodies(Some(&long), Some(&other)).unwrap();
        assert_eq!(shown, format!("body: …\"{0}1\" → …\"{0}2\"", "a".repeat(EXCERPT_CONTEXT)));
        assert_eq!(bodies(Some(&alice), Some(&alice)), None);
    }

    #[test]
    fn each_ref_of_a_push_that_changed_is_named() {
        let push = |refs: &[(&str, Option<&str>)]| Push {
            refs: refs
                .iter()
                .map(|(name, new)| RefChange {
                    name: (*name).to_owned(),
                    old: None,
                    new: new.map(str::to_owned),
                })
                .collect(),
            ..Push::default()
        };
        let earlier = push(&[("refs/heads/main", Some("aaaaaaaaaaaaaaaa")), ("refs/heads/x", Some("c"))]);
        let later = push(&[("refs/heads/main", Some("bbbbbbbbbbbbbbbb")), ("refs/heads/y", None)]);
        assert_eq!(
            pushes(Some(&earlier), Some(&later)),
            [
                "refs/heads/main: aaaaaaaaaaaa → bbbbbbbbbbbb",
                "refs/heads/y: added, deleted",
                "refs/heads/x: no longer in the push"
            ]
        );
    }

    #[test]
    fn a_header_is_named_that_was_added_removed_or_changed() {
        let parts = |headers: &[(&'static str, &'static str)]| {
            Parts::of(headers.iter().map(|(name, value)| (*name, value.as_bytes())))
        };
        let asked = AskedRequest {
            request: String::new(),
            host: String::new(),
            port: 1,
            headers: Vec::new(),
            body: None,
            push: None,
            login: None,
            more_headers: 0,
            header_values: Vec::new(),
        };
        let before = parts(&[("a", "1"), ("b", "1"), ("b", "2"), ("c", "1")]);
        let after = parts(&[("a", "1"), ("b", "2"), ("b", "1"), ("d", "1")]);
        assert_eq!(
            headers((&asked, Some(&before)), (&asked, &after)),
            ["header d: added", "header c: removed", "header b: another value"]
        );
    }
}
