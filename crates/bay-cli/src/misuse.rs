//! A command line that the grammar refuses, reported like every other error: a code, the reason, and what to do next.
//!
//! ```text
//!  the line ──► clap refuses it ──► a word of another tool that is a command here ──► the line with that command
//!                                └► anything else ──► the nearest command or flag, with the person's own arguments
//! ```
//!
//! Requested help and version texts also arrive as errors of clap. They are printed unchanged.

use std::ffi::OsString;
use std::process::ExitCode;

use bay_text::clip;
use bay_text::shell;
use bay_types::{ApiError, BayName};
use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::output;
use crate::typed_words::{self, Meaning};

/// Most characters of a refused argument, or of a proposed line, that an error repeats.
const SHOWN: usize = 300;
/// A word of at most so many characters is near a command only with one difference. Otherwise most short names of bays
/// would be.
const SHORT: usize = 4;
/// Fewer characters are no beginning of a command.
const LEAST_BEGINNING: usize = 3;
/// The exit code of an invalid command line.
const EXIT: u8 = 2;

/// An invalid command line, or a request for help.
#[derive(Debug)]
pub(crate) enum Misuse {
    /// Help or the version, or the help that stands for a missing command.
    Help(clap::Error),
    Error {
        error: ApiError,
        json: bool,
    },
}

impl Misuse {
    /// Explains why the grammar refused a line, and proposes a better one.
    pub(crate) fn new(error: clap::Error, mut grammar: Command, line: &[OsString]) -> Self {
        let json = line.iter().take_while(|word| *word != "--").any(|word| word == "--json");
        if !error.use_stderr() {
            return Self::Help(error);
        }
        // Adds the common options to every command.
        grammar.build();
        let line: Vec<String> = line.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        // `bay` alone is no mistake: it shows what there is.
        if line.len() <= 1 && !json && error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
            return Self::Help(error);
        }
        Self::Error { error: explain(&error, &grammar, &line), json }
    }

    pub(crate) fn report(&self) -> ExitCode {
        match self {
            Self::Help(error) => {
                let _ = error.print();
                ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(EXIT))
            }
            Self::Error { error, json } => ExitCode::from(output::report(&error.clone().into(), *json)),
        }
    }
}

/// The line with the command of the grammar in place of a word that means the same, if it has such a word.
pub(crate) fn translated(mut grammar: Command, line: &[OsString]) -> Option<Vec<OsString>> {
    grammar.build();
    let words: Vec<String> = line.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let reached = reach(&grammar, &words);
    let at = reached.at?;
    let after = &words[at + 1..];
    let meant = if reached.path.is_empty() || reached.path == ["help"] {
        match typed_words::meaning(&words[at], after)? {
            Meaning::Same(command) => command,
            Meaning::Instead { .. } => return None,
        }
    } else {
        typed_words::inner(&words[at], |command| reached.command.find_subcommand(command).is_some())?
    };
    let mut meant: Vec<OsString> = meant.split(' ').map(OsString::from).collect();
    let mut translated = line[..at].to_vec();
    translated.append(&mut meant);
    translated.extend_from_slice(&line[at + 1..]);
    Some(translated)
}

/// How far the commands of a line are known.
struct Reached<'a> {
    /// The last known command.
    command: &'a Command,
    /// The names of the known commands.
    path: Vec<&'a str>,
    /// The first word after them that is no flag, as an index into the line.
    at: Option<usize>,
}

/// Follows the commands of a line through a built grammar.
fn reach<'a>(grammar: &'a Command, line: &[String]) -> Reached<'a> {
    let mut reached = Reached { command: grammar, path: Vec::new(), at: None };
    let mut at = 1;
    while let Some(word) = line.get(at) {
        if word == "--" {
            break;
        }
        if word.len() > 1 && word.starts_with('-') {
            at += if takes_value(reached.command, word) { 2 } else { 1 };
            continue;
        }
        let Some(inner) = reached.command.find_subcommand(word) else {
            reached.at = Some(at);
            break;
        };
        reached.command = inner;
        reached.path.push(inner.get_name());
        at += 1;
    }
    reached
}

/// Whether a flag's value is the next word.
fn takes_value(command: &Command, flag: &str) -> bool {
    let known = command.get_arguments().find(|argument| match flag.strip_prefix("--") {
        Some(long) => argument.get_long() == Some(long),
        None => argument
            .get_short()
            .is_some_and(|short| flag.strip_prefix('-') == Some(short.to_string().as_str())),
    });
    known.is_some_and(|argument| argument.get_action().takes_values())
}

