//! All values that one answer must not show, in all spellings.

use std::fmt;
use std::sync::Arc;

use super::grams::Grams;
use super::pattern::{Path, Pattern, Seen};
use super::spelling::Spelling;
use super::tally::{Guesses, Tally};

/// Shortest value that can be scrubbed. A shorter one would be found in texts that never heard of it.
pub const MIN_VALUE_BYTES: usize = 8;
/// Longest value that can be scrubbed: as much of an answer may have to be held back, times the length of a character.
pub const MAX_VALUE_BYTES: usize = 8 * 1024;
/// So many bytes of a value, beyond what its sentinel tells of it, make a beginning of it *telling*: no chance, and nothing that a
/// bay finds by trying. With fewer, nothing that can be seen may depend on it.
pub(super) const TELLING_BYTES: usize = 6;
/// What a bay reads in the place of a value that it has no sentinel for, as often as it takes.
pub const REDACTION: &str = "REDACTED-";

/// Why a value cannot be scrubbed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    #[error(
        "a value of {0} bytes is too short to be found in answers: at least {MIN_VALUE_BYTES} are needed"
    )]
    TooShort(usize),
    #[error(
        "a value of {0} bytes is too long to be found in answers: at most {MAX_VALUE_BYTES} are possible"
    )]
    TooLong(usize),
}

/// A value that must not be seen, and what is seen in its place.
#[derive(Clone)]
pub struct Hidden<'a> {
    pub value: &'a [u8],
    /// Of the same length. A shorter one is repeated, a longer one cut.
    pub sentinel: &'a [u8],
    /// So many bytes of its beginning are no secret: they say what kind of credential it is.
    pub public: usize,
    /// It is easy to guess: an answer with it ends there.
    pub weak: bool,
    /// Where guesses of it are counted.
    pub guesses: Arc<Guesses>,
}

impl<'a> Hidden<'a> {
    /// With guesses that are counted for this answer alone.
    #[must_use]
    pub fn new(value: &'a [u8], sentinel: &'a [u8]) -> Self {
        Self { value, sentinel, public: 0, weak: false, guesses: Arc::default() }
    }
}

impl fmt::Debug for Hidden<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hidden").field("length", &self.value.len()).finish_non_exhaustive()
    }
}

/// Values and their sentinels, made ready to be found. Making it takes about a millisecond for each value, so it is made
/// once for a version of a secret and shared by all answers.
pub struct Patterns {
    patterns: Vec<Pattern>,
    /// Of each value in turn, all of whose spellings are side by side.
    guesses: Vec<Arc<Guesses>>,
    /// Of each value in turn, whether it is easy to guess.
    weak: Vec<bool>,
    grams: Grams,
    longest: usize,
    tail: usize,
    /// Values in lower case, as names of headers would show them.
    lower: zeroize::Zeroizing<Vec<Vec<u8>>>,
}

impl fmt::Debug for Patterns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Patterns").field("longest", &self.longest).finish_non_exhaustive()
    }
}

/// What was found first in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sighting {
    Nothing,
    /// From here on it is a telling beginning of a value.
    Beginning {
        at: usize,
        pattern: usize,
    },
    Whole {
        at: usize,
        pattern: usize,
    },
    /// From here on it is a telling beginning of a value, and then something else.
    NearMiss {
        at: usize,
        pattern: usize,
    },
}

