//! Responses that the daemon sends line by line while it works.

use std::ops::ControlFlow;
use std::time::Duration;

use bay_text::lines::LineBuffer;
use bay_types::ApiError;
use bay_types::progress::News;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde::de::DeserializeOwned;

use crate::{ShowProgress, broken, unreachable};

/// How long the client waits for the end of a body after its last line. If it takes longer, the connection is closed.
const DRAIN_FOR: Duration = Duration::from_millis(50);
/// Longest line of progress.
const MAX_LINE: usize = 1 << 20;

/// Reads progress until the result, and shows it.
pub(crate) async fn result<T: DeserializeOwned>(
    mut body: Incoming,
    meter: &mut dyn ShowProgress,
) -> Result<T, ApiError> {
    let mut lines = LineBuffer::default();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| unreachable(&error))?;
        let Ok(data) = frame.into_data() else { continue };
        lines.push(&data);
        while let Some(line) = lines.next_line() {
            if *line == *b"\n" {
                continue;
            }
            match serde_json::from_slice::<News<T>>(&line) {
                Ok(News::Progress(progress)) => meter.show(&progress),
                Ok(News::Done { result }) => {
                    drain(body).await;
                    return Ok(result);
                }
                Ok(News::Failed { error }) => return Err(error),
                Err(error) => return Err(broken(&format!("a line of news cannot be read: {error}"))),
            }
        }
        if lines.unfinished() > MAX_LINE {
            return Err(broken("a line of news has no end"));
        }
    }
    Err(broken("it stopped before it said how the work ended"))
}

/// Reads lines and passes each to `on`, until `on` breaks at the last one. A body that ends before that is an
/// error, and so is the beginning of a line that is longer than `longest` bytes.
pub async fn lines<T: DeserializeOwned, E: From<ApiError>>(
    mut body: Incoming,
    longest: usize,
    mut on: impl FnMut(T) -> Result<ControlFlow<()>, E>,
) -> Result<(), E> {
    let mut lines = LineBuffer::default();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| unreachable(&error))?;
        let Ok(data) = frame.into_data() else { continue };
        lines.push(&data);
        while let Some(line) = lines.next_line() {
            let read = serde_json::from_slice(&line)
                .map_err(|error| broken(&format!("a line cannot be read: {error}")))?;
            if on(read)?.is_break() {
                return Ok(());
            }
        }
        if lines.unfinished() > longest {
            return Err(broken("a line of its answer is too long").into());
        }
    }
    Err(broken("it stopped before it said how the work ended").into())
}

/// Reads what follows the last line, so that the connection can be used again.
async fn drain(mut body: Incoming) {
    let rest = async { while body.frame().await.is_some() {} };
    let _ = tokio::time::timeout(DRAIN_FOR, rest).await;
}