fn explain(error: &clap::Error, grammar: &Command, line: &[String]) -> ApiError {
    let reached = reach(grammar, line);
    let path = [&["bay"], &reached.path[..]].concat().join(" ");
    if reached.command.has_subcommands()
        && let Some(at) = reached.at
        && matches!(error.kind(), ErrorKind::InvalidSubcommand | ErrorKind::UnknownArgument)
        && unexpected(error).is_none_or(|found| found == line[at])
    {
        return unknown_command(grammar, &reached, at, &path, line);
    }
    if matches!(
        error.kind(),
        ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    ) {
        return missing_command(&reached, &path);
    }
    let next = match error.kind() {
        ErrorKind::MissingRequiredArgument => missing_arguments(error, line),
        ErrorKind::UnknownArgument => better_argument(error, grammar, &reached, line),
        ErrorKind::InvalidValue => better_value(error, line),
        _ => None,
    };
    let help = format!("`{path} --help` shows the usage");
    let next = next.map_or_else(|| help.clone(), |next| format!("{next}; {help}"));
    bay_client::invalid(reason(error), next)
}

/// What clap says, in one line: its first paragraph, without the usage.
fn reason(error: &clap::Error) -> String {
    let said = error.render().to_string();
    let first = said.split("\n\n").next().unwrap_or_default();
    let first = first.split_whitespace().collect::<Vec<_>>().join(" ");
    clip(first.strip_prefix("error: ").unwrap_or(&first), SHOWN)
}

/// A word that is no command at its place.
fn unknown_command(
    grammar: &Command,
    reached: &Reached<'_>,
    at: usize,
    path: &str,
    line: &[String],
) -> ApiError {
    let word = &line[at];
    let after = &line[at + 1..];
    let wrong = format!("there is no command `{path} {}`", clip(&shell::quoted(word), SHOWN));
    let help = format!("`{path} --help` lists the commands");
    if reached.path.is_empty()
        && let Some(Meaning::Instead { command, why }) = typed_words::meaning(word, after)
    {
        let next = clip(&typed_words::filled(command, after), SHOWN);
        return bay_client::invalid(format!("{wrong}: {why}"), format!("`{next}`; {help}"));
    }
    let near = nearest(reached, word);
    let proposed = match near {
        Some((1, name)) => Some(instead_of(reached, line, at, name)),
        _ => swapped(grammar, reached, line, at)
            .or_else(|| near.map(|(_, name)| instead_of(reached, line, at, name))),
    };
    let next = match proposed {
        Some(proposed) => format!("`{}` is what was probably meant; {help}", clip(&proposed, SHOWN)),
        None if reached.path.is_empty() => format!("{}{help}", in_a_bay(word, after)),
        None => help,
    };
    bay_client::invalid(wrong, next)
}

/// If the word is neither a command nor near one, it may be a bay, or a command to run in a bay.
fn in_a_bay(word: &str, after: &[String]) -> String {
    if after.is_empty() && word.parse::<BayName>().is_ok() {
        return format!("if {word} is a bay, `bay shell {word}` enters it; ");
    }
    let line = shell::command(&[&[word.to_owned()], after].concat());
    format!("`bay exec NAME -- {}` runs that in a bay; ", clip(&line, SHOWN))
}

