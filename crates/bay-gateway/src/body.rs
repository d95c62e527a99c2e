//! Bodies in transit: passed on and counted as they arrive, never collected whole. At most the beginning of a request's
//! body is read ahead.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use bay_policy::canonical::overrides::FormScan;
use bytes::{Bytes, BytesMut};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::time::{Instant, Sleep, sleep, timeout};

use crate::decider::Failure;
use crate::forms;
use crate::limits::{LOOK_WITHIN, MAX_LOOK_BYTES, MAX_REST_BYTES, REST_WITHIN, TURN_BYTES};
use crate::progress::{Direction, Progress};
use crate::scrub::CodingError;
use crate::secrets::Watch;
use crate::sight::{Beginning, ReadAhead};

/// Why a body ended early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError {
    #[error("the body ended too early")]
    Broken(#[source] hyper::Error),
    #[error("no more of the body arrived in time")]
    Stalled,
    #[error("the policy no longer allows it")]
    Revoked,
    #[error("it cannot be decompressed, or may not be passed on")]
    Coding(#[from] CodingError),
    #[error("it contains the sentinel of a secret")]
    Sentinel,
    #[error("it is a form that asks for another method, or that cannot be read")]
    Override,
}

/// The body of an answer to the bay.
pub(crate) type AnswerBody = UnsyncBoxBody<Bytes, BodyError>;

pub(crate) fn full(bytes: impl Into<Bytes>) -> AnswerBody {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// A body whose beginning can be read ahead. If a request's body is dropped early, a task reads and discards the
/// rest, within limits of size and time: a client that gets its answer before it has sent everything could otherwise
/// see a reset stream instead of the answer.
pub(crate) struct Source {
    inner: Option<Incoming>,
    /// Bytes that were read ahead. They are passed on first and in one piece: many small frames would take many times
    /// their length in memory.
    seen: BytesMut,
    seen_trailers: Option<Frame<Bytes>>,
    /// The error that ended reading ahead.
    broken: Option<hyper::Error>,
    read_rest: bool,
    /// Whether the decider's one wait for the beginning was used up.
    waited: bool,
}

impl Source {
    /// `read_rest` is off for a body that the client only sends after `100 Continue`.
    pub(crate) fn new(inner: Incoming, read_rest: bool) -> Self {
        Self {
            inner: Some(inner),
            seen: BytesMut::new(),
            seen_trailers: None,
            broken: None,
            read_rest,
            waited: false,
        }
    }

    /// Reads ahead until at least `bytes` have arrived, the body ends, or the time is up.
    pub(crate) async fn look(&mut self, bytes: u64, within: Duration) {
        // Reading makes hyper send `100 Continue`.
        self.read_rest = true;
        let reading = async {
            while (self.seen.len() as u64) < bytes && self.broken.is_none() && self.seen_trailers.is_none() {
                let Some(inner) = self.inner.as_mut().filter(|inner| !inner.is_end_stream()) else { return };
                match inner.frame().await {
                    Some(Ok(frame)) => match frame.into_data() {
                        Ok(data) => self.seen.extend_from_slice(&data),
                        Err(trailers) => self.seen_trailers = Some(trailers),
                    },
                    Some(Err(error)) => self.broken = Some(error),
                    None => self.inner = None,
                }
            }
        };
        timeout(within, reading).await.ok();
    }

    /// Reads a short body of a stated length, for a limited time, and of any other body what has arrived. Returns
    /// whether this beginning is free of sentinels.
    pub(crate) async fn begins_well(&mut self, watch: &mut Watch) -> bool {
        let short = self.length().is_some_and(|length| length <= MAX_LOOK_BYTES as u64);
        self.look(MAX_LOOK_BYTES as u64, if short { LOOK_WITHIN } else { Duration::ZERO }).await;
        let data = Frame::data(Bytes::copy_from_slice(&self.seen));
        watch.passes(&data) && self.seen_trailers.as_ref().is_none_or(|trailers| watch.passes(trailers))
    }

    /// Whether the beginning of a form asks for no other method than the decision was about. How much of it is read
    /// is as for [`Self::begins_well`].
    pub(crate) async fn begins_as_decided(&mut self, mut form: FormScan) -> bool {
        if self.is_end_stream() {
            return true;
        }
        let short = self.length().is_some_and(|length| length <= MAX_LOOK_BYTES as u64);
        self.look(MAX_LOOK_BYTES as u64, if short { LOOK_WITHIN } else { Duration::ZERO }).await;
        forms::passes(&mut form, &self.seen)
    }

    /// At most `most` bytes of what was read ahead, and whether they are known to be the whole body.
    pub(crate) fn looked_at(&self, most: usize) -> (Vec<u8>, bool) {
        let bytes = self.seen[..most.min(self.seen.len())].to_vec();
        let over = self.broken.is_none() && self.inner.as_ref().is_none_or(Body::is_end_stream);
        let whole = over && bytes.len() == self.seen.len();
        (bytes, whole)
    }

    /// The length that the sender gave, less what was already passed on.
    pub(crate) fn length(&self) -> Option<u64> {
        self.size_hint().exact()
    }

    fn poll_frame(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        if !self.seen.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut self.seen).freeze()))));
        }
        if let Some(trailers) = self.seen_trailers.take() {
            return Poll::Ready(Some(Ok(trailers)));
        }
        if let Some(error) = self.broken.take() {
            self.inner = None;
            return Poll::Ready(Some(Err(error)));
        }
        match self.inner.as_mut() {
            Some(inner) => Pin::new(inner).poll_frame(context),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.seen.is_empty()
            && self.seen_trailers.is_none()
            && self.broken.is_none()
            && self.inner.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.inner.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint);
        let mut hint = SizeHint::new();
        let seen = self.seen.len() as u64;
        hint.set_lower(rest.lower() + seen);
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper + seen);
        }
        hint
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        let Some(mut body) = self.inner.take().filter(|body| self.read_rest && !body.is_end_stream()) else {
            return;
        };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(async move {
            let mut left = MAX_REST_BYTES;
            let rest = async {
                while let Some(Ok(frame)) = body.frame().await {
                    let length = frame.data_ref().map_or(0, Bytes::len);
                    let Some(next) = left.checked_sub(length) else { return };
                    left = next;
                }
            };
            timeout(REST_WITHIN, rest).await.ok();
        });
    }
}

