//! The encoding of pieces. The reader allocates nothing, so a hostile length costs nothing.

/// Bytes of a piece's length.
pub(crate) const HEADER: usize = 4;

/// The header of a piece; of an empty one, if the direction has ended. A buffer is far smaller than the largest length.
pub(crate) fn header(length: usize) -> [u8; HEADER] {
    u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes()
}

/// Splits what arrives into pieces, wherever it was cut in transit.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    header: [u8; HEADER],
    /// Bytes of the header that have arrived.
    have: usize,
    /// Bytes of the present piece that have not arrived.
    left: usize,
}

/// Something that arrived.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Arrived<'a> {
    Bytes(&'a [u8]),
    End,
}

impl Reader {
    /// Takes the next thing from the beginning of `input`. Returns `None` if more input is needed.
    pub(crate) fn next<'a>(&mut self, input: &mut &'a [u8]) -> Option<Arrived<'a>> {
        loop {
            if input.is_empty() {
                return None;
            }
            if self.left > 0 {
                let (bytes, rest) = input.split_at(self.left.min(input.len()));
                *input = rest;
                self.left -= bytes.len();
                return Some(Arrived::Bytes(bytes));
            }
            let (part, rest) = input.split_at((HEADER - self.have).min(input.len()));
            *input = rest;
            self.header[self.have..self.have + part.len()].copy_from_slice(part);
            self.have += part.len();
            if self.have == HEADER {
                self.have = 0;
                self.left = usize::try_from(u32::from_be_bytes(self.header)).unwrap_or(usize::MAX);
                if self.left == 0 {
                    return Some(Arrived::End);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(pieces: &[&[u8]]) -> (Vec<u8>, usize) {
        let mut reader = Reader::default();
        let (mut bytes, mut ends) = (Vec::new(), 0);
        for piece in pieces {
            let mut input = *piece;
            while let Some(arrived) = reader.next(&mut input) {
                match arrived {
                    Arrived::Bytes(more) => bytes.extend_from_slice(more),
                    Arrived::End => ends += 1,
                }
            }
        }
        (bytes, ends)
    }

    #[test]
    fn pieces_are_found_wherever_they_were_cut() {
        let sent = [&header(3)[..], b"abc", &header(2), b"de", &header(0)].concat();
        assert_eq!(all(&[&sent]), (b"abcde".to_vec(), 1));
        for cut in 0..=sent.len() {
            assert_eq!(all(&[&sent[..cut], &sent[cut..]]), (b"abcde".to_vec(), 1), "{cut}");
        }
        let single: Vec<&[u8]> = sent.chunks(1).collect();
        assert_eq!(all(&single), (b"abcde".to_vec(), 1));
    }

    #[test]
    fn an_incomplete_piece_is_no_end() {
        assert_eq!(all(&[&header(3), b"ab"]), (b"ab".to_vec(), 0));
        assert_eq!(all(&[&[0, 0, 0]]), (Vec::new(), 0));
    }
}
