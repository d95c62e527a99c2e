//! Text from a bay or a repository, made harmless before a person's terminal displays it.
//!
//! Escape sequences in a name, a path or a message could set the clipboard or the title, or overwrite earlier output.
//! The output of commands is a stream of bytes, which [`crate::terminal`] filters.

use std::fmt::Write as _;

use crate::clip;
use crate::invisible::misleads;

/// Longest run of blanks that is shown unchanged. A longer one would push the following text to a new line of the
/// terminal, where it could be mistaken for a line of this program.
const MAX_BLANKS: usize = 8;

fn is_blank(c: char) -> bool {
    c == ' ' || c == '\u{2800}' || (c.is_whitespace() && !c.is_control())
}

/// Shows control characters, and characters that reorder or hide text, as escapes. Shows long runs of blanks as their
/// number.
#[must_use]
pub fn visible(text: &str) -> String {
    let text = escaped(text);
    if text.chars().filter(|c| is_blank(*c)).count() <= MAX_BLANKS {
        return text;
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = &*text;
    while let Some(at) = rest.find(is_blank) {
        out.push_str(&rest[..at]);
        let end = rest[at..].find(|c| !is_blank(c)).map_or(rest.len(), |length| at + length);
        match rest[at..end].chars().count() {
            count if count > MAX_BLANKS => {
                let _ = write!(out, "␣×{count}");
            }
            _ => out.push_str(&rest[at..end]),
        }
        rest = &rest[end..];
    }
    out + rest
}

/// Shows control characters, and characters that reorder or hide text, as escapes.
fn escaped(text: &str) -> String {
    if !text.chars().any(misleads) {
        return text.to_owned();
    }
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if !misleads(c) => out.push(c),
            c if u32::from(c) < 0x100 => {
                let _ = write!(out, "\\x{:02x}", u32::from(c));
            }
            c => {
                let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
            }
        }
    }
    out
}

/// Escapes a line of a file. Tabs and blanks stay, because they are its indentation.
#[must_use]
pub fn file_line(text: &str) -> String {
    if !text.contains('\t') {
        return escaped(text);
    }
    text.split('\t').map(escaped).collect::<Vec<_>>().join("\t")
}

/// Replaces line breaks by spaces and escapes the rest as [`visible`] does, for messages that must stay on one line.
#[must_use]
pub fn one_line(text: &str) -> String {
    let joined = text.split(['\n', '\r']).map(str::trim).filter(|l| !l.is_empty()).collect::<Vec<_>>();
    visible(&joined.join(" "))
}

/// Longest word of a message that is shown whole. A longer one is mostly a path.
const LONGEST_WORD: usize = 200;
/// Characters that are shown of each end of a longer word.
const WORD_END: usize = 80;

/// Brings a message on one line as [`one_line`] does, and leaves out the middle of overlong words.
#[must_use]
pub fn message(text: &str) -> String {
    let words = one_line(text);
    let shortened = words.split(' ').map(|word| match clip::ends(word, LONGEST_WORD, WORD_END) {
        Some((begin, _, end)) => format!("{begin}…{end}"),
        None => word.to_owned(),
    });
    shortened.collect::<Vec<_>>().join(" ")
}

/// JSON with control and invisible characters as escapes. Its meaning is the same, and a terminal obeys none of it. The
/// library escapes only the first 32 control characters.
#[must_use]
pub fn json(text: String) -> String {
    // In JSON, a character beyond ASCII can only be part of a string. Line breaks between values stay.
    let obeyed = |c: char| c >= '\u{7f}' && misleads(c);
    if !text.chars().any(obeyed) {
        return text;
    }
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if obeyed(c) {
            // Beyond four digits, JSON has only pairs of surrogates.
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(out, "\\u{unit:04x}");
            }
        } else {
            out.push(c);
        }
    }
    out
}

/// Bytes as text from which the exact bytes can be recovered: backslashes are doubled; invalid and invisible characters
/// are escapes. For an approval card, where different bodies must give different texts.
#[must_use]
pub fn bytes(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                c if misleads(c) => {
                    let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
                }
                c => out.push(c),
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(out, "\\x{byte:02x}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blanks_push_nothing_to_a_new_line() {
        assert_eq!(visible(&format!("a{}b  c", " ".repeat(87))), "a␣×87b  c");
        assert_eq!(visible(&format!("a{}b", "\u{3000}\u{a0} ".repeat(4))), "a␣×12b");
        assert_eq!(visible("a        b"), "a        b");
        assert_eq!(file_line(&format!("{}indented", " ".repeat(40))), format!("{}indented", " ".repeat(40)));
    }

    #[test]
    fn a_path_of_kilobytes_does_not_hide_the_message() {
        let text = message(&format!("could not open {}: no such file", "d/".repeat(2000)));
        assert!(
            text.len() < 250 && text.starts_with("could not open d/") && text.ends_with(": no such file"),
            "{text}"
        );
        assert_eq!(message("short and sweet"), "short and sweet");
    }

    #[test]
    fn terminal_sequences_are_escaped() {
        assert_eq!(visible("a\u{1b}]52;c;aGk=\u{7}b"), "a\\x1b]52;c;aGk=\\x07b");
        assert_eq!(visible("x\rrm -rf\n"), "x\\rrm -rf\\n");
        assert_eq!(visible("\u{9b}31m"), "\\x9b31m");
        assert_eq!(visible("abc\u{202e}txt.exe"), "abc\\u{202e}txt.exe");
    }

    #[test]
    fn invisible_characters_are_escaped() {
        assert_eq!(visible("a\u{2060}b\u{ad}c\u{e0041}\u{fe0f}"), "a\\u{2060}b\\xadc\\u{e0041}\\u{fe0f}");
        assert_eq!(file_line("\tx\u{e0041}"), "\tx\\u{e0041}");
    }

    #[test]
    fn escaped_json_has_the_same_meaning_and_controls_no_terminal() {
        let said = "a\u{1b}]0;t\u{7}\u{7f}\u{9b}2J\u{202e}\u{feff}\u{ad}\u{2060}\u{e0041} größe 日本 🦀";
        let text = json(serde_json::to_string_pretty(&[said]).unwrap());
        assert!(!text.chars().any(|c| misleads(c) && c != '\n'), "{text:?}");
        assert_eq!(serde_json::from_str::<Vec<String>>(&text).unwrap(), [said]);
        assert!(text.contains("größe 日本 🦀"), "{text}");
    }

    #[test]
    fn a_line_of_a_file_keeps_its_tabs_and_nothing_else() {
        assert_eq!(file_line("\tif x\t\u{1b}[2J\r"), "\tif x\t\\x1b[2J\\r");
    }

    #[test]
    fn ordinary_text_of_any_language_is_unchanged() {
        assert_eq!(visible("größe 日本 ok"), "größe 日本 ok");
    }

    #[test]
    fn different_bytes_never_look_alike() {
        assert_eq!(bytes(b"a\\x41\n\xff"), "a\\\\x41\\n\\xff");
        assert_eq!(bytes("\u{9b}\u{202e}ü".as_bytes()), "\\u{9b}\\u{202e}ü");
    }
}
