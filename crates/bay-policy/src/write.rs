//! Rules as text that [`parse`](crate::parse()) parses back.

use std::fmt::Write as _;

use bay_text::invisible::misleads;

use crate::canonical::Scheme;
use crate::pattern::query::ValuePattern;
use crate::pattern::{Methods, Ports, QueryPattern};
use crate::preset::Preset;
use crate::push::RefPattern;
use crate::rule::{Grant, Kind, Matcher, Outcome, Rule};

/// The `[[rule]]` table of a rule.
#[must_use]
pub fn rule_to_toml(rule: &Rule) -> String {
    let mut text = String::from("[[rule]]\n");
    pair(&mut text, "id", &string(&rule.id.replace('/', "-")));
    pair(&mut text, "outcome", &string(&rule.outcome.to_string()));
    matcher(&mut text, &rule.matcher, rule.outcome);
    if let Some(reason) = &rule.reason {
        pair(&mut text, "reason", &string(reason));
    }
    if let Some(expires) = rule.expires {
        pair(&mut text, "expires", &expires.to_string());
    }
    if rule.checkpoint {
        pair(&mut text, "checkpoint", "true");
    }
    for (key, examples) in [("match", &rule.examples), ("not_match", &rule.counterexamples)] {
        if !examples.is_empty() {
            pair(&mut text, key, &strings(examples.iter().map(String::as_str)));
        }
    }
    text
}

/// What a policy file that gets one more rule is so far.
#[derive(Debug, Clone, Copy)]
pub enum Base<'a> {
    /// There is no policy yet.
    Nothing,
    /// The policy is a preset, which has no file to write to: the new file extends it.
    Preset(Preset),
    /// The policy is this file. Its rules, order and comments stay.
    File(&'a str),
}

/// A policy file with one more rule behind all others. `note` becomes a comment above the rule; it is one line.
///
/// A `[[rule]]` table may follow a complete TOML document, whatever its last table is, unless the document writes its
/// rules as one inline list.
#[must_use]
pub fn file_with_rule(base: Base<'_>, note: &str, rule: &Rule) -> String {
    let so_far = match base {
        Base::Nothing => String::new(),
        Base::Preset(preset) => {
            let mut text = String::new();
            pair(&mut text, "extends", &string(preset.name()));
            text.push('\n');
            text
        }
        Base::File(text) => format!("{}\n\n", text.trim_end()),
    };
    let note = note.lines().next().unwrap_or_default();
    format!("{so_far}# {note}\n{}", rule_to_toml(rule))
}

/// The `[[grant]]` table of a grant.
#[must_use]
pub fn grant_to_toml(grant: &Grant) -> String {
    let mut text = String::from("[[grant]]\n");
    pair(&mut text, "id", &string(&grant.id));
    matcher(&mut text, &grant.matcher, Outcome::Allow);
    if let Some(reason) = &grant.reason {
        pair(&mut text, "reason", &string(reason));
    }
    pair(&mut text, "expires", &grant.expires.to_string());
    text
}

/// Writes every key whose value is not the default of a rule with this outcome.
fn matcher(text: &mut String, matcher: &Matcher, outcome: Outcome) {
    let deny = outcome == Outcome::Deny;
    let said = matches!(matcher.kind, Kind::Tcp | Kind::Passthrough | Kind::GitSsh);
    if said || (matcher.kind == Kind::Http && deny) {
        pair(text, "kind", &string(matcher.kind.as_str()));
    }
    pair(text, "host", &strings(matcher.hosts.iter().map(ToString::to_string)));
    match (&matcher.ports, deny) {
        (Ports::Any, true) | (Ports::Default, false) => {}
        (Ports::Default, true) if matcher.kind == Kind::GitSsh => pair(text, "port", "22"),
        (Ports::Default, true) => pair(text, "port", "[443, 80]"),
        (Ports::Any, false) => pair(text, "port", &string("*")),
        (Ports::Ranges(ranges), _) => {
            let range = |(first, last): &(u16, u16)| {
                if first == last { first.to_string() } else { string(&format!("{first}-{last}")) }
            };
            let ranges: Vec<String> = ranges.iter().map(range).collect();
            pair(text, "port", &list(&ranges));
        }
    }
    match matcher.kind {
        Kind::Http => http(text, matcher, deny),
        Kind::GitSsh => git_ssh(text, matcher, deny),
        Kind::Tcp | Kind::Passthrough | Kind::Any => {}
    }
    if let Some(secrets) = &matcher.secrets {
        let names = if secrets.is_empty() { vec!["none".to_owned()] } else { secrets.clone() };
        pair(text, "secret", &strings(names));
    }
    if !matcher.addresses.is_empty() {
        pair(text, "address", &strings(matcher.addresses.iter().map(ToString::to_string)));
    }
}

