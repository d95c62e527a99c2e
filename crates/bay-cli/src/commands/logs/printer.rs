//! Prints frames of output: as lines of JSON, or as the bytes that were written.

use std::borrow::Cow;

use bay_client::broken;
use bay_types::exec::Exit;
use bay_types::frame::{Frame, Gap, GapReason};
use bay_types::output::OutputCheck;
use jiff::Timestamp;
use serde::Serialize;

use super::passing;
use crate::failure::{Failure, Outcome};
use crate::output::streams::Streams;
use crate::output::{output_check, talk, written};
use crate::session::Ends;

/// What a line begins with if its time was not recorded.
const NO_TIME: &str = "-";

#[derive(Serialize)]
#[serde(untagged)]
enum Line<'a> {
    Text {
        stream: &'a str,
        offset: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        time: Option<Timestamp>,
        text: Cow<'a, str>,
    },
    Gap(Gap),
    Check {
        check: OutputCheck,
    },
    Exit {
        exit: Exit,
    },
}

pub(crate) enum End {
    Done,
    Cut,
}

/// How output is printed.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Layout {
    pub(crate) json: bool,
    /// A terminal gets every byte unchanged.
    pub(crate) raw: bool,
    /// What was written to standard error goes to standard error.
    pub(crate) split: bool,
    pub(crate) timestamps: bool,
    /// Older output is left out.
    pub(crate) since: Option<Timestamp>,
}

/// Prints output, and remembers between frames where a line began and when it was written.
#[derive(Debug)]
pub(crate) struct Printer {
    layout: Layout,
    streams: Streams,
    /// When the output in the next frames was written, if that is known.
    time: Option<Timestamp>,
    /// The next byte of standard output, and of standard error, begins a line.
    begins: [bool; 2],
    /// Output was printed, or left out because its time is not known.
    began: bool,
    said_unknown: bool,
}

impl Printer {
    pub(crate) fn new(layout: Layout) -> Self {
        let streams = Streams::new(layout.raw);
        Self { layout, streams, time: None, begins: [true; 2], began: false, said_unknown: false }
    }

    pub(super) fn json(&self) -> bool {
        self.layout.json
    }

    pub(crate) fn needs_times(&self) -> bool {
        self.layout.timestamps || self.layout.since.is_some()
    }

    /// Prints a message among the output.
    fn talk(&mut self, text: &str) -> Result<(), Failure> {
        written(self.streams.interrupt())?;
        talk(text);
        Ok(())
    }

    /// Prints what `work` reads, and resets the colours at the end, even after a signal, whose exit code it returns.
    pub(crate) async fn ended(&mut self, work: impl AsyncFnOnce(&mut Self) -> Outcome) -> Outcome {
        let outcome = if self.streams.filtered() {
            let mut ends = Ends::listen().map_err(|e| bay_client::local("listening for signals", &e))?;
            tokio::select! {
                outcome = work(self) => outcome,
                number = ends.next() => Ok(crate::session::code_of_signal(number)),
            }
        } else {
            work(self).await
        };
        written(self.streams.end())?;
        outcome
    }

    /// Prints a frame, and counts its bytes.
    pub(super) fn show(&mut self, frame: Frame, offset: &mut u64) -> Result<Option<End>, Failure> {
        match frame {
            Frame::Time(at) => self.time = time(at),
            Frame::Stdout(bytes) => self.output(false, &bytes, offset)?,
            Frame::Stderr(bytes) => self.output(true, &bytes, offset)?,
            Frame::Gap(gap) => {
                // Nobody knows whether output that is missing at the beginning is older than `--since`.
                if self.layout.since.is_none() || self.began {
                    self.gap(gap, *offset)?;
                }
                *offset = offset.saturating_add(gap.dropped);
            }
            Frame::Exit(exit, check) => {
                if let Some(check) = check {
                    self.check(check)?;
                }
                if self.layout.json {
                    line(&Line::Exit { exit })?;
                }
                return Ok(Some(End::Done));
            }
            Frame::Error(error) if passing(&error) => return Ok(Some(End::Cut)),
            Frame::Error(error) => return Err(error.into()),
            Frame::Stdin(_)
            | Frame::StdinEof
            | Frame::Resize(_)
            | Frame::Signal(_)
            | Frame::Input(..)
            | Frame::InputEnd(_)
            | Frame::Taken(_) => {
                return Err(broken("a frame came from the wrong direction").into());
            }
        }
        Ok(None)
    }

    fn gap(&mut self, gap: Gap, offset: u64) -> Result<(), Failure> {
        if self.layout.json {
            return line(&Line::Gap(gap));
        }
        self.talk(&format!("bay: {}", missing(gap, offset)))
    }

