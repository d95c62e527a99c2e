//! Rules on commands in a bay: which need an approval, and which are refused. All others run.
//!
//! They match the commands that the daemon is asked to start, not the processes that those start in turn: a shell can
//! run anything. What a command may send is decided when it is sent.

use serde::Serialize;

use crate::rule::{Origin, Outcome};
use crate::stars::fits;

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
