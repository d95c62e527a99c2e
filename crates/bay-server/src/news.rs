//! News from long work to a caller that may be slow or gone: progress is dropped rather than waited for, the result
//! is not.

use std::time::{Duration, Instant};

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bay_types::ApiError;
use bay_types::progress::{News, Progress};
use bytes::Bytes;
use http::header;
use serde::Serialize;
use tokio::sync::mpsc;

/// Lines on their way to the caller.
pub(crate) const IN_FLIGHT: usize = 64;
/// The same stage is told at most this often.
pub(crate) const TELL_EVERY: Duration = Duration::from_millis(50);

/// Tells a caller how far the work is.
#[derive(Debug)]
pub(crate) struct Teller {
    to: mpsc::Sender<Bytes>,
    stage: String,
    told: Option<Instant>,
}

impl Teller {
    /// Cheap enough to be called for every file.
    pub(crate) fn progress(&mut self, progress: Progress) {
        let new_stage = progress.stage != self.stage;
        if !new_stage && self.told.is_some_and(|at| at.elapsed() < TELL_EVERY) {
            return;
        }
        if new_stage {
            self.stage.clone_from(&progress.stage);
        }
        self.told = Some(Instant::now());
        let _ = self.to.try_send(line(&News::<()>::Progress(progress)));
    }

    /// Whether anybody still listens. Most work goes to its end all the same.
    pub(crate) fn is_heard(&self) -> bool {
        !self.to.is_closed()
    }

    pub(crate) fn stage(&mut self, stage: &str) {
        self.progress(Progress { stage: stage.to_owned(), ..Progress::default() });
    }
}

fn line<T: Serialize>(news: &News<T>) -> Bytes {
    let mut line = serde_json::to_vec(news).unwrap_or_default();
    line.push(b'\n');
    line.into()
}

/// Runs `work` to its end, whether or not anybody listens, and answers with its news.
pub(crate) fn answer<T, W, F>(work: W) -> Response
where
    T: Serialize + Send + 'static,
    W: FnOnce(Teller) -> F,
    F: Future<Output = Result<T, ApiError>> + Send + 'static,
{
    let (to, from) = mpsc::channel(IN_FLIGHT);
    let work = work(Teller { to: to.clone(), stage: String::new(), told: None });
    tokio::spawn(async move {
        // In a task of its own, so that a panic in it is an answer too.
        let last = match tokio::spawn(work).await {
            Ok(Ok(result)) => News::Done { result },
            Ok(Err(error)) => News::Failed { error },
            Err(panic) => News::Failed { error: ApiError::internal(&panic) },
        };
        let _ = to.send(line(&last)).await;
    });
    ([(header::CONTENT_TYPE, "application/x-ndjson")], body(from)).into_response()
}

/// A body that is what comes out of a channel.
pub(crate) fn body(from: mpsc::Receiver<Bytes>) -> Body {
    Body::from_stream(futures_util::stream::unfold(from, |mut from| async move {
        from.recv().await.map(|bytes| (Ok::<_, std::convert::Infallible>(bytes), from))
    }))
}
