//! Notes among a command's output: what is missing, and why the command ended.

use std::time::Duration;

use bay_client::bay_path;
use bay_types::exec::{EndReason, ExecView, Exit, LimitHit};
use bay_types::frame::{Gap, GapReason};
use bay_types::output::OutputCheck;

use super::Session;
use crate::output::{output_check, talk};
use crate::terminal;
use bay_text::percent::segment;

/// Time limit of the request for the limits that a failed command reached.
const LIMITS_WITHIN: Duration = Duration::from_secs(2);

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

    /// Warns of output that was changed in transit. Missing output was already reported as a gap.
    pub(super) fn say_check(&self, check: Option<OutputCheck>) {
        if let Some(check @ OutputCheck::Changed { .. }) = check
            && let Some(warning) = output_check::warning(check)
        {
            self.note(&warning);
        }
    }

    /// For a command that failed by itself, reports the limits that it may have failed for. Sends no request if it
    /// succeeded.
    pub(super) async fn say_limits(&self, exit: &Exit) {
        let by_itself = match exit.reason {
            EndReason::Exited => exit.code != Some(0),
            EndReason::Signaled => self.interrupts == 0,
            _ => false,
        };
        if !by_itself {
            return;
        }
        let path = bay_path(&self.bay, &format!("/execs/{}", segment(&self.spec.id.to_string())));
        let mut client = self.client.another_without_starting();
        let answer = tokio::time::timeout(LIMITS_WITHIN, client.get::<ExecView>(&path)).await;
        if let Ok(Ok(view)) = answer {
            for note in view.limits_hit.into_iter().filter_map(|hit| limit_note(hit, &self.bay)) {
                self.note(&note);
            }
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

/// The meaning of a limit that was reached, and what to do about it.
fn limit_note(hit: LimitHit, bay: &str) -> Option<String> {
    match hit {
        LimitHit::Memory => Some(format!(
            "while it ran, the bay used up its memory and the kernel ended a process in it\n\
             next: give the bay more with `bay set {bay} --memory-mib N`, or run less at once"
        )),
        LimitHit::Pids => Some(format!(
            "while it ran, the bay had as many processes as it may have and could start no more\n\
             next: give the bay more with `bay set {bay} --pids N`, or run less at once; `bay execs ls {bay}` shows what runs"
        )),
        // Already printed when it happened.
        LimitHit::Disk => None,
    }
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

    #[test]
    fn a_reached_limit_is_reported_with_a_remedy() {
        for (hit, flag) in
            [(LimitHit::Memory, "`bay set web --memory-mib N`"), (LimitHit::Pids, "`bay set web --pids N`")]
        {
            let note = limit_note(hit, "web").unwrap();
            assert!(note.contains("while it ran") && note.contains(flag), "{note}");
        }
        assert_eq!(limit_note(LimitHit::Disk, "web"), None);
    }
}
