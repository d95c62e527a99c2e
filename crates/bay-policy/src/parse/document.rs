//! A whole file.

use std::collections::BTreeSet;

use jiff::Timestamp;
use toml::de::DeTable;

use super::exec::read_execs;
use super::reader::{Reader, Value, quoted};
use super::rule::{RuleTable, read_table};
use super::{MAX_FILE_BYTES, MAX_RULES, examples};
use crate::layer::{LayerPolicy, Otherwise};
use crate::place::Places;
use crate::preset::Preset;
use crate::problem::Problems;
use crate::rule::{Grant, Layer, Origin, Outcome, Rule};

const KEYS: [&str; 8] =
    ["description", "extends", "otherwise", "ingress", "rule", "exec", "grant", "version"];
/// The version of the language. A file may omit it.
const VERSION: &str = "1";

/// Whether a file may begin with a preset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Extending {
    Allowed,
    Refused,
}

pub(super) fn parse(
    layer: Layer,
    file: &str,
    text: &str,
    places: &Places,
    extending: Extending,
) -> Result<LayerPolicy, Problems> {
    let mut reader = Reader::new(file, text);
    let mut policy = LayerPolicy {
        layer,
        file: file.to_owned(),
        description: None,
        extends: None,
        otherwise: Otherwise::Deny,
        ingress: None,
        rules: Vec::new(),
        execs: Vec::new(),
        grants: Vec::new(),
    };
    if text.len() > MAX_FILE_BYTES {
        let why = format!("it is longer than {MAX_FILE_BYTES} bytes");
        reader.problem(0, "the file was not read", why, "split it into layers, or use wider rules");
        return reader.finish(policy);
    }
    let (table, errors) = DeTable::parse_recoverable(text);
    for error in errors {
        let at = error.span().map_or(0, |span| span.start);
        reader.problem(at, "the file is not TOML", error.message().trim(), "correct it there");
    }
    if !reader.has_problems() {
        read_document(&mut reader, table.get_ref(), places, extending, &mut policy);
    }
    reader.finish(policy)
}

fn read_document<'t>(
    reader: &mut Reader<'t>,
    table: &DeTable<'t>,
    places: &Places,
    extending: Extending,
    policy: &mut LayerPolicy,
) {
    let (mut rules, mut grants) = (None, None);
    for (key, value) in table {
        let at = key.span().start;
        match &**key.get_ref() {
            "version" => read_version(reader, value),
            "description" => policy.description = reader.string("description", value).map(|word| word.text),
            "extends" => extend(reader, value, places, extending, policy),
            "otherwise" => read_otherwise(reader, value, policy),
            "ingress" => {
                let choices = [("allow", true), ("deny", false)];
                let word = reader.string("ingress", value);
                policy.ingress =
                    word.and_then(|word| reader.choice("ingress", &word, &choices)).or(policy.ingress);
            }
            "rule" => rules = Some(value),
            "exec" => policy.execs = read_execs(reader, value, policy.layer),
            "grant" if policy.layer == Layer::Bay => grants = Some(value),
            "grant" => reader.problem(
                at,
                "a grant is in the wrong file",
                format!("the {} layer applies to more than one bay, and a grant is for one", policy.layer),
                "move it to the policy of the bay",
            ),
            _ => reader.unknown_key(key, &KEYS, "a policy"),
        }
    }
    if let Some(value) = rules {
        read_rules(reader, value, places, policy);
    }
    if let Some(value) = grants {
        read_grants(reader, value, places, policy);
    }
    if policy.rules.len() > MAX_RULES {
        let why = format!("the layer has {} rules and may have {MAX_RULES}", policy.rules.len());
        reader.problem(0, "too many rules", why, "use wider rules");
    }
}

fn read_version(reader: &mut Reader<'_>, value: &Value<'_>) {
    let Some(words) = reader.numbers_or_strings("version", value) else { return };
    if words.iter().any(|word| word.text != VERSION) {
        reader.problem(
            value.span().start,
            "unknown version",
            "this program reads version 1",
            "use version = 1",
        );
    }
}

fn read_otherwise(reader: &mut Reader<'_>, value: &Value<'_>, policy: &mut LayerPolicy) {
    let choices = [("deny", Otherwise::Deny), ("ask", Otherwise::Ask), ("inherit", Otherwise::Inherit)];
    let Some(word) = reader.string("otherwise", value) else { return };
    match reader.choice("otherwise", &word, &choices) {
        Some(Otherwise::Inherit) if policy.layer == Layer::Host => reader.problem(
            word.at,
            "wrong value of `otherwise`",
            "the host layer is the first and has nothing to inherit",
            "use deny or ask",
        ),
        Some(otherwise) => policy.otherwise = otherwise,
        None => {}
    }
}

