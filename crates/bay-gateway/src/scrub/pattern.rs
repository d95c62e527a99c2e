//! One value in one spelling: matching it at a place in a text, and overwriting it.

use std::collections::HashMap;

use zeroize::Zeroizing;

use super::patterns::TELLING_BYTES;
use super::spelling::{Spelling, Unit};

/// The result of matching at a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seen {
    /// Other text, after this many matching characters.
    Nothing {
        units: usize,
    },
    /// The text ends after this many matching characters.
    Beginning {
        units: usize,
    },
    Whole,
}

/// One matched character: its place and its form.
#[derive(Debug, Clone, Copy)]
pub(super) struct Step {
    at: usize,
    option: usize,
}

/// The matched characters, in order.
pub(super) type Path = Vec<Step>;

pub(super) struct Pattern {
    /// The distinct characters, and their order in the value.
    alphabet: Vec<Unit>,
    order: Zeroizing<Vec<usize>>,
    separators: &'static [&'static [u8]],
    longest: usize,
    shortest: usize,
    /// A prefix of this many characters is significant.
    telling: usize,
    longest_untelling: usize,
}

impl Pattern {
    /// `value` and `sentinel` have the same length. The first `public` bytes of the value are not secret.
    pub(super) fn new(spelling: Spelling, value: &[u8], sentinel: &[u8], public: usize) -> Self {
        let mut alphabet: Vec<Unit> = Vec::new();
        let mut known: HashMap<Vec<u8>, usize> = HashMap::new();
        let mut order = Vec::new();
        for unit in spelling.units(value, sentinel) {
            // Two characters are the same if their forms and replacements are.
            let key: Vec<u8> =
                unit.forms.iter().flat_map(|form| [&form.text[..], b"\0", &form.instead].concat()).collect();
            let index = *known.entry(key).or_insert_with(|| {
                alphabet.push(unit);
                alphabet.len() - 1
            });
            order.push(index);
        }
        let separators = spelling.separators();
        let separator = separators.iter().map(|text| text.len()).max().unwrap_or(0);
        let length = |index: &usize, longest: bool| {
            let lengths = alphabet[*index].forms.iter().map(|form| form.text.len());
            if longest { lengths.max().unwrap_or(0) + separator } else { lengths.min().unwrap_or(0) }
        };
        let longest = order.iter().map(|index| length(index, true)).sum();
        let shortest = order.iter().map(|index| length(index, false)).sum();
        let known = value.iter().zip(sentinel).take_while(|(own, told)| own == told).count();
        let telling = spelling.units_of(known.max(public) + TELLING_BYTES).min(order.len());
        let untelling = order.iter().take(telling).map(|index| length(index, true));
        let longest_untelling = untelling.sum();
        Self { alphabet, order: order.into(), separators, longest, shortest, telling, longest_untelling }
    }

    /// Whether a prefix of this many characters is significant.
    pub(super) fn is_telling(&self, units: usize) -> bool {
        units >= self.telling
    }

    /// The maximum length in bytes of a prefix that is not significant.
    pub(super) fn longest_untelling(&self) -> usize {
        self.longest_untelling
    }

    /// The maximum length in bytes.
    pub(super) fn longest(&self) -> usize {
        self.longest
    }

    /// The minimum length in bytes.
    pub(super) fn shortest(&self) -> usize {
        self.shortest
    }

    pub(super) fn units(&self) -> usize {
        self.order.len()
    }

    /// All texts for a character, with the separators before it.
    pub(super) fn texts(&self, unit: usize) -> impl Iterator<Item = Vec<u8>> {
        (0..self.options(unit)).map(move |option| {
            let (separator, form) = self.option(unit, option);
            [separator, &self.alphabet[self.order[unit]].forms[form].text[..]].concat()
        })
    }

    fn options(&self, unit: usize) -> usize {
        let separated = if unit == 0 { 0 } else { self.separators.len() };
        self.alphabet[self.order[unit]].forms.len() * (1 + separated)
    }

    fn option(&self, unit: usize, option: usize) -> (&'static [u8], usize) {
        let forms = self.alphabet[self.order[unit]].forms.len();
        let separator = (option / forms).checked_sub(1).map_or(&b""[..], |index| self.separators[index]);
        (separator, option % forms)
    }

    /// Matches the pattern at the beginning of the text. `more` means that more text may follow. `path` returns the
    /// match, or the longest prefix.
    pub(super) fn look(&self, text: &[u8], more: bool, path: &mut Path) -> Seen {
        path.clear();
        let mut beginning = None;
        let (mut longest, mut deepest) = (Path::new(), 0);
        let (mut unit, mut at, mut option) = (0, 0, 0);
        while unit < self.order.len() {
            let mut ran_out = false;
            let fits = (option..self.options(unit)).find_map(|option| {
                let (separator, form) = self.option(unit, option);
                let form = &self.alphabet[self.order[unit]].forms[form].text;
                let rest = &text[at..];
                let after = match rest.strip_prefix(separator) {
                    Some(after) => after,
                    None => {
                        ran_out |= separator.starts_with(rest);
                        return None;
                    }
                };
                if after.starts_with(form) {
                    return Some((option, separator.len() + form.len()));
                }
                ran_out |= form.starts_with(after);
                None
            });
            if ran_out && beginning.is_none_or(|units| units < unit) {
                beginning = Some(unit);
                longest.clone_from(path);
            }
            match fits {
                Some((option_, length)) => {
                    path.push(Step { at, option: option_ });
                    at += length;
                    unit += 1;
                    deepest = deepest.max(unit);
                    option = 0;
                }
                // Backtrack: another form of an earlier character may also match.
                None => match path.pop() {
                    Some(step) => {
                        unit -= 1;
                        at = step.at;
                        option = step.option + 1;
                    }
                    None => {
                        *path = longest;
                        let nothing = Seen::Nothing { units: deepest };
                        return beginning.map_or(nothing, |units| Seen::Beginning { units });
                    }
                },
            }
        }
        // The last plain character may begin a longer escape sequence.
        if more && beginning.is_some() { Seen::Beginning { units: unit } } else { Seen::Whole }
    }

    /// Overwrites a match at the beginning of the text.
    pub(super) fn overwrite(&self, text: &mut [u8], path: &Path) {
        for (unit, step) in path.iter().enumerate() {
            let (separator, form) = self.option(unit, step.option);
            let form = &self.alphabet[self.order[unit]].forms[form];
            let at = step.at + separator.len();
            text[at..at + form.instead.len()].copy_from_slice(&form.instead);
        }
    }
}
