//! The results side by side.

use std::cmp::Ordering;

use comfy_table::{Attribute, Cell, CellAlignment, Color};

use super::counts::{Of, TestCounts};
use super::run::Row;
use crate::output::{colours, grouped, size, table};
use bay_text::clip;
use bay_text::escape::{one_line, visible};

/// Most characters of a reason in the table. The rest is printed below it.
const REASON: usize = 60;
/// Follows the best value of a column.
const BEST: &str = " *";
/// Follows a failure when not all bays ended with the same code.
const DIFFERS: &str = " !";

/// A cell of the comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Shown {
    pub(super) text: String,
    pub(super) is_number: bool,
    pub(super) mark: Mark,
}

/// How a cell stands out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mark {
    Plain,
    /// The best value of its column.
    Best,
    Succeeded,
    Failed,
    /// A failure when not all bays ended with the same code.
    Differs,
}

/// The table, for a terminal and for a page. TESTS, DIFF and WHY NOT are left out if no bay has a value in them. Texts
/// of a bay are on one line and without control characters.
#[derive(Debug)]
pub(super) struct Columns {
    pub(super) header: Vec<&'static str>,
    pub(super) lines: Vec<Vec<Shown>>,
}

pub(super) fn columns(rows: &[Row]) -> Columns {
    let some = |has: fn(&Row) -> bool| rows.iter().any(has);
    let (tests, diff, errors) =
        (some(|row| row.tests.is_some()), some(|row| row.diff.is_some()), some(|row| row.error.is_some()));
    let mut header = vec!["BAY", "EXEC", "EXIT"];
    header.extend(tests.then_some("TESTS"));
    header.extend(diff.then_some("DIFF"));
    header.extend(["TIME", "CPU", "MEMORY", "OUTPUT"]);
    header.extend(errors.then_some("WHY NOT"));
    let differ = exits_differ(rows);
    let best_tests = best(rows, |row| row.tests.map(score), |a, b| b.cmp(a));
    let time = best(rows, |row| row.wall_s, f64::total_cmp);
    let cpu = best(rows, |row| row.cpu_s, f64::total_cmp);
    let memory = best(rows, |row| row.memory_peak_bytes, u64::cmp);
    let any_succeeded = rows.iter().any(succeeded);
    let line = |row: &Row| {
        let compared = is_compared(row, any_succeeded);
        let mut cells = vec![words(visible(&row.bay)), number(row.number), exit(row, differ)];
        if tests {
            cells.push(value(
                row.tests.map(count_words),
                best_tests,
                row.tests.filter(|_| compared).map(score),
            ));
        }
        if diff {
            let words = row.diff.map(|diff| {
                format!("{} +{} -{}", crate::output::count(diff.files, "file"), diff.added, diff.removed)
            });
            cells.push(value::<()>(words, None, None));
        }
        cells.push(value(row.wall_s.map(seconds), time, row.wall_s.filter(|_| compared)));
        cells.push(value(row.cpu_s.map(seconds), cpu, row.cpu_s.filter(|_| compared)));
        cells.push(value(
            row.memory_peak_bytes.map(size),
            memory,
            row.memory_peak_bytes.filter(|_| compared),
        ));
        cells.push(value::<()>(row.output_bytes.map(size), None, None));
        if errors {
            let why = row.error.as_ref().map(|error| clip(&one_line(&error.message), REASON));
            cells.push(words(why.unwrap_or_default()));
        }
        cells
    };
    Columns { header, lines: rows.iter().map(line).collect() }
}

/// The table for a terminal.
pub(super) fn render(rows: &[Row]) -> String {
    let Columns { header, lines } = columns(rows);
    let has_best = |at: usize| lines.iter().any(|line| line[at].mark == Mark::Best);
    let marked: Vec<bool> = (0..header.len()).map(has_best).collect();
    let mut table = table::table(&header);
    for line in lines {
        table.add_row(line.iter().zip(&marked).map(|(shown, marked)| cell(shown, *marked)));
    }
    table.trim_fmt()
}

