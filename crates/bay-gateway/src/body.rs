//! Bodies on their way: passed on frame by frame, counted, never collected.

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

/// Why a body broke off.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError {
    #[error("the body broke off")]
    Broken(#[source] hyper::Error),
    #[error("the body stopped moving")]
    Stalled,
    #[error("the policy no longer allows it")]
    Revoked,
    #[error("it is compressed in a way that cannot be read")]
    Coding(#[from] CodingError),
    #[error("it has what stands for a secret in it")]
    Sentinel,
    #[error("it is a form that asks for another method")]
    Override,
}

/// The body of what the gateway answers.
pub(crate) type AnswerBody = UnsyncBoxBody<Bytes, BodyError>;

pub(crate) fn full(bytes: impl Into<Bytes>) -> AnswerBody {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// The body of a request, of which the rest is read and thrown away if nobody wants it. Clients that are answered before
/// they have sent everything may otherwise see a stream that was reset, and not the answer.
pub(crate) struct Source {
    inner: Option<Incoming>,
    /// What was looked at before it was decided on. Passed on first, and in one piece: a body of many small frames would take
    /// many times its length.
    seen: BytesMut,
    seen_trailers: Option<Frame<Bytes>>,
    /// How it broke off while it was looked at.
    broken: Option<hyper::Error>,
    read_rest: bool,
    /// Whether a decider has waited for its beginning.
    waited: bool,
}

impl Source {
    /// `read_rest` is off for bodies that the client only sends when it is told to go on.
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

    /// Reads ahead until so many bytes are there, the body is over, or the time is up. Nothing of it is lost: what is
    /// read here is what is passed on first.
    pub(crate) async fn look(&mut self, bytes: u64, within: Duration) {
        // Whoever waits to be told to go on is told so by reading.
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

    /// Looks at a short body as a whole, at any other as far as it is there already, and says whether all of that may leave.
    pub(crate) async fn begins_well(&mut self, watch: &mut Watch) -> bool {
        let short = self.length().is_some_and(|length| length <= MAX_LOOK_BYTES as u64);
        self.look(MAX_LOOK_BYTES as u64, if short { LOOK_WITHIN } else { Duration::ZERO }).await;
        let data = Frame::data(Bytes::copy_from_slice(&self.seen));
        watch.passes(&data) && self.seen_trailers.as_ref().is_none_or(|trailers| watch.passes(trailers))
    }

    /// Reads a short form as a whole, any other as far as it is there already, and says whether all of that may leave.
    pub(crate) async fn begins_as_decided(&mut self, mut form: FormScan) -> bool {
        if self.is_end_stream() {
            return true;
        }
        let short = self.length().is_some_and(|length| length <= MAX_LOOK_BYTES as u64);
        self.look(MAX_LOOK_BYTES as u64, if short { LOOK_WITHIN } else { Duration::ZERO }).await;
        forms::passes(&mut form, &self.seen)
    }

    /// The first bytes of what was looked at, and whether that is all there is.
    pub(crate) fn looked_at(&self, most: usize) -> (Vec<u8>, bool) {
        let bytes = self.seen[..most.min(self.seen.len())].to_vec();
        let over = self.broken.is_none() && self.inner.as_ref().is_none_or(Body::is_end_stream);
        let whole = over && bytes.len() == self.seen.len();
        (bytes, whole)
    }

    /// How long the client says that it is.
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
    /// Waits only once: a client that is silent holds up the decision no longer than that.
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

/// A body that is passed on.
pub(crate) struct Metered {
    inner: Source,
    direction: Direction,
    progress: Arc<Progress>,
    idle: Duration,
    waiting: Option<Pin<Box<Sleep>>>,
    /// What was passed on in this turn.
    turn: usize,
    /// Called when all of it was passed on; dropped if it breaks off.
    when_complete: Option<Box<dyn FnOnce() + Send>>,
    /// Looks for sentinels in what the bay sends.
    watch: Option<Watch>,
    /// Reads what servers take for a form.
    form: Option<FormScan>,
    /// Resolves when what is under way has to be looked at again.
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

    /// Where the bay's own body breaks off that is all there is to say, and the origin's answer may still come.
    fn failed(&mut self, of_origin: Failure) {
        self.when_complete = None;
        self.ended = true;
        match self.direction {
            Direction::Out => self.progress.note(Failure::RequestBody),
            Direction::In => self.progress.end_failed(of_origin),
        }
    }

    /// Whether something has changed since it was last looked at; the task is woken when it does. A secret that is taken back
    /// ends also what is silent.
    fn has_news(&mut self, context: &mut Context<'_>) -> bool {
        let mut any = false;
        loop {
            if self.news.is_none() {
                let Some(mut news) = self.progress.news() else { return any };
                self.news = Some(Box::pin(async move { drop(news.changed().await) }));
                // What changed before there was somebody to hear of it is found by looking.
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
                    // Nobody decided on the trailers of a request, which come after everything that was looked at.
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
        // Whoever knows from a length that this was all does not ask for the end.
        if self.is_end_stream() {
            self.finished();
        }
    }
}
