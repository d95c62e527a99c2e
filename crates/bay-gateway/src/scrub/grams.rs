//! Where nothing can begin: of most of a text only every sixteenth place is looked at.
//!
//! All patterns are at least a window long. Whatever of them is there, three bytes out of its first window stand at one of the
//! places that are a stride apart, so it is enough to look there; and as no look depends on the one before, the
//! processor has many of them under way. The table has the three bytes of all forms of all patterns, and how far from
//! their beginnings they can be.

use zeroize::Zeroize;

use super::pattern::Pattern;

/// Bytes that are looked at together.
const GRAM: usize = 3;
/// Longest stride: as many places as an entry has bits.
const MAX_STRIDE: usize = 16;
/// Entries of a table, as a power of two.
const TABLE_BITS: u32 = 15;
const ENTRIES: usize = 1 << TABLE_BITS;

/// By three bytes: bit n says that something can have begun n bytes before them.
type Table = Box<[u16; ENTRIES]>;

pub(super) struct Grams {
    stride: usize,
    /// Both have to say so. Different bytes share an entry in one of them by chance, and hardly in both.
    tables: [Table; 2],
    /// By one byte: whether something can begin with it.
    firsts: [bool; 256],
}

impl Drop for Grams {
    fn drop(&mut self) {
        for table in &mut self.tables {
            table.zeroize();
        }
    }
}

/// Where the three bytes are in the two tables. They are the upper ones; the lowest does not count.
fn indexes(gram: [u8; 4]) -> [usize; 2] {
    let spread = u64::from(u32::from_le_bytes(gram) >> 8).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    [(spread >> (64 - TABLE_BITS)) as usize, (spread >> (64 - 2 * TABLE_BITS)) as usize % ENTRIES]
}

fn empty() -> Table {
    // A vector of that length becomes an array of it.
    vec![0; ENTRIES].into_boxed_slice().try_into().unwrap_or_else(|_| Box::new([0; ENTRIES]))
}

impl Grams {
    pub(super) fn new(patterns: &[Pattern]) -> Self {
        let shortest = patterns.iter().map(Pattern::shortest).min().unwrap_or(MAX_STRIDE);
        let mut grams = Self {
            stride: (shortest + 1).saturating_sub(GRAM).clamp(2, MAX_STRIDE),
            tables: [empty(), empty()],
            firsts: [false; 256],
        };
        for pattern in patterns {
            grams.add(pattern);
        }
        grams
    }

    fn add(&mut self, pattern: &Pattern) {
        let units = pattern.units().min(self.stride + GRAM);
        let texts: Vec<Vec<Vec<u8>>> = (0..units).map(|unit| pattern.texts(unit).collect()).collect();
        let inside = (1u64 << self.stride) - 1;
        // Bit n: a character can begin n bytes from the beginning.
        let mut offsets: u64 = 1;
        for unit in 0..units {
            let mut next = 0;
            for text in &texts[unit] {
                next |= offsets.checked_shl(u32::try_from(text.len()).unwrap_or(u32::MAX)).unwrap_or(0);
                for within in 0..text.len().min(self.stride) {
                    // As many bits as an entry has.
                    let places = u16::try_from(offsets << within & inside).unwrap_or(u16::MAX);
                    if places == 0 {
                        continue;
                    }
                    continued(&texts, unit + 1, &text[within..], &mut |gram| {
                        let indexes = indexes([0, gram[0], gram[1], gram[2]]);
                        for (table, index) in self.tables.iter_mut().zip(indexes) {
                            table[index] |= places;
                        }
                        self.firsts[usize::from(gram[0])] |= places & 1 == 1;
                    });
                }
            }
            offsets = next & inside;
        }
    }

    /// The next place from here on where something may begin; the end of the text if there is none.
    pub(super) fn next(&self, text: &[u8], from: usize) -> usize {
        // The byte before the first that is looked at.
        let mut before = from + self.stride - 2;
        while let Some(gram) = text.get(before..).and_then(|rest| rest.first_chunk()) {
            let places = self.places(*gram);
            if places != 0
                && let Some(at) = self.start(text, before + 1, places)
            {
                return at;
            }
            before += self.stride;
        }
        // What is left is shorter than a window, and may be the beginning of something.
        let left = before + 2 - self.stride;
        let possible = |at: &usize| match text.get(*at..*at + GRAM) {
            Some(gram) => self.begins(gram),
            None => self.firsts[usize::from(text[*at])],
        };
        (left..text.len()).find(possible).unwrap_or(text.len())
    }

    /// How far before these three bytes, the upper ones, something can have begun.
    fn places(&self, gram: [u8; 4]) -> u16 {
        let [one, other] = indexes(gram);
        self.tables[0][one] & self.tables[1][other]
    }

    fn begins(&self, gram: &[u8]) -> bool {
        self.places([0, gram[0], gram[1], gram[2]]) & 1 == 1
    }

    /// The first of the places before these three bytes where something may begin.
    fn start(&self, text: &[u8], gram: usize, mut places: u16) -> Option<usize> {
        while places != 0 {
            let furthest = places.ilog2();
            let at = gram - furthest as usize;
            if self.begins(&text[at..at + GRAM]) {
                return Some(at);
            }
            places &= !(1 << furthest);
        }
        None
    }
}

/// Says every three bytes that this text, followed by the characters from this one on, can begin with.
fn continued(texts: &[Vec<Vec<u8>>], unit: usize, text: &[u8], say: &mut impl FnMut(&[u8])) {
    if text.len() >= GRAM {
        return say(&text[..GRAM]);
    }
    let Some(next) = texts.get(unit) else { return };
    for following in next {
        continued(texts, unit + 1, &[text, following].concat(), say);
    }
}
