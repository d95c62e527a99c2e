//! How hard a value is to guess.
//!
//! A bay can send guesses to a server that echoes them. The gateway replaces the real value in answers, so the
//! changed guess is the right one. Limiting the number of answers does not help. So the daemon refuses such a
//! value, whenever it gets one, unless the operator insists (`--allow-weak`). Answers that contain an accepted
//! weak value are cut off.
//!
//! The estimate is the cheapest way to write the value as a sequence of parts, each with its price in bits:
//!
//! | part | example | bits |
//! |---|---|---|
//! | a character | `x` | log2 of the alphabet: 10 digits, 16 hexadecimal digits, 26 + 26 letters, 32 others |
//! | a well-known word, also with `0` for `o` and the like | `passw0rd` | [`KNOWN_BITS`] |
//! | letters that follow each other as in English words | `battery` | 1, and [`LETTER_BITS`] each |
//! | one character again and again, or a run of the alphabet or the keyboard | `aaaa`, `1234`, `qwerty` | [`RUN_BITS`] |
//! | a repetition of earlier characters | `abcxabcx` | [`AGAIN_BITS`] |
//! | a year, except in hexadecimal texts | `2024` | [`YEAR_BITS`] |
//!
//! An alphabet with more than digits or hexadecimal digits counts as at most four times the number of different
//! characters in the value. What the sentinel shows of the value has no price: a well-known prefix, and the
//! separators, unless too few letters and digits are left.

use super::sentinel;

/// A value with fewer bits is weak. A database was measured to repeat two million candidates per second. At that
/// rate, half of the values with so many bits take more than five hundred years.
pub(crate) const MIN_BITS: f64 = 56.0;
/// The price of a word of [`KNOWN`], in upper or lower case, also with digits and signs for letters.
const KNOWN_BITS: f64 = 7.0;
/// The price of a letter in an English word. A list of two thousand words has eleven bits for five letters.
const LETTER_BITS: f64 = 2.2;
/// The price of a run of more than three characters.
const RUN_BITS: f64 = 6.0;
/// The price of a repetition of more than three characters.
const AGAIN_BITS: f64 = 6.0;
/// The price of a run or repetition of three characters, which is more frequent in random text.
const SHORT_BITS: f64 = 8.0;
/// The price of a year.
const YEAR_BITS: f64 = 6.0;
/// The fewest letters of an English word that is not in [`KNOWN`].
const MIN_WORD: usize = 4;
/// The fewest characters of a run.
const MIN_RUN: usize = 3;
/// The fewest characters of a repetition.
const MIN_AGAIN: usize = 3;
/// How many characters of a value are estimated. A longer value is weak if its beginning is.
const MAX_LOOKED_AT: usize = 256;
/// The number of printable ASCII characters besides letters and digits.
const OTHERS: f64 = 32.0;

/// Words of well-known passwords, in lower case. Each is cheap, so the rest of a password decides.
const KNOWN: &[&str] = &[
    "admin",
    "administrator",
    "apikey",
    "app",
    "autumn",
    "bearer",
    "changeme",
    "changeit",
    "correct",
    "database",
    "default",
    "demo",
    "dev",
    "development",
    "docker",
    "dragon",
    "example",
    "football",
    "friday",
    "github",
    "guest",
    "hello",
    "horse",
    "hunter",
    "iloveyou",
    "key",
    "letmein",
    "local",
    "localhost",
    "login",
    "love",
    "master",
    "monday",
    "monkey",
    "mysql",
    "pass",
    "passwd",
    "passphrase",
    "password",
    "postgres",
    "postgresql",
    "princess",
    "prod",
    "production",
    "public",
    "qwerty",
    "real",
    "root",
    "secret",
    "server",
    "shadow",
    "spring",
    "staging",
    "staple",
    "summer",
    "sunday",
    "sunshine",
    "superman",
    "system",
    "temp",
    "test",
    "testing",
    "the",
    "token",
    "trustno",
    "user",
    "username",
    "value",
    "welcome",
    "winter",
    "workbay",
    "world",
];
/// Rows of the keyboard, and the alphabet.
const ROWS: &[&[u8]] = &[
    b"01234567890",
    b"qwertyuiop",
    b"asdfghjkl",
    b"zxcvbnm",
    b"abcdefghijklmnopqrstuvwxyz",
    b"1qaz2wsx3edc4rfv5tgb",
];
/// For each letter, those that often follow it in English words.
const FOLLOWERS: [&str; 26] = [
    "bcdgiklmnprstuvwy",
    "aeiloruy",
    "aehiklortu",
    "aeiorsu",
    "acdefgilmnprstvwxy",
    "aefilortu",
    "aehiloru",
    "aeiotuy",
    "abcdefglmnoprstv",
    "ou",
    "ein",
    "adeilostuy",
    "abeimopuy",
    "acdegiknostuvy",
    "abcdfgiklmnoprstuvw",
    "aehilopru",
    "u",
    "acdegiklmnorstuy",
    "acehilmopstuy",
    "aehilorstuwy",
    "bcdegilmnprst",
    "aeio",
    "aehino",
    "p",
    "eos",
    "",
];

