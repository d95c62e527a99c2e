//! The body of an answer to the bay, decompressed and scrubbed.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use hyper::body::{Body, Frame, SizeHint};

use super::coding::{Coding, CodingError, Decoder};
use super::head;
use super::patterns::Patterns;
use super::stream::{Renewal, Stream};
use super::tally::Tally;

/// The largest decompressed piece.
const UNPACKED_BYTES: usize = 64 * 1024;

/// An answer's body, decompressed and scrubbed while it is read.
pub struct Scrubbed<B> {
    inner: B,
    stream: Stream,
    found: Arc<AtomicU64>,
    decoder: Option<Decoder>,
    /// Compressed bytes that were not decompressed yet.
    packed: Bytes,
    trailers: Option<HeaderMap>,
    /// The origin's body has ended.
    ended: bool,
    finished: bool,
}

impl<B> fmt::Debug for Scrubbed<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scrubbed").field("stream", &self.stream).finish_non_exhaustive()
    }
}

impl<B> Scrubbed<B> {
    /// Counts the overwritten values in `found`.
    pub fn new(inner: B, patterns: Arc<Patterns>, coding: Coding, found: Arc<AtomicU64>) -> Self {
        Self {
            inner,
            stream: Stream::counted(patterns, found.clone()),
            found,
            decoder: Decoder::new(coding),
            packed: Bytes::new(),
            trailers: None,
            ended: false,
            finished: false,
        }
    }

    #[must_use]
    pub fn renewed_by(mut self, renewal: Renewal) -> Self {
        self.stream = self.stream.renewed_by(renewal);
        self
    }

    /// Sets how whole values are counted. The default is an answer to a request without secrets.
    #[must_use]
    pub fn tallied(mut self, tally: Tally) -> Self {
        self.stream = self.stream.tallied(tally);
        self
    }

    /// Decompresses and scrubs a piece. `None` if more compressed bytes are needed.
    fn unpack(&mut self) -> Result<Option<Bytes>, CodingError> {
        let Some(decoder) = &mut self.decoder else { return Ok(None) };
        loop {
            let mut piece = BytesMut::zeroed(UNPACKED_BYTES);
            let length = decoder.decode(&mut self.packed, &mut piece)?;
            if length == 0 {
                return Ok(None);
            }
            piece.truncate(length);
            let out = self.stream.push(piece.freeze());
            if let Some(why) = self.stream.stopped() {
                return Err(why);
            }
            if !out.is_empty() {
                return Ok(Some(out));
            }
        }
    }

    /// The remaining frames after the end of the origin's body.
    fn rest(&mut self) -> Result<Option<Frame<Bytes>>, CodingError> {
        if !self.finished {
            self.finished = true;
            if let Some(decoder) = &self.decoder {
                decoder.finish()?;
            }
            let rest = self.stream.finish();
            if let Some(why) = self.stream.stopped() {
                return Err(why);
            }
            if !rest.is_empty() {
                return Ok(Some(Frame::data(rest)));
            }
        }
        Ok(self.trailers.take().map(Frame::trailers))
    }
}

impl<B> Body for Scrubbed<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: From<CodingError>,
{
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.get_mut();
        loop {
            if let Some(piece) = this.unpack()? {
                return Poll::Ready(Some(Ok(Frame::data(piece))));
            }
            if this.ended {
                return Poll::Ready(this.rest()?.map(Ok));
            }
            let polled = Pin::new(&mut this.inner).poll_frame(context);
            if polled.is_pending() {
                let released = this.stream.release();
                if !released.is_empty() {
                    return Poll::Ready(Some(Ok(Frame::data(released))));
                }
            }
            let Some(frame) = ready!(polled) else {
                this.ended = true;
                continue;
            };
            match frame?.into_data() {
                Ok(data) if this.decoder.is_some() => this.packed = data,
                Ok(data) => {
                    let out = this.stream.push(data);
                    if let Some(why) = this.stream.stopped() {
                        return Poll::Ready(Some(Err(why.into())));
                    }
                    // A reader that counts bytes does not poll again at the end.
                    this.ended = this.inner.is_end_stream();
                    if !out.is_empty() {
                        return Poll::Ready(Some(Ok(Frame::data(out))));
                    }
                }
                Err(frame) => {
                    if let Ok(mut trailers) = frame.into_trailers() {
                        let (patterns, tally) = this.stream.parts();
                        let found = head::headers(patterns, &mut trailers, tally);
                        this.found.fetch_add(found as u64, Relaxed);
                        this.trailers = Some(trailers);
                    }
                    this.ended = true;
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        let empty = self.stream.held() == 0 && self.packed.is_empty() && self.trailers.is_none();
        empty && (self.finished || (self.decoder.is_none() && self.inner.is_end_stream()))
    }

    fn size_hint(&self) -> SizeHint {
        if self.decoder.is_some() {
            return SizeHint::default();
        }
        let held = self.stream.held() as u64;
        let inner = self.inner.size_hint();
        let mut hint = SizeHint::new();
        if let Some(upper) = inner.upper() {
            hint.set_upper(upper + held);
        }
        hint.set_lower(inner.lower() + held);
        hint
    }
}