fn git_ssh(text: &mut String, matcher: &Matcher, deny: bool) {
    let usual = match (deny, matcher.branches.is_empty()) {
        (true, _) => Methods::Any,
        (false, false) => Methods::pushing(),
        (false, true) => Methods::fetching(),
    };
    if matcher.methods != usual {
        pair(text, "method", &strings(matcher.methods.as_strings()));
    }
    pair(text, "path", &strings(matcher.paths.iter().map(|path| path.as_str())));
    branches(text, matcher);
}

fn branches(text: &mut String, matcher: &Matcher) {
    if !matcher.branches.is_empty() {
        pair(text, "branch", &strings(matcher.branches.iter().map(RefPattern::as_str)));
    }
}

fn http(text: &mut String, matcher: &Matcher, deny: bool) {
    let usual = if deny { matcher.schemes.len() == 2 } else { matcher.schemes == [Scheme::Https] };
    if !usual {
        pair(text, "scheme", &strings(matcher.schemes.iter().map(|scheme| scheme.as_str())));
    }
    let of_pushes = !deny && !matcher.branches.is_empty();
    let usual = if deny { Methods::Any } else { Methods::reading() };
    if matcher.methods != usual || of_pushes {
        pair(text, "method", &strings(matcher.methods.as_strings()));
    }
    if !matcher.paths.iter().any(|path| path.is_any()) {
        pair(text, "path", &strings(matcher.paths.iter().map(|path| path.as_str())));
    }
    match &matcher.query {
        QueryPattern::Any => {}
        QueryPattern::Nothing => pair(text, "query", &string("none")),
        QueryPattern::Exactly(query) => pair(text, "query", &string(query)),
        QueryPattern::Pairs(pairs) => {
            let pairs: Vec<String> = pairs
                .iter()
                .map(|(name, values)| match values {
                    ValuePattern::Any => format!("{} = \"*\"", string(name)),
                    ValuePattern::OneOf(values) => {
                        format!("{} = {}", string(name), strings(values.iter().map(String::as_str)))
                    }
                })
                .collect();
            pair(text, "query", &format!("{{ {} }}", pairs.join(", ")));
        }
    }
    if !matcher.headers.is_empty() {
        pair(text, "header", &strings(matcher.headers.iter().map(String::as_str)));
    }
    branches(text, matcher);
}

fn pair(text: &mut String, key: &str, value: &str) {
    let _ = writeln!(text, "{key} = {value}");
}

fn list(values: &[String]) -> String {
    match values {
        [one] => one.clone(),
        several => format!("[{}]", several.join(", ")),
    }
}

fn strings<S: AsRef<str>>(values: impl IntoIterator<Item = S>) -> String {
    list(&values.into_iter().map(|value| string(value.as_ref())).collect::<Vec<String>>())
}

/// A basic string of TOML.
fn string(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for char in text.chars() {
        match char {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            // Escape invisible characters, because a person reads a rule before adopting it.
            char if misleads(char) => {
                let number = u32::from(char);
                let _ = match number {
                    0..=0xffff => write!(quoted, "\\u{number:04X}"),
                    _ => write!(quoted, "\\U{number:08X}"),
                };
            }
            char => quoted.push(char),
        }
    }
    quoted.push('"');
    quoted
}