impl Patterns {
    /// # Errors
    /// If one of the values is too short or too long.
    pub fn new(hidden: &[Hidden<'_>]) -> Result<Self, ValueError> {
        let mut patterns = Vec::new();
        for Hidden { value, sentinel, public, .. } in hidden {
            match value.len() {
                0..MIN_VALUE_BYTES => return Err(ValueError::TooShort(value.len())),
                MIN_VALUE_BYTES..=MAX_VALUE_BYTES => {}
                _ => return Err(ValueError::TooLong(value.len())),
            }
            let sentinel = if sentinel.is_empty() { b"x" } else { *sentinel };
            let sentinel: Vec<u8> = sentinel.iter().copied().cycle().take(value.len()).collect();
            patterns.extend(Spelling::ALL.map(|spelling| Pattern::new(spelling, value, &sentinel, *public)));
        }
        let lower = hidden.iter().map(|hidden| hidden.value.to_ascii_lowercase()).collect::<Vec<_>>();
        let longest = patterns.iter().map(Pattern::longest).max().unwrap_or(0);
        let tail = patterns.iter().map(Pattern::longest_untelling).max().unwrap_or(0);
        let guesses = hidden.iter().map(|hidden| Arc::clone(&hidden.guesses)).collect();
        let weak = hidden.iter().map(|hidden| hidden.weak).collect();
        Ok(Self { grams: Grams::new(&patterns), patterns, guesses, weak, longest, tail, lower: lower.into() })
    }

    /// The most bytes that a value can take in any spelling. Less than that is held back.
    #[must_use]
    pub fn longest(&self) -> usize {
        self.longest
    }

    /// The most bytes that a beginning can take that is not telling. As many are held back of any text, whatever it is.
    pub(super) fn tail(&self) -> usize {
        self.tail
    }

    /// Overwrites all values in a text that is whole, and the telling beginning of one at its end. How many there were.
    pub fn scrub(&self, text: &mut [u8]) -> usize {
        self.scrub_from(text, 0, &mut Tally::default())
    }

    /// Overwrites all values in a text that is whole, and counts them. Near misses before `counted` were counted already.
    pub(super) fn scrub_from(&self, text: &mut [u8], counted: usize, tally: &mut Tally) -> usize {
        let mut path = Path::new();
        let (mut from, mut count) = (0, 0);
        loop {
            let (at, pattern) = match self.find(text, from, false, &mut path) {
                Sighting::Nothing => return count,
                Sighting::NearMiss { at, pattern } => {
                    if at >= counted {
                        self.near_miss(pattern);
                    }
                    from = at + 1;
                    continue;
                }
                Sighting::Whole { at, pattern } => {
                    self.hit(pattern, tally);
                    (at, pattern)
                }
                Sighting::Beginning { at, pattern } => {
                    self.guessed(pattern);
                    (at, pattern)
                }
            };
            self.overwrite(text, at, pattern, &path);
            count += 1;
            from = at + 1;
        }
    }

    /// Where guesses of each value are counted.
    #[cfg(test)]
    pub(super) fn all_guesses(&self) -> Vec<Arc<Guesses>> {
        self.guesses.clone()
    }

    fn guesses_of(&self, pattern: usize) -> &Arc<Guesses> {
        &self.guesses[pattern / Spelling::ALL.len()]
    }

    /// A telling beginning was none.
    pub(super) fn guessed(&self, pattern: usize) {
        self.guesses_of(pattern).note_beginning();
    }

    /// A telling beginning that was counted is not one that came to nothing.
    pub(super) fn not_guessed(&self, pattern: usize) {
        self.guesses_of(pattern).forget_beginning();
    }

    /// A telling beginning was none, in the middle of a text.
    pub(super) fn near_miss(&self, pattern: usize) {
        self.guesses_of(pattern).note_near_miss();
    }

    /// A whole value was found.
    pub(super) fn hit(&self, pattern: usize, tally: &mut Tally) {
        tally.hit(self.guesses_of(pattern), self.weak[pattern / Spelling::ALL.len()]);
    }

    /// Whether somebody is guessing one of the values.
    pub(super) fn are_guessed(&self) -> bool {
        self.guesses.iter().any(|guesses| guesses.are_too_many())
    }

    /// Whether a text shows a value, whatever became of its capitals. Counts it.
    pub(super) fn names(&self, lower: &[u8], tally: &mut Tally) -> bool {
        let shows = |value: &Vec<u8>| lower.windows(value.len()).any(|window| window == &value[..]);
        match self.lower.iter().position(shows) {
            Some(value) => {
                tally.hit(&self.guesses[value], self.weak[value]);
                true
            }
            None => false,
        }
    }

    /// What comes first from here on in a text, of which more may follow. The path leads to it.
    pub(super) fn find(&self, text: &[u8], from: usize, more: bool, path: &mut Path) -> Sighting {
        let mut at = self.grams.next(text, from);
        while at < text.len() {
            let mut beginning: Option<(usize, usize, Path)> = None;
            let mut near_miss = None;
            for (pattern, looked_for) in self.patterns.iter().enumerate() {
                match looked_for.look(&text[at..], more, path) {
                    Seen::Nothing { units } => {
                        if looked_for.is_telling(units) {
                            near_miss = Some(pattern);
                        }
                    }
                    // However a text is divided, the same is found in it: the first that there can be.
                    Seen::Whole if more && beginning.is_some() => break,
                    Seen::Whole => return Sighting::Whole { at, pattern },
                    Seen::Beginning { units } => {
                        let more_of_it = beginning.as_ref().is_none_or(|(most, ..)| *most < units);
                        if looked_for.is_telling(units) && more_of_it {
                            beginning = Some((units, pattern, path.clone()));
                        }
                    }
                }
            }
            if let Some((_, pattern, longest)) = beginning {
                *path = longest;
                return Sighting::Beginning { at, pattern };
            }
            if let Some(pattern) = near_miss {
                return Sighting::NearMiss { at, pattern };
            }
            at = self.grams.next(text, at + 1);
        }
        Sighting::Nothing
    }

    pub(super) fn overwrite(&self, text: &mut [u8], at: usize, pattern: usize, path: &Path) {
        self.patterns[pattern].overwrite(&mut text[at..], path);
    }
}
