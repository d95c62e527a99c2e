//! Zstandard, RFC 8878: frames of blocks. A library decompresses the blocks. This module splits the stream into
//! blocks, so that only one of them is decompressed at a time.

use std::io::Read;

use ruzstd::decoding::errors::FrameDecoderError;
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use super::coding::{CodingError, Unpacked};

/// The largest window that decoders on the web must support (RFC 9659).
const MAX_WINDOW_BYTES: u64 = 8 * 1024 * 1024;
/// Largest block, compressed or not.
const MAX_BLOCK_BYTES: usize = 128 * 1024;
const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
const BLOCK_HEAD: usize = 3;
const CHECKSUM: usize = 4;

/// The part of the stream that is read next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Head,
    Block,
    /// The rest of a skippable frame, of this length.
    Skipped(usize),
    /// The frame has ended, and decompressed bytes are left.
    Rest,
}

pub(super) struct Zstandard {
    decoder: FrameDecoder,
    part: Part,
    /// The bytes of the current part that have arrived.
    bytes: Vec<u8>,
    checksum: bool,
    whole: bool,
}

impl Default for Zstandard {
    fn default() -> Self {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(MAX_WINDOW_BYTES);
        Self { decoder, part: Part::Head, bytes: Vec::new(), checksum: false, whole: false }
    }
}

impl Zstandard {
    /// Whether a frame has ended and no other has begun.
    pub(super) fn between(&self) -> bool {
        self.whole && self.part == Part::Head && self.bytes.is_empty()
    }

    pub(super) fn decode(&mut self, input: &[u8], output: &mut [u8]) -> Result<Unpacked, CodingError> {
        let mut taken = 0;
        loop {
            if self.part != Part::Head && self.decoder.can_collect() > 0 {
                let given = self.decoder.read(output).map_err(|_| CodingError::Malformed)?;
                return Ok(Unpacked { taken, given, ended: false });
            }
            match self.part {
                Part::Rest => {
                    self.part = Part::Head;
                    self.whole = true;
                }
                Part::Skipped(left) => {
                    let length = left.min(input.len() - taken);
                    taken += length;
                    self.part = if length == left { Part::Head } else { Part::Skipped(left - length) };
                    self.whole = true;
                    if length < left {
                        return Ok(Unpacked { taken, given: 0, ended: false });
                    }
                }
                Part::Head | Part::Block => {
                    let wanted = self.wanted()?;
                    let missing = wanted - self.bytes.len();
                    let length = missing.min(input.len() - taken);
                    self.bytes.extend_from_slice(&input[taken..taken + length]);
                    taken += length;
                    if length < missing {
                        return Ok(Unpacked { taken, given: 0, ended: false });
                    }
                    // The beginning of a part may determine a greater length.
                    if self.wanted()? == self.bytes.len() {
                        self.part()?;
                    }
                }
            }
        }
    }

    /// The length of the current part, as far as it is known.
    fn wanted(&self) -> Result<usize, CodingError> {
        Ok(match (self.part, &self.bytes[..]) {
            (Part::Block, [first, second, third, ..]) => {
                let head = u32::from_le_bytes([*first, *second, *third, 0]);
                let size = (head >> 3) as usize;
                let body = if head >> 1 & 3 == 1 { 1 } else { size };
                if size > MAX_BLOCK_BYTES {
                    return Err(CodingError::Malformed);
                }
                BLOCK_HEAD + body + if self.checksum && head & 1 == 1 { CHECKSUM } else { 0 }
            }
            (Part::Block, _) => BLOCK_HEAD,
            (_, [a, b, c, d, descriptor, ..]) if [*a, *b, *c, *d] == MAGIC => head_length(*descriptor),
            // A skippable frame: the magic number and its length.
            (_, [a, b, c, d, ..]) if [*a, *b, *c, *d] != MAGIC => 8,
            _ => 5,
        })
    }

    /// Processes the complete part.
    fn part(&mut self) -> Result<(), CodingError> {
        match self.part {
            Part::Block => {
                let last = self.bytes[0] & 1 == 1;
                self.decoder
                    .decode_blocks(&self.bytes[..], BlockDecodingStrategy::UptoBlocks(1))
                    .map_err(|_| CodingError::Malformed)?;
                if last {
                    self.part = Part::Rest;
                }
            }
            _ if self.bytes[..4] == MAGIC => {
                self.decoder.reset(&self.bytes[..]).map_err(|error| match error {
                    FrameDecoderError::WindowSizeTooBig { .. } => CodingError::Window,
                    _ => CodingError::Malformed,
                })?;
                self.checksum = self.bytes[4] >> 2 & 1 == 1;
                self.part = Part::Block;
            }
            _ => {
                let [a, b, c, d, e, f, g, h] = self.bytes[..] else { return Err(CodingError::Malformed) };
                if a & 0xf0 != 0x50 || [b, c, d] != [0x2a, 0x4d, 0x18] {
                    return Err(CodingError::Malformed);
                }
                self.part = Part::Skipped(u32::from_le_bytes([e, f, g, h]) as usize);
            }
        }
        self.bytes.clear();
        Ok(())
    }
}

/// The length of a frame's header for this descriptor, including the magic number.
fn head_length(descriptor: u8) -> usize {
    let single = descriptor >> 5 & 1 == 1;
    let window = usize::from(!single);
    let dictionary = [0, 1, 2, 4][usize::from(descriptor & 3)];
    let size = match descriptor >> 6 {
        0 => usize::from(single),
        1 => 2,
        2 => 4,
        _ => 8,
    };
    5 + window + dictionary + size
}
