//! Words with stars, as rules on commands and on refs have them, and files of known hosts.

/// Whether a word matches a pattern with stars. Only the last star is ever extended, so the time grows at most with the
/// product of both lengths.
pub(crate) fn fits(pattern: &[u8], word: &[u8]) -> bool {
    fits_by(pattern, word, |wanted, byte| wanted == byte)
}

/// The same for patterns in which other bytes than the star may match more than themselves.
pub fn fits_by(pattern: &[u8], word: &[u8], same: impl Fn(u8, u8) -> bool) -> bool {
    let (mut at, mut of, mut star) = (0, 0, None);
    while of < word.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, of));
                at += 1;
            }
            Some(wanted) if same(*wanted, word[of]) => {
                at += 1;
                of += 1;
            }
            _ => match star {
                Some((behind, from)) => {
                    star = Some((behind, from + 1));
                    at = behind + 1;
                    of = from + 1;
                }
                None => return false,
            },
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_match_any_part_of_a_word() {
        for (pattern, word, expected) in [
            ("*", "", true),
            ("a*c", "abc", true),
            ("a*c", "ac", true),
            ("a*c", "acb", false),
            ("*a*a*", "banana", true),
            ("a", "b", false),
            ("", "a", false),
        ] {
            assert_eq!(fits(pattern.as_bytes(), word.as_bytes()), expected, "{pattern} {word}");
        }
    }
}
