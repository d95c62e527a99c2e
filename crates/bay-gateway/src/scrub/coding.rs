//! Compressed answers, opened piece by piece: whatever they unpack to, only one piece of it is in memory.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use brotli_decompressor::{BrotliDecompressStream, BrotliResult, BrotliState, StandardAlloc};
use bytes::Bytes;
use flate2::{Decompress, FlushDecompress, Status};

use super::gzip::Gzip;
use super::zstandard::Zstandard;

/// An answer that unpacks to more than this is cut off where it is also more than [`MAX_RATIO`] times as large. What is
/// unpacked goes straight on to the bay, which need not read it; this is about the time that it takes the daemon.
const MAX_BOMB_BYTES: u64 = 64 * 1024 * 1024;
/// More than gzip, of any content, can reach (1032).
const MAX_RATIO: u64 = 2048;

/// Bodies with large windows that are unpacked at a time, of all bays together. Brotli's is 16 MiB and Zstandard's 8; no request
/// that carries a secret asks for either, so those that come are from origins that do not listen.
const MAX_WIDE: usize = 16;
static WIDE: AtomicUsize = AtomicUsize::new(0);

/// The memory of one large window.
struct Wide;

impl Wide {
    fn take() -> Result<Self, CodingError> {
        let more = |taken: usize| (taken < MAX_WIDE).then_some(taken + 1);
        WIDE.fetch_update(Relaxed, Relaxed, more).map(|_| Self).map_err(|_| CodingError::Window)
    }
}

impl Drop for Wide {
    fn drop(&mut self) {
        WIDE.fetch_sub(1, Relaxed);
    }
}

/// How the bytes of a body are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coding {
    Identity,
    Gzip,
    Deflate,
    Brotli,
    Zstandard,
}

/// Why a body cannot be unpacked, or not passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CodingError {
    #[error("the compressed body is not as it should be")]
    Malformed,
    #[error("the compressed body ended too early")]
    Truncated,
    #[error("the compressed body needs more memory to be unpacked than it may have")]
    Window,
    #[error("the body unpacks to more than {MAX_RATIO} times its size")]
    Bomb,
    #[error("answers had guesses of a secret's value in them too often")]
    Guessed,
    #[error("the body had the value of a secret in it that is easy to guess, so it ends there")]
    Weak,
}

impl Coding {
    /// By its name in `Content-Encoding`.
    pub fn named(name: &str) -> Option<Self> {
        match name.to_ascii_lowercase().as_str() {
            "" | "identity" => Some(Self::Identity),
            "gzip" | "x-gzip" => Some(Self::Gzip),
            "deflate" => Some(Self::Deflate),
            "br" => Some(Self::Brotli),
            "zstd" => Some(Self::Zstandard),
            _ => None,
        }
    }
}

/// What came of unpacking a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Unpacked {
    pub(super) taken: usize,
    pub(super) given: usize,
    /// Nothing follows: what is left of the input is not looked at.
    pub(super) ended: bool,
}

pub(super) struct Decoder {
    kind: Kind,
    /// Taken for what has a large window.
    room: Option<Result<Wide, CodingError>>,
    taken: u64,
    given: u64,
    ended: bool,
}

enum Kind {
    Gzip(Box<Gzip>),
    /// In a zlib envelope, as the standard says, or bare, as some servers have it: the first byte tells.
    Deflate(Option<Box<Decompress>>),
    Brotli(Box<BrotliState<StandardAlloc, StandardAlloc, StandardAlloc>>),
    Zstandard(Box<Zstandard>),
}

impl Decoder {
    pub(super) fn new(coding: Coding) -> Option<Self> {
        let kind = match coding {
            Coding::Identity => return None,
            Coding::Gzip => Kind::Gzip(Box::default()),
            Coding::Deflate => Kind::Deflate(None),
            Coding::Brotli => Kind::Brotli(Box::new(BrotliState::new_strict(
                StandardAlloc::default(),
                StandardAlloc::default(),
                StandardAlloc::default(),
            ))),
            Coding::Zstandard => Kind::Zstandard(Box::default()),
        };
        let wide = matches!(coding, Coding::Brotli | Coding::Zstandard);
        Some(Self { kind, room: wide.then(Wide::take), taken: 0, given: 0, ended: false })
    }