/// Why a value is easy to guess; `None` if it is not.
pub(crate) fn weakness(value: &str) -> Option<String> {
    let bits = bits(value);
    (bits < MIN_BITS).then(|| {
        format!(
            "it is easy to guess, by its length, its characters and the words in it (about 2^{bits:.0} tries, and 2^{MIN_BITS:.0} are \
             wanted)"
        )
    })
}

/// The estimated number of bits.
fn bits(value: &str) -> f64 {
    let unknown = &value.as_bytes()[sentinel::public_prefix(value)..];
    let letters = unknown.iter().filter(|byte| byte.is_ascii_alphanumeric()).count();
    // Then the sentinel shows the separators.
    let hidden: Vec<u8> = match letters >= sentinel::MIN_CHANCE {
        true => unknown.iter().copied().filter(u8::is_ascii_alphanumeric).collect(),
        false => unknown.to_vec(),
    };
    let divided: Vec<usize> = unknown
        .iter()
        .scan(0, |at, byte| {
            *at += usize::from(byte.is_ascii_alphanumeric());
            Some((!byte.is_ascii_alphanumeric()).then_some(*at))
        })
        .flatten()
        .collect();
    let text = &hidden[..hidden.len().min(MAX_LOOKED_AT)];
    cheapest(text, if hidden.len() == unknown.len() { &[] } else { &divided })
}

/// The price of the cheapest sequence of parts. English words do not extend over the places where separators were
/// removed (`divided`).
fn cheapest(text: &[u8], divided: &[usize]) -> f64 {
    let literal = alphabet(text).log2();
    let hexadecimal = literal <= 4.0;
    let lower = text.to_ascii_lowercase();
    let plain: Vec<u8> = lower.iter().map(|byte| unmasked(*byte)).collect();
    let mut best = vec![f64::INFINITY; text.len() + 1];
    best[0] = 0.0;
    for at in 0..text.len() {
        let mut offer = |length: usize, bits: f64| {
            let end = at + length;
            best[end] = best[end].min(best[at] + bits);
        };
        offer(1, literal);
        for word in KNOWN {
            if plain[at..].starts_with(word.as_bytes()) || lower[at..].starts_with(word.as_bytes()) {
                offer(word.len(), KNOWN_BITS);
            }
        }
        let reach = divided.iter().find(|place| **place > at).map_or(text.len(), |place| *place) - at;
        for length in MIN_WORD..=word_like(&text[at..at + reach]) {
            // The first letter, or all letters, may be upper case.
            offer(length, 1.0 + LETTER_BITS * length as f64);
        }
        for length in MIN_RUN..=run(&lower[at..]) {
            offer(length, if length == MIN_RUN { SHORT_BITS } else { RUN_BITS });
        }
        for length in MIN_AGAIN..=again(&lower, at) {
            offer(length, if length == MIN_AGAIN { SHORT_BITS } else { AGAIN_BITS });
        }
        // In hexadecimal texts, four digits often look like a year by chance.
        if !hexadecimal && is_year(&text[at..]) {
            offer(4, YEAR_BITS);
        }
    }
    best[text.len()]
}

fn is_year(text: &[u8]) -> bool {
    let century = [&b"18"[..], b"19", b"20"].iter().any(|century| text.starts_with(century));
    century && text.len() >= 4 && text[2..4].iter().all(u8::is_ascii_digit)
}

/// How many characters the alphabet of the value has.
fn alphabet(text: &[u8]) -> f64 {
    let has = |test: fn(&u8) -> bool| text.iter().any(test);
    if text.iter().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte))
        || text.iter().all(|byte| byte.is_ascii_digit() || (b'A'..=b'F').contains(byte))
    {
        return if text.iter().all(u8::is_ascii_digit) { 10.0 } else { 16.0 };
    }
    let classes = [
        (has(u8::is_ascii_digit), 10.0),
        (has(u8::is_ascii_lowercase), 26.0),
        (has(u8::is_ascii_uppercase), 26.0),
        (has(u8::is_ascii_punctuation), OTHERS),
    ];
    let all: f64 = classes.iter().filter(|(there, _)| *there).map(|(_, size)| size).sum();
    // At most four times the number of different characters: `abababab` has two.
    let mut distinct = text.to_vec();
    distinct.sort_unstable();
    distinct.dedup();
    all.min(4.0 * distinct.len() as f64).max(1.0)
}

/// The letter that a digit or sign replaces in a word.
fn unmasked(byte: u8) -> u8 {
    match byte {
        b'0' => b'o',
        b'1' | b'!' => b'i',
        b'3' => b'e',
        b'4' | b'@' => b'a',
        b'5' | b'$' => b's',
        b'7' => b't',
        other => other,
    }
}

