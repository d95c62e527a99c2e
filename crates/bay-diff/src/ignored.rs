//! Which paths a repository ignores, by the files `.gitignore` of one tree, read as data.
//!
//! ```text
//!  walk ── enters a directory ──► its rules join the stack ──► judges each name, the nearest rules first
//!       └─ leaves it ───────────► they go
//! ```
//! The meaning is git's: in one file the last matching pattern decides, a file nearer to the path comes before one
//! further up, and nothing below an ignored directory can be included again. `.git/info/exclude` and settings of git
//! are not read. Every file of rules is hostile: it is opened without following links, read up to a limit, and
//! matched within a limit of work. What is beyond a limit ignores nothing. The summary of a comparison names some of
//! the files that were not used; [`IgnoredPaths`] and [`ignored_by`] do not report them.

mod paths;
mod pattern;
#[cfg(test)]
mod tests;

use std::io::{self, Read};
use std::os::fd::BorrowedFd;

use crate::tree::open_file;
pub use paths::IgnoredPaths;
use pattern::Pattern;

pub(crate) const RULES: &str = ".gitignore";
/// Longest file of rules.
const MAX_RULES_BYTES: u64 = 64 << 10;
/// Most bytes of rules that are held at once. In a comparison these are the rules of the directories on the way to
/// one path.
const MAX_STACK_BYTES: usize = 1 << 20;
/// Most steps of matching in one comparison: some seconds.
const MAX_STEPS: u64 = 2_000_000_000;

/// The work that is left for matching, and memory for it.
#[derive(Debug)]
pub(crate) struct Work {
    steps_left: u64,
    now: Vec<bool>,
    next: Vec<bool>,
}

impl Default for Work {
    fn default() -> Self {
        Self { steps_left: MAX_STEPS, now: Vec::new(), next: Vec::new() }
    }
}

impl Work {
    fn spend(&mut self, steps: u64) {
        self.steps_left = self.steps_left.saturating_sub(steps);
    }

    fn is_done(&self) -> bool {
        self.steps_left == 0
    }
}

/// The rules of one file.
#[derive(Debug)]
struct Rules {
    patterns: Vec<Pattern>,
    bytes: usize,
    /// Length of the path of its directory.
    directory: usize,
}

impl Rules {
    fn parse(text: &[u8], directory: usize) -> Self {
        let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        let patterns = text.split(|byte| *byte == b'\n').filter_map(Pattern::parse).collect();
        Self { patterns, bytes: text.len(), directory }
    }

    /// Whether a path is ignored; `None` if no pattern matches it.
    fn verdict(&self, path: &[u8], is_directory: bool, work: &mut Work) -> Option<bool> {
        let below = if self.directory == 0 { path } else { path.get(self.directory + 1..)? };
        self.patterns
            .iter()
            .rev()
            .find(|pattern| !work.is_done() && pattern.matches(below, is_directory, work))
            .map(|pattern| !pattern.negated)
    }
}

/// Whether the text of one file of rules, at the top of a tree, ignores a path whose directory it does not ignore.
#[must_use]
pub fn ignored_by(rules: &[u8], path: &[u8], is_directory: bool) -> bool {
    Rules::parse(rules, 0).verdict(path, is_directory, &mut Work::default()) == Some(true)
}

/// The text of a directory's file of rules, if it has one. An error says why it is not used.
fn text_of(top: BorrowedFd<'_>, directory: &[u8]) -> Result<Option<Vec<u8>>, String> {
    let mut path = directory.to_vec();
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(RULES.as_bytes());
    let file = match open_file(top, &path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            return Err("it is not a regular file, and links are not followed".to_owned());
        }
        Err(error) => return Err(format!("it cannot be read: {error}")),
    };
    let mut text = Vec::new();
    if let Err(error) = file.take(MAX_RULES_BYTES + 1).read_to_end(&mut text) {
        return Err(format!("it cannot be read: {error}"));
    }
    if text.len() as u64 > MAX_RULES_BYTES {
        return Err(format!("it is longer than {} KiB", MAX_RULES_BYTES >> 10));
    }
    Ok(Some(text))
}

/// The rules of the directories on the way to a path.
#[derive(Debug, Default)]
pub(crate) struct RuleStack {
    files: Vec<Rules>,
    work: Work,
    reported_done: bool,
}

impl RuleStack {
    /// Adds the rules of a directory. An error says why its file of rules is not used.
    pub(crate) fn enter(&mut self, top: BorrowedFd<'_>, directory: &[u8]) -> Result<(), String> {
        let Some(text) = text_of(top, directory)? else { return Ok(()) };
        let held: usize = self.files.iter().map(|rules| rules.bytes).sum();
        if held + text.len() > MAX_STACK_BYTES {
            return Err(format!(
                "with the rules of the directories above it, it is longer than {} KiB",
                MAX_STACK_BYTES >> 10
            ));
        }
        self.files.push(Rules::parse(&text, directory.len()));
        Ok(())
    }

    /// Removes the rules of directories at `depth` and deeper; see [`RuleStack::depth`].
    pub(crate) fn leave(&mut self, depth: usize) {
        self.files.truncate(depth);
    }

    pub(crate) fn depth(&self) -> usize {
        self.files.len()
    }

    /// Whether the rules ignore a path whose directory they do not ignore.
    pub(crate) fn ignores(&mut self, path: &[u8], is_directory: bool) -> bool {
        let work = &mut self.work;
        let verdict = self.files.iter().rev().find_map(|rules| rules.verdict(path, is_directory, work));
        verdict == Some(true)
    }

    /// Whether the work for matching has just come to its end. True once.
    pub(crate) fn gave_up(&mut self) -> bool {
        self.work.is_done() && !std::mem::replace(&mut self.reported_done, true)
    }
}
