//! Zstandard, RFC 8878: frames of blocks. The library unpacks; the division into blocks is read here, so that no more
//! than one of them is unpacked at a time.

use std::io::Read;

use ruzstd::decoding::errors::FrameDecoderError;
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use super::coding::{CodingError, Unpacked};

/// What a decoder on the web has to keep of what it unpacked (RFC 9659); frames that want more are not for the web.
const MAX_WINDOW_BYTES: u64 = 8 * 1024 * 1024;
/// Largest block, packed or not.
const MAX_BLOCK_BYTES: usize = 128 * 1024;
const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
const BLOCK_HEAD: usize = 3;
const CHECKSUM: usize = 4;

/// What is read next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Head,
    Block,
    /// A frame that has nothing in it, of which so much is left.
    Skipped(usize),
    /// The frame is over, and what was unpacked of it is still to be given.
    Rest,
}

pub(super) struct Zstandard {
    decoder: FrameDecoder,
    part: Part,
    /// The part that is read, as far as it is there.
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
    /// Whether one frame was read and no other begun.
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
                    // The part may turn out to be longer, now that its beginning is there.
                    if self.wanted()? == self.bytes.len() {
                        self.part()?;
                    }
                }
            }
        }
    }

    /// How long the part is that is read, as far as it can be told.
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
            // A skipped frame: the magic number and its length.
            (_, [a, b, c, d, ..]) if [*a, *b, *c, *d] != MAGIC => 8,
            _ => 5,
        })
    }

    /// Takes the part that is there.
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

/// The length of a frame's head by its descriptor, the magic number included.
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
