//! Reads frames from an upgraded connection.

use std::io;

use bay_types::frame::{Frame, HEADER_LEN, MAX_PAYLOAD};
use bytes::{Buf, BytesMut};

/// A stream, and the bytes that were read beyond the last complete frame.
#[derive(Debug)]
pub struct FrameReader<S> {
    pub stream: S,
    buffer: BytesMut,
}

impl<S> FrameReader<S> {
    /// A reader of `stream`, of which the bytes `already` were read before.
    #[must_use]
    pub fn new(stream: S, already: &[u8]) -> Self {
        Self { stream, buffer: BytesMut::from(already) }
    }

    /// Appends bytes that were received by other means than the stream.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next frame that has arrived completely.
    #[expect(clippy::should_implement_trait, reason = "an error must not look like an item of an iterator")]
    pub fn next(&mut self) -> io::Result<Option<Frame>> {
        match Frame::decode(&self.buffer) {
            Ok(Some((frame, used))) => {
                self.buffer.advance(used);
                Ok(Some(frame))
            }
            Ok(None) => Ok(None),
            Err(error) => Err(io::Error::new(io::ErrorKind::InvalidData, error)),
        }
    }

    /// The stream, and the buffer for what is read from it, with room for at least one complete frame.
    pub fn split(&mut self) -> (&mut S, &mut BytesMut) {
        self.buffer.reserve(HEADER_LEN + MAX_PAYLOAD);
        (&mut self.stream, &mut self.buffer)
    }
}
