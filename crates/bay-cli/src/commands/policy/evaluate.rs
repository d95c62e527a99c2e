//! `bay policy check`, `explain`, `lint`, `diff` and `learn`: what a policy decides.

use std::fmt::Write as _;

use bay_client::{Client, bay_path};
use bay_policy::{CompiledPolicy, Layers, Preset};
use bay_types::policy::{Check, Explained, Finding, Lesson, PolicyChange, Recalled, Remedy};
use bay_types::{ApiError, ErrorCode};
use jiff::Timestamp;

use super::{complete, given, one_by_one, render};
use crate::failure::Outcome;
use crate::naming;
use crate::output::{count, data, json, talk};
use bay_text::escape::{file_line, one_line, visible};

/// Exit code of `check` if the decision is allow, and of `lint` without a warning.
const YES: u8 = 0;
/// Exit code of `check` for any other decision, and of `lint` with a warning.
const NO: u8 = 1;

pub(super) async fn check(client: &mut Client, name: &str, request: String, as_json: bool) -> Outcome {
    let bay = naming::bay(name)?;
    let told: Explained = client.post(&bay_path(bay, "/policy/check"), &Check { request }).await?;
    if as_json {
        json(&told)?;
    } else {
        data(&explained(&told))?;
    }
    Ok(if told.outcome == "allow" { YES } else { NO })
}

/// A decision in a few lines: the outcome, the reason, and what would change it.
pub(super) fn explained(told: &Explained) -> String {
    let mut text = format!(
        "{} {}\n  {}",
        render::outcome(&told.outcome),
        visible(&told.request),
        one_line(&told.reason)
    );
    for warning in &told.warnings {
        let _ = write!(text, "\n  warning: {}", one_line(&warning.to_string()));
    }
    for miss in &told.near_misses {
        let _ = write!(
            text,
            "\n  near miss: {} {} at {}: {}",
            visible(&miss.outcome),
            visible(&miss.rule),
            visible(&miss.origin.to_string()),
            one_line(&miss.why)
        );
    }
    if !told.would_allow.is_empty() {
        text.push_str("\n  to allow it:");
    }
    for remedy in &told.would_allow {
        match remedy {
            Remedy::AddRule { layer, file, toml } => {
                let to = match Preset::of_file(file) {
                    Some(preset) => {
                        format!("set a file that begins with extends = \"{}\" and continues", preset.name())
                    }
                    None => format!("add to {}", visible(file)),
                };
                let _ = write!(text, "\n    {to} ({} layer)", visible(layer));
                for line in toml.lines() {
                    let _ = write!(text, "\n      {}", file_line(line));
                }
            }
            Remedy::ChangeRule { rule, origin } => {
                let _ = write!(
                    text,
                    "\n    change the rule {} at {}",
                    visible(rule),
                    visible(&origin.to_string())
                );
            }
            Remedy::Approve { .. } => text.push_str("\n    approve it, or grant it with `bay grants add`"),
            Remedy::Reach { port } => {
                let _ = write!(text, "\n    open the port with `bay set NAME --reach host:{port}`");
            }
            Remedy::SetPolicy => text.push_str("\n    set a policy with `bay policy set`"),
        }
    }
    text
}

pub(super) async fn explain(client: &mut Client, name: &str, id: u64, as_json: bool) -> Outcome {
    let bay = naming::bay(name)?;
    let told: Recalled = client.get(&bay_path(bay, &format!("/policy/explain/{id}"))).await?;
    if as_json {
        json(&told)?;
        return Ok(0);
    }
    let by = told.exec.as_ref().map(|exec| format!(", by {}", visible(exec))).unwrap_or_default();
    let mut text = format!("decision {} at {}{by}", told.id, told.at);
    match &told.then {
        Some(then) => text.push_str(&format!("\n{}", explained(then))),
        None => {
            let _ = write!(
                text,
                "\n{} {}\n  {}",
                render::outcome(&told.outcome),
                visible(&told.request),
                one_line(&told.reason)
            );
        }
    }
    match &told.now {
        Some(now) if now.outcome == told.outcome => text.push_str("\nThe decision would be the same now."),
        Some(now) => text.push_str(&format!("\nThe decision would differ now:\n{}", explained(now))),
        None => {}
    }
    data(&text)?;
    Ok(0)
}

pub(super) async fn lint(client: &mut Client, name: &str, as_json: bool) -> Outcome {
    let bay = naming::bay(name)?;
    let found: Vec<Finding> = client.get(&bay_path(bay, "/policy/lint")).await?;
    findings(&found, as_json)
}

