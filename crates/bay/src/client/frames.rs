//! Reading frames off a stream.

use std::io;

use bay_types::frame::{Frame, HEADER_LEN, MAX_PAYLOAD};
use bytes::{Buf, BytesMut};

/// A stream and what was read of it beyond the last whole frame.
#[derive(Debug)]
pub(crate) struct FrameReader<S> {
    pub(crate) stream: S,
    buffer: BytesMut,
}

impl<S> FrameReader<S> {
    pub(crate) fn new(stream: S, already: &[u8]) -> Self {
        Self { stream, buffer: BytesMut::from(already) }
    }

    /// Bytes that came by another way than the stream.
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// A frame that is already here.
    pub(crate) fn next(&mut self) -> io::Result<Option<Frame>> {
        match Frame::decode(&self.buffer) {
            Ok(Some((frame, used))) => {
                self.buffer.advance(used);
                Ok(Some(frame))
            }
            Ok(None) => Ok(None),
            Err(error) => Err(io::Error::new(io::ErrorKind::InvalidData, error)),
        }
    }

    /// The buffer, with room for at least one whole frame.
    pub(crate) fn split(&mut self) -> (&mut S, &mut BytesMut) {
        self.buffer.reserve(HEADER_LEN + MAX_PAYLOAD);
        (&mut self.stream, &mut self.buffer)
    }
}
