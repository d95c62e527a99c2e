//! Decompresses answers in pieces. Only one piece and the compression's window are in memory, however large the
//! decompressed body is.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use brotli_decompressor::{BrotliDecompressStream, BrotliResult, BrotliState, StandardAlloc};
use bytes::Bytes;
use flate2::{Decompress, FlushDecompress, Status};

use super::gzip::Gzip;
use super::zstandard::Zstandard;

/// An answer larger than this is cut if it is also more than [`MAX_RATIO`] times as large as its compressed form. The
/// bay need not read the decompressed bytes; this limits the daemon's processor time.
const MAX_BOMB_BYTES: u64 = 64 * 1024 * 1024;
/// More than the highest ratio that gzip can reach (1032).
const MAX_RATIO: u64 = 2048;

/// Bodies with large windows that are decompressed at a time, for all bays together. Brotli needs 16 MiB and
/// Zstandard 8 MiB. Requests whose answers are scrubbed ask for neither, so only origins that ignore the request
/// send them.
const MAX_WIDE: usize = 16;
static WIDE: AtomicUsize = AtomicUsize::new(0);

/// The permit for one large window.
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

/// The content coding of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coding {
    Identity,
    Gzip,
    Deflate,
    Brotli,
    Zstandard,
}

/// Why a body cannot be decompressed or passed on.
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
    /// The coding with this name in `Content-Encoding`.
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

/// The result of decompressing a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Unpacked {
    pub(super) taken: usize,
    pub(super) given: usize,
    /// The data has ended. The rest of the input is ignored.
    pub(super) ended: bool,
}

pub(super) struct Decoder {
    kind: Kind,
    /// The permit, for codings with a large window.
    room: Option<Result<Wide, CodingError>>,
    taken: u64,
    given: u64,
    ended: bool,
}

enum Kind {
    Gzip(Box<Gzip>),
    /// With a zlib header, as the standard says, or raw, as some servers send it. The first byte decides.
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

    /// Decompresses until the output is full. Consumes input and returns the number of bytes written. If the output
    /// is not full, more input is needed.
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
                    // The low bits are the compression method, always eight. Encoders do not write a raw block that
                    // begins like this.
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

    /// Checks that the input may end here. Empty input is an answer without a body.
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
    // The difference is at most the length of a slice.
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
