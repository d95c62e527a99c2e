//! Removed tests, skipped tests and removed assertions.
//!
//! Names of tests are collected over all entries, so that a moved test does not count as removed. Assertions
//! are counted in each file.

use std::collections::{HashMap, HashSet};

use bay_types::diff::{Change, DiffEntry, Severity};

use super::Hit;
use crate::patch::{LineKind, PatchLine, patch_lines};

/// Most names that are remembered, of added and of removed tests.
const MAX_NAMES: usize = 50_000;
/// Longest name of a test that is remembered.
const MAX_NAME: usize = 200;
/// Most skipped tests that are reported per file.
const MAX_PER_FILE: usize = 20;

/// Directories of tests.
const TEST_DIRECTORIES: &[&str] =
    &["test", "tests", "__tests__", "spec", "specs", "e2e", "testing", "testdata"];

/// Whether a path is a test file by the conventions of common languages.
pub(super) fn is_test(path: &str) -> bool {
    let (directories, name) = path.rsplit_once('/').unwrap_or(("", path));
    if directories.split('/').any(|part| TEST_DIRECTORIES.contains(&part)) {
        return true;
    }
    let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
    stem.starts_with("test_")
        || stem == "tests"
        || ["_test", "_tests", "_spec", ".test", ".spec"].iter().any(|end| stem.ends_with(end))
        || (name.ends_with(".java")
            || name.ends_with(".kt")
            || name.ends_with(".cs")
            || name.ends_with(".swift"))
            && (stem.ends_with("Test") || stem.ends_with("Tests"))
}

/// Text that disables a test, or all other tests. It matches only at the beginning of a word.
const SKIPS: &[&str] = &[
    "#[ignore",
    "@pytest.mark.skip",
    "@pytest.mark.xfail",
    "pytest.skip(",
    "pytest.xfail(",
    "@unittest.skip",
    "@unittest.expectedFailure",
    "self.skipTest(",
    "it.skip(",
    "it.only(",
    "it.todo(",
    "test.skip(",
    "test.only(",
    "test.todo(",
    "test.fixme(",
    "describe.skip(",
    "describe.only(",
    "xit(",
    "xtest(",
    "xdescribe(",
    "fit(",
    "fdescribe(",
    "t.Skip(",
    "t.SkipNow(",
    "t.Skipf(",
    "@Disabled",
    "@Ignore",
    "[Ignore",
    "(Skip =",
    "(Skip=",
    "GTEST_SKIP(",
    "XCTSkip",
    "@tag :skip",
];

/// Text of assertions.
const ASSERTIONS: &[&str] = &[
    "assert",
    "expect(",
    "expect!",
    "EXPECT_",
    "ASSERT_",
    ".should",
    "XCTAssert",
    "t.Error",
    "t.Fatal",
    "require.",
    "Assert.",
];

/// Names of added and removed tests, with the findings at the end.
#[derive(Debug, Default)]
pub(super) struct Names {
    added: HashSet<String>,
    /// The file and the line of each.
    removed: HashMap<String, (String, u64)>,
    /// Deleted test files, with the names of their tests.
    files: Vec<(String, Vec<String>)>,
    /// Number of names in all of them.
    in_files: usize,
}

impl Names {
    /// Reads a patch: remembers names, and reports findings that concern only this file.
    pub(super) fn read(&mut self, entry: &DiffEntry, patch: &str, hits: &mut Vec<Hit>) {
        let test_file = is_test(&entry.path);
        let (mut names_went, mut marked) = (Vec::new(), false);
        let (mut assertions_went, mut assertions_came, mut skips) = (0_u64, 0_u64, 0);
        // An attribute such as `#[test]` has no name; the function after it has.
        let mut pending: Option<LineKind> = None;
        for line in patch_lines(patch) {
            let text = line.text.trim_start();
            if is_mark(text) {
                (marked, pending) = (true, Some(line.kind));
                continue;
            }
            let name = match pending {
                Some(kind) if kind == line.kind => function(text).inspect(|_| pending = None),
                Some(_) => {
                    pending = None;
                    None
                }
                None => None,
            };
            let name = name.or_else(|| named(text, test_file));
            marked |= name.is_some();
            match (name, line.kind) {
                (Some(name), LineKind::Added) if self.added.len() < MAX_NAMES => {
                    self.added.insert(name);
                }
                (Some(name), LineKind::Removed) => names_went.push((name, line.number)),
                _ => {}
            }
            let asserts = ASSERTIONS.iter().any(|word| text.contains(word));
            assertions_went += u64::from(asserts && line.kind == LineKind::Removed);
            assertions_came += u64::from(asserts && line.kind == LineKind::Added);
            if line.kind == LineKind::Added
                && skips < MAX_PER_FILE
                && (test_file || marked || text.starts_with("#[ignore"))
                && skips_a_test(&line)
            {
                skips += 1;
                let why = "a test that does not run any more, or keeps others from running";
                hits.push(Hit::new(Severity::Warn, "test-skipped", why).at(line.number));
            }
        }
        if entry.change == Change::Deleted {
            if test_file || marked {
                self.file_with(entry, names_went.into_iter().map(|(name, _)| name).collect());
            }
            return;
        }
        for (name, line) in names_went {
            if self.removed.len() < MAX_NAMES {
                self.removed.insert(name, (entry.path.clone(), line));
            }
        }
        if (test_file || marked) && assertions_went > assertions_came {
            let why = format!("{assertions_went} assertions removed, {assertions_came} added");
            hits.push(Hit::new(Severity::Warn, "assertions-removed", why));
        }
    }

