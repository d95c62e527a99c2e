//! What a comparison leaves out because the repository ignores it.

use super::*;
use crate::{LeftOut, RulesOf, compare_without};

/// Three trees: where the work began, and the two sides.
fn without(
    beginning: &Path,
    a: &Path,
    b: &Path,
    rules: RulesOf,
    options: &Options,
) -> (Vec<String>, DiffSummary) {
    let [beginning, a, b] = [beginning, a, b].map(|top| fs::File::open(top).unwrap());
    let mut paths = Vec::new();
    let left_out = LeftOut { beginning: Some(beginning.as_fd()), rules };
    let hear = &mut |told| {
        if let Told::Entry(entry) = told {
            paths.push(entry.path);
        }
        ControlFlow::Continue(())
    };
    let summary = compare_without(Some(left_out), Some(a.as_fd()), Some(b.as_fd()), options, hear);
    (paths, summary.unwrap())
}

#[test]
fn files_that_were_there_at_the_beginning_are_shown_whatever_pattern_matches_them() {
    let pair = Pair::new();
    pair.put(".gitignore", Some("*.log\nbuild/\n"), Some("*.log\nbuild/\n"));
    pair.put("kept.log", Some("1\n"), Some("2\n"));
    pair.put("build/kept", Some("1\n"), Some("2\n"));
    pair.put("build/gone", Some("gone\n"), None);
    pair.put("build/new", None, Some("1\n"));
    pair.put("build/sub/new", None, Some("1\n"));
    pair.put("new.log", None, Some("1\n"));
    pair.put("src/new", None, Some("1\n"));
    for rules in [RulesOf::Newer, RulesOf::Beginning] {
        let (paths, summary) = without(&pair.a(), &pair.a(), &pair.b(), rules, &Options::shown(true));
        assert_eq!(paths, ["build/gone", "build/kept", "kept.log", "src", "src/new"], "{rules:?}");
        assert_eq!((summary.ignored, summary.ignored_by_new_rules), (3, 0), "{rules:?}");
    }
    let (entries, summary) = pair.diff();
    assert_eq!((entries.len(), summary.ignored), (9, 0), "without rules everything is shown");
}

#[test]
fn between_two_later_moments_a_file_is_ignored_unless_the_work_began_with_it() {
    let pair = Pair::new();
    let beginning = tempfile::tempdir().unwrap();
    write(&beginning.path().join(".gitignore"), b"target/\n");
    write(&beginning.path().join("target/kept"), b"1\n");
    pair.put(".gitignore", Some("target/\n"), Some("target/\n"));
    pair.put("target/kept", Some("1\n"), Some("2\n"));
    pair.put("target/changed", Some("1\n"), Some("2\n"));
    pair.put("target/deep/gone", Some("1\n"), None);
    pair.put("target/deep/same", Some("1\n"), None);
    fs::hard_link(pair.a().join("target/deep/same"), pair.b().join("target/same")).unwrap();
    let (paths, summary) =
        without(beginning.path(), &pair.a(), &pair.b(), RulesOf::Newer, &Options::shown(true));
    assert_eq!(paths, ["target/kept"]);
    assert_eq!(summary.ignored, 4);
}

#[test]
fn rules_that_came_later_are_counted_apart_and_hide_nothing_from_a_review() {
    let pair = Pair::new();
    pair.put(".gitignore", Some("*.log\n"), Some("*.log\n*.key\n"));
    pair.put("a.log", None, Some("x\n"));
    pair.put("a.key", None, Some("x\n"));
    pair.put("venv/.gitignore", None, Some("*\n"));
    pair.put("venv/lib/a", None, Some("x\n"));
    let (paths, summary) = without(&pair.a(), &pair.a(), &pair.b(), RulesOf::Newer, &Options::shown(true));
    assert_eq!(paths, [".gitignore", "venv"]);
    assert_eq!((summary.ignored, summary.ignored_by_new_rules), (4, 3));
    let (paths, summary) = without(&pair.a(), &pair.a(), &pair.b(), RulesOf::Beginning, &Options::reviewed());
    assert!(
        paths.iter().any(|path| path == "a.key") && paths.iter().any(|path| path == "venv/lib/a"),
        "{paths:?}"
    );
    assert_eq!(summary.ignored, 1);
}

#[test]
fn what_git_runs_is_never_ignored() {
    let pair = Pair::new();
    pair.put(".gitignore", Some("*\n.*\n"), Some("*\n.*\n"));
    pair.put(".git/hooks/pre-commit", None, Some("#!/bin/sh\n"));
    pair.put("lib/.git/config", None, Some("x\n"));
    pair.put("lib/other", None, Some("x\n"));
    let (paths, summary) = without(&pair.a(), &pair.a(), &pair.b(), RulesOf::Beginning, &Options::reviewed());
    for path in [".git/hooks/pre-commit", "lib/.git/config"] {
        assert!(paths.iter().any(|found| found == path), "{path}: {paths:?}");
    }
    assert_eq!(summary.ignored, 1);
}

#[test]
fn a_directory_that_replaces_a_file_from_the_beginning_is_shown_and_its_ignored_files_are_counted() {
    let pair = Pair::new();
    pair.put(".gitignore", Some("out\n"), Some("out\n"));
    pair.put("out", Some("x\n"), None);
    pair.put("out/a", None, Some("x\n"));
    let (paths, summary) = without(&pair.a(), &pair.a(), &pair.b(), RulesOf::Newer, &Options::shown(true));
    assert_eq!((paths, summary.ignored), (vec!["out".to_owned()], 1));
}
