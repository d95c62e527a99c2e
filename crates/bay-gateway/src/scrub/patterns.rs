//! All values that one answer must not show, in the spellings that are searched for.

use std::fmt;
use std::sync::Arc;

use super::pattern::{Path, Pattern, Seen};
use super::prefilter::Grams;
use super::spelling::Spelling;
use super::tally::{Guesses, Tally};

/// Shortest value that can be scrubbed. Shorter ones could easily occur in unrelated texts.
pub const MIN_VALUE_BYTES: usize = 8;
/// Longest value that can be scrubbed. Its length, times that of an escaped character, may have to be held back.
pub const MAX_VALUE_BYTES: usize = 8 * 1024;
/// A prefix is *significant* if it is this many bytes longer than what the sentinel reveals. It is then
/// unlikely to occur by chance or by trying. Nothing visible may depend on a shorter prefix.
pub(super) const TELLING_BYTES: usize = 6;
/// Replaces a value for which the bay has no sentinel, repeated to the value's length.
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

/// A value that must not be shown, and its replacement.
#[derive(Clone)]
pub struct Hidden<'a> {
    pub value: &'a [u8],
    /// The replacement. It is repeated or cut to the value's length.
    pub sentinel: &'a [u8],
    /// The number of bytes at its beginning that are not secret: they name the kind of credential.
    pub public: usize,
    /// Whether the value is easy to guess. If so, an answer is cut where the value occurs.
    pub weak: bool,
    /// The counter for guesses of the value.
    pub guesses: Arc<Guesses>,
}

impl<'a> Hidden<'a> {
    /// A value whose guesses are counted for this answer alone.
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

/// The compiled patterns of values. Compiling takes about a millisecond per value, so all answers share the patterns
/// of one version of a secret.
pub struct Patterns {
    patterns: Vec<Pattern>,
    /// For each value. The spellings of a value are consecutive patterns.
    guesses: Vec<Arc<Guesses>>,
    /// For each value: whether it is easy to guess.
    weak: Vec<bool>,
    grams: Grams,
    longest: usize,
    tail: usize,
    /// The values in lower case, as names of headers would contain them.
    lower: zeroize::Zeroizing<Vec<Vec<u8>>>,
}

impl fmt::Debug for Patterns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Patterns").field("longest", &self.longest).finish_non_exhaustive()
    }
}

/// The first finding in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sighting {
    Nothing,
    /// A significant prefix of a value, up to the end of the text.
    Beginning {
        at: usize,
        pattern: usize,
    },
    Whole {
        at: usize,
        pattern: usize,
    },
    /// A significant prefix of a value, followed by other text.
    NearMiss {
        at: usize,
        pattern: usize,
    },
}

impl Patterns {
    /// # Errors
    /// A value is too short or too long.
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

    /// The maximum length of a value in any spelling. Fewer bytes than that are held back.
    #[must_use]
    pub fn longest(&self) -> usize {
        self.longest
    }

    /// The maximum length of a prefix that is not significant. This many bytes of any text are held back.
    pub(super) fn tail(&self) -> usize {
        self.tail
    }

    /// Overwrites all values in a complete text, and a significant prefix at its end. Returns their number.
    pub fn scrub(&self, text: &mut [u8]) -> usize {
        self.scrub_from(text, 0, &mut Tally::default())
    }

    /// Overwrites and counts all values in a complete text. Near misses before `counted` were counted earlier.
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

    /// The counter of guesses for each value.
    #[cfg(test)]
    pub(super) fn all_guesses(&self) -> Vec<Arc<Guesses>> {
        self.guesses.clone()
    }

    fn guesses_of(&self, pattern: usize) -> &Arc<Guesses> {
        &self.guesses[pattern / Spelling::ALL.len()]
    }

    /// Counts a significant prefix that was not a value.
    pub(super) fn guessed(&self, pattern: usize) {
        self.guesses_of(pattern).note_beginning();
    }

    /// Removes a significant prefix from the count, because it became a value.
    pub(super) fn not_guessed(&self, pattern: usize) {
        self.guesses_of(pattern).forget_beginning();
    }

    /// Counts a significant prefix in the middle of a text that was not a value.
    pub(super) fn near_miss(&self, pattern: usize) {
        self.guesses_of(pattern).note_near_miss();
    }

    /// Counts a whole value.
    pub(super) fn hit(&self, pattern: usize, tally: &mut Tally) {
        tally.hit(self.guesses_of(pattern), self.weak[pattern / Spelling::ALL.len()]);
    }

    /// Whether there were too many guesses of a value.
    pub(super) fn are_guessed(&self) -> bool {
        self.guesses.iter().any(|guesses| guesses.are_too_many())
    }

    /// Whether a lower-case text contains a value. Counts it.
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

    /// The first finding at or after `from`. `more` means that more text may follow. `path` returns the match.
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
                    // A finding must not depend on how the text is split, so the first possible one is kept.
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
