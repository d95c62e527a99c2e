//! The report of `bay doctor` for a person.

use comfy_table::{Cell, Color};

use super::{Examined, State};
use crate::output::{colours, table};
use bay_text::escape::visible;

pub(crate) fn render(examined: &Examined) -> String {
    let mut table = table::table(&["", "CHECK", "FOUND"]);
    for check in &examined.checks {
        table.add_row([mark(check.state), Cell::new(check.title), Cell::new(visible(&check.found))]);
    }
    let mut text = table.trim_fmt();
    // Without root, most unknown results have that one reason, which one line explains.
    let told = |state: State| state != State::Ok && (examined.root || state != State::Unknown);
    for check in examined.checks.iter().filter(|check| told(check.state)) {
        let need = if check.required { ", and bays need it" } else { "" };
        text.push_str(&format!("\n\n{}: {}{need}", check.title, word(check.state)));
        text.push_str(&format!("\n  costs: {}", check.cost));
        text.push_str(&format!("\n  fix:   {}", check.fix));
    }
    let unknown: Vec<&str> = examined
        .checks
        .iter()
        .filter(|c| c.state == State::Unknown && !examined.root)
        .map(|c| c.title)
        .collect();
    if !unknown.is_empty() {
        text.push_str(&format!("\n\nnot tested without root: {}", unknown.join(", ")));
    }
    let verdict = match (examined.fit, examined.root) {
        (true, true) => "bays can run on this host",
        (true, false) => "no problem was found on this host; run it with sudo for the tests that need root",
        (false, _) => "bays cannot run on this host as it is",
    };
    text.push_str("\n\n");
    text.push_str(verdict);
    text
}

fn word(state: State) -> &'static str {
    match state {
        State::Ok => "ok",
        State::Limited => "limited",
        State::Missing => "missing",
        State::Unknown => "unknown",
    }
}

fn mark(state: State) -> Cell {
    let cell = Cell::new(word(state));
    if !colours() {
        return cell;
    }
    cell.fg(match state {
        State::Ok => Color::Green,
        State::Limited => Color::Yellow,
        State::Missing => Color::Red,
        State::Unknown => Color::DarkGrey,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Subject;

    #[test]
    fn a_failed_check_is_shown_with_its_cost_and_its_fix() {
        let subject = Subject {
            id: "x",
            title: "the thing",
            required: true,
            cost: "no bays",
            fix: "install the thing",
        };
        let examined = Examined {
            fit: false,
            version: "0",
            root: true,
            checks: vec![subject.ok("1"), subject.missing("0")],
        };
        let text = render(&examined);
        assert!(
            text.contains(
                "the thing: missing, and bays need it\n  costs: no bays\n  fix:   install the thing"
            )
        );
        assert_eq!(text.matches("costs:").count(), 1);
        assert!(text.ends_with("as it is"));
    }
}
