//! Tables and sections.

use bay_types::bay::State;
use comfy_table::{Cell, Color, ContentArrangement, Table, presets};

/// A table without lines. It is as wide as its content; on a terminal with colours, at most as wide as the terminal.
pub(crate) fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_content_arrangement(ContentArrangement::Dynamic);
    if !super::colours() {
        table.force_no_tty();
    }
    table.set_header(header.iter().map(Cell::new));
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table
}

pub(crate) fn state(state: State) -> Cell {
    let cell = Cell::new(state.as_str());
    if !super::colours() {
        return cell;
    }
    cell.fg(match state {
        State::Running => Color::Green,
        State::Paused => Color::Cyan,
        State::Failed => Color::Red,
        State::Stopped => Color::DarkGrey,
        State::Creating | State::Starting | State::Stopping | State::Deleting => Color::Yellow,
    })
}

/// `title`, then indented `name  value` lines with aligned values.
pub(crate) fn section(title: &str, lines: &[(&str, String)]) -> String {
    let width = lines.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let mut text = title.to_owned();
    for (name, value) in lines {
        text.push_str(&format!("\n  {name:width$}  {value}"));
    }
    text
}