#[async_trait]
impl ReadAhead for Source {
    /// Waits only once, so a silent client delays the decision by no more than one timeout.
    async fn beginning(&mut self) -> Beginning {
        if !self.waited {
            self.waited = true;
            self.look(MAX_LOOK_BYTES as u64, LOOK_WITHIN).await;
        }
        let (bytes, whole) = self.looked_at(MAX_LOOK_BYTES);
        let length = if whole { Some(bytes.len() as u64) } else { self.length() };
        Beginning { bytes, whole, length }
    }
}

/// A body that is passed on, with its checks and counters.
pub(crate) struct Metered {
    inner: Source,
    direction: Direction,
    progress: Arc<Progress>,
    idle: Duration,
    waiting: Option<Pin<Box<Sleep>>>,
    /// Bytes that were passed on since the last yield.
    turn: usize,
    /// Called after the complete body was passed on; dropped if the body ends early.
    when_complete: Option<Box<dyn FnOnce() + Send>>,
    /// Searches the bay's body for sentinels.
    watch: Option<Watch>,
    /// Reads a body that servers would parse as a form.
    form: Option<FormScan>,
    /// Resolves when the policy changes. Only a request with a secret has it.
    news: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    ended: bool,
}

impl Metered {
    pub(crate) fn new(inner: Source, direction: Direction, progress: Arc<Progress>, idle: Duration) -> Self {
        Self {
            inner,
            direction,
            progress,
            idle,
            waiting: None,
            turn: 0,
            when_complete: None,
            watch: None,
            form: None,
            news: None,
            ended: false,
        }
    }