/// Checks a file without a daemon. Destinations that only a bay's repository defines are left out.
pub(super) async fn lint_file(file: &str, as_json: bool) -> Outcome {
    let policy = given(file)?.read().map_err(|problems| {
        let next = "correct the file; docs/policy.md describes the rules";
        one_by_one(ApiError::new(ErrorCode::PolicyInvalid, problems.to_string(), next), as_json)
    })?;
    let policy = CompiledPolicy::new(Layers { bay: Some(policy), ..Layers::default() });
    let found = bay_policy::lint(&policy, Timestamp::now());
    let found = serde_json::to_value(&found).and_then(serde_json::from_value::<Vec<Finding>>);
    findings(&found.map_err(|error| ApiError::internal(&error))?, as_json)
}

fn findings(found: &[Finding], as_json: bool) -> Outcome {
    if as_json {
        json(&found)?;
    } else if found.is_empty() {
        talk("no problem was found");
    }
    for finding in found.iter().filter(|_| !as_json) {
        let rule = finding.rule.as_ref().map(|rule| format!(" {}", visible(rule))).unwrap_or_default();
        let because = finding.because_of.as_ref();
        let because = because.map(|other| format!(" ({})", one_line(other))).unwrap_or_default();
        data(&format!(
            "{}[{}]: {}{rule}: {}{because}\n  next: {}",
            visible(&finding.severity),
            visible(&finding.code),
            visible(&finding.origin.to_string()),
            one_line(&finding.message),
            one_line(&finding.next)
        ))?;
    }
    Ok(if found.iter().any(|finding| finding.severity == "warning") { NO } else { YES })
}

pub(super) async fn diff(
    client: &mut Client,
    name: &str,
    policy: &str,
    list: &[String],
    as_json: bool,
) -> Outcome {
    let bay = naming::bay(name)?;
    let complete = complete(client, &given(policy)?, Some(bay), list).await?;
    let answer = client.post(&bay_path(bay, "/policy/diff"), &complete.policy).await;
    let change: PolicyChange = answer.map_err(|error| one_by_one(error, as_json))?;
    if as_json {
        json(&change)?;
        return Ok(0);
    }
    let text = changes(&change);
    if text.is_empty() {
        talk("nothing would change");
    } else {
        data(&text)?;
    }
    complete.tell();
    Ok(0)
}

/// The changes, line by line.
pub(super) fn changes(change: &PolicyChange) -> String {
    let mut lines = Vec::new();
    lines.extend(change.removed.iter().map(|rule| format!("- {}", render::rule(rule))));
    lines.extend(change.added.iter().map(|rule| format!("+ {}", render::rule(rule))));
    for changed in &change.changed {
        lines.push(format!("- {}", render::rule(&changed.before)));
        lines.push(format!("+ {}", render::rule(&changed.after)));
    }
    for changed in &change.otherwise {
        let word = |word: &Option<String>| visible(word.as_deref().unwrap_or("nothing"));
        lines.push(format!(
            "  the {} layer decides on all other requests: {}, not {}",
            visible(&changed.layer),
            word(&changed.after),
            word(&changed.before)
        ));
    }
    if let Some((_, after)) = change.ingress {
        let word = if after { "open" } else { "closed" };
        lines.push(format!("  ingress: {word}"));
    }
    for changed in &change.decisions {
        lines.push(format!(
            "  {} → {}  {}",
            visible(&changed.before),
            visible(&changed.after),
            visible(&changed.request)
        ));
    }
    lines.join("\n")
}

pub(super) async fn learn(client: &mut Client, name: &str, as_json: bool) -> Outcome {
    let bay = naming::bay(name)?;
    let lesson: Lesson = client.get(&bay_path(bay, "/policy/learn")).await?;
    if as_json {
        json(&lesson)?;
        return Ok(0);
    }
    if !lesson.toml.is_empty() {
        let lines: Vec<String> = lesson.toml.lines().map(file_line).collect();
        data(&lines.join("\n"))?;
    }
    for note in &lesson.not_learned {
        talk(&format!("note: {}: {}", visible(&note.request), one_line(&note.why)));
    }
    if lesson.left_out > 0 {
        talk("note: older refusals were not considered");
    }
    talk(&match (lesson.refusals, lesson.rules) {
        (0, _) => format!("no request of {bay} was refused so far"),
        (refusals, 0) => format!("no rule would allow the {} on record", count(refusals, "refusal")),
        (refusals, rules) => format!(
            "{} from {} on record; check each before you add it to a policy",
            count(rules, "rule"),
            count(refusals, "refusal")
        ),
    });
    Ok(0)
}
