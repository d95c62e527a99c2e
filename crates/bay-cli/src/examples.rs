//! Every example of the documentation and of `--help` is a command line that this binary takes.

use std::fs;
use std::path::Path;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};

use crate::cli::Cli;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Words that end a command line in a shell.
const SHELL: &[&str] = &["|", "||", "&&", "&", ";", ">", ">>", "<", "2>", "2>&1", "&>"];

/// The pages that people read, with their text. docs/cli.md is made from the binary itself.
fn pages() -> Vec<(String, String)> {
    let docs = fs::read_dir(format!("{ROOT}/docs")).unwrap().map(|entry| entry.unwrap().path());
    let pages =
        docs.filter(|path| path.extension().is_some_and(|end| end == "md") && !path.ends_with("cli.md"));
    let mut pages: Vec<(String, String)> = pages
        .chain([Path::new(ROOT).join("README.md")])
        .map(|path| {
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            (name, fs::read_to_string(path).unwrap())
        })
        .collect();
    pages.sort();
    pages
}

/// The lines of code blocks that begin with `bay`, after a prompt or not.
fn commands(text: &str) -> Vec<String> {
    let joined = text.replace("\\\n", " ");
    let (mut code, mut found) = (false, Vec::new());
    for line in joined.lines() {
        if line.trim_start().starts_with("```") {
            code = !code;
        } else if code {
            let line = line.trim_start();
            let line = line.strip_prefix("$ ").or_else(|| line.strip_prefix("# ")).unwrap_or(line);
            let line = line.strip_prefix("sudo ").unwrap_or(line);
            if line.starts_with("bay ") {
                found.push(line.to_owned());
            }
        }
    }
    found
}

/// The words of a command line, without what explains it: two spaces begin an explanation.
fn words(line: &str) -> Option<Vec<String>> {
    let command = line
        .match_indices("  ")
        .map(|(at, _)| &line[..at])
        .find(|begin| shlex::split(begin).is_some())
        .unwrap_or(line);
    let mut words = Vec::new();
    for word in shlex::split(command)? {
        if SHELL.contains(&word.as_str()) {
            break;
        }
        let ends = word.strip_suffix(';').map(str::to_owned);
        let last = ends.is_some();
        words.push(ends.unwrap_or(word));
        if last {
            break;
        }
    }
    Some(words)
}

/// Why the binary does not take a line, unless it does.
fn refusal(line: &str) -> Option<String> {
    let Some(words) = words(line) else { return Some("its quotes are not closed".to_owned()) };
    // Words that only stand for something: `[--flag]`, `…`; and what a bay runs, not a person.
    if words.get(1).is_some_and(|verb| verb.starts_with("__"))
        || words.iter().any(|word| word.starts_with('[') || word.contains('…') || word == "...")
    {
        return None;
    }
    match Cli::try_parse_from(words) {
        Ok(_) => None,
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => None,
        Err(error) => Some(error.to_string().lines().next().unwrap_or_default().to_owned()),
    }
}

#[test]
fn every_example_of_the_documentation_is_taken_by_the_binary() {
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for (page, text) in pages() {
        for line in commands(&text) {
            seen += 1;
            wrong.extend(refusal(&line).map(|why| format!("{page}: {line}\n    {why}")));
        }
    }
    assert!(seen > 200, "only {seen} examples were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_example_of_the_help_is_taken_by_the_binary() {
    fn look(verb: &clap::Command, wrong: &mut Vec<String>, seen: &mut usize) {
        let after = verb.get_after_help().map(ToString::to_string).unwrap_or_default();
        for line in after.lines().map(str::trim).filter(|line| line.starts_with("bay ")) {
            *seen += 1;
            wrong.extend(refusal(line).map(|why| format!("{}: {line}\n    {why}", verb.get_name())));
        }
        for inner in verb.get_subcommands() {
            look(inner, wrong, seen);
        }
    }
    let (mut wrong, mut seen) = (Vec::new(), 0);
    look(&Cli::command(), &mut wrong, &mut seen);
    assert!(seen > 100, "only {seen} examples were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn an_example_that_the_binary_does_not_take_is_found() {
    assert!(refusal("bay ls --no-such-flag").is_some());
    assert!(refusal("bay exec web -- true | wc -l   counts").is_none());
}