/// How many letters from here on follow each other as in a word: all lower case, all upper case, or capitalized.
fn word_like(text: &[u8]) -> usize {
    let same_case = |first: &u8, byte: &u8| byte.is_ascii_lowercase() == first.is_ascii_lowercase();
    let letters = text.iter().take_while(|byte| byte.is_ascii_alphabetic()).count();
    let Some(second) = text[..letters].get(1) else { return 0 };
    if text[0].is_ascii_lowercase() && second.is_ascii_uppercase() {
        return 0;
    }
    let mut length = 1;
    // One pair in eight may be unusual.
    let (mut pairs, mut odd) = (0, 0);
    let mut fits = 0;
    for pair in text[..letters].windows(2) {
        if length > 1 && !same_case(second, &pair[1]) {
            break;
        }
        let follows = FOLLOWERS[usize::from(pair[0].to_ascii_lowercase() - b'a')];
        pairs += 1;
        odd += usize::from(!follows.as_bytes().contains(&pair[1].to_ascii_lowercase()) && pair[0] != pair[1]);
        length += 1;
        if odd * 8 <= pairs {
            fits = length;
        }
    }
    fits
}

/// How many characters from here on are equal, or a run in either direction.
fn run(text: &[u8]) -> usize {
    let same = text.iter().take_while(|byte| **byte == text[0]).count();
    let in_row = |row: &[u8]| {
        let along = |begin: usize, forward: bool| {
            let next = |step: usize| {
                if forward {
                    row.get(begin + step)
                } else {
                    begin.checked_sub(step).and_then(|at| row.get(at))
                }
            };
            text.iter().enumerate().take_while(|(step, byte)| next(*step) == Some(byte)).count()
        };
        let begins = row.iter().enumerate().filter(|(_, byte)| **byte == text[0]).map(|(at, _)| at);
        begins.map(|at| along(at, true).max(along(at, false))).max().unwrap_or(0)
    };
    ROWS.iter().map(|row| in_row(row)).max().unwrap_or(0).max(same)
}

/// How many characters from here on occurred before, without overlap.
fn again(text: &[u8], at: usize) -> usize {
    let matched =
        |from: usize| text[at..].iter().zip(&text[from..at]).take_while(|(one, other)| one == other).count();
    (0..at).map(matched).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_people_choose_are_weak() {
        for value in [
            "password",
            "P@ssw0rd123",
            "Summer2024!",
            "Winter2025!!",
            "postgres",
            "correct-horse-battery",
            "correct-horse-battery-staple",
            "aaaaaaaaaaaaaaaaaaaa",
            "abcdefgh12345678",
            "qwertyuiop123456",
            "1234567890123456",
            "letmein-letmein-letmein",
            "abcabcabcabcabcabcabcabc",
            "admin:admin123",
            "Tr0ub4dor&3",
            "companyname2023",
            "s3cr3t-t0k3n-v4lu3",
            "ghp_password",
            "2024-01-31",
            "a1b2c3d4",
        ] {
            assert!(weakness(value).is_some(), "{value}: {}", bits(value));
        }
    }

    #[test]
    fn values_that_programs_generate_are_not_weak() {
        for value in [
            "ghp_CANARYx9XqLm2Zt7RbW4KcVd8PnJ6sYhG3eFa",
            "github_pat_11ABCDEFG0a8Vd3kQx7ZLm_w2Rt9YbNc5Hs1Jf4Pq6Kv0Xg",
            "sk-ant-api03-pW3kd93Jq0xZ7vN2mR8tY5bC1hL6gF4sD9aQ0wE7",
            "sk-proj-9fJk2LmQ7xVb3Nt8Rw5Yz1Hc",
            "AKIAJ2K4QW7ZX9PL5MNB",
            "wJalrXUtnFEMI/K7MDENG/bPxRfiCYzEq8vT2m5k",
            "3b1f6c9e-7d42-4a8b-9e05-f2c6d81a7b34",
            "k7Vq2mZp9LwXr4Td",
            "x8fj2kq9wz5ntb7r",
            "kT#9vQ!2mZ@p7Lw$",
            "qzvkwjxpfmbtlhgdcyrn",
            "npm_Zk3vQ9xLm2Rt7Yb5Nc8Hs1Jf4Pq6Kw0XgVdTa",
            "glpat-x9XqLm2Zt7RbW4KcVd8P",
            "ZjRkMmE5YzEtN2I4ZC00ZTNm",
        ] {
            assert_eq!(weakness(value), None, "{value}: {}", bits(value));
        }
    }

    #[test]
    fn random_values_are_hardly_ever_taken_for_weak() {
        // Sixteen lower-case letters and digits have eighty-two bits. Of random ones, at most one in a hundred may
        // look weaker.
        let mut weak = 0;
        for _ in 0..2000 {
            let made = sentinel::make("x8fj2kq9wz5ntb7r").unwrap();
            weak += usize::from(weakness(&made).is_some());
        }
        assert!(weak <= 20, "{weak}");
    }
}
