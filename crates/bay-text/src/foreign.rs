//! Text of unknown origin inside a message: what a guest, a server, git or a file said.
//!
//! The result is one line of bounded length without control characters and invisible characters.

use std::fmt::Write as _;

use crate::invisible::is_invisible;

/// At most `limit` characters of the text, and an ellipsis if there are more. A control character, also a line break,
/// becomes U+FFFD, so that the reader sees that something was there. An invisible character becomes an escape, which is
/// longer than one character.
#[must_use]
pub fn marked(text: &str, limit: usize) -> String {
    shown(text, limit, '\u{fffd}')
}

/// At most `limit` characters of the text, and an ellipsis if there are more. Control characters and line breaks become
/// spaces, and several spaces one, so that several lines can be read as one. An invisible character becomes an escape,
/// which is longer than one character.
#[must_use]
pub fn one_line(text: &str, limit: usize) -> String {
    let words = shown(text, limit, ' ');
    words.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn shown(text: &str, limit: usize, control: char) -> String {
    let mut out = String::with_capacity(text.len().min(limit));
    for c in text.chars().take(limit) {
        match c {
            c if c.is_control() => out.push(control),
            c if is_invisible(c) => {
                // Writing to a String cannot fail.
                let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    if text.chars().nth(limit).is_some() {
        out.push('…');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invisible::misleads;

    const HOSTILE: &str = "\x1b]52;c;x\x07\rb\u{2060}\u{e0041}\u{202e}c\u{9b}2J\n\td";

    #[test]
    fn a_servers_message_cannot_move_the_cursor_or_fill_the_screen() {
        for text in [marked(HOSTILE, 100), one_line(HOSTILE, 100)] {
            assert!(!text.chars().any(misleads), "{text:?}");
        }
        assert_eq!(marked(&"y".repeat(5000), 1000).chars().count(), 1001);
        assert_eq!(one_line(&"y".repeat(5000), 1000).chars().count(), 1001);
    }

    #[test]
    fn control_characters_are_marked_or_become_spaces() {
        assert_eq!(marked("a\u{2060}\u{e0041}\u{202e}b\n", 10), "a\\u{2060}\\u{e0041}\\u{202e}b\u{fffd}");
        assert_eq!(one_line("a\x1b[31m\r\nb\tc\u{202e}", 20), "a [31m b c\\u{202e}");
    }
}
