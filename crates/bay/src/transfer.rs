//! Long streams to and from the daemon, with their progress shown.

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

use crate::client::{Client, broken, from_reader};
use crate::output::progress::Meter;

/// Sends what `reader` gives as the body of a request; `finish` says whether its end was a good one.
pub(crate) async fn send<T, R, F, O>(
    client: &mut Client,
    method: Method,
    path: &str,
    reader: R,
    finish: F,
    mut news: Progress,
    meter: &mut Meter,
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

/// Hands every piece of a body to `each`.
pub(crate) async fn receive(
    mut body: Incoming,
    mut news: Progress,
    meter: &mut Meter,
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
