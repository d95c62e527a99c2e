//! What the real grammar says to lines that it refuses, and to the words of other tools.

use std::ffi::OsString;

use bay_types::{ApiError, ErrorCode};
use clap::{Command, CommandFactory, Parser};

use crate::cli::{Cli, read};
use crate::misuse::{self, Misuse};
use crate::typed_words::{INNER, Meaning, WORDS, filled};

fn words(line: &str) -> Vec<OsString> {
    line.split(' ').map(OsString::from).collect()
}

/// The error of a line.
#[track_caller]
fn error(line: &str) -> ApiError {
    match read(&words(line)) {
        Err(Misuse::Error { error, .. }) => error,
        other => panic!("{line}: {other:?}"),
    }
}

/// The line that a word of another tool stands for.
fn meant(line: &str) -> Option<String> {
    let meant = misuse::translated(Cli::command(), &words(line))?;
    Some(meant.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" "))
}

/// Whether every word of a command that stands where a command is expected is one.
fn is_command(grammar: &Command, line: &str) -> bool {
    let mut at = grammar;
    for word in line.split(' ').skip(1).take_while(|word| !word.starts_with('-')) {
        match at.find_subcommand(word) {
            Some(inner) => at = inner,
            None => return at.get_name() != "bay",
        }
    }
    at.get_name() != "bay"
}

#[test]
fn no_word_of_another_tool_hides_a_command() {
    let mut grammar = Cli::command();
    grammar.build();
    for word in WORDS.iter().flat_map(|known| known.words) {
        assert!(grammar.find_subcommand(word).is_none(), "`bay {word}` is a command");
    }
}

#[test]
fn every_word_of_another_tool_leads_to_a_command_that_exists() {
    let mut grammar = Cli::command();
    grammar.build();
    for known in WORDS {
        for (_, meaning) in known.meanings {
            match meaning {
                Meaning::Same("--version") => {}
                Meaning::Same(command) => {
                    assert!(is_command(&grammar, &format!("bay {command}")), "{:?}: {command}", known.words);
                }
                Meaning::Instead { command, why } => {
                    assert!(!why.is_empty());
                    for one in command.split(" && ") {
                        let whole = filled(one, &[]).replace("PORT", "5173");
                        let parsed = Cli::try_parse_from(whole.split(' '));
                        assert!(parsed.is_ok(), "{:?}: {whole}: {:?}", known.words, parsed.err());
                    }
                }
            }
        }
    }
    let names = |command: &Command| {
        command.get_subcommands().map(|inner| inner.get_name().to_owned()).collect::<Vec<_>>()
    };
    let inner: Vec<String> = grammar.get_subcommands().flat_map(names).collect();
    for (others, command) in INNER {
        assert!(
            inner.iter().any(|name| name == command),
            "{others:?} lead to {command}, which no command has"
        );
    }
}

#[test]
fn words_that_mean_the_same_are_read_as_the_command() {
    for (line, expected) in [
        ("bay ps", "bay ls"),
        ("bay --json ps", "bay --json ls"),
        ("bay --data-dir ps ps", "bay --data-dir ps ls"),
        ("bay ps web", "bay execs ls web"),
        ("bay status web", "bay show web"),
        ("bay delete web --yes", "bay rm web --yes"),
        ("bay ssh web", "bay shell web"),
        ("bay ssh web ls -la", "bay exec web ls -la"),
        ("bay version", "bay --version"),
        ("bay tail web 3", "bay logs --follow web 3"),
        ("bay snapshot web", "bay checkpoint web"),
        ("bay images list", "bay images ls"),
        ("bay image ls", "bay images ls"),
        ("bay secrets ls", "bay secret ls"),
        ("bay services delete web db", "bay services rm web db"),
    ] {
        assert_eq!(meant(line).as_deref(), Some(expected), "{line}");
        let read = read(&words(line));
        assert!(matches!(read, Ok(_) | Err(Misuse::Help(_))), "{line}: {read:?}");
    }
    // A command is never read as anything else.
    for line in ["bay exec web -- ps", "bay exec web ps", "bay up new", "bay rm delete"] {
        assert!(read(&words(line)).is_ok(), "{line}");
    }
    // Both words were another tool's.
    assert!(read(&words("bay image list")).is_ok());
}

