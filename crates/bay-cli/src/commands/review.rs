use bay_client::bay_path;
use bay_types::diff::{DiffAsk, Finding, Part, Review as Reviewed, Severity};
use clap::Args;

use super::diff::{Span, ignored, query};
use crate::failure::Outcome;
use crate::global_options::GlobalOptions;
use crate::output::progress::Meter;
use crate::output::{count, talk};
use bay_text::escape::{one_line, visible};

/// The exit code if something was found that should not leave the bay.
const EXIT_STOP: u8 = 1;

/// Check the changes in a bay's workspace before they leave it: secrets, weakened tests, files that run code.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  bay review web                 everything since the work began\n  bay review web --from v3\n  bay review web --ignored       also what the repository ignores\n  bay review web --json | jq '.findings[] | select(.severity == \"stop\")'\n\nExit code 1 when something of the severity `stop` was found (a secret), 0 otherwise; errors have their own codes.\nSecrets are shown by their first four characters and their length. docs/diff.md lists the rules."
)]
pub(crate) struct Review {
    /// Name or id of the bay.
    name: String,
    #[command(flatten)]
    span: Span,
    /// Check also files that the repository ignores.
    #[arg(long)]
    ignored: bool,
}

impl Review {
    pub(crate) async fn run(self, global: &GlobalOptions) -> Outcome {
        let bay = crate::naming::bay(&self.name)?;
        let ask = DiffAsk {
            from: self.span.from,
            to: self.span.to,
            part: Part::Workspace,
            patch: true,
            ignored: self.ignored,
        };
        let mut meter = Meter::new(global.json);
        let path = bay_path(bay, &format!("/review{}", query(&ask)));
        let review: Reviewed = global.client().ask(&path, &mut meter).await?;
        if global.json {
            crate::output::json(&review)?;
        } else {
            for finding in &review.found.findings {
                crate::output::data(&line(finding, crate::output::colours()))?;
            }
            summed(&review);
        }
        Ok(if review.found.stop() { EXIT_STOP } else { 0 })
    }
}

/// `stop  src/a.rs:12  github-token: a GitHub token: ghp_… (40 characters)`
pub(super) fn line(finding: &Finding, colours: bool) -> String {
    let severity = finding.severity.as_str();
    let severity = match (colours, finding.severity) {
        (true, Severity::Stop) => format!("\u{1b}[31m{severity}\u{1b}[0m"),
        (true, Severity::Warn) => format!("\u{1b}[33m{severity}\u{1b}[0m"),
        _ => severity.to_owned(),
    };
    let path = visible(finding.path_escaped.as_deref().unwrap_or(&finding.path));
    let place = match (path.as_str(), finding.line) {
        ("", _) => ".".to_owned(),
        (path, Some(line)) => format!("{path}:{line}"),
        (path, None) => path.to_owned(),
    };
    format!("{severity}  {place}  {}: {}", visible(&finding.rule), one_line(&finding.why))
}

fn summed(review: &Reviewed) {
    if review.found.not_listed > 0 {
        talk(&format!("{} more are not listed", review.found.not_listed));
    }
    let files = count(review.summary.changed(), "changed file");
    let found = match review.found.findings.len() as u64 + review.found.not_listed {
        0 => "no findings".to_owned(),
        n => count(n, "finding"),
    };
    talk(&format!("{found} in {files}, compared from {} to {}", review.from, review.to));
    ignored::lines(&review.summary).iter().for_each(|line| talk(line));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_one_line_without_terminal_sequences() {
        let finding = Finding {
            severity: Severity::Stop,
            rule: "github-token".to_owned(),
            path: "a\u{1b}[2J".to_owned(),
            path_escaped: None,
            line: Some(3),
            why: "a GitHub token:\nghp_… (40 characters)".to_owned(),
        };
        assert_eq!(
            line(&finding, false),
            "stop  a\\x1b[2J:3  github-token: a GitHub token: ghp_… (40 characters)"
        );
        let whole = Finding { path: String::new(), line: None, ..finding };
        assert!(line(&whole, true).starts_with("\u{1b}[31mstop\u{1b}[0m  .  "));
    }
}