/// The command that is nearest to a word, and the number of differences. Words of other tools count too.
fn nearest<'a>(reached: &Reached<'a>, word: &str) -> Option<(usize, &'a str)> {
    let commands = reached.command.get_subcommands().filter(|command| !command.is_hide_set());
    let names = commands.flat_map(|command| {
        std::iter::once(command.get_name())
            .chain(command.get_visible_aliases().filter(|alias| alias.len() > 2))
    });
    // Most short words are near another tool's word.
    let long = word.chars().count() > SHORT;
    let others = typed_words::all()
        .filter(|_| long)
        .map(|word| -> &'a str { word })
        .filter(|_| reached.path.is_empty());
    let lower = word.to_lowercase();
    let farthest = if word.chars().count() <= SHORT { 1 } else { 2 };
    let near = names.chain(others).map(|name| {
        let begins = lower.len() >= LEAST_BEGINNING && name.starts_with(&lower);
        let differences = strsim::damerau_levenshtein(&lower, name);
        if begins { (1, 0, name) } else { (differences.max(1), differences, name) }
    });
    // Of several that are as near, one with the same first letter.
    let first = |name: &str| name.chars().next() != lower.chars().next();
    let best = near
        .filter(|(rank, _, _)| *rank <= farthest)
        .min_by_key(|(rank, real, name)| (*rank, first(name), *real));
    best.map(|(rank, _, name)| (rank, name))
}

/// The line with another command at one place.
fn instead_of(reached: &Reached<'_>, line: &[String], at: usize, name: &str) -> String {
    let after = &line[at + 1..];
    if reached.path.is_empty() {
        match typed_words::meaning(name, after) {
            Some(Meaning::Instead { command, .. }) => return typed_words::filled(command, after),
            Some(Meaning::Same(command)) => return with(line, at, &[command]),
            None => {}
        }
    }
    with(line, at, &[name])
}

/// The line with other words at one place. Words of the grammar need no quotes.
fn with(line: &[String], at: usize, words: &[&str]) -> String {
    let mut parts = vec!["bay".to_owned()];
    parts.extend(line[1..at].iter().map(|word| shell::quoted(word)));
    parts.extend(words.iter().map(|word| (*word).to_owned()));
    parts.extend(line[at + 1..].iter().map(|word| shell::quoted(word)));
    parts.join(" ")
}

/// The line with the word and its next one exchanged, if the grammar accepts that: `bay web exec ls` is
/// `bay exec web ls`.
fn swapped(grammar: &Command, reached: &Reached<'_>, line: &[String], at: usize) -> Option<String> {
    let next = line.get(at + 1)?;
    let other = reached.command.find_subcommand(next).map(Command::get_name).or_else(|| {
        let known = reached.path.is_empty().then(|| typed_words::meaning(next, &line[at..=at]))?;
        match known? {
            Meaning::Same(command) => Some(command),
            Meaning::Instead { .. } => None,
        }
    })?;
    let mut better = line.to_vec();
    better.remove(at + 1);
    better.splice(at..at, other.split(' ').map(str::to_owned));
    accepted(grammar, &better).then(|| shell::command(&[&["bay".to_owned()], &better[1..]].concat()))
}

fn accepted(grammar: &Command, line: &[String]) -> bool {
    grammar.clone().try_get_matches_from(line).is_ok()
}

fn missing_command(reached: &Reached<'_>, path: &str) -> ApiError {
    if reached.path.is_empty() {
        let next = "`bay up` makes a bay for this directory, `bay ls` lists the bays; `bay --help` lists the commands";
        return bay_client::invalid("a command is missing", next);
    }
    let commands = reached.command.get_subcommands().filter(|command| !command.is_hide_set());
    let names: Vec<&str> = commands.map(Command::get_name).filter(|name| *name != "help").collect();
    let lists =
        if names.contains(&"ls") { format!("`{path} ls` lists what there is; ") } else { String::new() };
    bay_client::invalid(
        format!("`{path}` needs one of its commands: {}", names.join(", ")),
        format!("{lists}`{path} --help` describes them"),
    )
}

/// The line with the names of what it lacks.
fn missing_arguments(error: &clap::Error, line: &[String]) -> Option<String> {
    let Some(ContextValue::Strings(missing)) = error.get(ContextKind::InvalidArg) else { return None };
    let plain = |name: &String| name.replace(['<', '>', '[', ']'], "").replace("...", "");
    let missing: Vec<String> = missing.iter().map(plain).collect();
    let line = shell::command(&[&["bay".to_owned()], line.get(1..).unwrap_or_default()].concat());
    let whole = clip(&format!("{line} {}", missing.join(" ")), SHOWN);
    let what = match missing.first().map(String::as_str) {
        Some("NAME" | "BAY") => "; `bay ls` lists the bays",
        Some("EXEC") => "; `bay execs ls NAME` lists the commands of a bay",
        Some("CHECKPOINT") => "; `bay checkpoints ls NAME` lists the checkpoints of a bay",
        Some("IMAGE") => "; `bay images ls` lists the images",
        _ => "",
    };
    Some(format!("write `{whole}`{what}"))
}

/// The argument that clap did not expect.
fn unexpected(error: &clap::Error) -> Option<&str> {
    let kind = [ContextKind::InvalidSubcommand, ContextKind::InvalidArg];
    kind.into_iter().find_map(|kind| match error.get(kind) {
        Some(ContextValue::String(found)) => Some(found.as_str()),
        _ => None,
    })
}

/// The line with the flag that was probably meant, or with its commands in the right order.
fn better_argument(
    error: &clap::Error,
    grammar: &Command,
    reached: &Reached<'_>,
    line: &[String],
) -> Option<String> {
    let found = unexpected(error)?;
    let at = line.iter().position(|word| word == found || word.split('=').next() == Some(found))?;
    if let Some(ContextValue::String(flag)) = error.get(ContextKind::SuggestedArg) {
        let value = line[at].split_once('=').map(|(_, value)| format!("={value}")).unwrap_or_default();
        let better = with(line, at, &[&shell::quoted(&format!("{flag}{value}"))]);
        return Some(format!("`{}` is what was probably meant", clip(&better, SHOWN)));
    }
    // `bay ls images` is `bay images ls`.
    let [only] = reached.path[..] else { return None };
    let verb = line.iter().skip(1).position(|word| word == only)? + 1;
    let mut better = line.to_vec();
    let noun = better.remove(at);
    let noun = match typed_words::meaning(&noun, &[]) {
        Some(Meaning::Same(command)) if grammar.find_subcommand(&noun).is_none() => command.to_owned(),
        _ => noun,
    };
    better.insert(verb.min(better.len()), noun);
    accepted(grammar, &better).then(|| {
        let better = shell::command(&[&["bay".to_owned()], &better[1..]].concat());
        format!("`{}` is what was probably meant", clip(&better, SHOWN))
    })
}

/// The line with the value that was probably meant.
fn better_value(error: &clap::Error, line: &[String]) -> Option<String> {
    let Some(ContextValue::String(value)) = error.get(ContextKind::SuggestedValue) else { return None };
    let Some(ContextValue::String(found)) = error.get(ContextKind::InvalidValue) else { return None };
    let at = line.iter().position(|word| word == found)?;
    Some(format!("`{}` is what was probably meant", clip(&with(line, at, &[value]), SHOWN)))
}
