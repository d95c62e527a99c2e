//! gzip, RFC 1952: deflate data with a header and a trailer. A stream may have several members.

use flate2::{Crc, Decompress};

use super::coding::{CodingError, Unpacked, inflate};

/// Flags of the optional parts of the header.
const FLAG_CHECK: u8 = 2;
const FLAG_EXTRA: u8 = 4;
const FLAG_NAME: u8 = 8;
const FLAG_COMMENT: u8 = 16;
const FIXED_HEAD: usize = 10;
const TAIL: usize = 8;

/// The part of a member that the next byte belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// The fixed part of the header, of which this many bytes were read.
    Head(usize),
    ExtraLength(usize),
    Extra(usize),
    Text,
    Check(usize),
    Content,
    Tail(usize),
}

pub(super) struct Gzip {
    part: Part,
    /// The flags of the optional parts that were not read yet.
    flags: u8,
    /// The bytes of the current part, if its content matters.
    bytes: [u8; FIXED_HEAD],
    inner: Decompress,
    check: Crc,
    /// Whether one member was read to its end.
    whole: bool,
}

impl Default for Gzip {
    fn default() -> Self {
        Self {
            part: Part::Head(0),
            flags: 0,
            bytes: [0; FIXED_HEAD],
            inner: Decompress::new(false),
            check: Crc::new(),
            whole: false,
        }
    }
}

impl Gzip {
    /// Whether a member has ended and no other has begun.
    pub(super) fn between(&self) -> bool {
        self.whole && self.part == Part::Head(0)
    }

    pub(super) fn decode(&mut self, input: &[u8], output: &mut [u8]) -> Result<Unpacked, CodingError> {
        let mut taken = 0;
        loop {
            let rest = &input[taken..];
            if self.part == Part::Content {
                let unpacked = inflate(&mut self.inner, rest, output)?;
                self.check.update(&output[..unpacked.given]);
                if unpacked.ended {
                    self.part = Part::Tail(0);
                }
                if unpacked.given > 0 || !unpacked.ended {
                    return Ok(Unpacked {
                        taken: taken + unpacked.taken,
                        given: unpacked.given,
                        ended: false,
                    });
                }
                taken += unpacked.taken;
                continue;
            }
            let Some(byte) = rest.first() else { return Ok(Unpacked { taken, given: 0, ended: false }) };
            // Bytes after the last member that do not begin another are padding.
            if self.between() && *byte != 0x1f {
                return Ok(Unpacked { taken, given: 0, ended: true });
            }
            taken += 1;
            self.envelope(*byte)?;
        }
    }

    /// Reads one byte of the header or the trailer.
    fn envelope(&mut self, byte: u8) -> Result<(), CodingError> {
        self.part = match self.part {
            Part::Head(at) => {
                self.bytes[at] = byte;
                if at + 1 < FIXED_HEAD {
                    Part::Head(at + 1)
                } else {
                    if self.bytes[..3] != [0x1f, 0x8b, 8] {
                        return Err(CodingError::Malformed);
                    }
                    self.flags = self.bytes[3];
                    self.next_part()
                }
            }
            Part::ExtraLength(0) => {
                self.bytes[0] = byte;
                Part::ExtraLength(1)
            }
            Part::ExtraLength(_) => match usize::from(u16::from_le_bytes([self.bytes[0], byte])) {
                0 => self.next_part(),
                length => Part::Extra(length),
            },
            Part::Extra(left) if left > 1 => Part::Extra(left - 1),
            Part::Text if byte != 0 => Part::Text,
            Part::Check(left) if left > 1 => Part::Check(left - 1),
            Part::Extra(_) | Part::Text | Part::Check(_) | Part::Content => self.next_part(),
            Part::Tail(at) => {
                self.bytes[at] = byte;
                if at + 1 < TAIL {
                    Part::Tail(at + 1)
                } else {
                    self.end()?;
                    Part::Head(0)
                }
            }
        };
        Ok(())
    }

    /// The next part of the header that is present.
    fn next_part(&mut self) -> Part {
        let mut has = |flag: u8| {
            let has = self.flags & flag != 0;
            self.flags &= !flag;
            has
        };
        if has(FLAG_EXTRA) {
            Part::ExtraLength(0)
        } else if has(FLAG_NAME) || has(FLAG_COMMENT) {
            Part::Text
        } else if has(FLAG_CHECK) {
            Part::Check(2)
        } else {
            Part::Content
        }
    }

    fn end(&mut self) -> Result<(), CodingError> {
        let [a, b, c, d, e, f, g, h, ..] = self.bytes;
        let sound = u32::from_le_bytes([a, b, c, d]) == self.check.sum()
            && u32::from_le_bytes([e, f, g, h]) == self.check.amount();
        if !sound {
            return Err(CodingError::Malformed);
        }
        self.inner.reset(false);
        self.check.reset();
        self.whole = true;
        Ok(())
    }
}
