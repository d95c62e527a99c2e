//! What a comparison left out because the repository ignores it.

use bay_text::escape::{one_line, visible};
use bay_types::diff::DiffSummary;

use crate::output::grouped;

/// What to do with what was left out: `--ignored shows them`.
const SHOWS: &str = "--ignored shows them";

/// The lines for a person. Empty if nothing was left out and all rules were used.
pub(crate) fn lines(summary: &DiffSummary) -> Vec<String> {
    let counted = (summary.ignored > 0).then(|| {
        let files = if summary.ignored == 1 { "file" } else { "files" };
        let new = match summary.ignored_by_new_rules {
            0 => String::new(),
            n => format!(" ({} by rules that came after the work began)", grouped(n)),
        };
        format!("{} ignored {files} left out{new}: {SHOWS}", grouped(summary.ignored))
    });
    let unused = summary.unused_rules.iter().map(|rules| {
        format!("the ignore rules of {} were not used: {}", visible(&rules.path), one_line(&rules.why))
    });
    counted.into_iter().chain(unused).collect()
}

#[cfg(test)]
mod tests {
    use bay_types::diff::UnusedRules;

    use super::*;

    #[test]
    fn what_was_left_out_is_one_line() {
        assert!(lines(&DiffSummary::default()).is_empty());
        let one = DiffSummary { ignored: 1, ..DiffSummary::default() };
        assert_eq!(lines(&one), ["1 ignored file left out: --ignored shows them"]);
        let many = DiffSummary { ignored: 1204, ignored_by_new_rules: 1003, ..DiffSummary::default() };
        assert_eq!(
            lines(&many),
            [
                "1,204 ignored files left out (1,003 by rules that came after the work began): --ignored shows them"
            ]
        );
    }

    #[test]
    fn rules_that_were_not_used_are_named_without_terminal_sequences() {
        let unused = UnusedRules { path: "a\u{1b}[2J/.gitignore".to_owned(), why: "it is\nlong".to_owned() };
        let summary = DiffSummary { unused_rules: vec![unused], ..DiffSummary::default() };
        assert_eq!(lines(&summary), ["the ignore rules of a\\x1b[2J/.gitignore were not used: it is long"]);
    }
}