/// A cell of the terminal's table. If its column has a mark, unmarked values are padded by the mark's width.
fn cell(shown: &Shown, in_marked_column: bool) -> Cell {
    let suffix = match shown.mark {
        Mark::Best => BEST.to_owned(),
        Mark::Differs => DIFFERS.to_owned(),
        Mark::Plain | Mark::Succeeded | Mark::Failed if in_marked_column => " ".repeat(BEST.len()),
        Mark::Plain | Mark::Succeeded | Mark::Failed => String::new(),
    };
    let cell = Cell::new(format!("{}{suffix}", shown.text));
    let cell = if shown.is_number { cell.set_alignment(CellAlignment::Right) } else { cell };
    match shown.mark {
        _ if !colours() => cell,
        Mark::Plain => cell,
        Mark::Best => cell.add_attribute(Attribute::Bold).fg(Color::Green),
        Mark::Succeeded => cell.fg(Color::Green),
        Mark::Failed | Mark::Differs => cell.fg(Color::Red),
    }
}

/// One line: which bays succeeded, which failed, and which did not run to an end.
pub(super) fn verdict(rows: &[Row]) -> String {
    let named = |wanted: &dyn Fn(&Row) -> bool| {
        rows.iter().filter(|row| wanted(row)).map(|row| visible(&row.bay)).collect::<Vec<_>>().join(", ")
    };
    let mut parts = Vec::new();
    for (how, list) in [
        ("succeeded", named(&|row| row.exit_code == Some(0))),
        ("failed", named(&|row| row.exit_code.is_some_and(|code| code != 0))),
        ("did not run to an end", named(&|row| row.exit_code.is_none())),
    ] {
        if !list.is_empty() {
            parts.push(format!("{how}: {list}"));
        }
    }
    parts.join("; ")
}

/// What DIFF does not count, in all bays together.
pub(super) fn left_out(rows: &[Row]) -> Option<String> {
    let ignored: u64 = rows.iter().filter_map(|row| row.diff).map(|diff| diff.ignored).sum();
    let files = if ignored == 1 { "file" } else { "files" };
    (ignored > 0).then(|| format!("{} ignored {files} not in DIFF: --ignored counts them", grouped(ignored)))
}

/// Whether the bays ended with different exit codes.
fn exits_differ(rows: &[Row]) -> bool {
    let mut exits = rows.iter().filter_map(|row| row.exit_code);
    let first = exits.next();
    exits.any(|exit| Some(exit) != first)
}

/// The best value of the bays that succeeded, or of all bays if none did. If all share a value, none is best.
fn best<T: Copy + PartialEq>(
    rows: &[Row],
    value: impl Fn(&Row) -> Option<T>,
    order: impl Fn(&T, &T) -> Ordering,
) -> Option<T> {
    let comparable: Vec<T> = compared(rows).filter_map(value).collect();
    let best = comparable.iter().copied().min_by(|a, b| order(a, b))?;
    comparable.iter().any(|other| *other != best).then_some(best)
}

fn compared(rows: &[Row]) -> impl Iterator<Item = &Row> {
    let any_succeeded = rows.iter().any(succeeded);
    rows.iter().filter(move |row| is_compared(row, any_succeeded))
}

fn succeeded(row: &Row) -> bool {
    row.exit_code == Some(0)
}

/// Whether a value of this bay may be the best.
fn is_compared(row: &Row, any_succeeded: bool) -> bool {
    succeeded(row) || (row.exit_code.is_some() && !any_succeeded)
}

/// Fewer failures first, then more successes: a larger score is better.
fn score(counts: TestCounts) -> (std::cmp::Reverse<u64>, u64) {
    (std::cmp::Reverse(counts.failed), counts.passed)
}

fn count_words(counts: TestCounts) -> String {
    let mut parts = vec![format!("{} passed", counts.passed)];
    if counts.failed > 0 {
        parts.push(format!("{} failed", counts.failed));
    }
    if counts.skipped > 0 {
        parts.push(format!("{} skipped", counts.skipped));
    }
    let of = if counts.of == Of::Packages { " (packages)" } else { "" };
    format!("{}{of}", parts.join(", "))
}

fn words(text: String) -> Shown {
    Shown { text, is_number: false, mark: Mark::Plain }
}

fn number(number: Option<u64>) -> Shown {
    let text = number.map_or_else(|| "-".to_owned(), |number| number.to_string());
    Shown { text, is_number: true, mark: Mark::Plain }
}

fn exit(row: &Row, differ: bool) -> Shown {
    let Some(exit) = row.exit else { return words("-".to_owned()) };
    let code = exit.shell_code();
    let text = match (exit.reason, exit.code) {
        (bay_types::exec::EndReason::Exited, Some(code)) => code.to_string(),
        (reason, _) => format!("{code} ({reason})"),
    };
    let mark = match code {
        0 => Mark::Succeeded,
        _ if differ => Mark::Differs,
        _ => Mark::Failed,
    };
    Shown { text, is_number: false, mark }
}

