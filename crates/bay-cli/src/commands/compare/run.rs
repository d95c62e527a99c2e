//! One command in one bay, from its start to its usage.

use std::time::{Duration, Instant};

use bay_client::{Client, FrameReader, bay_path, broken};
use bay_types::diff::{DiffAsk, Part};
use bay_types::exec::{ExecSpec, ExecView, Exit, SignalRequest};
use bay_types::frame::Frame;
use bay_types::{ApiError, ErrorCode, ExecId};
use http_body_util::BodyExt;
use serde::Serialize;

use super::counts::{Reader, Stream, TestCounts};
use crate::commands::diff;

/// Longest time between the first break of the output stream and a later one, if no output came in between.
const AWAY_FOR: Duration = Duration::from_secs(60);
/// How long the record may lag behind the reported end of the command.
const RECORDED_WITHIN: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(20);
const SIGKILL: i32 = 9;

/// How much a bay's workspace differs from where its work began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct DiffSize {
    pub(crate) files: u64,
    pub(crate) added: u64,
    pub(crate) removed: u64,
    /// Files that differ and are not counted, because the repository ignores them.
    pub(crate) ignored: u64,
}

/// The result of one bay.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Row {
    pub(crate) bay: String,
    /// The number of the exec: `bay logs BAY NUMBER` has its kept output.
    pub(crate) number: Option<u64>,
    pub(crate) exec: Option<ExecId>,
    pub(crate) exit: Option<Exit>,
    pub(crate) exit_code: Option<u8>,
    pub(crate) tests: Option<TestCounts>,
    pub(crate) diff: Option<DiffSize>,
    pub(crate) wall_s: Option<f64>,
    pub(crate) cpu_s: Option<f64>,
    pub(crate) memory_peak_bytes: Option<u64>,
    pub(crate) output_bytes: Option<u64>,
    /// Why the command has no result.
    pub(crate) error: Option<ApiError>,
}

impl Row {
    fn new(bay: &str) -> Self {
        Self {
            bay: bay.to_owned(),
            number: None,
            exec: None,
            exit: None,
            exit_code: None,
            tests: None,
            diff: None,
            wall_s: None,
            cpu_s: None,
            memory_peak_bytes: None,
            output_bytes: None,
            error: None,
        }
    }

    /// The row of a bay without a result.
    pub(crate) fn without_result(bay: &str, error: ApiError) -> Self {
        Self { error: Some(error), ..Self::new(bay) }
    }
}

/// What a bay changed since its work began. `None` if that is unknown.
async fn diff_size(client: &mut Client, bay: &str, ignored: bool) -> Option<DiffSize> {
    let ask = DiffAsk { part: Part::Workspace, patch: false, ignored, ..DiffAsk::default() };
    let summary = diff::summary(client, bay, &ask).await.ok()?;
    Some(DiffSize {
        files: summary.changed(),
        added: summary.lines_added,
        removed: summary.lines_removed,
        ignored: summary.ignored,
    })
}

/// Runs the command to its end. With `ignored`, DIFF also counts files that the repository ignores. An error of the
/// command becomes part of the row; if only DIFF fails, the row lacks it.
pub(crate) async fn run(mut client: Client, bay: &str, spec: ExecSpec, ignored: bool) -> Row {
    let mut row = Row::new(bay);
    let mut reader = Reader::default();
    match to_the_end(&mut client, &mut row, &spec, &mut reader).await {
        Ok(view) => {
            row.exit = view.exit;
            row.exit_code = view.exit.map(|exit| exit.shell_code());
            row.wall_s = view.ended_at.map(|ended| bay_types::exec::duration_s(view.started_at, ended));
            row.cpu_s = view.usage.cpu_us().map(bay_types::usage::seconds);
            row.memory_peak_bytes = view.usage.peak_bytes().map(|(bytes, _)| bytes);
            row.output_bytes = Some(view.output_bytes);
            row.tests = reader.finish();
        }
        Err(error) => row.error = Some(error),
    }
    if row.exec.is_some() {
        row.diff = diff_size(&mut client, bay, ignored).await;
    }
    row
}

async fn to_the_end(
    client: &mut Client,
    row: &mut Row,
    spec: &ExecSpec,
    reader: &mut Reader,
) -> Result<ExecView, ApiError> {
    let view: ExecView = client.post(&bay_path(&row.bay, "/execs"), spec).await?;
    row.number = Some(view.number);
    row.exec = Some(view.id);
    let path = bay_path(&row.bay, &format!("/execs/{}", view.id));
    let mut offset = 0;
    let mut away_since = None;
    loop {
        let before = offset;
        match read(client, &path, &mut offset, reader).await {
            Ok(true) => break,
            Ok(false) => away_since = None,
            Err(error) if passing(&error) => *client = client.another_without_starting(),
            Err(error) => return Err(error),
        }
        if offset > before {
            away_since = None;
        }
        if away_since.get_or_insert_with(Instant::now).elapsed() > AWAY_FOR {
            return Err(broken("the daemon did not answer in time"));
        }
        tokio::time::sleep(POLL).await;
    }
    let deadline = Instant::now() + RECORDED_WITHIN;
    loop {
        let view: ExecView = client.get(&path).await?;
        if view.ended_at.is_some() || Instant::now() > deadline {
            return Ok(view);
        }
        tokio::time::sleep(POLL).await;
    }
}

fn passing(error: &ApiError) -> bool {
    matches!(error.code, ErrorCode::DaemonUnreachable | ErrorCode::GuestUnreachable | ErrorCode::Interrupted)
}

/// Reads output from an offset, and returns whether the command has ended.
async fn read(
    client: &mut Client,
    path: &str,
    offset: &mut u64,
    reader: &mut Reader,
) -> Result<bool, ApiError> {
    let mut body = client.download(&format!("{path}/output?since={offset}&follow=true")).await?;
    let mut frames = FrameReader::new((), &[]);
    while let Some(Ok(piece)) = body.frame().await {
        let Some(data) = piece.data_ref() else { continue };
        frames.feed(data);
        while let Some(frame) = frames.next().map_err(|e| broken(&e.to_string()))? {
            let (stream, bytes) = match frame {
                Frame::Stdout(bytes) => (Stream::Out, bytes),
                Frame::Stderr(bytes) => (Stream::Err, bytes),
                Frame::Gap(gap) => {
                    *offset = offset.saturating_add(gap.dropped);
                    continue;
                }
                Frame::Time(_) => continue,
                Frame::Exit(..) => return Ok(true),
                Frame::Error(error) => return Err(error),
                Frame::Stdin(_)
                | Frame::StdinEof
                | Frame::Resize(_)
                | Frame::Signal(_)
                | Frame::Input(..)
                | Frame::InputEnd(_)
                | Frame::Taken(_) => {
                    return Err(broken("it sent a frame that only clients send"));
                }
            };
            reader.feed(stream, &bytes);
            *offset = offset.saturating_add(bytes.len() as u64);
        }
    }
    Ok(false)
}

/// Ends a command and everything it started. If it has ended or was never started, does nothing.
pub(crate) async fn end(mut client: Client, bay: &str, exec: ExecId) {
    let request = SignalRequest { signal: SIGKILL, tree: true };
    let path = bay_path(bay, &format!("/execs/{exec}/signal"));
    let _: Result<serde_json::Value, ApiError> = client.post(&path, &request).await;
}
