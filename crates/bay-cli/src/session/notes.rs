//! Notes among a command's output: what is missing, and why the command ended.

use std::time::Duration;

use bay_cli_words::Words;
use bay_client::bay_path;
use bay_types::blame::Blame;
use bay_types::exec::{EndReason, ExecView, Exit};
use bay_types::frame::{Gap, GapReason};
use bay_types::output::OutputCheck;
use bay_types::{Action, Hint};

use super::Session;
use crate::output::{output_check, talk};
use crate::terminal;
use bay_text::escape::one_line;
use bay_text::percent::segment;

/// Time limit of the request for what may have made a command fail.
const BLAME_WITHIN: Duration = Duration::from_secs(2);

/// Prints a note about the bay among other output. In raw mode a line needs its carriage return.
pub(crate) fn note(text: &str) {
    // Colours of the output could hide the note.
    let plain = if rustix::termios::isatty(std::io::stderr()) { "\x1b[0m" } else { "" };
    if terminal::is_raw() {
        talk(&format!("{plain}\r\nbay: {}\r", text.replace('\n', "\r\n")));
    } else {
        talk(&format!("{plain}bay: {text}"));
    }
}

impl Session<'_> {
    pub(super) fn gap(&mut self, Gap { dropped, why }: Gap) {
        let from = self.offset;
        self.offset = self.offset.saturating_add(dropped);
        match (why, dropped) {
            (GapReason::Bound, _) => {
                self.note(&format!(
                    "{dropped} bytes of output were dropped: the size of kept output is limited"
                ));
            }
            (GapReason::DiskFull, 0) => {}
            (GapReason::DiskFull, _) => {
                self.note(&format!("{dropped} bytes of output from byte {from} on are missing"));
            }
        }
        if why == GapReason::DiskFull && !self.said_full {
            self.said_full = true;
            self.note(&format!(
                "the disk of the bay is full: output from byte {from} on is not kept, and `bay logs` will not have it\n\
                 next: free some space with `bay exec {0} -- rm …`, or give the bay more with `bay set {0} --disk-mib N`",
                self.bay
            ));
        }
    }

    /// Prints a note among the command's output.
    pub(super) fn note(&self, text: &str) {
        note(text);
    }

    /// Warns of output that is not what the command wrote. Missing output was already reported as a gap.
    pub(super) fn say_check(&self, check: Option<OutputCheck>) {
        if let Some(check @ OutputCheck::Changed { .. }) = check
            && let Some(warning) = output_check::warning(check)
        {
            self.note(&warning);
        }
    }

    /// For a command that failed by itself, says what may have made it fail, and what to do about it. Sends no request if
    /// it succeeded.
    pub(super) async fn say_blame(&self, exit: &Exit) {
        let by_itself = match exit.reason {
            EndReason::Exited => exit.code != Some(0),
            EndReason::Signaled | EndReason::TimedOut => self.interrupts == 0,
            _ => false,
        };
        if !by_itself {
            return;
        }
        let path = bay_path(&self.bay, &format!("/execs/{}", segment(&self.spec.id.to_string())));
        let mut client = self.client.another_without_starting();
        let answer = tokio::time::timeout(BLAME_WITHIN, client.get::<ExecView>(&path)).await;
        if let Ok(Ok(view)) = answer
            && let Some(note) = blame_note(&view, &self.bay, self.said_full)
        {
            self.note(&note);
        }
    }

    pub(super) fn say_why(&self, exit: &Exit) {
        match exit.reason {
            EndReason::TimedOut => {
                let limit = self.spec.timeout_s.map(|s| format!(" after {s} s")).unwrap_or_default();
                self.note(&format!("the command was ended{limit}: its time was up"));
            }
            EndReason::Stopped => self.note("the command was ended: the bay was stopped"),
            EndReason::Lost => self.note("the command was lost: the bay's first process died"),
            EndReason::Killed if self.interrupts == 0 => self.note("the command was killed by `bay kill`"),
            EndReason::Killed | EndReason::Exited | EndReason::Signaled => {}
        }
    }
}

