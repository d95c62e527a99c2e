//! Answers that come line by line while the daemon works.

use std::ops::ControlFlow;
use std::time::Duration;

use bay_types::ApiError;
use bay_types::progress::News;
use bytes::BytesMut;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde::de::DeserializeOwned;

use super::{broken, unreachable};
use crate::failure::Failure;
use crate::output::progress::Meter;

/// A body that goes on for longer after its last line costs a connection, not a wait.
const DRAIN_FOR: Duration = Duration::from_millis(50);
/// The longest line of news that is believed.
const MAX_LINE: usize = 1 << 20;

/// Reads lines until the last one, showing progress on the way.
pub(super) async fn result<T: DeserializeOwned>(
    mut body: Incoming,
    meter: &mut Meter,
) -> Result<T, ApiError> {
    let mut buffer = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| unreachable(&error))?;
        let Ok(data) = frame.into_data() else { continue };
        buffer.extend_from_slice(&data);
        let mut start = 0;
        while let Some(end) = buffer[start..].iter().position(|b| *b == b'\n') {
            let line = &buffer[start..start + end];
            start += end + 1;
            if line.is_empty() {
                continue;
            }
            match serde_json::from_slice::<News<T>>(line) {
                Ok(News::Progress(progress)) => meter.show(&progress),
                Ok(News::Done { result }) => {
                    drain(body).await;
                    return Ok(result);
                }
                Ok(News::Failed { error }) => return Err(error),
                Err(error) => return Err(broken(&format!("a line of news cannot be read: {error}"))),
            }
        }
        buffer.drain(..start);
        if buffer.len() > MAX_LINE {
            return Err(broken("a line of news has no end"));
        }
    }
    Err(broken("it stopped before it said how the work ended"))
}

/// Reads lines of up to `longest` bytes and hands them on, until `on` has seen the last one.
pub(crate) async fn lines<T: DeserializeOwned>(
    mut body: Incoming,
    longest: usize,
    mut on: impl FnMut(T) -> Result<ControlFlow<()>, Failure>,
) -> Result<(), Failure> {
    let (mut buffer, mut searched) = (BytesMut::new(), 0);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| unreachable(&error))?;
        let Ok(data) = frame.into_data() else { continue };
        buffer.extend_from_slice(&data);
        while let Some(end) = buffer[searched..].iter().position(|b| *b == b'\n') {
            let line = buffer.split_to(searched + end + 1);
            searched = 0;
            let told = serde_json::from_slice(&line)
                .map_err(|error| broken(&format!("a line cannot be read: {error}")))?;
            if on(told)?.is_break() {
                return Ok(());
            }
        }
        searched = buffer.len();
        if searched > longest {
            return Err(broken("a line has no end").into());
        }
    }
    Err(broken("it stopped before it said how the work ended").into())
}

/// Reads what comes after the last line, so that the connection can be used again.
async fn drain(mut body: Incoming) {
    let rest = async { while body.frame().await.is_some() {} };
    let _ = tokio::time::timeout(DRAIN_FOR, rest).await;
}