#[test]
fn other_words_lead_to_the_command_with_the_persons_own_arguments() {
    for (line, next) in [
        ("bay restart web", "`bay stop web && bay start web`"),
        ("bay run web make test", "`bay exec web -- make test`"),
        ("bay run . make test", "`bay up . -- make test`"),
        ("bay run -it web -- bash", "`bay exec web -- bash`"),
        ("bay create web", "`bay up --name web`"),
        ("bay port-forward web 5173", "`bay forward web 5173`"),
        ("bay clone web", "`bay fork web`"),
        ("bay clone https://example.org/a.git", "`bay up https://example.org/a.git`"),
        ("bay kill-bay web", "`bay stop web`"),
        ("bay pull ubuntu:24.04", "`bay images import tar:FILE`"),
        ("bay login", "`bay shell NAME`"),
    ] {
        let error = error(line);
        assert_eq!(error.code, ErrorCode::InvalidInput);
        assert!(error.next.contains(next), "{line}: {error:?}");
    }
}

#[test]
fn a_mistyped_line_is_answered_with_the_line_that_was_probably_meant() {
    for (line, next) in [
        ("bay shwo web", "`bay show web`"),
        ("bay exce web -- make", "`bay exec web -- make`"),
        ("bay lst", "`bay ls`"),
        ("bay checkp web", "`bay checkpoint web`"),
        ("bay delte web", "`bay rm web`"),
        ("bay images imprt host", "`bay images import host`"),
        ("bay services web ls", "`bay services ls web`"),
        ("bay web exec ls -la", "`bay exec web ls -la`"),
        ("bay ls images", "`bay images ls`"),
        ("bay ls --quit", "`bay ls --quiet`"),
        ("bay up --nmae=web", "`bay up --name=web`"),
        ("bay set web --memory-mb 4G", "`bay set web --memory-mib 4G`"),
        ("bay show", "`bay show NAME`"),
        ("bay exec web", "`bay exec web CMD`"),
        ("bay kill web", "`bay kill web EXEC`"),
        ("bay promote web", "`bay promote web --into PARENT`"),
        ("bay images", "`bay images ls`"),
        ("bay web", "`bay shell web`"),
        ("bay make test", "`bay exec NAME -- make test`"),
        ("bay --no-autostart", "`bay up`"),
    ] {
        let error = error(line);
        assert_eq!(error.code, ErrorCode::InvalidInput);
        assert!(error.next.contains(next), "{line}: {error:?}");
        assert!(error.next.contains("--help`"), "{line}: {error:?}");
        assert!(!error.message.is_empty() && !error.message.contains("error:"), "{line}: {error:?}");
    }
    assert!(error("bay set web --memory-mib 4X").message.contains("4G"));
    assert!(error("bay services add b x --restart sometimes -- true").message.contains("`always`"));
}

#[test]
fn help_and_versions_are_no_errors() {
    for line in ["bay --help", "bay help up", "bay up --help", "bay --version", "bay version", "bay"] {
        assert!(matches!(read(&words(line)), Err(Misuse::Help(_))), "{line}");
    }
    assert!(matches!(read(&words("bay --json")), Err(Misuse::Error { json: true, .. })));
}

#[test]
fn a_huge_or_hostile_word_stays_short_and_harmless() {
    for word in ["x".repeat(100_000), "\u{1b}[31m".repeat(1000), "\u{202e}a".to_owned(), String::new()] {
        for line in
            [&["bay", word.as_str()][..], &["bay", "show", "a", &word], &["bay", "up", &format!("--{word}")]]
        {
            let line: Vec<OsString> = line.iter().map(OsString::from).collect();
            let Err(Misuse::Error { error, .. }) = read(&line) else { continue };
            assert!(error.message.chars().count() + error.next.chars().count() < 1500, "{}", error.next);
        }
    }
}
