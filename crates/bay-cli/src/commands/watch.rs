use std::time::{Duration, Instant};

use bay_client::{Client, bay_path, broken, paused};
use bay_types::bay::{BayView, State};
use bay_types::watch::WatchLine;
use bay_types::{ApiError, ErrorCode};
use bytes::BytesMut;
use clap::Args;
use http_body_util::BodyExt;
use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::failure::{Failure, Outcome};
use crate::global_options::GlobalOptions;
use crate::output::talk;
use bay_text::escape::visible;
use bay_text::percent::segment;

/// Longest line of a watch: two paths of the kernel's maximum length with every byte escaped.
const MAX_LINE: usize = 64 << 10;
/// How long to try to watch a running bay again after the stream was cut.
const AWAY_FOR: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);
const WORKSPACE: &str = bay_types::guest::WORKSPACE;

/// Show changes below a directory of a bay as they happen.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  bay watch web\n  bay watch web /workspace/src --shallow\n  bay watch web --json | jq -r 'select(.kind == \"create\").path'\n\nA rename is `rename` at the old name, then `create` at the new one.\nEnds at Ctrl-C, when the bay is stopped or removed, when the daemon ends, or when the directory is removed, renamed or unmounted.\nContinues while the bay's memory is captured for a checkpoint, or the bay is paused; if changes may have been missed meanwhile, reports `dropped`.\nWith --json every line is an object: {\"event\": \"hello\" | \"change\" | \"dropped\" | \"gone\", …}."
)]
pub(crate) struct Watch {
    /// Name or id of the bay.
    name: String,
    /// Directory in the bay. A relative one begins at the workspace.
    #[arg(default_value = WORKSPACE)]
    path: String,
    /// Only the directory itself, without its subdirectories.
    #[arg(long)]
    shallow: bool,
}

impl Watch {
    pub(crate) async fn run(self, global: &GlobalOptions) -> Outcome {
        let bay = crate::naming::bay(&self.name)?;
        let path =
            if self.path.starts_with('/') { self.path.clone() } else { format!("{WORKSPACE}/{}", self.path) };
        let query = format!("/watch?path={}&recursive={}", segment(&path), !self.shallow);
        let mut client = global.client();
        let mut away_since: Option<Instant> = None;
        loop {
            match self.read(&mut client, &bay_path(bay, &query), &path, &mut away_since, global.json).await {
                Ok(()) => {}
                // While a bay's memory is captured, its guest does not answer.
                Err(Failure::Api { error, .. }) if away_since.is_some() && passing(&error) => {}
                Err(Failure::Api { error, .. })
                    if away_since.is_some() && error.code == ErrorCode::BayState => {}
                Err(failure) => return Err(failure),
            }
            self.goes_on(global, &mut away_since).await?;
            client = client.another_without_starting();
            tokio::time::sleep(POLL).await;
        }
    }

    /// Prints the lines of one connection to its end. `away_since` is when the previous connection was cut.
    async fn read(
        &self,
        client: &mut Client,
        request: &str,
        path: &str,
        away_since: &mut Option<Instant>,
        json: bool,
    ) -> Result<(), Failure> {
        let mut body = client.download(request).await?;
        let mut lines = BytesMut::new();
        while let Some(Ok(piece)) = body.frame().await {
            let Some(data) = piece.data_ref() else { continue };
            lines.extend_from_slice(data);
            while let Some(end) = lines.iter().position(|byte| *byte == b'\n') {
                let line = lines.split_to(end + 1);
                let line: WatchLine = serde_json::from_slice(&line)
                    .map_err(|e| broken(&format!("a line cannot be parsed: {e}")))?;
                if matches!(line, WatchLine::Hello) && away_since.take().is_some() {
                    // Changes between the two connections are unknown.
                    show(&WatchLine::Dropped { at: Timestamp::now() }, path, json)?;
                }
                show(&line, path, json)?;
                if matches!(line, WatchLine::Gone { .. }) {
                    return Err(gone(path).into());
                }
            }
            if lines.len() > MAX_LINE {
                return Err(broken("a line of its answer is too long").into());
            }
        }
        Ok(())
    }

    /// After a stream was cut, decides by the bay's state whether to connect again. While the bay is paused, waits.
    async fn goes_on(
        &self,
        global: &GlobalOptions,
        away_since: &mut Option<Instant>,
    ) -> Result<(), ApiError> {
        let client = global.client().another_without_starting();
        let say = |text: &str| talk(&format!("bay: {text}"));
        let was_paused = paused::wait(&client, &self.name, say).await?;
        if was_paused.is_some() {
            *away_since = Some(Instant::now());
        }
        let bay = match was_paused {
            Some(bay) => bay,
            None => client.another_without_starting().get::<BayView>(&bay_path(&self.name, "")).await?,
        };
        let away = away_since.get_or_insert_with(Instant::now).elapsed();
        match bay.state {
            State::Running | State::Starting if away <= AWAY_FOR => Ok(()),
            State::Running => Err(ApiError::new(
                ErrorCode::Interrupted,
                "the connection to the watch was lost; later changes are not shown",
                "run `bay watch` again",
            )),
            _ => Err(ApiError::new(
                ErrorCode::BayState,
                format!("the watch has ended: the bay {} is {} ({})", bay.name, bay.state, bay.reason),
                format!("`bay start {}` and watch again", bay.name),
            )),
        }
    }
}

fn passing(error: &ApiError) -> bool {
    matches!(error.code, ErrorCode::GuestUnreachable | ErrorCode::Interrupted)
}

fn gone(path: &str) -> ApiError {
    ApiError::new(
        ErrorCode::PathNotFound,
        format!("the watch has ended: {path:?} was removed, renamed or unmounted"),
        "watch an existing directory",
    )
}

fn show(line: &WatchLine, path: &str, json: bool) -> Result<(), Failure> {
    if json {
        return crate::output::json_line(line);
    }
    match line {
        WatchLine::Hello => talk(&format!("watching {}", visible(path))),
        WatchLine::Change { at, kind, path, path_escaped, is_dir } => {
            // Percent-encoded if the bytes are not text, because replacement characters would be ambiguous.
            let path = path_escaped.as_deref().unwrap_or(path);
            let shown = if path.is_empty() { ".".to_owned() } else { visible(path) };
            let slash = if *is_dir { "/" } else { "" };
            crate::output::data(&format!("{} {:6} {shown}{slash}", time(*at), kind.as_str()))?;
        }
        WatchLine::Dropped { at } => {
            crate::output::data(&format!("{} some changes here are unknown", time(*at)))?;
        }
        WatchLine::Gone { .. } => {}
    }
    Ok(())
}

fn time(at: Timestamp) -> String {
    at.to_zoned(TimeZone::system()).strftime("%H:%M:%S%.3f").to_string()
}
