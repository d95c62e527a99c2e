//! Policies for a person.

use bay_types::policy::{FoundPlaces, GrantView, LayerText, LayerView, PolicyView, RuleView};
use bay_types::reach::HOST_NAME;
use jiff::Timestamp;

use crate::output::age::since;
use crate::output::count;
use bay_text::escape::{one_line, visible};

/// The outcome of a rule in its colour.
pub(crate) fn outcome(word: &str) -> String {
    let colour = match word {
        "allow" => 32,
        "ask" => 33,
        _ => 31,
    };
    let word = visible(word);
    if crate::output::colours() {
        format!("\u{1b}[{colour}m{word:<5}\u{1b}[0m")
    } else {
        format!("{word:<5}")
    }
}

/// A scope in words.
pub(crate) fn scope(scope: &str) -> String {
    match scope.strip_prefix("project:") {
        Some(location) => format!("the project {}", visible(location)),
        None => "this host".to_owned(),
    }
}

/// The effective policy of a bay.
pub(crate) fn policy(view: &PolicyView, now: Timestamp) -> String {
    let mut text = format!("{}: what may leave it", visible(&view.bay));
    if !view.ingress {
        text.push_str("; ingress is closed");
    }
    for port in &view.reach {
        text.push_str(&format!(
            "\n{HOST_NAME}:{port} is a service of the host, unless a rule denies it or asks."
        ));
    }
    if view.layers.len() > 1 {
        text.push_str("\nThe most restrictive outcome of these layers applies.");
    }
    for shown in &view.layers {
        text.push_str("\n\n");
        text.push_str(&layer(shown, now));
    }
    if !view.grants.is_empty() {
        text.push_str("\n\ngrants");
        for grant in &view.grants {
            text.push_str(&format!("\n  {}", self::grant(grant, now)));
        }
    }
    text
}

fn layer(layer: &LayerView, now: Timestamp) -> String {
    let mut text = format!("{} layer: {}", visible(&layer.layer), visible(&layer.name));
    if let Some(preset) = &layer.extends {
        text.push_str(&format!(", which extends {}", visible(preset)));
    }
    match layer.set_at {
        Some(at) => text.push_str(&format!(", set {} ago", since(at, now))),
        None => text.push_str(", because none was set"),
    }
    if let Some(description) = &layer.description {
        text.push_str(&format!("\n  {}", one_line(description)));
    }
    for problem in &layer.problems {
        text.push_str(&format!("\n  problem: {}", one_line(problem)));
    }
    for shown in &layer.rules {
        text.push_str(&format!("\n  {}", rule(shown)));
    }
    text.push_str(&match layer.otherwise.as_str() {
        "inherit" => "\n  otherwise as the other layers decide".to_owned(),
        other => format!("\n  {} everything else", outcome(other)),
    });
    text
}

/// A rule in one line, with its file and line.
pub(crate) fn rule(rule: &RuleView) -> String {
    let mut text = format!("{} {}", outcome(&rule.outcome), visible(&rule.what));
    match rule.effect.as_str() {
        "expired" => text.push_str("  (expired)"),
        "capped" => text.push_str("  (no effect: another layer permits none of it)"),
        _ => {
            if let Some(expires) = rule.expires {
                text.push_str(&format!("  (until {expires})"));
            }
        }
    }
    text.push_str(&format!("  [{} {}:{}]", visible(&rule.id), visible(&rule.origin.file), rule.origin.line));
    text
}

pub(crate) fn grant(grant: &GrantView, now: Timestamp) -> String {
    let end =
        if grant.active { format!("for {} more", since(now, grant.expires)) } else { "over".to_owned() };
    format!("{}  {}  ({end})", visible(&grant.id), visible(&grant.what))
}

/// A new policy in a few lines.
pub(crate) fn summary(view: &PolicyView, places: &FoundPlaces) -> String {
    let own = view.layers.last();
    let name = own.map_or("", |layer| layer.name.as_str());
    let rules = own.map_or(0, |layer| layer.rules.len());
    let mut text = format!(
        "{} is the policy of {} now: {}",
        visible(name),
        visible(&view.bay),
        count(rules as u64, "rule")
    );
    if view.layers.len() > 1 {
        text.push_str("; layers of the host or the project narrow it");
    }
    for (list, word) in [
        (&places.registries, "reads from"),
        (&places.forge, "fetches from"),
        (&places.proposed, "asks about"),
        (&places.listed, "reaches"),
    ] {
        for place in list {
            let from =
                if place.from.is_empty() { String::new() } else { format!("  ({})", one_line(&place.from)) };
            text.push_str(&format!("\n  {word} {}{from}", visible(&place.url)));
        }
    }
    text
}

/// A layer in the form in which it was set.
pub(crate) fn layer_text(scope: &str, set: &LayerText) -> String {
    let mut text = format!("# the policy of {}: {}", self::scope(scope), visible(&set.name));
    for problem in &set.problems {
        text.push_str(&format!("\n# problem: {}", one_line(problem)));
    }
    for line in set.text.lines() {
        text.push('\n');
        text.push_str(&bay_text::escape::file_line(line));
    }
    text
}
