use std::time::{Duration, Instant};

use bay_client::{Client, FrameReader, bay_path, broken, paused};
use bay_types::exec::{EndReason, Exit};
use bay_types::frame::{Frame, Gap, GapReason};
use bay_types::output::OutputCheck;
use bay_types::{ApiError, ErrorCode};
use clap::Args;
use http_body_util::BodyExt;
use serde::Serialize;

use crate::failure::{Failure, Outcome};
use crate::global_options::GlobalOptions;
use crate::output::streams::Streams;
use crate::output::{output_check, talk, written};
use crate::session::Ends;
use bay_text::percent::segment;

/// How long a daemon may be unreachable while its output is followed.
const REFOLLOW_FOR: Duration = Duration::from_secs(60);
/// Pause before the next attempt to connect.
const POLL: Duration = Duration::from_millis(20);

/// Show the output of a command, also after the command has ended or its bay was stopped.
///
/// On a terminal, text and colours are shown. Every other control sequence, such as one that would set the clipboard
/// or the title, clear the screen or move the cursor, is shown as text, such as `\x1b]52;`. A line that overwrites
/// itself, such as a progress bar, is shown once for each of its states. A pipe or a file gets every byte unchanged.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  bay logs web 3\n  bay logs web 3 --follow\n  bay logs web 3 --since-offset 4096\n\nWith --json every line is an object: {\"stream\", \"offset\", \"text\"}, {\"dropped\", \"why\"} where output is missing, and at the end {\"check\"} and {\"exit\"}. The check says whether the output is what the command wrote: its state is intact, changed, missing, unchecked or partial."
)]
pub(crate) struct Logs {
    /// Name or id of the bay.
    name: String,
    /// The exec: its number, its id, or the end of its id.
    exec: String,
    /// Continue until the command ends.
    #[arg(short, long)]
    follow: bool,
    /// Skip this many bytes at the beginning.
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    since_offset: u64,
    /// Send the bytes to a terminal unchanged: it interprets every sequence that the command wrote.
    #[arg(long)]
    raw: bool,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Line<'a> {
    Text { stream: &'a str, offset: u64, text: std::borrow::Cow<'a, str> },
    Gap(Gap),
    Check { check: OutputCheck },
    Exit { exit: Exit },
}

pub(crate) enum End {
    Done,
    Cut,
}

impl Logs {
    pub(crate) async fn run(self, global: &GlobalOptions) -> Outcome {
        let bay = crate::naming::bay(&self.name)?;
        let path = bay_path(bay, &format!("/execs/{}/output", segment(&self.exec)));
        let (follow, since_offset, raw) = (self.follow, self.since_offset, self.raw);
        Source { bay, path, follow, since_offset, raw }.show(global).await
    }
}

/// The kept output of an exec or a service.
pub(super) struct Source<'a> {
    pub(super) bay: &'a str,
    pub(super) path: String,
    pub(super) follow: bool,
    pub(super) since_offset: u64,
    pub(super) raw: bool,
}

/// The format of the output: lines of JSON, or the two streams.
#[derive(Debug)]
pub(crate) struct Printer {
    json: bool,
    streams: Streams,
}

impl Printer {
    /// Prints a message among the output.
    fn talk(&mut self, text: &str) -> Result<(), Failure> {
        written(self.streams.interrupt())?;
        talk(text);
        Ok(())
    }

    pub(crate) fn new(json: bool, raw: bool) -> Self {
        Self { json, streams: Streams::new(raw) }
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
}

impl Source<'_> {
    /// Prints the output. Continues when the daemon restarts and while the bay is paused.
    pub(super) async fn show(self, global: &GlobalOptions) -> Outcome {
        let mut printer = Printer::new(global.json, self.raw);
        printer.ended(async |printer| self.print(global, printer).await).await
    }

    async fn print(&self, global: &GlobalOptions, printer: &mut Printer) -> Outcome {
        let mut offset = self.since_offset;
        let mut away_since = None;
        let mut followed = false;
        loop {
            let before = offset;
            let read = self.read(global, printer, &mut offset, away_since.is_none()).await;
            followed |= offset > before || matches!(read, Ok(End::Cut));
            match read {
                Ok(End::Done) => return Ok(0),
                Ok(End::Cut) if !self.follow => return Err(broken("the output ended in the middle").into()),
                Ok(End::Cut) => {}
                Err(Failure::Api { error, .. })
                    if self.follow && passing(&error) && (offset > 0 || away_since.is_some()) => {}
                // The bay is paused. Its output continues when the bay does.
                Err(Failure::Api { error, .. })
                    if followed
                        && self.follow
                        && error.code == ErrorCode::BayState
                        && self.was_paused(global).await? =>
                {
                    away_since = None;
                    continue;
                }
                Err(failure) => return Err(failure),
            }
            if offset > before {
                away_since = None;
            }
            if away_since.get_or_insert_with(Instant::now).elapsed() > REFOLLOW_FOR {
                return Err(broken("the daemon did not answer in time").into());
            }
            tokio::time::sleep(POLL).await;
        }
    }