    fn check(&mut self, check: OutputCheck) -> Result<(), Failure> {
        if self.layout.json {
            return line(&Line::Check { check });
        }
        match output_check::warning(check) {
            Some(warning) => self.talk(&format!("bay: {warning}")),
            None => Ok(()),
        }
    }

    fn output(&mut self, stderr: bool, bytes: &[u8], offset: &mut u64) -> Result<(), Failure> {
        let at = *offset;
        *offset = offset.saturating_add(bytes.len() as u64);
        if self.time.is_none() && self.needs_times() && !self.said_unknown {
            self.said_unknown = true;
            self.talk(
                "bay: when some of this output was written is not on record; it is shown without a time",
            )?;
        }
        if self.layout.since.is_some_and(|since| self.time.is_some_and(|time| time < since)) {
            return Ok(());
        }
        self.began = true;
        if self.layout.json {
            let stream = if stderr { "stderr" } else { "stdout" };
            let time = self.time.filter(|_| self.layout.timestamps);
            return line(&Line::Text { stream, offset: at, time, text: String::from_utf8_lossy(bytes) });
        }
        let to_stderr = stderr && self.layout.split;
        let bytes = if self.layout.timestamps {
            Cow::Owned(stamped(bytes, self.time, &mut self.begins[usize::from(to_stderr)]))
        } else {
            Cow::Borrowed(bytes)
        };
        written(self.streams.write(to_stderr, &bytes))
    }
}

/// The time of a frame, if it is one that can be.
fn time(at_ms: u64) -> Option<Timestamp> {
    let at = i64::try_from(at_ms).ok().filter(|at| *at > 0)?;
    Timestamp::from_millisecond(at).ok()
}

/// The bytes with the time at the beginning of every line that begins in them.
fn stamped(bytes: &[u8], time: Option<Timestamp>, begins: &mut bool) -> Vec<u8> {
    let stamp = time.map_or_else(|| format!("{NO_TIME} "), |time| format!("{time:.3} "));
    let mut all = Vec::with_capacity(bytes.len() + stamp.len());
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        if *begins {
            all.extend_from_slice(stamp.as_bytes());
        }
        all.extend_from_slice(line);
        *begins = line.ends_with(b"\n");
    }
    all
}

fn missing(Gap { dropped, why }: Gap, from: u64) -> String {
    match why {
        GapReason::Bound => {
            format!("{dropped} bytes from byte {from} on were dropped: the size of kept output is limited")
        }
        GapReason::DiskFull if dropped == 0 => format!(
            "output from byte {from} on is not kept and will be gone soon: the disk of the bay had no room for it"
        ),
        GapReason::DiskFull => format!(
            "{dropped} bytes from byte {from} on are missing: the disk of the bay was full when they were written"
        ),
    }
}

fn line(line: &Line<'_>) -> Result<(), Failure> {
    crate::output::json_line(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_output_is_reported_with_its_reason() {
        let told = |dropped, why| missing(Gap { dropped, why }, 10);
        assert!(told(5, GapReason::Bound).contains("5 bytes from byte 10 on were dropped"));
        assert!(told(5, GapReason::DiskFull).contains("the disk of the bay was full"));
        assert!(told(0, GapReason::DiskFull).contains("from byte 10 on is not kept"));
        let json = serde_json::to_string(&Line::Gap(Gap { dropped: 5, why: GapReason::DiskFull })).unwrap();
        assert_eq!(json, r#"{"dropped":5,"why":"disk-full"}"#);
    }

    #[test]
    fn the_output_check_is_a_separate_line_in_json() {
        let check = OutputCheck::Unchecked { from: 1, to: 2 };
        let json = serde_json::to_string(&Line::Check { check }).unwrap();
        assert_eq!(json, r#"{"check":{"state":"unchecked","from":1,"to":2}}"#);
    }

    #[test]
    fn every_line_begins_with_its_time_also_when_it_comes_in_pieces() {
        let mut begins = true;
        let mut stamp =
            |text: &str, at| String::from_utf8(stamped(text.as_bytes(), at, &mut begins)).unwrap();
        let at = time(1_500);
        assert_eq!(stamp("one\ntw", at), "1970-01-01T00:00:01.500Z one\n1970-01-01T00:00:01.500Z tw");
        assert_eq!(stamp("o\n", time(2_000)), "o\n");
        assert_eq!(stamp("three\n", None), "- three\n");
        assert_eq!(stamp("", at), "");
        // A bay's disk may say anything.
        assert_eq!([0, u64::MAX, i64::MAX as u64].map(time), [None; 3]);
    }
}
