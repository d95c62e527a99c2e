//! The examples of a rule, which it must match, and its counterexamples, which it must not match.

use super::reader::{Reader, Word, quoted};
use super::rule::RuleTable;
use crate::canonical::CanonicalRequest;
use crate::rule::Outcome;

/// A table that expands to several destinations passes if one of its rules matches.
pub(super) fn check(reader: &mut Reader<'_>, read: &RuleTable, outcome: Outcome) {
    let matches =
        |request: &CanonicalRequest| read.matchers.iter().any(|matcher| matcher.matches(request, outcome));
    for Word { text, at } in &read.examples {
        match CanonicalRequest::from_line(text) {
            Ok(request) if matches(&request) => {}
            Ok(request) => reader.problem(
                *at,
                "an example fails",
                format!("the rule does not match {}", quoted(&request.to_string())),
                "correct the rule or the example",
            ),
            Err(refusal) => reader.problem(
                *at,
                "an example fails",
                format!("no rule can match it, because {}", refusal.why),
                refusal.next.clone(),
            ),
        }
    }
    for Word { text, at } in &read.counterexamples {
        // No rule matches a request without a canonical form.
        if let Ok(request) = CanonicalRequest::from_line(text)
            && matches(&request)
        {
            reader.problem(
                *at,
                "an example fails",
                format!("the rule matches {}, which it must not", quoted(&request.to_string())),
                "correct the rule or the example",
            );
        }
    }
}
