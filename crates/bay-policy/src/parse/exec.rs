//! The table of one rule on commands.

use toml::de::DeTable;

use super::reader::{Reader, Value};
use super::rule::{read_id, read_reason};
use crate::exec::{ExecRule, MAX_WORDS};
use crate::rule::{Layer, Origin, Outcome};

const KEYS: [&str; 5] = ["id", "outcome", "argv", "reason", "checkpoint"];

pub(super) fn read_execs<'t>(reader: &mut Reader<'t>, value: &Value<'t>, layer: Layer) -> Vec<ExecRule> {
    let mut rules: Vec<ExecRule> = Vec::new();
    for (at, (span, table)) in reader.tables("exec", value).into_iter().enumerate() {
        if rules.len() >= super::MAX_RULES {
            reader.problem(
                span.start,
                "too many rules",
                "the layer has too many on commands",
                "use wider rules",
            );
            break;
        }
        let line = reader.place(span.start).0;
        let origin = Origin { layer, file: reader.file().to_owned(), line };
        if let Some(mut rule) = read(reader, table, span.start, origin) {
            if rule.id.is_empty() {
                rule.id = format!("exec-{}", at + 1);
            }
            rules.push(rule);
        }
    }
    rules
}

fn read<'t>(reader: &mut Reader<'t>, table: &DeTable<'t>, at: usize, origin: Origin) -> Option<ExecRule> {
    let mut rule = ExecRule {
        id: String::new(),
        origin,
        outcome: Outcome::Allow,
        argv: Vec::new(),
        reason: None,
        checkpoint: false,
    };
    for (key, value) in table {
        match &**key.get_ref() {
            "id" => rule.id = read_id(reader, value)?,
            "outcome" => {
                let word = reader.string("outcome", value)?;
                rule.outcome =
                    reader.choice("outcome", &word, &[("ask", Outcome::Ask), ("deny", Outcome::Deny)])?;
            }
            "argv" => {
                let words = reader.strings("argv", value)?;
                rule.argv = words.into_iter().map(|word| word.text).collect();
            }
            "reason" => rule.reason = read_reason(reader, value),
            "checkpoint" => rule.checkpoint = reader.boolean("checkpoint", value)?,
            _ => reader.unknown_key(key, &KEYS, "a rule on commands"),
        }
    }
    let open_inside = rule.argv.iter().rev().skip(1).any(|word| word == "**");
    let (why, next) = if rule.outcome == Outcome::Allow {
        ("it has no outcome", "add outcome = \"ask\" or \"deny\"; commands that no rule covers run")
    } else if rule.argv.is_empty() || rule.argv.len() > MAX_WORDS {
        ("it has no argv, or too many words", "add argv = [\"git\", \"push\", \"**\"]")
    } else if rule.argv[0].contains(char::is_whitespace) {
        (
            "the first word is the program alone, and it has a space in it",
            "write each word by itself: argv = [\"git\", \"push\", \"**\"]",
        )
    } else if open_inside {
        ("`**` matches all words that follow", "write it at the end of argv")
    } else if rule.checkpoint && rule.outcome != Outcome::Ask {
        ("files are kept before a person is asked", "leave checkpoint out, or use outcome = \"ask\"")
    } else {
        return Some(rule);
    };
    reader.problem(at, "a rule on commands can have no effect", why, next);
    None
}
