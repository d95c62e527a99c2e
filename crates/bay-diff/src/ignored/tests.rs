//! The matcher beside git's own, on real trees.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};

use bay_types::diff::{DiffSummary, NodeKind};
use proptest::prelude::*;

use super::*;
use crate::{LeftOut, Options, RulesOf, Told, compare_without};

type Paths = BTreeSet<Vec<u8>>;

/// A git repository without settings of this machine.
fn repository() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    assert!(git(dir.path(), &["init", "-q"]).status().unwrap().success());
    dir
}

fn git(top: &Path, args: &[&str]) -> Command {
    let mut git = Command::new("git");
    git.current_dir(top).args(["-c", "core.excludesFile=/dev/null"]).args(args);
    git.env_clear().env("PATH", std::env::var_os("PATH").unwrap()).env("HOME", top);
    git.env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_CONFIG_GLOBAL", "/dev/null");
    git
}

fn write(top: &Path, path: &[u8], text: &[u8]) {
    let path = top.join(std::ffi::OsStr::from_bytes(path));
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// The files of a new tree that the walk shows, and its counts.
fn shown(top: &Path) -> (Paths, DiffSummary) {
    let top = fs::File::open(top).unwrap();
    let left_out = LeftOut { beginning: None, rules: RulesOf::Newer };
    let mut files = Paths::new();
    let hear = &mut |told| {
        if let Told::Entry(entry) = told
            && entry.after.as_ref().is_some_and(|node| node.kind != NodeKind::Directory)
        {
            let escaped = entry.path_escaped.as_deref().and_then(bay_text::percent::decode);
            files.insert(escaped.unwrap_or_else(|| entry.path.into_bytes()));
        }
        ControlFlow::Continue(())
    };
    let options = Options::shown(false);
    let summary = compare_without(Some(left_out), None, Some(top.as_fd()), &options, hear).unwrap();
    (files, summary)
}

/// The files of a tree that git does not ignore.
fn shown_by_git(top: &Path, files: &Paths) -> Paths {
    let mut asked = git(top, &["check-ignore", "--no-index", "-z", "--stdin"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let names: Vec<u8> = files.iter().flat_map(|path| [path.as_slice(), b"\0"].concat()).collect();
    asked.stdin.take().unwrap().write_all(&names).unwrap();
    let said = asked.wait_with_output().unwrap();
    assert!(matches!(said.status.code(), Some(0 | 1)), "{said:?}");
    let ignored: Paths = said.stdout.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect();
    files.difference(&ignored).cloned().collect()
}

/// Compares the two for a tree of files and its rules: directory and content of each `.gitignore`.
fn like_git(rules: &[(&str, &[u8])], files: &[&[u8]]) {
    let repo = repository();
    for path in files {
        write(repo.path(), path, b"x");
    }
    let mut all: Paths = files.iter().map(|path| path.to_vec()).collect();
    for (directory, text) in rules {
        let path = Path::new(directory).join(RULES);
        write(repo.path(), path.as_os_str().as_bytes(), text);
        all.insert(path.as_os_str().as_bytes().to_vec());
    }
    let (ours, summary) = shown(repo.path());
    let texts = |paths: &Paths| paths.iter().map(|p| p.escape_ascii().to_string()).collect::<Vec<_>>();
    let rules: Vec<String> = rules.iter().map(|(d, text)| format!("{d}: {}", text.escape_ascii())).collect();
    assert_eq!(texts(&ours), texts(&shown_by_git(repo.path(), &all)), "rules {rules:?}");
    assert_eq!(summary.ignored, (all.len() - ours.len()) as u64);
    let top = fs::File::open(repo.path()).unwrap();
    let mut single = IgnoredPaths::default();
    let asked: Paths =
        all.iter().rev().filter(|path| !single.has(top.as_fd(), None, path, false)).cloned().collect();
    assert_eq!(texts(&asked), texts(&ours), "one by one: rules {rules:?}");
    let own = single.has(top.as_fd(), Some(top.as_fd()), FILES[0], false);
    assert!(!own, "what the beginning has is not ignored");
}

const FILES: &[&[u8]] = &[
    b"a",
    b"b",
    b"ab",
    b"a.o",
    b"b.o",
    b"a b",
    b"a ",
    b"#a",
    b"!a",
    b"[a]",
    b"[",
    b"a\\",
    b"a*b",
    b"{a,b}",
    b"a\r",
    b"-",
    b"]",
    b"A",
    b"1",
    b"\xff",
    b"\xc3\xa4",
    b"foo/bar",
    b"foo/baz/bar",
    b"foo/a/b/c/bar",
    b"foobar",
    b"foo-bar",
    b"build/out",
    b"build/deep/out",
    b"src/build/out",
    b"src/a",
    b"src/keep",
    b"src/x/a",
    b"src/x/keep",
    b"src/x/y/a.o",
    b"src/x/y/z/b.o",
    b".hidden",
    b"src/.hidden/a",
];

#[test]
fn one_pattern_at_a_time_means_what_it_means_to_git() {
    #[rustfmt::skip]
    let lines: &[&[u8]] = &[
        b"a", b"/a", b"a/", b"/a/", b"*", b"**", b"/*", b"/**", b"*/", b"**/", b"?", b"??", b"*.o", b"/*.o",
        b"src/*.o", b"src/**/*.o", b"**/a", b"**/src/x", b"src/**", b"src/**/", b"src/**/a", b"a/**/b", b"foo/**/bar",
        b"**/foo/**/bar", b"foo/***/bar", b"foo/*/bar", b"foo/*", b"foo?bar", b"foo*bar", b"foo[/]bar", b"foo[!a]bar",
        b"foo**bar", b"?oo**/bar", b"build/", b"/build/", b"build", b"build/*", b"/build/*/", b"src/build", b"x/y", b"x",
        b"src/x/", b"a ", b"a  ", b"a\\ ", b"a\\  ", b"a\\", b"a\\\\", b"a b", b"a b ", b" a", b"#a", b"\\#a", b"!a",
        b"\\!a", b"[a]", b"\\[a]", b"\\[a\\]", b"[[]", b"[[]a]", b"[ab]", b"[!a]", b"[^a]", b"[a-b]", b"[b-a]", b"[]]",
        b"[!]]", b"[]-a]", b"[-]", b"[a-]", b"[--1]", b"[", b"[a", b"[]", b"[!", b"[\\]]", b"[\\a-\\b]", b"[[:alpha:]]",
        b"[[:upper:]]", b"[[:digit:]a]", b"[![:alpha:]]", b"[[:none:]]", b"[[:alpha:]", b"[[:]", b"[[:a]", b"[[::]]",
        b"[[:alpha:]-z]", b"[[:space:]]", b"[[:punct:]]", b"{a,b}", b"a*", b"a\\*b", b"*a*", b"*b", b"**b", b"a**",
        b".*", b".hidden", b"/.hidden", b"\xff", b"?\xa4", b"\xc3\xa4", b"[\xff]", b"A", b"", b" ", b"/", b"//", b"!",
        b"!/", b"/ ", b"a//", b"//a", b"./a", b"../a", b"src/./a", b"a\r", b"a \r", b"a\0b", b"a \0", b"\0a", b"#\0",
        b"*\r", b"\xef\xbb\xbfa", b"src//a", b"**/**/a", b"**/*", b"*/**", b"*/*/a", b"/src/*/keep", b"foo/ba[rz]",
    ];
    for line in lines {
        like_git(&[("", &[line, b"\n".as_slice()].concat())], FILES);
        // Everything but that, so that a pattern that includes again is seen too.
        let again = [b"*\n!*/\n!".as_slice(), line].concat();
        like_git(&[("", &again)], FILES);
    }
}

#[test]
fn several_lines_and_nested_files_mean_what_they_mean_to_git() {
    let cases: &[&[(&str, &[u8])]] = &[
        &[("", b"*.o\n!b.o\n")],
        &[("", b"!b.o\n*.o\n")],
        &[("", b"src/\n!src/keep\n")],
        &[("", b"src/*\n!src/keep\n!src/x/\n")],
        &[("", b"/*\n!/src\n/src/*\n!/src/x\n")],
        &[("", b"a\r\n# c\r\n*.o\r\n\r\n!b.o\r\n")],
        &[("", b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n")],
        &[("", b"a\nb")],
        &[("", b"*.o\n"), ("src/x", b"!*.o\n")],
        &[("", b"build/\n"), ("build", b"!out\n!*\n")],
        &[("", b"keep\n"), ("src", b"!keep\n"), ("src/x", b"keep\n")],
        &[("src", b"/a\n")],
        &[("src", b"x/a\n")],
        &[("src", b"x\n"), ("src/x", b"!a\n")],
        &[("src/x", b"*\n")],
        &[("src/x", b"*\n!.gitignore\n")],
        &[("foo", b"/baz\n/a/b/\n"), ("foo/a/b", b"!c\n")],
        &[("", b"/foo/**\n!/foo/**/\n!bar\n"), ("foo/baz", b"bar\n")],
        &[("", b"\xff\xfe\0\n[\n*.o\n\\\n")],
    ];
    for rules in cases {
        like_git(rules, FILES);
    }
}

fn line() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        Just("a"),
        Just("a"),
        Just("b"),
        Just("b"),
        Just("*"),
        Just("*"),
        Just("?"),
        Just("[ab]"),
        Just("[!a]"),
        Just("\\a"),
    ];
    let part =
        prop_oneof![6 => part, 1 => Just(".o"), 1 => Just("[[:alpha:]]"), 1 => Just(" "), 1 => Just("x")];
    let name = proptest::collection::vec(part, 1..4).prop_map(|parts| {
        // Two stars within a name are another matter; the table has them.
        parts.concat().replace("**", "*")
    });
    let name = prop_oneof![5 => name, 1 => Just("**".to_owned()), 1 => Just("src".to_owned())];
    let names = proptest::collection::vec(name, 1..4).prop_map(|names| names.join("/"));
    let edge = |text: &'static str| prop_oneof![3 => Just(""), 1 => Just(text)];
    (edge("!"), edge("/"), names, edge("/"), edge("  "), edge("\r"))
        .prop_map(|(no, first, names, last, spaces, end)| format!("{no}{first}{names}{last}{spaces}{end}\n"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn rules_mean_what_they_mean_to_git(
        top in proptest::collection::vec(line(), 1..6),
        nested in proptest::collection::vec(line(), 0..4),
    ) {
        let files: &[&[u8]] = &[
            b"a", b"b", b"ab", b"a.o", b"x/a", b"x/b", b"x/ab/a", b"x/ab/b.o", b"src/a", b"src/b",
            b"src/x/b.o", b"src/x/a/b/a", b"a b", b"src/ab/x", b"src/b.o",
        ];
        let (top, nested) = (top.concat(), nested.concat());
        // `a` cannot be a file and a directory, so the patterns meet both kinds under `x` and `src`.
        like_git(&[("", top.as_bytes()), ("src", nested.as_bytes())], files);
    }

    #[test]
    fn any_bytes_are_rules_without_harm(
        text in proptest::collection::vec(any::<u8>(), 0..300),
        path in proptest::collection::vec(any::<u8>(), 0..60),
    ) {
        let mut work = Work::default();
        let ignored = Rules::parse(&text, 0).verdict(&path, false, &mut work) == Some(true);
        prop_assert!(!work.is_done());
        prop_assert_eq!(ignored, ignored_by(&text, &path, false));
    }
}

#[test]
fn a_pattern_that_makes_other_matchers_slow_takes_little_work() {
    let mut work = Work::default();
    let rules = Rules::parse(&[b"*a".repeat(100), b"*b\n".to_vec()].concat(), 0);
    assert_eq!(rules.verdict(&b"a".repeat(250), false, &mut work), None);
    let rules = Rules::parse(&[b"**/a/".repeat(100), b"b\n".to_vec()].concat(), 0);
    assert_eq!(rules.verdict(&b"a/".repeat(1000), false, &mut work), None);
    assert!(MAX_STEPS - work.steps_left < 1_000_000, "{}", MAX_STEPS - work.steps_left);
}

#[test]
fn when_the_work_is_done_nothing_more_is_ignored_and_that_is_reported_once() {
    let top = tempfile::tempdir().unwrap();
    write(top.path(), RULES.as_bytes(), b"*.o\n");
    let dir = fs::File::open(top.path()).unwrap();
    let mut rules = RuleStack::default();
    rules.enter(dir.as_fd(), b"").unwrap();
    assert!(rules.ignores(b"a.o", false) && !rules.gave_up());
    rules.work.steps_left = 0;
    assert!(!rules.ignores(b"a.o", false));
    assert!(rules.gave_up() && !rules.gave_up());
}

#[test]
fn rules_that_are_too_long_or_no_file_ignore_nothing_and_are_named() {
    let top = tempfile::tempdir().unwrap();
    let at = |path: &str| top.path().join(path);
    for dir in ["large", "link", "pipe", "dir", "fine"] {
        write(top.path(), format!("{dir}/a.o").as_bytes(), b"x");
    }
    fs::write(at("large/.gitignore"), "*.o\n".repeat(10 << 18)).unwrap();
    fs::write(at("rules"), "*.o\n").unwrap();
    std::os::unix::fs::symlink("../rules", at("link/.gitignore")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, at("pipe/.gitignore"), rustix::fs::Mode::RWXU).unwrap();
    fs::create_dir(at("dir/.gitignore")).unwrap();
    fs::write(at("fine/.gitignore"), "*.o\n").unwrap();
    let (files, summary) = shown(top.path());
    let objects = files.iter().map(|path| String::from_utf8_lossy(path)).filter(|path| path.ends_with(".o"));
    assert_eq!(objects.collect::<Vec<_>>(), ["dir/a.o", "large/a.o", "link/a.o", "pipe/a.o"]);
    assert_eq!((summary.ignored, summary.ignored_by_new_rules), (1, 1));
    let unused: Vec<(&str, &str)> =
        summary.unused_rules.iter().map(|unused| (unused.path.as_str(), unused.why.as_str())).collect();
    let no_file = "it is not a regular file, and links are not followed";
    assert_eq!(
        unused,
        [
            ("dir/.gitignore", no_file),
            ("large/.gitignore", "it is longer than 64 KiB"),
            ("link/.gitignore", no_file),
            ("pipe/.gitignore", no_file),
        ]
    );
}

#[test]
fn rules_of_many_directories_together_are_bounded() {
    let top = tempfile::tempdir().unwrap();
    let rules = "# a comment of some length\n".repeat(2400);
    let mut dir = String::new();
    for _ in 0..20 {
        dir.push_str("d/");
        write(top.path(), format!("{dir}.gitignore").as_bytes(), rules.as_bytes());
    }
    let (_, summary) = shown(top.path());
    assert!(!summary.unused_rules.is_empty(), "{summary:?}");
    assert!(summary.unused_rules[0].why.contains("1024 KiB"), "{summary:?}");
}