    async fn was_paused(&self, global: &GlobalOptions) -> Result<bool, ApiError> {
        let say = |text: &str| talk(&format!("bay: {text}"));
        Ok(paused::wait(&global.client(), self.bay, say).await?.is_some())
    }

    async fn read(
        &self,
        global: &GlobalOptions,
        printer: &mut Printer,
        offset: &mut u64,
        may_start: bool,
    ) -> Result<End, Failure> {
        let follow = if self.follow { "&follow=true" } else { "" };
        let path = format!("{}?since={offset}{follow}", self.path);
        let client = global.client();
        let mut client = if may_start { client } else { client.another_without_starting() };
        let end = read(&mut client, &path, offset, printer, self.follow).await?;
        // If the body ends without an exit frame, it contained all the output so far.
        Ok(end.unwrap_or(if self.follow { End::Cut } else { End::Done }))
    }
}

/// Prints one response and counts its bytes. `None` if it was complete and did not say how the command ended.
pub(crate) async fn read(
    client: &mut Client,
    path: &str,
    offset: &mut u64,
    printer: &mut Printer,
    follow: bool,
) -> Result<Option<End>, Failure> {
    let mut body = client.download(path).await?;
    let mut frames = FrameReader::new((), &[]);
    while let Some(piece) = body.frame().await {
        let Ok(piece) = piece else { return Ok(Some(End::Cut)) };
        let Some(data) = piece.data_ref() else { continue };
        frames.feed(data);
        while let Some(frame) = frames.next().map_err(|e| broken(&e.to_string()))? {
            if let Frame::Exit(exit, _) = &frame
                && follow
                && !printer.json
            {
                say_why(*exit);
            }
            if let Some(end) = show(frame, offset, printer)? {
                return Ok(Some(end));
            }
        }
    }
    Ok(None)
}

/// Reports, to a person who follows, an end that the command did not choose.
fn say_why(exit: Exit) {
    let why = match exit.reason {
        EndReason::Stopped => "its bay was stopped",
        EndReason::Lost => "the bay's first process died",
        EndReason::TimedOut => "its time was up",
        EndReason::Killed => "it was killed by `bay kill`",
        EndReason::Exited | EndReason::Signaled => return,
    };
    talk(&format!("bay: the command was ended: {why}"));
}

fn passing(error: &ApiError) -> bool {
    matches!(error.code, ErrorCode::DaemonUnreachable | ErrorCode::GuestUnreachable | ErrorCode::Interrupted)
}

fn show(frame: Frame, offset: &mut u64, printer: &mut Printer) -> Result<Option<End>, Failure> {
    match frame {
        Frame::Stdout(bytes) => output("stdout", &bytes, offset, printer)?,
        Frame::Stderr(bytes) => output("stderr", &bytes, offset, printer)?,
        Frame::Gap(gap) => {
            if printer.json {
                line(&Line::Gap(gap))?;
            } else {
                printer.talk(&format!("bay: {}", missing(gap, *offset)))?;
            }
            *offset = offset.saturating_add(gap.dropped);
        }
        Frame::Exit(exit, check) => {
            match check {
                Some(check) if printer.json => line(&Line::Check { check })?,
                Some(check) => {
                    if let Some(warning) = output_check::warning(check) {
                        printer.talk(&format!("bay: {warning}"))?;
                    }
                }
                None => {}
            }
            if printer.json {
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
            return Err(broken("it sent a frame that only clients send").into());
        }
    }
    Ok(None)
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

fn output(stream: &str, bytes: &[u8], offset: &mut u64, printer: &mut Printer) -> Result<(), Failure> {
    if printer.json {
        line(&Line::Text { stream, offset: *offset, text: String::from_utf8_lossy(bytes) })?;
    } else {
        written(printer.streams.write(stream == "stderr", bytes))?;
    }
    *offset = offset.saturating_add(bytes.len() as u64);
    Ok(())
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
}
