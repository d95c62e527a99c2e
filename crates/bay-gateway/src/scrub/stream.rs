//! Scrubs a text that arrives in pieces.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bytes::{Bytes, BytesMut};

use super::coding::CodingError;
use super::pattern::Path;
use super::patterns::{Patterns, Sighting};
use super::tally::Tally;

/// Overwrites values in a text that arrives in pieces, however it is split. The output has the length of the input,
/// unless the stream [stops](Self::stopped).
///
/// While more input arrives at once, the end of each piece is held back. The held length is the maximum of a prefix
/// that is not significant, whatever the text is. If only prefixes of a value were held, a bay could see which of its
/// guesses are right.
///
/// A significant prefix is held until it is complete or something else. If it is something else, it is counted as a
/// guess. It is also counted when the input pauses, because the bay sees the delay and could leave before the end.
/// That count is undone if the prefix becomes a whole value.
pub struct Stream {
    patterns: Arc<Patterns>,
    held: BytesMut,
    /// How many bytes at the beginning of `held` were already released.
    released: usize,
    /// The place in `held` where a significant prefix begins, and its pattern.
    telling: Option<(usize, usize)>,
    /// Whether that prefix was counted.
    charged: bool,
    /// Near misses before this place in `held` were counted.
    counted: usize,
    path: Path,
    found: Arc<AtomicU64>,
    tally: Tally,
    renewal: Option<Renewal>,
}

/// Returns new patterns if they changed. A stream may stay open longer than a secret keeps its value.
pub type Renewal = Box<dyn FnMut() -> Option<Arc<Patterns>> + Send>;

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

    /// Counts the overwritten values in `found`.
    #[must_use]
    pub fn counted(patterns: Arc<Patterns>, found: Arc<AtomicU64>) -> Self {
        Self {
            patterns,
            held: BytesMut::new(),
            released: 0,
            telling: None,
            charged: false,
            counted: 0,
            path: Path::new(),
            found,
            tally: Tally::default(),
            renewal: None,
        }
    }

    #[must_use]
    pub fn renewed_by(mut self, renewal: Renewal) -> Self {
        self.renewal = Some(renewal);
        self
    }

    /// Sets how whole values are counted. The default is an answer to a request without secrets.
    #[must_use]
    pub fn tallied(mut self, tally: Tally) -> Self {
        self.tally = tally;
        self
    }

    /// The current patterns and counters.
    pub(super) fn parts(&mut self) -> (&Patterns, &mut Tally) {
        (&self.patterns, &mut self.tally)
    }

    /// Takes a piece and returns the bytes that can be passed on.
    #[must_use]
    pub fn push(&mut self, piece: Bytes) -> Bytes {
        if piece.is_empty() {
            return piece;
        }
        if let Some(renewed) = self.renewal.as_mut().and_then(|renewal| renewal()) {
            self.charge();
            self.patterns = renewed;
            (self.telling, self.charged) = (None, false);
        }
        let mut text = if self.held.is_empty() {
            Piece::Shared(piece)
        } else {
            let mut joined = std::mem::take(&mut self.held);
            joined.extend_from_slice(&piece);
            Piece::Own(joined)
        };
        let (mut from, mut telling, mut before) = (0, None, self.uncharged());
        loop {
            match self.patterns.find(text.bytes(), from, true, &mut self.path) {
                Sighting::Nothing => break,
                Sighting::Whole { at, pattern } => {
                    before = before.filter(|(begun, _)| *begun != at);
                    self.patterns.overwrite(text.own(), at, pattern, &self.path);
                    self.patterns.hit(pattern, &mut self.tally);
                    self.found.fetch_add(1, Relaxed);
                    from = at + 1;
                }
                Sighting::NearMiss { at, pattern } => {
                    if at >= self.counted {
                        self.patterns.near_miss(pattern);
                        self.counted = at + 1;
                    }
                    from = at + 1;
                }
                Sighting::Beginning { at, pattern } => {
                    before = before.filter(|(begun, _)| *begun != at);
                    telling = Some((at, pattern));
                    break;
                }
            }
        }
        if let Some((_, pattern)) = before {
            self.patterns.guessed(pattern);
        }
        if self.stopped().is_some() {
            self.held.clear();
            self.released = 0;
            self.counted = 0;
            return Bytes::new();
        }
        let length = text.bytes().len();
        let keep = telling.map_or(length, |(at, _)| at).min(length.saturating_sub(self.patterns.tail()));
        self.telling = telling.map(|(at, pattern)| (at - keep, pattern));
        self.divide(text, keep)
    }

    /// Whether there were too many guesses. The stream then returns no more bytes.
    #[must_use]
    pub fn is_guessed(&self) -> bool {
        self.patterns.are_guessed()
    }

    /// Why the stream returns no more bytes, if it has stopped.
    #[must_use]
    pub fn stopped(&self) -> Option<CodingError> {
        match (self.tally.has_weak(), self.is_guessed()) {
            (true, _) => Some(CodingError::Weak),
            (false, true) => Some(CodingError::Guessed),
            (false, false) => None,
        }
    }

    /// Counts the held prefix once.
    fn charge(&mut self) {
        if let (Some((_, pattern)), false) = (self.telling, self.charged) {
            self.patterns.guessed(pattern);
            self.charged = true;
        }
    }

    /// Takes the held prefix and undoes its count. The caller decides about it again.
    fn uncharged(&mut self) -> Option<(usize, usize)> {
        let telling = self.telling.take();
        if let (Some((_, pattern)), true) = (telling, std::mem::take(&mut self.charged)) {
            self.patterns.not_guessed(pattern);
        }
        telling
    }

    /// Releases the held bytes that may pass while no more input arrives.
    #[must_use]
    pub fn release(&mut self) -> Bytes {
        self.charge();
        if self.stopped().is_some() {
            return Bytes::new();
        }
        let until = self.telling.map_or(self.held.len(), |(at, _)| at);
        if self.released >= until {
            return Bytes::new();
        }
        let out = Bytes::copy_from_slice(&self.held[self.released..until]);
        self.released = until;
        out
    }

    /// The rest, at the end. Empty if the stream has [stopped](Self::stopped).
    #[must_use]
    pub fn finish(&mut self) -> Bytes {
        // The rest is examined again, now as the end of a complete text.
        let _ = self.uncharged();
        let mut rest = std::mem::take(&mut self.held);
        let found = self.patterns.scrub_from(&mut rest, self.counted, &mut self.tally);
        self.found.fetch_add(found as u64, Relaxed);
        let released = std::mem::take(&mut self.released);
        self.counted = 0;
        if self.stopped().is_some() { Bytes::new() } else { rest.freeze().slice(released..) }
    }

    /// The number of bytes that are held back.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held.len() - self.released
    }

    /// Holds the text from `keep` on, and returns the part before it that was not released yet.
    fn divide(&mut self, text: Piece, keep: usize) -> Bytes {
        let released = self.released;
        self.released = released.saturating_sub(keep);
        self.counted = self.counted.saturating_sub(keep);
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

impl Drop for Stream {
    fn drop(&mut self) {
        self.charge();
    }
}

/// A piece of text. It is copied only if something must be overwritten.
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
            // The caller has just made it owned.
            Self::Shared(_) => &mut [],
        }
    }
}
