//! Long streams to and from the daemon, with progress.

use std::io;

use bay_types::ApiError;
use bay_types::progress::Progress;
use bytes::Bytes;
use http::Method;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde::de::DeserializeOwned;
use tokio::io::AsyncRead;
use tokio::sync::watch;

use crate::{Client, ShowProgress, broken, from_reader};

/// Sends the data of `reader` as the body of a request. At its end, `finish` reports whether the stream was complete.
pub async fn send<T, R, F, O>(
    client: &mut Client,
    method: Method,
    path: &str,
    reader: R,
    finish: F,
    mut news: Progress,
    meter: &mut dyn ShowProgress,
) -> Result<T, ApiError>
where
    T: DeserializeOwned,
    R: AsyncRead + Unpin + Send + 'static,
    F: FnOnce() -> O + Send + 'static,
    O: Future<Output = io::Result<()>> + Send + 'static,
{
    let (counter, mut counted) = watch::channel(0_u64);
    let body = from_reader(reader, finish, move |total| {
        let _ = counter.send(total);
    });
    let upload = client.upload::<T>(method, path, body);
    tokio::pin!(upload);
    let result = loop {
        tokio::select! {
            result = &mut upload => break result,
            Ok(()) = counted.changed() => {
                news.done = *counted.borrow_and_update();
                meter.show(&news);
            }
        }
    };
    meter.clear();
    result
}

/// Passes every piece of a body to `each`. The inner result is the first error of `each`, which ends the transfer.
pub async fn receive(
    mut body: Incoming,
    mut news: Progress,
    meter: &mut dyn ShowProgress,
    mut each: impl FnMut(&Bytes) -> io::Result<()>,
) -> Result<io::Result<()>, ApiError> {
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| broken(&format!("the stream broke: {error}")))?;
        let Some(data) = frame.data_ref() else { continue };
        if let Err(error) = each(data) {
            meter.clear();
            return Ok(Err(error));
        }
        news.done += data.len() as u64;
        meter.show(&news);
    }
    meter.clear();
    Ok(Ok(()))
}