/// The first finding in one line, and what to do about it in another. A full disk that was reported already is left out.
fn blame_note(exec: &ExecView, bay: &str, said_full: bool) -> Option<String> {
    let mut findings = exec
        .blame
        .iter()
        .filter(|blame| !matches!(blame, Blame::Unknown) && (**blame != Blame::Disk || !said_full));
    let words = Words::new(Some(bay.to_owned()));
    let first = findings.next()?;
    let mut note = one_line(&first.line());
    let more = findings.count();
    if more > 0 {
        let show = words.hint(&Hint::new("{}", [Action::ShowExec(bay.into(), exec.number)]));
        note.push_str(&format!(" ({more} more: {show})"));
    }
    let next = words.hint(&first.hint());
    if !next.is_empty() {
        note.push_str(&format!("\nnext: {}", one_line(&next)));
    }
    Some(note)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::tests::{client_of_nobody, spec};

    #[tokio::test]
    async fn missing_output_counts_towards_the_offset_and_a_full_disk_is_reported_once() {
        let dir = tempfile::tempdir().unwrap();
        let mut client = client_of_nobody(dir.path());
        let mut session = Session::new(&mut client, "web", spec());
        session.gap(Gap { dropped: 7, why: GapReason::Bound });
        assert!(!session.said_full);
        session.gap(Gap { dropped: 0, why: GapReason::DiskFull });
        assert!(session.said_full);
        session.gap(Gap { dropped: 5, why: GapReason::DiskFull });
        assert_eq!(session.offset, 12);
    }

    fn failed(blame: &serde_json::Value) -> ExecView {
        serde_json::from_value(serde_json::json!({
            "id": "exec_0190000000007000800000000000abcd", "bay": "bay_0190000000007000800000000000abcd",
            "number": 3, "argv": ["make"], "cwd": null, "user": null, "tty": false, "tool_call": null,
            "started_at": "2026-01-01T00:00:00Z", "usage": {}, "output_bytes": 0, "blame": blame,
        }))
        .unwrap()
    }

    #[test]
    fn a_finding_is_one_line_and_what_to_do_another() {
        let note = |blame| blame_note(&failed(&blame), "web", false).unwrap();
        let memory = note(serde_json::json!([{ "cause": "memory" }]));
        assert!(
            memory.contains("used up its memory") && memory.contains("`bay set web --memory-mib"),
            "{memory}"
        );
        let pids = note(serde_json::json!([{ "cause": "pids" }, { "cause": "memory" }]));
        assert!(
            pids.contains("`bay set web --pids N`") && pids.contains("(1 more: `bay execs show web 3`)"),
            "{pids}"
        );
        let refused = note(serde_json::json!([{
            "cause": "refused", "decision": 41, "request": "GET https://a.test/\u{1b}[2J\nnext: rm", "reason": "no rule",
            "count": 2, "fix": "change-policy",
        }]));
        assert_eq!(refused.lines().count(), 2, "{refused}");
        assert!(refused.contains("GET https://a.test/") && !refused.contains('\u{1b}'), "{refused}");
        assert!(
            refused.ends_with("next: `bay policy explain web 41` shows the rule that would allow it"),
            "{refused}"
        );
        let missing = note(serde_json::json!([{
            "cause": "missing-command", "command": "rg", "packages": ["ripgrep"], "manager": "apt", "reachable": "allowed",
        }]));
        assert!(missing.contains("`bay exec web -- apt-get install -y ripgrep` installs it"), "{missing}");
    }

    #[test]
    fn nothing_is_said_of_nothing_of_the_unknown_and_of_what_was_said_before() {
        for (blame, said_full) in [
            (serde_json::json!([]), false),
            (serde_json::json!([{ "cause": "solar-flare" }]), false),
            (serde_json::json!([{ "cause": "disk" }]), true),
        ] {
            assert_eq!(blame_note(&failed(&blame), "web", said_full), None, "{blame}");
        }
    }
}
