//! Changed files by directory, and which of them are tests.

use std::collections::BTreeMap;

use bay_types::diff::{Change, Content, DiffEntry, NodeKind};
use bay_types::story::{Changed, ChangedDirectory, Few};

use super::{KNOWN, few};
use crate::text::safe;

/// The most characters of a path.
const PATH: usize = 80;
/// How many files of a directory are named.
const EXAMPLES: usize = 3;
/// How many tests are remembered.
const TESTS: usize = 200;

/// Differences of a workspace, added entry by entry.
#[derive(Debug, Clone, Default)]
pub struct Changes {
    added: u64,
    modified: u64,
    deleted: u64,
    lines_added: u64,
    lines_removed: u64,
    ignored: u64,
    directories: BTreeMap<String, ChangedDirectory>,
    tests_added: Few<String>,
    tests_removed: Few<String>,
}

impl Changes {
    /// Adds a difference. Directories do not count: their files do.
    pub fn push(&mut self, entry: &DiffEntry) {
        let kinds = [&entry.before, &entry.after];
        if kinds.iter().filter_map(|node| node.as_ref()).all(|node| node.kind == NodeKind::Directory) {
            return;
        }
        match entry.change {
            Change::Added => self.added += 1,
            Change::Deleted => self.deleted += 1,
            Change::Modified | Change::Renamed | Change::Replaced | Change::Unread => self.modified += 1,
        }
        if let Content::Text { added, removed, .. } = &entry.content {
            self.lines_added = self.lines_added.saturating_add(*added);
            self.lines_removed = self.lines_removed.saturating_add(*removed);
        }
        add(&mut self.directories, &entry.path, KNOWN);
        let tests = match entry.change {
            Change::Added => &mut self.tests_added,
            Change::Deleted => &mut self.tests_removed,
            _ => return,
        };
        if is_test(&entry.path) {
            if tests.shown.len() < TESTS {
                tests.shown.push(safe(&entry.path, PATH));
            } else {
                tests.more += 1;
            }
        }
    }

    /// Sets how many files the comparison left out because the repository ignores them.
    pub fn left_out(&mut self, ignored: u64) {
        self.ignored = ignored;
    }

    pub(super) fn story(self) -> Changed {
        let tests = |all: Few<String>| {
            let mut shown = few(all.shown);
            shown.more = shown.more.saturating_add(all.more);
            shown
        };
        Changed {
            not_compared: None,
            added: self.added,
            modified: self.modified,
            deleted: self.deleted,
            lines_added: self.lines_added,
            lines_removed: self.lines_removed,
            ignored: self.ignored,
            directories: directories(self.directories.into_values().collect()),
            tests_added: tests(self.tests_added),
            tests_removed: tests(self.tests_removed),
        }
    }
}

/// Counts a file in its directory at the top. Beyond `most` directories, it counts in one for all others.
pub(super) fn add(all: &mut BTreeMap<String, ChangedDirectory>, path: &str, most: usize) {
    let top = match path.split_once('/') {
        Some((top, _)) if !top.is_empty() => format!("{}/", safe(top, PATH)),
        _ => "./".to_owned(),
    };
    let top = if all.len() < most || all.contains_key(&top) { top } else { "(other directories)".to_owned() };
    let directory = all.entry(top.clone()).or_insert_with(|| ChangedDirectory {
        directory: top,
        files: 0,
        examples: Vec::new(),
    });
    directory.files += 1;
    if directory.examples.len() < EXAMPLES {
        let example = safe(path, PATH);
        if !directory.examples.contains(&example) {
            directory.examples.push(example);
        }
    }
}

pub(super) fn directories(mut all: Vec<ChangedDirectory>) -> Few<ChangedDirectory> {
    all.sort_by_key(|directory| std::cmp::Reverse(directory.files));
    few(all)
}

/// Whether a path is a test's, by the names that are usual for them.
fn is_test(path: &str) -> bool {
    let mut parts = path.split('/').rev();
    let file = parts.next().unwrap_or_default().to_ascii_lowercase();
    let stem = file.split('.').next().unwrap_or_default();
    let by_name = stem.starts_with("test_")
        || stem.ends_with("_test")
        || stem.ends_with("_tests")
        || stem.ends_with("_spec")
        || file.contains(".test.")
        || file.contains(".spec.")
        || stem == "tests";
    by_name || parts.any(|part| matches!(part, "test" | "tests" | "__tests__" | "spec" | "e2e"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_known_by_their_usual_names() {
        for test in [
            "tests/e2e/story.rs",
            "test_app.py",
            "pkg/server_test.go",
            "src/a.test.ts",
            "web/b.spec.js",
            "src/__tests__/x.js",
            "src/tests.rs",
        ] {
            assert!(is_test(test), "{test}");
        }
        for other in ["src/contest.rs", "latest/x", "src/attestation.py", "testing.md", ""] {
            assert!(!is_test(other), "{other}");
        }
    }
}
