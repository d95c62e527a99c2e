//! Rules on commands that are run in a bay: which are asked about, and which are not run at all.
//!
//! They speak of what the daemon is asked to start, not of what that starts in turn: a shell can run anything. What a
//! command may send is decided when it is sent.

use serde::Serialize;

use crate::compile::CompiledPolicy;
use crate::rule::{Origin, Outcome};

/// Most words of a pattern.
pub const MAX_WORDS: usize = 64;
/// All that follow, also none.
const REST: &str = "**";

/// One rule on commands. Only ever narrows: what no rule speaks of runs.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct ExecRule {
    pub id: String,
    pub origin: Origin,
    /// Ask or deny.
    pub outcome: Outcome,
    /// A pattern for each word: `*` stands for a part of it. `**` at the end stands for all words that follow.
    pub argv: Vec<String>,
    pub reason: Option<String>,
    /// Whether the bay's files are kept before a person is asked.
    pub checkpoint: bool,
}

impl ExecRule {
    /// Whether it speaks of the command. A program is meant by its name wherever it lies.
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
                fits(pattern, word) || (at == 0 && !pattern.contains('/') && fits(pattern, base))
            })
    }
}

/// A word with stars in it against one without. Linear in both: the last star is the only one that is moved.
fn fits(pattern: &str, word: &str) -> bool {
    let (pattern, word) = (pattern.as_bytes(), word.as_bytes());
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

/// The most restrictive rule that speaks of the command, if any does.
#[must_use]
pub fn decide_exec<'p>(policy: &'p CompiledPolicy, argv: &[String]) -> Option<&'p ExecRule> {
    let rules = policy.layers().flat_map(|layer| &layer.execs).filter(|rule| rule.matches(argv));
    // Of equally restrictive ones the first that was written.
    rules.fold(None, |worst: Option<&ExecRule>, rule| match worst {
        Some(worst) if worst.outcome >= rule.outcome => Some(worst),
        _ => Some(rule),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::Layer;
    use crate::{Layers, Places, parse};

    fn argv(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    fn policy(text: &str) -> CompiledPolicy {
        let bay = parse(Layer::Bay, "p.toml", text, &Places::default()).unwrap();
        CompiledPolicy::new(Layers { bay: Some(bay), ..Layers::default() })
    }

    #[test]
    fn a_command_is_asked_about_by_its_words_and_deny_wins() {
        let policy = policy(
            "[[exec]]\nid = \"push\"\noutcome = \"ask\"\nargv = [\"git\", \"push\", \"**\"]\ncheckpoint = true\n\
             [[exec]]\noutcome = \"deny\"\nargv = [\"git\", \"push\", \"--force*\", \"**\"]\nreason = \"no\"\n",
        );
        let of = |line: &str| decide_exec(&policy, &argv(line)).map(|rule| rule.outcome);
        assert_eq!(of("git push"), Some(Outcome::Ask));
        assert_eq!(of("/usr/bin/git push origin main"), Some(Outcome::Ask));
        assert_eq!(of("git push --force-with-lease origin"), Some(Outcome::Deny));
        assert_eq!(of("git pull"), None);
        assert_eq!(of("git"), None);
    }

    #[test]
    fn stars_stand_for_any_part_of_a_word() {
        for (pattern, word, expected) in [
            ("*", "", true),
            ("a*c", "abc", true),
            ("a*c", "ac", true),
            ("a*c", "acb", false),
            ("*a*a*", "banana", true),
            ("a", "b", false),
            ("", "a", false),
        ] {
            assert_eq!(fits(pattern, word), expected, "{pattern} {word}");
        }
    }

    #[test]
    fn a_rule_that_cannot_be_meant_is_a_mistake() {
        for odd in [
            "[[exec]]\noutcome = \"allow\"\nargv = \"ls\"\n",
            "[[exec]]\noutcome = \"ask\"\n",
            "[[exec]]\nargv = \"ls\"\n",
            "[[exec]]\noutcome = \"ask\"\nargv = [\"a\", \"**\", \"b\"]\n",
            "[[exec]]\noutcome = \"deny\"\nargv = \"ls\"\ncheckpoint = true\n",
            "[[exec]]\noutcome = \"ask\"\nargv = \"ls\"\nhost = \"x\"\n",
        ] {
            assert!(parse(Layer::Bay, "p.toml", odd, &Places::default()).is_err(), "{odd}");
        }
    }
}
