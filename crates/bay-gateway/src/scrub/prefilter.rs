//! A prefilter for the patterns: it skips the places of a text where no value can begin.
//!
//! Every pattern is longer than one stride. So if a value begins somewhere, three bytes from its beginning lie at one
//! of the places that are a stride apart, and only these places are looked up. The look-ups are independent of each
//! other, so the processor runs many at a time. The table contains the three-byte sequences of all forms of all
//! patterns, and their possible distances from the beginning.

use zeroize::Zeroize;

use super::pattern::Pattern;

/// The length of a gram.
const GRAM: usize = 3;
/// Longest stride: an entry has as many bits.
const MAX_STRIDE: usize = 16;
/// The number of entries in a table, as a power of two.
const TABLE_BITS: u32 = 15;
const ENTRIES: usize = 1 << TABLE_BITS;

/// Indexed by three bytes. Bit n means that a value may have begun n bytes before them.
type Table = Box<[u16; ENTRIES]>;

pub(super) struct Grams {
    stride: usize,
    /// A place counts only if both tables agree. Different grams share an entry of one table by chance, and rarely of
    /// both.
    tables: [Table; 2],
    /// Indexed by one byte: whether a value can begin with it.
    firsts: [bool; 256],
}

impl Drop for Grams {
    fn drop(&mut self) {
        for table in &mut self.tables {
            table.zeroize();
        }
    }
}

/// The positions of the upper three bytes in the two tables. The lowest byte is ignored.
fn indexes(gram: [u8; 4]) -> [usize; 2] {
    let spread = u64::from(u32::from_le_bytes(gram) >> 8).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    [(spread >> (64 - TABLE_BITS)) as usize, (spread >> (64 - 2 * TABLE_BITS)) as usize % ENTRIES]
}

fn empty() -> Table {
    // The vector has the array's length, so the conversion succeeds.
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
        // Bit n: a character can begin n bytes after the beginning.
        let mut offsets: u64 = 1;
        for unit in 0..units {
            let mut next = 0;
            for text in &texts[unit] {
                next |= offsets.checked_shl(u32::try_from(text.len()).unwrap_or(u32::MAX)).unwrap_or(0);
                for within in 0..text.len().min(self.stride) {
                    // The mask has as many bits as an entry.
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

    /// The next place at or after `from` where a value may begin, or the end of the text.
    pub(super) fn next(&self, text: &[u8], from: usize) -> usize {
        // The byte before the first gram.
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
        // The rest is shorter than a stride and may begin a value.
        let left = before + 2 - self.stride;
        let possible = |at: &usize| match text.get(*at..*at + GRAM) {
            Some(gram) => self.begins(gram),
            None => self.firsts[usize::from(text[*at])],
        };
        (left..text.len()).find(possible).unwrap_or(text.len())
    }

    /// How many bytes before the upper three bytes a value may have begun.
    fn places(&self, gram: [u8; 4]) -> u16 {
        let [one, other] = indexes(gram);
        self.tables[0][one] & self.tables[1][other]
    }

    fn begins(&self, gram: &[u8]) -> bool {
        self.places([0, gram[0], gram[1], gram[2]]) & 1 == 1
    }

    /// The first place before these three bytes where a value may begin.
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

/// Calls `say` with every three bytes with which this text can begin, if it is followed by the characters from `unit`
/// on.
fn continued(texts: &[Vec<Vec<u8>>], unit: usize, text: &[u8], say: &mut impl FnMut(&[u8])) {
    if text.len() >= GRAM {
        return say(&text[..GRAM]);
    }
    let Some(next) = texts.get(unit) else { return };
    for following in next {
        continued(texts, unit + 1, &[text, following].concat(), say);
    }
}
