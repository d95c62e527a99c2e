//! The results side by side.

use std::cmp::Ordering;

use comfy_table::{Attribute, Cell, CellAlignment, Color};

use super::counts::{Of, TestCounts};
use super::run::Row;
use crate::output::{colours, size, table};
use bay_text::clip;
use bay_text::escape::{one_line, visible};

/// Most characters of a reason in the table. The rest is printed below it.
const REASON: usize = 60;
/// Follows the best value of a column.
const BEST: &str = " *";
/// Follows an exit that differs from the successful ones.
const DIFFERS: &str = " !";

/// The table.
pub(super) fn render(rows: &[Row]) -> String {
    let some = |has: fn(&Row) -> bool| rows.iter().any(has);
    let (tests, diff, errors) =
        (some(|row| row.tests.is_some()), some(|row| row.diff.is_some()), some(|row| row.error.is_some()));
    let mut header = vec!["BAY", "EXEC", "EXIT"];
    header.extend(tests.then_some("TESTS"));
    header.extend(diff.then_some("DIFF"));
    header.extend(["TIME", "CPU", "MEMORY", "OUTPUT"]);
    header.extend(errors.then_some("WHY NOT"));
    let mut table = table::table(&header);
    let differ = exits_differ(rows);
    let best_tests = best(rows, |row| row.tests.map(score), |a, b| b.cmp(a));
    let time = best(rows, |row| row.wall_s, f64::total_cmp);
    let cpu = best(rows, |row| row.cpu_s, f64::total_cmp);
    let memory = best(rows, |row| row.memory_peak_bytes, u64::cmp);
    for row in rows {
        let mut cells = vec![Cell::new(visible(&row.bay)), number(row.number), exit(row, differ)];
        if tests {
            cells.push(value(row.tests.map(count_words), row, best_tests, row.tests.map(score)));
        }
        if diff {
            let words = row.diff.map(|diff| {
                format!("{} +{} -{}", crate::output::count(diff.files, "file"), diff.added, diff.removed)
            });
            cells.push(value::<()>(words, row, None, None));
        }
        cells.push(value(row.wall_s.map(seconds), row, time, row.wall_s));
        cells.push(value(row.cpu_s.map(seconds), row, cpu, row.cpu_s));
        cells.push(value(row.memory_peak_bytes.map(size), row, memory, row.memory_peak_bytes));
        cells.push(value::<()>(row.output_bytes.map(size), row, None, None));
        if errors {
            let why = row.error.as_ref().map(|error| clip(&one_line(&error.message), REASON));
            cells.push(Cell::new(why.unwrap_or_default()));
        }
        table.add_row(cells);
    }
    table.trim_fmt()
}

/// What the table does not show.
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

/// Whether some bays succeeded and some failed, or bays failed in different ways.
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
    let any_succeeded = rows.iter().any(|row| row.exit_code == Some(0));
    rows.iter().filter(move |row| match row.exit_code {
        Some(code) => code == 0 || !any_succeeded,
        None => false,
    })
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

fn number(number: Option<u64>) -> Cell {
    right(Cell::new(number.map_or_else(|| "-".to_owned(), |number| number.to_string())))
}

fn exit(row: &Row, differ: bool) -> Cell {
    let Some(exit) = row.exit else { return Cell::new("-") };
    let code = exit.shell_code();
    let how = match (exit.reason, exit.code) {
        (bay_types::exec::EndReason::Exited, Some(code)) => code.to_string(),
        (reason, _) => format!("{code} ({reason})"),
    };
    let cell = Cell::new(format!("{how}{}", if differ && code != 0 { DIFFERS } else { "" }));
    match (colours(), code) {
        (false, _) => cell,
        (true, 0) => cell.fg(Color::Green),
        (true, _) => cell.fg(Color::Red),
    }
}

/// A value, marked if it is the best and its row is compared. Unmarked values are padded by the width of the mark.
fn value<T: Copy + PartialEq>(text: Option<String>, row: &Row, best: Option<T>, own: Option<T>) -> Cell {
    let free = if best.is_some() { " ".repeat(BEST.len()) } else { String::new() };
    let Some(text) = text else { return right(Cell::new(format!("-{free}"))) };
    if best.is_none() || best != own || row.exit_code.is_none() {
        return right(Cell::new(format!("{text}{free}")));
    }
    let cell = right(Cell::new(format!("{text}{BEST}")));
    if colours() { cell.add_attribute(Attribute::Bold).fg(Color::Green) } else { cell }
}

fn right(cell: Cell) -> Cell {
    cell.set_alignment(CellAlignment::Right)
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
mod tests {
    use bay_types::exec::{EndReason, Exit};
    use bay_types::{ApiError, ErrorCode};

    use super::*;

    fn row(bay: &str, code: i32, wall_s: f64, passed: u64) -> Row {
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
    fn empty_columns_are_left_out() {
        let mut one = row("one", 0, 1.0, 5);
        one.tests = None;
        let text = render(&[one]);
        assert!(!text.contains("TESTS") && !text.contains("DIFF") && !text.contains("WHY NOT"), "{text}");
    }
}