    /// Unpacks as much as there is room for. Takes what it used from the input; the number of bytes that it gave. Where it gave less
    /// than there was room for, it needs more input.
    pub(super) fn decode(&mut self, input: &mut Bytes, output: &mut [u8]) -> Result<usize, CodingError> {
        if let Some(Err(none)) = &self.room {
            return Err(*none);
        }
        let mut given = 0;
        while !self.ended && given < output.len() {
            let room = &mut output[given..];
            let unpacked = match &mut self.kind {
                Kind::Gzip(gzip) => gzip.decode(input, room)?,
                Kind::Deflate(inner) => {
                    let Some(first) = input.first() else { break };
                    // Eight is the method, and no bare block that any encoder writes begins so.
                    let inner = inner.get_or_insert_with(|| Box::new(Decompress::new(first & 0x0f == 8)));
                    inflate(inner, input, room)?
                }
                Kind::Brotli(state) => unbrotli(state, input, room)?,
                Kind::Zstandard(zstandard) => zstandard.decode(input, room)?,
            };
            let _used = input.split_to(unpacked.taken);
            given += unpacked.given;
            self.taken += unpacked.taken as u64;
            self.given += unpacked.given as u64;
            self.ended = unpacked.ended;
            if self.given > MAX_BOMB_BYTES && self.given / MAX_RATIO > self.taken {
                return Err(CodingError::Bomb);
            }
            if unpacked.taken == 0 && unpacked.given == 0 {
                break;
            }
        }
        if self.ended {
            input.clear();
        }
        Ok(given)
    }

    /// Whether the input may end here. No input at all is an answer without a body.
    pub(super) fn finish(&self) -> Result<(), CodingError> {
        let between = matches!(&self.kind, Kind::Gzip(gzip) if gzip.between())
            || matches!(&self.kind, Kind::Zstandard(zstandard) if zstandard.between());
        if self.ended || self.taken == 0 || between { Ok(()) } else { Err(CodingError::Truncated) }
    }
}

pub(super) fn inflate(
    inner: &mut Decompress,
    input: &[u8],
    output: &mut [u8],
) -> Result<Unpacked, CodingError> {
    let (taken, given) = (inner.total_in(), inner.total_out());
    let status =
        inner.decompress(input, output, FlushDecompress::None).map_err(|_| CodingError::Malformed)?;
    // No more than the lengths of the two slices.
    let since = |now: u64, before: u64| usize::try_from(now - before).unwrap_or(usize::MAX);
    Ok(Unpacked {
        taken: since(inner.total_in(), taken),
        given: since(inner.total_out(), given),
        ended: status == Status::StreamEnd,
    })
}

fn unbrotli(
    state: &mut BrotliState<StandardAlloc, StandardAlloc, StandardAlloc>,
    input: &[u8],
    output: &mut [u8],
) -> Result<Unpacked, CodingError> {
    let (mut in_left, mut taken, mut out_left, mut given, mut total) = (input.len(), 0, output.len(), 0, 0);
    let result = BrotliDecompressStream(
        &mut in_left,
        &mut taken,
        input,
        &mut out_left,
        &mut given,
        output,
        &mut total,
        state,
    );
    match result {
        BrotliResult::ResultFailure => Err(CodingError::Malformed),
        result => Ok(Unpacked { taken, given, ended: matches!(result, BrotliResult::ResultSuccess) }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_windows_are_few_at_a_time_and_come_back() {
        let open = || Decoder::new(Coding::Brotli).unwrap();
        let decode = |decoder: &mut Decoder| decoder.decode(&mut Bytes::from_static(b"\x06"), &mut [0; 8]);
        let mut held: Vec<Decoder> = (0..MAX_WIDE).map(|_| open()).collect();
        assert!(held.iter_mut().all(|decoder| decode(decoder) == Ok(0)), "an empty body");
        assert_eq!(decode(&mut open()), Err(CodingError::Window));
        assert!(Decoder::new(Coding::Gzip).unwrap().room.is_none());
        held.clear();
        assert_eq!(decode(&mut open()), Ok(0));
    }
}
