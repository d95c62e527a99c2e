//! A stream of bytes divided into lines.

use bytes::BytesMut;

/// The lines of a stream that arrives in pieces of any size.
///
/// Each byte is searched once, however small the pieces are, so a long line of many pieces is not searched again and
/// again.
#[derive(Debug, Default)]
pub struct LineBuffer {
    buffer: BytesMut,
    /// The number of bytes at the beginning of the buffer that are known to contain no line break.
    searched: usize,
}

impl LineBuffer {
    /// Appends the next piece of the stream.
    pub fn push(&mut self, piece: &[u8]) {
        self.buffer.extend_from_slice(piece);
    }

    /// The next complete line with its line feed, or `None` until more of the stream arrives.
    pub fn next_line(&mut self) -> Option<BytesMut> {
        match memchr::memchr(b'\n', &self.buffer[self.searched..]) {
            Some(end) => {
                let line = self.buffer.split_to(self.searched + end + 1);
                self.searched = 0;
                Some(line)
            }
            None => {
                self.searched = self.buffer.len();
                None
            }
        }
    }

    /// The length of the incomplete last line. The reader limits it: a sender of an endless line must not fill the
    /// reader's memory.
    #[must_use]
    pub fn unfinished(&self) -> usize {
        self.buffer.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lines(pieces: &[Vec<u8>]) -> (Vec<Vec<u8>>, usize) {
        let mut buffer = LineBuffer::default();
        let mut lines = Vec::new();
        for piece in pieces {
            buffer.push(piece);
            while let Some(line) = buffer.next_line() {
                lines.push(line.to_vec());
            }
        }
        (lines, buffer.unfinished())
    }

    #[test]
    fn a_line_is_complete_when_its_end_has_arrived() {
        let pieces = [b"a".to_vec(), b"b\n\nc".to_vec()];
        assert_eq!(lines(&pieces), (vec![b"ab\n".to_vec(), b"\n".to_vec()], 1));
    }

    proptest! {
        #[test]
        fn lines_do_not_depend_on_where_the_stream_was_divided(
            pieces in prop::collection::vec(prop::collection::vec(prop_oneof![Just(b'\n'), any::<u8>()], 0..8), 0..12)
        ) {
            let whole = pieces.concat();
            let wanted: Vec<Vec<u8>> =
                whole.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n")).map(<[u8]>::to_vec).collect();
            let rest = whole.len() - wanted.iter().map(Vec::len).sum::<usize>();
            prop_assert_eq!(lines(&pieces), (wanted, rest));
        }
    }
}
