//! A text that comes in pieces.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bytes::{Bytes, BytesMut};

use super::pattern::Path;
use super::patterns::{Patterns, Sighting};

/// So many characters of what may be a value go out when nothing follows them for now: a message must not wait for its
/// last byte because a value begins with the same one. If the rest does come, it is overwritten.
const RELEASED_UNITS: usize = 3;

/// Overwrites values in a text that comes in pieces, wherever it is divided. As many bytes come out as went in.
///
/// What may be the beginning of a value is held back until it is clear; nothing else is.
pub struct Stream {
    patterns: Arc<Patterns>,
    /// What may be the beginning of a value.
    held: BytesMut,
    /// So much of it has gone out.
    released: usize,
    /// So many characters of a value it may be.
    units: usize,
    path: Path,
    found: Arc<AtomicU64>,
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("held", &self.held()).finish_non_exhaustive()
    }
}

impl Stream {
    #[must_use]
    pub fn new(patterns: Arc<Patterns>) -> Self {
        Self::counted(patterns, Arc::default())
    }

    /// Counts what it overwrites.
    #[must_use]
    pub fn counted(patterns: Arc<Patterns>, found: Arc<AtomicU64>) -> Self {
        Self { patterns, held: BytesMut::new(), released: 0, units: 0, path: Path::new(), found }
    }

    /// Takes a piece, and gives what can go out.
    #[must_use]
    pub fn push(&mut self, piece: Bytes) -> Bytes {
        if piece.is_empty() {
            return piece;
        }
        let mut text = if self.held.is_empty() {
            Piece::Shared(piece)
        } else {
            let mut joined = std::mem::take(&mut self.held);
            joined.extend_from_slice(&piece);
            Piece::Own(joined)
        };
        let mut from = 0;
        let keep = loop {
            match self.patterns.find(text.bytes(), from, true, &mut self.path) {
                Sighting::Nothing => break text.bytes().len(),
                Sighting::Whole { at, pattern } => {
                    self.patterns.overwrite(text.own(), at, pattern, &self.path);
                    self.found.fetch_add(1, Relaxed);
                    from = at + 1;
                }
                Sighting::Beginning { at, units, .. } => {
                    self.units = self.most_units(text.bytes(), at, units);
                    break at;
                }
            }
        };
        self.divide(text, keep)
    }

    /// What is held back and need not be while nothing more comes.
    #[must_use]
    pub fn release(&mut self) -> Bytes {
        if self.units > RELEASED_UNITS || self.released == self.held.len() {
            return Bytes::new();
        }
        let out = Bytes::copy_from_slice(&self.held[self.released..]);
        self.released = self.held.len();
        out
    }

    /// The rest, at the end.
    #[must_use]
    pub fn finish(&mut self) -> Bytes {
        let mut rest = std::mem::take(&mut self.held);
        let found = self.patterns.scrub(&mut rest);
        self.found.fetch_add(found as u64, Relaxed);
        let released = std::mem::take(&mut self.released);
        rest.freeze().slice(released..)
    }

    /// How many bytes were taken and have not come out.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held.len() - self.released
    }

    /// The most characters of a value that any end of this text may be.
    fn most_units(&mut self, text: &[u8], first: usize, mut most: usize) -> usize {
        let mut from = first + 1;
        loop {
            match self.patterns.find(text, from, true, &mut self.path) {
                Sighting::Nothing => return most,
                Sighting::Whole { .. } => return usize::MAX,
                Sighting::Beginning { at, units, .. } => {
                    most = most.max(units);
                    from = at + 1;
                }
            }
        }
    }

    /// Keeps a text from here on, and gives what is before and has not gone out.
    fn divide(&mut self, text: Piece, keep: usize) -> Bytes {
        let released = self.released;
        self.released = released.saturating_sub(keep);
        let out = released.min(keep)..keep;
        match text {
            Piece::Shared(bytes) => {
                self.held = BytesMut::from(&bytes[keep..]);
                bytes.slice(out)
            }
            Piece::Own(mut bytes) => {
                self.held = bytes.split_off(keep);
                bytes.freeze().slice(out)
            }
        }
    }
}

/// A piece that is copied only where something has to be overwritten.
enum Piece {
    Shared(Bytes),
    Own(BytesMut),
}

impl Piece {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Shared(bytes) => bytes,
            Self::Own(bytes) => bytes,
        }
    }

    fn own(&mut self) -> &mut [u8] {
        if let Self::Shared(bytes) = self {
            let bytes = std::mem::take(bytes);
            *self = Self::Own(bytes.try_into_mut().unwrap_or_else(|shared| BytesMut::from(&shared[..])));
        }
        match self {
            Self::Own(bytes) => bytes,
            // It was made one's own just now.
            Self::Shared(_) => &mut [],
        }
    }
}
