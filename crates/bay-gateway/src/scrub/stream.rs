//! A text that comes in pieces.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bytes::{Bytes, BytesMut};

use super::coding::CodingError;
use super::pattern::Path;
use super::patterns::{Patterns, Sighting};
use super::tally::Tally;

/// Overwrites values in a text that comes in pieces, wherever it is divided. As many bytes come out as went in.
///
/// The end of what came is held back as long as more comes at once: as much of it as a beginning can take that is not telling, and
/// whatever stands there. Were it only held where it begins like a value, a bay that has somebody keep its guesses would see which of
/// them are right.
///
/// A telling beginning is held until it is clear what it is, and counted if it is nothing. It is counted as soon as nothing more
/// comes while it is held, and that is taken back if it becomes a whole value: the bay sees the delay, and a bay that leaves
/// before the end would have guesses for nothing.
pub struct Stream {
    patterns: Arc<Patterns>,
    held: BytesMut,
    /// So much of it has gone out.
    released: usize,
    /// From here on what is held is a telling beginning, of this pattern.
    telling: Option<(usize, usize)>,
    /// Whether that beginning was counted already.
    charged: bool,
    /// Near misses before this place of what is held were counted.
    counted: usize,
    path: Path,
    found: Arc<AtomicU64>,
    tally: Tally,
    renewal: Option<Renewal>,
}

/// Gives other patterns where there are any by now: a stream may be open for longer than a secret has one value.
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

    /// Counts what it overwrites.
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

    /// Counts whole values in this way; otherwise as in an answer to a request that carried no secret.
    #[must_use]
    pub fn tallied(mut self, tally: Tally) -> Self {
        self.tally = tally;
        self
    }

    /// What it looks for by now.
    pub(super) fn parts(&mut self) -> (&Patterns, &mut Tally) {
        (&self.patterns, &mut self.tally)
    }

    /// Takes a piece, and gives what can go out.
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

    /// Whether somebody is guessing what is hidden here: then nothing comes out any more.
    #[must_use]
    pub fn is_guessed(&self) -> bool {
        self.patterns.are_guessed()
    }

    /// Why nothing comes out any more, if that is so.
    #[must_use]
    pub fn stopped(&self) -> Option<CodingError> {
        match (self.tally.has_weak(), self.is_guessed()) {
            (true, _) => Some(CodingError::Weak),
            (false, true) => Some(CodingError::Guessed),
            (false, false) => None,
        }
    }

    /// Counts the beginning that is held, once.
    fn charge(&mut self) {
        if let (Some((_, pattern)), false) = (self.telling, self.charged) {
            self.patterns.guessed(pattern);
            self.charged = true;
        }
    }

    /// The beginning that is held, and not counted any more: it is decided on anew.
    fn uncharged(&mut self) -> Option<(usize, usize)> {
        let telling = self.telling.take();
        if let (Some((_, pattern)), true) = (telling, std::mem::take(&mut self.charged)) {
            self.patterns.not_guessed(pattern);
        }
        telling
    }

    /// What is held back and need not be while nothing more comes.
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

    /// The rest, at the end; nothing where it [stopped](Self::stopped).
    #[must_use]
    pub fn finish(&mut self) -> Bytes {
        // It is looked at once more, as the end of a whole text.
        let _ = self.uncharged();
        let mut rest = std::mem::take(&mut self.held);
        let found = self.patterns.scrub_from(&mut rest, self.counted, &mut self.tally);
        self.found.fetch_add(found as u64, Relaxed);
        let released = std::mem::take(&mut self.released);
        self.counted = 0;
        if self.stopped().is_some() { Bytes::new() } else { rest.freeze().slice(released..) }
    }

    /// How many bytes were taken and have not come out.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held.len() - self.released
    }

    /// Keeps a text from here on, and gives what is before and has not gone out.
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
