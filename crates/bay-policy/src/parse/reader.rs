//! Values of a parsed file with their positions, and the list of problems.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{MAX_PROBLEMS, MAX_VALUES};
use crate::canonical::Refusal;
use crate::problem::{Problem, Problems};

pub(super) type Value<'t> = Spanned<DeValue<'t>>;

/// A piece of text and its position.
#[derive(Debug, Clone)]
pub(super) struct Word {
    pub(super) text: String,
    pub(super) at: usize,
}

/// The file and the problems found in it so far.
pub(super) struct Reader<'t> {
    file: &'t str,
    text: &'t str,
    /// The index at which each line begins.
    lines: Vec<usize>,
    problems: Vec<Problem>,
}

impl<'t> Reader<'t> {
    pub(super) fn new(file: &'t str, text: &'t str) -> Self {
        let lines = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        Self { file, text, lines, problems: Vec::new() }
    }

    pub(super) fn file(&self) -> &'t str {
        self.file
    }

    /// Line and column of a byte, both from 1.
    pub(super) fn place(&self, at: usize) -> (usize, usize) {
        let line = self.lines.partition_point(|begin| *begin <= at);
        let begin = line.checked_sub(1).and_then(|line| self.lines.get(line)).copied().unwrap_or(0);
        let column = self.text.get(begin..at).map_or(0, |before| before.chars().count()) + 1;
        (line, column)
    }

    pub(super) fn problem(
        &mut self,
        at: usize,
        what: impl Into<String>,
        why: impl Into<String>,
        next: impl Into<String>,
    ) {
        if self.problems.len() < MAX_PROBLEMS {
            let (line, column) = self.place(at);
            let file = self.file.to_owned();
            self.problems.push(Problem {
                file,
                line,
                column,
                what: what.into(),
                why: why.into(),
                next: next.into(),
            });
        }
    }

    pub(super) fn refusal(&mut self, at: usize, what: impl Into<String>, refusal: &Refusal) {
        self.problem(at, what, refusal.why.clone(), refusal.next.clone());
    }

    /// Adds the problems of another file, a preset.
    pub(super) fn adopt(&mut self, problems: Problems) {
        self.problems.extend(problems.0);
        self.problems.truncate(MAX_PROBLEMS);
    }

    pub(super) fn has_problems(&self) -> bool {
        !self.problems.is_empty()
    }

    pub(super) fn finish<T>(mut self, value: T) -> Result<T, Problems> {
        if self.problems.is_empty() {
            return Ok(value);
        }
        self.problems.sort_by_key(|problem| (problem.line, problem.column));
        Err(Problems(self.problems))
    }

    /// Reports a key that is unknown in this table.
    pub(super) fn unknown_key(&mut self, key: &Spanned<toml::de::DeString<'t>>, known: &[&str], of: &str) {
        let name = key.get_ref();
        let near = known
            .iter()
            .map(|known| (strsim::damerau_levenshtein(known, name), known))
            .filter(|(distance, _)| *distance <= 2)
            .min();
        let next = match near {
            Some((_, known)) => format!("did you mean `{known}`?"),
            None => format!("use one of {}", known.join(", ")),
        };
        self.problem(
            key.span().start,
            format!("unknown key {}", quoted(name)),
            format!("{of} has no such key"),
            next,
        );
    }

    fn wrong_type(&mut self, key: &str, value: &Value<'_>, wanted: &str) {
        let found = value.get_ref().type_str();
        self.problem(
            value.span().start,
            format!("wrong value of `{key}`"),
            format!("it is of type {found}"),
            format!("write {wanted}"),
        );
    }

    pub(super) fn string(&mut self, key: &str, value: &Value<'_>) -> Option<Word> {
        match value.get_ref().as_str() {
            Some(text) => Some(Word { text: text.to_owned(), at: value.span().start }),
            None => {
                self.wrong_type(key, value, "a string");
                None
            }
        }
    }

    pub(super) fn boolean(&mut self, key: &str, value: &Value<'_>) -> Option<bool> {
        let found = value.get_ref().as_bool();
        if found.is_none() {
            self.wrong_type(key, value, "true or false");
        }
        found
    }

    /// One string or a list of strings.
    pub(super) fn strings(&mut self, key: &str, value: &Value<'_>) -> Option<Vec<Word>> {
        let Some(array) = value.get_ref().as_array() else {
            return self.string(key, value).map(|word| vec![word]);
        };
        if array.is_empty() || array.len() > MAX_VALUES {
            self.problem(
                value.span().start,
                format!("wrong value of `{key}`"),
                format!("the list has {} entries", array.len()),
                format!("give 1 to {MAX_VALUES}, or leave the key out"),
            );
            return None;
        }
        array.iter().map(|value| self.string(key, value)).collect()
    }

    /// Whole numbers and strings, one or a list, as text.
    pub(super) fn numbers_or_strings(&mut self, key: &str, value: &Value<'_>) -> Option<Vec<Word>> {
        let mut one = |value: &Value<'_>| match value.get_ref().as_integer() {
            Some(number) if number.radix() == 10 => {
                Some(Word { text: number.as_str().to_owned(), at: value.span().start })
            }
            _ => self.string(key, value),
        };
        match value.get_ref().as_array() {
            None => one(value).map(|word| vec![word]),
            Some(array) if array.is_empty() || array.len() > MAX_VALUES => {
                self.wrong_type(key, value, &format!("1 to {MAX_VALUES} values"));
                None
            }
            Some(array) => array.iter().map(one).collect(),
        }
    }

    pub(super) fn table<'v>(&mut self, key: &str, value: &'v Value<'t>) -> Option<&'v DeTable<'t>> {
        let table = value.get_ref().as_table();
        if table.is_none() {
            self.wrong_type(key, value, "a table");
        }
        table
    }

    /// The tables of `[[key]]`.
    pub(super) fn tables<'v>(
        &mut self,
        key: &str,
        value: &'v Value<'t>,
    ) -> Vec<(Range<usize>, &'v DeTable<'t>)> {
        let Some(array) = value.get_ref().as_array() else {
            self.wrong_type(key, value, &format!("[[{key}]]"));
            return Vec::new();
        };
        let mut tables = Vec::with_capacity(array.len());
        for value in array {
            if let Some(table) = self.table(key, value) {
                tables.push((value.span(), table));
            }
        }
        tables
    }

    /// One of several known words.
    pub(super) fn choice<T: Copy>(&mut self, key: &str, word: &Word, choices: &[(&str, T)]) -> Option<T> {
        let found = choices.iter().find(|(name, _)| *name == word.text).map(|(_, value)| *value);
        if found.is_none() {
            let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
            self.problem(
                word.at,
                format!("wrong value of `{key}`"),
                format!("{} is not one of its values", quoted(&word.text)),
                format!("use {}", names.join(", ")),
            );
        }
        found
    }
}

pub(super) fn quoted(text: &str) -> String {
    crate::canonical::refusal::Quoted(text).to_string()
}