    pub(crate) fn when_complete(mut self, call: impl FnOnce() + Send + 'static) -> Self {
        self.when_complete = Some(Box::new(call));
        self
    }

    pub(crate) fn with_watch(mut self, watch: Option<Watch>) -> Self {
        self.watch = watch;
        self
    }

    pub(crate) fn with_form(mut self, form: Option<FormScan>) -> Self {
        self.form = form;
        self
    }

    /// If the bay's body ends early, the origin's answer may still arrive. So only the failure is noted.
    fn failed(&mut self, of_origin: Failure) {
        self.when_complete = None;
        self.ended = true;
        match self.direction {
            Direction::Out => self.progress.note(Failure::RequestBody),
            Direction::In => self.progress.end_failed(of_origin),
        }
    }

    /// Whether the policy changed since the last review. The task is woken by the next change, so a revoked secret
    /// ends a silent body too.
    fn has_news(&mut self, context: &mut Context<'_>) -> bool {
        let mut any = false;
        loop {
            if self.news.is_none() {
                let Some(mut news) = self.progress.news() else { return any };
                self.news = Some(Box::pin(async move { drop(news.changed().await) }));
                // A change before the subscription is found by a review now.
                any = true;
            }
            match self.news.as_mut().map(|news| news.as_mut().poll(context)) {
                Some(Poll::Ready(())) => self.news = None,
                _ => return any,
            }
        }
    }

    fn finished(&mut self) {
        if self.ended {
            return;
        }
        self.ended = true;
        if let Some(call) = self.when_complete.take() {
            call();
        }
        if self.direction == Direction::In {
            self.progress.end_answered();
        }
    }
}

impl Body for Metered {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if !self.progress.still_allowed() {
            self.when_complete = None;
            self.ended = true;
            return Poll::Ready(Some(Err(BodyError::Revoked)));
        }
        if self.turn >= TURN_BYTES {
            self.turn = 0;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        match self.inner.poll_frame(context) {
            Poll::Ready(Some(Ok(frame))) => {
                self.waiting = None;
                if self.watch.as_mut().is_some_and(|watch| !watch.passes(&frame)) {
                    self.progress.note(Failure::Sentinel);
                    self.failed(Failure::Sentinel);
                    return Poll::Ready(Some(Err(BodyError::Sentinel)));
                }
                let data = frame.data_ref();
                if let (Some(form), Some(data)) = (self.form.as_mut(), data)
                    && !forms::passes(form, data)
                {
                    self.progress.note(Failure::Override);
                    self.failed(Failure::Override);
                    return Poll::Ready(Some(Err(BodyError::Override)));
                }
                let Some(data) = data else {
                    // The decision did not cover the trailers of a request, so they are dropped.
                    if self.direction == Direction::Out {
                        self.finished();
                        return Poll::Ready(None);
                    }
                    return Poll::Ready(Some(Ok(frame)));
                };
                let length = data.len();
                self.progress.moved(self.direction, length);
                self.turn += length;
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => {
                self.failed(Failure::Broken);
                Poll::Ready(Some(Err(BodyError::Broken(error))))
            }
            Poll::Ready(None) => {
                self.finished();
                Poll::Ready(None)
            }
            Poll::Pending => {
                self.turn = 0;
                if self.has_news(context) && !self.progress.still_allowed() {
                    self.when_complete = None;
                    self.ended = true;
                    return Poll::Ready(Some(Err(BodyError::Revoked)));
                }
                let idle = self.idle;
                let waiting = self.waiting.get_or_insert_with(|| Box::pin(sleep(idle)));
                if waiting.as_mut().poll(context).is_pending() {
                    return Poll::Pending;
                }
                waiting.as_mut().reset(Instant::now() + idle);
                self.failed(Failure::Stalled);
                Poll::Ready(Some(Err(BodyError::Stalled)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl Drop for Metered {
    fn drop(&mut self) {
        // A reader that knows the length does not poll for the end.
        if self.is_end_stream() {
            self.finished();
        }
    }
}