fn extend(
    reader: &mut Reader<'_>,
    value: &Value<'_>,
    places: &Places,
    extending: Extending,
    policy: &mut LayerPolicy,
) {
    let Some(word) = reader.string("extends", value) else { return };
    if extending == Extending::Refused {
        reader.problem(word.at, "a preset extends another", "a preset must be complete", "copy the rules");
        return;
    }
    let choices = Preset::ALL.map(|preset| (preset.name(), preset));
    let Some(preset) = reader.choice("extends", &word, &choices) else { return };
    match preset.load(policy.layer, places) {
        Ok(base) => {
            policy.extends = Some(preset.name().to_owned());
            policy.ingress = policy.ingress.or(base.ingress);
            policy.rules.extend(base.rules.into_iter().map(|rule| {
                let id = format!("{}/{}", preset.name(), rule.id);
                Rule { id, ..rule }
            }));
        }
        Err(problems) => reader.adopt(problems),
    }
}

fn read_rules<'t>(reader: &mut Reader<'t>, value: &Value<'t>, places: &Places, policy: &mut LayerPolicy) {
    let mut ids: BTreeSet<String> = policy.rules.iter().map(|rule| rule.id.clone()).collect();
    for (at, (span, table)) in reader.tables("rule", value).into_iter().enumerate() {
        let Some(read) = read_table(reader, table, span.start, places, "a rule") else { continue };
        let Some(outcome) = read.outcome else { continue };
        examples::check(reader, &read, outcome);
        let base = read.id.clone().unwrap_or_else(|| format!("rule-{}", at + 1));
        let several = read.matchers.len() > 1 || read.from_places;
        let line = reader.place(span.start).0;
        let origin = Origin { layer: policy.layer, file: reader.file().to_owned(), line };
        for (number, matcher) in read.matchers.iter().enumerate() {
            let id = if several { format!("{base}-{}", number + 1) } else { base.clone() };
            if !ids.insert(id.clone()) {
                let why = format!("another rule of the layer is called {}", quoted(&id));
                reader.problem(span.start, "two rules have one id", why, "give each an id of its own");
            }
            policy.rules.push(Rule {
                id,
                origin: origin.clone(),
                outcome,
                matcher: matcher.clone(),
                reason: read.reason.clone(),
                expires: read.expires,
                checkpoint: read.checkpoint,
                examples: read.examples.iter().map(|word| word.text.clone()).collect(),
                counterexamples: read.counterexamples.iter().map(|word| word.text.clone()).collect(),
            });
            if policy.rules.len() > MAX_RULES {
                return;
            }
        }
    }
}

fn read_grants<'t>(reader: &mut Reader<'t>, value: &Value<'t>, places: &Places, policy: &mut LayerPolicy) {
    let mut ids = BTreeSet::new();
    for (at, (span, table)) in reader.tables("grant", value).into_iter().enumerate() {
        if at >= MAX_RULES {
            reader.problem(span.start, "too many grants", format!("a bay may have {MAX_RULES}"), "use rules");
            return;
        }
        let Some(read) = read_table(reader, table, span.start, places, "a grant") else { continue };
        let Some(expires) = check_grant(reader, &read, span.start) else { continue };
        examples::check(reader, &read, Outcome::Allow);
        let base = read.id.clone().unwrap_or_else(|| format!("grant-{}", at + 1));
        let line = reader.place(span.start).0;
        let origin = Origin { layer: policy.layer, file: reader.file().to_owned(), line };
        for (number, matcher) in read.matchers.iter().enumerate() {
            let id = if read.matchers.len() > 1 { format!("{base}-{}", number + 1) } else { base.clone() };
            if !ids.insert(id.clone()) {
                let why = format!("another grant is called {}", quoted(&id));
                reader.problem(span.start, "two grants have one id", why, "give each an id of its own");
            }
            policy.grants.push(Grant {
                id,
                origin: origin.clone(),
                matcher: matcher.clone(),
                reason: read.reason.clone(),
                expires,
            });
        }
    }
}

fn check_grant(reader: &mut Reader<'_>, read: &RuleTable, at: usize) -> Option<Timestamp> {
    if read.expires.is_none() {
        reader.problem(
            at,
            "a grant has no end",
            "grants are temporary",
            "add expires = 2030-01-31T18:00:00Z",
        );
    }
    read.expires
}
