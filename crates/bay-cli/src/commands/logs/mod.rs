//! `bay logs`: the kept output of a command or a service.

mod printer;
mod tail;

use std::time::{Duration, Instant};

use bay_client::{Client, FrameReader, bay_path, broken, paused};
use bay_types::exec::{EndReason, Exit};
use bay_types::frame::Frame;
use bay_types::output::OutputRequest;
use bay_types::{ApiError, ErrorCode};
use clap::Args;
use http_body_util::BodyExt;
use jiff::{SignedDuration, Timestamp};

use crate::commands::record::ago;
use crate::failure::{Failure, Outcome};
use crate::global_options::GlobalOptions;
use crate::output::talk;
use crate::removed_bay;
use bay_text::percent::segment;

pub(crate) use printer::{End, Layout, Printer};
pub(crate) use tail::offset as tail_offset;

/// How long a daemon may be unreachable while its output is followed.
const REFOLLOW_FOR: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);
/// Most lines that `--tail` counts.
pub(crate) const MAX_TAIL: u64 = 1_000_000;

/// Show the output of a command, also after the command has ended or its bay was stopped.
///
/// What the command wrote to its two streams comes in the order in which the bay received it, all of it on standard
/// output; messages of this program go to standard error. --split keeps the streams apart.
///
/// On a terminal, text and colours are shown. Every other control sequence, such as one that would set the clipboard
/// or the title, clear the screen or move the cursor, is shown as text, such as `\x1b]52;`. A line that overwrites
/// itself, such as a progress bar, is shown once for each of its states. A pipe or a file gets every byte unchanged.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  bay logs web 3\n  bay logs web 3 --follow\n  bay logs web 3 --tail 100 --timestamps\n  bay logs web 3 --since 10m\n  bay logs web 3 --since-offset 4096\n\nWith --json every line is an object: {\"stream\", \"offset\", \"text\"}, with --timestamps also {\"time\"}; {\"dropped\", \"why\"} where output is missing, and at the end {\"check\"} and {\"exit\"}. The check says whether the output is what the command wrote: its state is intact, changed, missing, unchecked or partial."
)]
pub(crate) struct Logs {
    /// Name or id of the bay.
    name: String,
    /// The exec: its number, its id, or the end of its id.
    exec: String,
    /// Continue until the command ends.
    #[arg(short, long)]
    follow: bool,
    #[command(flatten)]
    part: Part,
}

/// Which part of the output to show, and how.
#[derive(Debug, Args)]
pub(crate) struct Part {
    /// Only the last N lines.
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(..=MAX_TAIL))]
    tail: Option<u64>,
    /// Only what was written in this time, such as 90s, 10m, 2h, 3d, or since a time such as 2026-01-31T12:00:00Z.
    #[arg(long, value_name = "TIME", value_parser = since)]
    since: Option<Since>,
    /// Begin every line with the time at which it was written, in UTC.
    #[arg(short, long)]
    timestamps: bool,
    /// Skip this many bytes at the beginning.
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    since_offset: u64,
    /// Send what was written to standard error to standard error. JSON has both streams in any case.
    #[arg(long)]
    split: bool,
    /// Send the bytes to a terminal unchanged: it interprets every sequence that was written.
    #[arg(long)]
    raw: bool,
}

/// Where `--since` begins.
#[derive(Debug, Clone, Copy)]
enum Since {
    Ago(SignedDuration),
    At(Timestamp),
}

fn since(text: &str) -> Result<Since, String> {
    match text.parse() {
        Ok(at) => Ok(Since::At(at)),
        Err(_) => ago(text).map(Since::Ago),
    }
}

impl Part {
    /// The offset at which it begins in the output of an exec or a service, whose path this is.
    pub(crate) async fn begin(&self, client: &mut Client, path: &str) -> Result<u64, Failure> {
        match self.tail {
            Some(lines) => Ok(tail::offset(client, path, lines).await?.max(self.since_offset)),
            None => Ok(self.since_offset),
        }
    }

    pub(crate) fn layout(&self, json: bool, now: Timestamp) -> Layout {
        let since = self.since.map(|since| match since {
            Since::Ago(ago) => now.checked_sub(ago).unwrap_or(Timestamp::MIN),
            Since::At(at) => at,
        });
        Layout { json, raw: self.raw, split: self.split, timestamps: self.timestamps, since }
    }
}

impl Logs {
    pub(crate) async fn run(self, global: &GlobalOptions) -> Outcome {
        let bay = crate::naming::bay(&self.name)?;
        let path = bay_path(bay, &format!("/execs/{}", segment(&self.exec)));
        match (Source { bay, path, follow: self.follow, part: &self.part }).show(global).await {
            Err(Failure::Api { error, .. }) if error.code == ErrorCode::BayNotFound => {
                Err(self.of_removed(global, error).await?)
            }
            other => other,
        }
    }

    /// The output of a bay goes with it, but somebody who asks for it should learn what became of the bay.
    async fn of_removed(&self, global: &GlobalOptions, unknown: ApiError) -> Result<Failure, Failure> {
        let Some(bay) = removed_bay::newest(global, &self.name).await? else { return Ok(unknown.into()) };
        let (name, how) = (&self.name, removed_bay::how(&bay, Timestamp::now()));
        let next =
            format!("`bay execs show {name} {}` and `bay timeline {name}` have what is on record", self.exec);
        let message = format!("the bay {name} was {how}, and the output of its commands with it");
        Ok(ApiError::new(ErrorCode::BayNotFound, message, next).into())
    }
}

/// The kept output of an exec or a service, whose path this is.
pub(super) struct Source<'a> {
    pub(super) bay: &'a str,
    pub(super) path: String,
    pub(super) follow: bool,
    pub(super) part: &'a Part,
}

impl Source<'_> {
    /// Prints the output. Continues when the daemon restarts and while the bay is paused.
    pub(super) async fn show(self, global: &GlobalOptions) -> Outcome {
        let mut printer = Printer::new(self.part.layout(global.json, Timestamp::now()));
        printer.ended(async |printer| self.print(global, printer).await).await
    }

    async fn print(&self, global: &GlobalOptions, printer: &mut Printer) -> Outcome {
        let mut offset = self.part.begin(&mut global.client(), &self.path).await?;
        let mut away_since = None;
        let mut followed = false;
        loop {
            let before = offset;
            let read = self.read(global, printer, &mut offset, away_since.is_none()).await;
            followed |= offset > before || matches!(read, Ok(End::Cut));
            match read {
                Ok(End::Done) => return Ok(0),
                Ok(End::Cut) if !self.follow => return Err(broken("the output ended in the middle").into()),
                // It was reachable: a further outage has its own time.
                Ok(End::Cut) => away_since = None,
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
        let request = OutputRequest { since: *offset, follow: self.follow, times: printer.needs_times() };
        let path = format!("{}/output?{}", self.path, request.query());
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
                && !printer.json()
            {
                say_why(*exit);
            }
            if let Some(end) = printer.show(frame, offset)? {
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