    /// Records a deleted file whose text is unknown.
    pub(super) fn file_went(&mut self, entry: &DiffEntry) {
        if is_test(&entry.path) {
            self.file_with(entry, Vec::new());
        }
    }

    /// If the names do not fit any more, the file counts as deleted tests. Files beyond the limit are not reported.
    fn file_with(&mut self, entry: &DiffEntry, names: Vec<String>) {
        if self.files.len() >= MAX_NAMES {
            return;
        }
        let remembered = if self.in_files + names.len() <= MAX_NAMES { names } else { Vec::new() };
        self.in_files += remembered.len();
        self.files.push((entry.path.clone(), remembered));
    }

    pub(super) fn finish(self) -> Vec<(String, Hit)> {
        let mut hits = Vec::new();
        for (path, names) in self.files {
            if names.is_empty() || names.iter().any(|name| !self.added.contains(name)) {
                let why = match names.len() {
                    0 => "a file of tests is deleted".to_owned(),
                    1 => "a file with a test is deleted".to_owned(),
                    n => format!("a file of {n} tests is deleted"),
                };
                hits.push((path, Hit::new(Severity::Warn, "tests-deleted", why)));
            }
        }
        let mut went: Vec<_> =
            self.removed.into_iter().filter(|(name, _)| !self.added.contains(name)).collect();
        went.sort_by(|a, b| a.1.cmp(&b.1));
        for (name, (path, line)) in went {
            let why = format!("the test {name:?} is gone");
            hits.push((path, Hit::new(Severity::Warn, "test-removed", why).at(line)));
        }
        hits
    }
}

/// Whether a line marks the next function as a test.
fn is_mark(text: &str) -> bool {
    text.starts_with("#[test]")
        || (text.starts_with("#[") && text.contains("::test"))
        || text.starts_with("#[rstest")
        || matches!(text.trim_end(), "@Test" | "[Test]" | "[Fact]" | "[TestMethod]")
}

/// The word before the first parenthesis: `fn name(`, `void name(`, `fun name(`.
fn function(text: &str) -> Option<String> {
    // Other attributes may follow.
    if text.starts_with(['#', '@', '[', '/']) {
        return None;
    }
    let (before, _) = text.split_once('(')?;
    let before = before.split('<').next().unwrap_or(before).trim_end();
    clipped(before.rsplit([' ', '\t']).next()?)
}

/// The name of a test: after `def test` or `func Test`, or the string in a call such as `it("…")`.
fn named(text: &str, test_file: bool) -> Option<String> {
    let text = text.strip_prefix("async ").unwrap_or(text);
    if let Some(rest) = text.strip_prefix("def test").or_else(|| text.strip_prefix("func Test")) {
        return clipped(&format!("test{}", rest.split('(').next()?));
    }
    if !test_file {
        return None;
    }
    let call = ["it(", "test(", "it ", "test ", "it.skip(", "test.skip(", "scenario(", "specify "];
    let rest = call.iter().find_map(|word| text.strip_prefix(word))?.trim_start();
    let quote = rest.chars().next().filter(|c| matches!(c, '"' | '\'' | '`'))?;
    clipped(rest[1..].split(quote).next()?)
}

fn clipped(name: &str) -> Option<String> {
    let name: String = name.chars().take(MAX_NAME).collect();
    (!name.is_empty()).then_some(name)
}

fn skips_a_test(line: &PatchLine<'_>) -> bool {
    SKIPS.iter().any(|word| {
        line.text.match_indices(word).any(|(at, _)| {
            let before = line.text[..at].chars().next_back();
            // `exit(` and `profit(` do not skip a test.
            before.is_none_or(|c| !c.is_alphanumeric() && c != '_' && c != '.')
        })
    })
}
