//! Long lines on a terminal. A terminal breaks a long line at its right edge, and a bay could write text that then
//! looks like a line of ours. So the CLI breaks lines itself, and marks every line that continues another.

/// Fewest columns of a text, however narrow the terminal is.
const LEAST_ROOM: usize = 20;

/// Divides a text into parts that each fit into this many columns.
pub(crate) fn divided(text: &str, columns: usize) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut used = 0;
    for c in text.chars() {
        let taken = width(c.encode_utf8(&mut [0; 4]));
        if used + taken > columns {
            parts.push(String::new());
            used = 0;
        }
        used += taken;
        if let Some(last) = parts.last_mut() {
            last.push(c);
        }
    }
    parts
}

/// Most columns that a text may need: a character beyond ASCII may need two.
pub(crate) fn width(text: &str) -> usize {
    text.chars().map(|c| if c.is_ascii() { 1 } else { 2 }).sum()
}

/// Indents the further lines of a text that begins after this many columns of a list, and marks them. If the output is
/// no terminal (`columns` is `None`), the text stays one line.
pub(crate) fn indented(indent: usize, text: &str, columns: Option<usize>) -> String {
    let Some(columns) = columns else { return text.to_owned() };
    let room = columns.saturating_sub(indent).max(LEAST_ROOM);
    divided(text, room).join(&format!("\n{:1$}│ ", "", indent.saturating_sub(2)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_part_is_wider_than_the_terminal_and_nothing_is_lost() {
        let text = format!("{}日本{}", "a".repeat(30), "b".repeat(30));
        let parts = divided(&text, 20);
        assert_eq!(parts.concat(), text);
        assert!(parts.iter().all(|part| width(part) <= 20), "{parts:?}");
        assert_eq!(divided("short", 20), ["short"]);
        assert_eq!(divided("", 20), [""]);
    }

    #[test]
    fn every_further_line_is_marked_and_none_is_wider_than_the_terminal() {
        let text = "x".repeat(100);
        assert_eq!(indented(24, &text, None), text);
        for columns in [1, 40, 80] {
            let shown = indented(24, &text, Some(columns));
            let (first, further) = shown.split_once('\n').unwrap();
            let fits = |width: usize| width <= columns.max(24 + LEAST_ROOM);
            assert!(fits(24 + first.len()), "{shown}");
            for line in further.lines() {
                let (indent, part) = line.split_once("│ ").unwrap();
                assert!(indent.trim().is_empty() && fits(indent.len() + 2 + part.len()), "{shown}");
            }
        }
        assert_eq!(indented(4, "short", Some(80)), "short");
    }
}
