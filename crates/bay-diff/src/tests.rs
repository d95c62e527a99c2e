//! Comparisons of trees on a real filesystem.

mod hostile_trees;
mod left_out;
mod trees;

use std::fs;
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use bay_types::diff::{Change, Content, DiffEntry, DiffSummary};

use crate::{GitDirectories, Options, Told, compare};

/// Two trees side by side.
struct Pair {
    dir: tempfile::TempDir,
}

impl Pair {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for side in ["a", "b"] {
            fs::create_dir(dir.path().join(side)).unwrap();
        }
        Self { dir }
    }

    fn a(&self) -> PathBuf {
        self.dir.path().join("a")
    }

    fn b(&self) -> PathBuf {
        self.dir.path().join("b")
    }

    /// Writes a file with the same or different content on both sides, or on one.
    fn put(&self, path: &str, a: Option<&str>, b: Option<&str>) {
        for (top, text) in [(self.a(), a), (self.b(), b)] {
            if let Some(text) = text {
                write(&top.join(path), text.as_bytes());
            }
        }
    }

    fn diff(&self) -> (Vec<DiffEntry>, DiffSummary) {
        diff(&self.a(), &self.b(), &Options::shown(true))
    }
}

fn write(path: &Path, contents: &[u8]) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, contents).unwrap();
}

fn diff(a: &Path, b: &Path, options: &Options) -> (Vec<DiffEntry>, DiffSummary) {
    let (a, b) = (fs::File::open(a).unwrap(), fs::File::open(b).unwrap());
    let mut entries = Vec::new();
    let summary = compare(Some(a.as_fd()), Some(b.as_fd()), options, &mut |told| {
        if let Told::Entry(entry) = told {
            entries.push(*entry);
        }
        ControlFlow::Continue(())
    });
    (entries, summary.unwrap())
}

fn brief(entries: &[DiffEntry]) -> Vec<(Change, &str)> {
    entries.iter().map(|entry| (entry.change, entry.path.as_str())).collect()
}

#[test]
fn files_in_git_directories_are_compared_only_if_the_options_say_so() {
    let pair = Pair::new();
    pair.put(".git/HEAD", Some("a"), Some("b"));
    pair.put(".git/hooks/pre-commit", None, Some("#!/bin/sh\n"));
    pair.put("sub/.git/objects/x", Some("1"), None);
    pair.put("sub/.gitignore", Some("a\n"), Some("b\n"));
    let (entries, summary) = pair.diff();
    assert_eq!(brief(&entries), [(Change::Modified, "sub/.gitignore")]);
    assert_eq!(summary.git_left_out, 2);
    let what_runs = Options { git: GitDirectories::WhatRuns, ..Options::shown(true) };
    let (entries, _) = diff(&pair.a(), &pair.b(), &what_runs);
    let files: Vec<_> = brief(&entries).into_iter().filter(|(_, path)| path.contains(".git/")).collect();
    assert_eq!(files, [(Change::Added, ".git/hooks"), (Change::Added, ".git/hooks/pre-commit")]);
    let all = Options { git: GitDirectories::All, ..Options::shown(true) };
    assert!(brief(&diff(&pair.a(), &pair.b(), &all).0).contains(&(Change::Modified, ".git/HEAD")));
}

#[test]
fn a_reader_that_stops_ends_the_comparison() {
    let pair = Pair::new();
    for n in 0..2000 {
        pair.put(&n.to_string(), None, Some("x"));
    }
    let (a, b) = (fs::File::open(pair.a()).unwrap(), fs::File::open(pair.b()).unwrap());
    let mut told = 0;
    let stopped = compare(Some(a.as_fd()), Some(b.as_fd()), &Options::shown(true), &mut |_| {
        told += 1;
        if told > 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert!(matches!(stopped, Err(crate::DiffError::Stopped)), "{stopped:?}");
    assert_eq!(told, 4);
}

#[test]
fn a_missing_tree_counts_as_empty() {
    let pair = Pair::new();
    pair.put("d/f", None, Some("x\n"));
    let b = fs::File::open(pair.b()).unwrap();
    let mut entries = Vec::new();
    compare(None, Some(b.as_fd()), &Options::shown(true), &mut |told| {
        if let Told::Entry(entry) = told {
            entries.push(*entry);
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(brief(&entries), [(Change::Added, "d"), (Change::Added, "d/f")]);
    assert!(
        matches!(&entries[1].content, Content::Text { added: 1, removed: 0, patch: Some(patch), .. } if patch == "@@ -0,0 +1 @@\n+x\n")
    );
}