/// A value, marked if it is the best.
fn value<T: Copy + PartialEq>(text: Option<String>, best: Option<T>, own: Option<T>) -> Shown {
    let is_best = text.is_some() && best.is_some() && best == own;
    Shown {
        text: text.unwrap_or_else(|| "-".to_owned()),
        is_number: true,
        mark: if is_best { Mark::Best } else { Mark::Plain },
    }
}

/// Seconds with as many digits as are significant.
pub(super) fn seconds(seconds: f64) -> String {
    match seconds {
        s if s < 1.0 => format!("{:.0} ms", s * 1000.0),
        s if s < 100.0 => format!("{s:.2} s"),
        s => format!("{s:.0} s"),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use bay_types::exec::{EndReason, Exit};
    use bay_types::{ApiError, ErrorCode};

    use super::*;

    pub(in crate::commands::compare) fn row(bay: &str, code: i32, wall_s: f64, passed: u64) -> Row {
        let exit = Exit { reason: EndReason::Exited, code: Some(code), signal: None };
        let error = ApiError::new(ErrorCode::BayState, "", "");
        Row {
            number: Some(4),
            exit: Some(exit),
            exit_code: Some(exit.shell_code()),
            tests: Some(TestCounts { passed, failed: u64::from(code != 0), skipped: 0, of: Of::Tests }),
            wall_s: Some(wall_s),
            memory_peak_bytes: Some(1 << 20),
            output_bytes: Some(12),
            error: None,
            ..Row::without_result(bay, error)
        }
    }

    fn line<'a>(text: &'a str, bay: &str) -> &'a str {
        text.lines().find(|line| line.starts_with(bay)).unwrap()
    }

    #[test]
    fn the_best_of_those_that_succeeded_is_marked() {
        let text = render(&[row("one", 0, 2.0, 5), row("two", 0, 1.5, 5), row("three", 1, 0.1, 4)]);
        assert!(line(&text, "two").contains("1.50 s *"), "{text}");
        assert!(!line(&text, "one").contains('*'), "{text}");
        assert!(!line(&text, "three").contains('*'), "the fastest failure is no success: {text}");
        let text = render(&[row("one", 0, 2.0, 5), row("two", 0, 1.5, 5), row("three", 1, 1.5, 4)]);
        assert!(
            line(&text, "two").contains('*') && !line(&text, "three").contains('*'),
            "nor an equal one: {text}"
        );
        assert!(!text.contains("1.0 MiB *"), "what all share is not better: {text}");
    }

    #[test]
    fn an_exit_that_differs_from_the_others_is_marked() {
        let text = render(&[row("one", 0, 1.0, 5), row("two", 101, 1.0, 4)]);
        assert!(line(&text, "two").contains("101 !") && !line(&text, "one").contains('!'), "{text}");
        let text = render(&[row("one", 1, 1.0, 5), row("two", 1, 1.0, 4)]);
        assert!(!text.contains('!'), "{text}");
    }

    #[test]
    fn a_bay_that_could_not_run_the_command_has_a_row_with_the_reason() {
        let error = ApiError::new(ErrorCode::BayState, "the bay two is stopped\u{1b}[2J", "start it");
        let rows = [row("one", 0, 1.0, 5), Row::without_result("two", error)];
        let text = render(&rows);
        assert!(line(&text, "two").contains("the bay two is stopped"), "{text}");
        assert!(!text.contains('\u{1b}'));
        assert_eq!(verdict(&rows), "succeeded: one; did not run to an end: two");
    }

    #[test]
    fn ignored_files_of_all_bays_are_counted_in_one_line() {
        let diff = |ignored| Some(super::super::run::DiffSize { files: 1, added: 2, removed: 3, ignored });
        let rows = [1000, 204].map(|ignored| Row { diff: diff(ignored), ..row("one", 0, 1.0, 5) });
        assert_eq!(left_out(&rows).unwrap(), "1,204 ignored files not in DIFF: --ignored counts them");
        assert_eq!(left_out(&[row("one", 0, 1.0, 5)]), None);
    }

    #[test]
    fn empty_columns_are_left_out() {
        let mut one = row("one", 0, 1.0, 5);
        one.tests = None;
        let text = render(&[one]);
        assert!(!text.contains("TESTS") && !text.contains("DIFF") && !text.contains("WHY NOT"), "{text}");
    }
}
