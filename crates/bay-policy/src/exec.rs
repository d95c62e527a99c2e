//! Rules on commands in a bay: which need an approval, and which are refused. All others run.
//!
//! They match the commands that the daemon is asked to start, not the processes that those start in turn: a shell can
//! run anything. What a command may send is decided when it is sent.

use serde::Serialize;

use crate::rule::{Origin, Outcome};

/// Most words of a pattern.
pub const MAX_WORDS: usize = 64;
/// Matches all words that follow, or none.
const REST: &str = "**";

/// One rule on commands. It can only narrow: a command that no rule matches runs.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct ExecRule {
    pub id: String,
    pub origin: Origin,
    /// Ask or deny.
    pub outcome: Outcome,
    /// A pattern for each word. `*` matches any part of a word. `**` at the end matches all words that follow.
    pub argv: Vec<String>,
    pub reason: Option<String>,
    /// Whether the bay's files are checkpointed before a person is asked.
    pub checkpoint: bool,
}

impl ExecRule {
    /// Whether the rule matches the command. If the pattern of the program has no slash, the program may also match
    /// by its file name alone, wherever it lies.
    #[must_use]
    pub fn matches(&self, argv: &[String]) -> bool {
        let (words, open) = match self.argv.split_last() {
            Some((last, words)) if last == REST => (words, true),
            _ => (self.argv.as_slice(), false),
        };
        let long_enough = if open { argv.len() >= words.len() } else { argv.len() == words.len() };
        long_enough
            && words.iter().zip(argv).enumerate().all(|(at, (pattern, word))| {
                let base = word.rsplit('/').next().unwrap_or(word);
                let fits = |word: &str| fits(pattern.as_bytes(), word.as_bytes());
                fits(word) || (at == 0 && !pattern.contains('/') && fits(base))
            })
    }
}

/// Whether a word matches a pattern with stars. Only the last star is ever extended, so the time grows at most with the
/// product of both lengths.
pub(crate) fn fits(pattern: &[u8], word: &[u8]) -> bool {
    let (mut at, mut of, mut star) = (0, 0, None);
    while of < word.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, of));
                at += 1;
            }
            Some(byte) if *byte == word[of] => {
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
