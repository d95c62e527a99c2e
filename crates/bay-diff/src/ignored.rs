//! Which new files a repository ignores, by the rules that it had before: a rule that an agent adds hides nothing.
//!
//! Only new files can be ignored, because files from before are in the repository. Ignored files do not leave with
//! the work, and the work that does leave is reviewed again.

use std::collections::HashMap;
use std::io::Read;

use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};

use crate::tree::{Tree, open_file};

const RULES: &str = ".gitignore";
/// Longest file of rules. A longer one is ignored completely.
const MAX_RULES_BYTES: u64 = 64 << 10;
/// Most directories whose rules are cached. Beyond that nothing is ignored.
const MAX_DIRECTORIES: usize = 10_000;

/// The rules of a tree, read when needed.
#[derive(Debug)]
pub struct Ignored<'a> {
    before: Tree<'a>,
    rules: HashMap<String, Option<Gitignore>>,
}

impl<'a> Ignored<'a> {
    #[must_use]
    pub fn new(before: Tree<'a>) -> Self {
        Self { before, rules: HashMap::new() }
    }

    /// Whether a new file at this path, relative to the top of the tree, is ignored. Never true inside `.git`.
    pub fn has(&mut self, path: &str) -> bool {
        if path.split('/').any(|part| part == ".git" || part.is_empty() || part == "..") {
            return false;
        }
        // The rules of the nearest directory come first.
        let mut end = path.len();
        while let Some(at) = path[..end].rfind('/') {
            match self.ask(&path[..at], &path[at + 1..]) {
                Match::None => end = at,
                Match::Ignore(()) => return true,
                Match::Whitelist(()) => return false,
            }
        }
        self.ask("", path).is_ignore()
    }

    fn ask(&mut self, directory: &str, path: &str) -> Match<()> {
        if !self.rules.contains_key(directory) {
            if self.rules.len() >= MAX_DIRECTORIES {
                return Match::None;
            }
            let read = self.read(directory);
            self.rules.insert(directory.to_owned(), read);
        }
        match self.rules.get(directory) {
            Some(Some(rules)) => rules.matched_path_or_any_parents(path, false).map(drop),
            _ => Match::None,
        }
    }

    fn read(&self, directory: &str) -> Option<Gitignore> {
        let path = if directory.is_empty() { RULES.to_owned() } else { format!("{directory}/{RULES}") };
        let mut text = Vec::new();
        open_file(self.before?, path.as_bytes())
            .ok()?
            .take(MAX_RULES_BYTES + 1)
            .read_to_end(&mut text)
            .ok()?;
        if text.len() as u64 > MAX_RULES_BYTES {
            return None;
        }
        let mut rules = GitignoreBuilder::new("");
        for line in String::from_utf8_lossy(&text).lines() {
            // Invalid lines are skipped.
            let _ = rules.add_line(None, line);
        }
        rules.build().ok()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn files_that_the_repository_ignored_before_are_ignored_but_none_in_git_directories() {
        let tree = tempfile::tempdir().unwrap();
        fs::write(tree.path().join(RULES), "*.log\n!keep.log\n/build/\n.*\n").unwrap();
        fs::create_dir(tree.path().join("sub")).unwrap();
        fs::write(tree.path().join("sub").join(RULES), "!b.log\nown\n").unwrap();
        let top = fs::File::open(tree.path()).unwrap();
        let mut ignored = Ignored::new(Some(top.as_fd()));
        for path in ["a.log", "x/y/a.log", "build/deep/file", "sub/a.log", "sub/own", "sub/own/deep", ".env"]
        {
            assert!(ignored.has(path), "{path}");
        }
        for path in ["keep.log", "sub/b.log", "own", "x/build/f", "src/main", ".git/hooks/pre-commit", ""] {
            assert!(!ignored.has(path), "{path}");
        }
        assert!(!Ignored::new(None).has("a.log"));
    }

    #[test]
    fn invalid_rules_are_skipped_and_too_long_files_ignored() {
        let tree = tempfile::tempdir().unwrap();
        let top = fs::File::open(tree.path()).unwrap();
        fs::write(tree.path().join(RULES), [b"\xff[\n{a\n\\\n***\n!\n".as_slice(), b"*.o"].concat()).unwrap();
        assert!(Ignored::new(Some(top.as_fd())).has("a.o"));
        fs::write(tree.path().join(RULES), "*.o\n".repeat(40_000)).unwrap();
        assert!(!Ignored::new(Some(top.as_fd())).has("a.o"));
    }
}
