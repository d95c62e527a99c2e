//! Text from a bay or a repository, made harmless before a person's terminal displays it.
//!
//! Escape sequences in a name, a path or a message could set the clipboard, the title, or overwrite what was printed
//! before. What commands wrote is a stream of bytes and goes through [`crate::terminal`].

use std::fmt::Write as _;

use crate::clip;
use crate::invisible::misleads;

/// Longest run of blanks that is shown as it is. A longer one would push what follows to a line of its own on a terminal, where
/// it could pass for a line of this program's.
const MAX_BLANKS: usize = 8;

fn is_blank(c: char) -> bool {
    c == ' ' || c == '\u{2800}' || (c.is_whitespace() && !c.is_control())
}

/// Control characters and those that reorder or hide text are shown as escapes, long runs of blanks as their number;
/// everything else as it is.
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

/// Control characters and those that reorder or hide text are shown as escapes; everything else as it is.
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

/// A line of a file: escapes only, since tabs and blanks are its indentation.
#[must_use]
pub fn file_line(text: &str) -> String {
    if !text.contains('\t') {
        return escaped(text);
    }
    text.split('\t').map(escaped).collect::<Vec<_>>().join("\t")
}

/// As [`visible`], with line breaks turned into spaces: for messages that must stay on one line and readable.
#[must_use]
pub fn one_line(text: &str) -> String {
    let joined = text.split(['\n', '\r']).map(str::trim).filter(|l| !l.is_empty()).collect::<Vec<_>>();
    visible(&joined.join(" "))
}

/// The longest word of a message that is shown whole: a longer one is a path nobody reads to its end.
const LONGEST_WORD: usize = 200;
/// How much of a longer one is shown at each end.
const WORD_END: usize = 80;

/// As [`one_line`], with the middle of overlong words left out.
#[must_use]
pub fn message(text: &str) -> String {
    let words = one_line(text);
    let shortened = words.split(' ').map(|word| match clip::ends(word, LONGEST_WORD, WORD_END) {
        Some((begin, _, end)) => format!("{begin}…{end}"),
        None => word.to_owned(),
    });
    shortened.collect::<Vec<_>>().join(" ")
}

/// JSON in which control and invisible characters are escapes: it means the same, and a terminal obeys none of it. The library
/// escapes only the first 32 control characters, and terminals know more of them.
#[must_use]
pub fn json(text: String) -> String {
    // Beyond ASCII a character of JSON can only be part of a string; line breaks between values stay.
    let obeyed = |c: char| c >= '\u{7f}' && misleads(c);
    if !text.chars().any(obeyed) {
        return text;
    }
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if obeyed(c) {
            // Beyond four digits JSON knows only pairs of surrogates.
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(out, "\\u{unit:04x}");
            }
        } else {
            out.push(c);
        }
    }
    out
}

/// Bytes as text that can be read back exactly: backslashes are doubled, and what is no text or not seen is an escape. For an
/// approval card, where two different bodies must never look alike.
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
    fn blanks_push_nothing_to_a_line_of_its_own() {
        assert_eq!(visible(&format!("a{}b  c", " ".repeat(87))), "a␣×87b  c");
        assert_eq!(visible(&format!("a{}b", "\u{3000}\u{a0} ".repeat(4))), "a␣×12b");
        assert_eq!(visible("a        b"), "a        b");
        assert_eq!(file_line(&format!("{}indented", " ".repeat(40))), format!("{}indented", " ".repeat(40)));
    }

    #[test]
    fn a_path_of_kilobytes_does_not_bury_the_message() {
        let text = message(&format!("could not open {}: no such file", "d/".repeat(2000)));
        assert!(
            text.len() < 250 && text.starts_with("could not open d/") && text.ends_with(": no such file"),
            "{text}"
        );
        assert_eq!(message("short and sweet"), "short and sweet");
    }

    #[test]
    fn terminal_sequences_lose_their_power() {
        assert_eq!(visible("a\u{1b}]52;c;aGk=\u{7}b"), "a\\x1b]52;c;aGk=\\x07b");
        assert_eq!(visible("x\rrm -rf\n"), "x\\rrm -rf\\n");
        assert_eq!(visible("\u{9b}31m"), "\\x9b31m");
        assert_eq!(visible("abc\u{202e}txt.exe"), "abc\\u{202e}txt.exe");
    }

    #[test]
    fn characters_that_nobody_sees_are_written_out() {
        assert_eq!(visible("a\u{2060}b\u{ad}c\u{e0041}\u{fe0f}"), "a\\u{2060}b\\xadc\\u{e0041}\\u{fe0f}");
        assert_eq!(file_line("\tx\u{e0041}"), "\tx\\u{e0041}");
    }

    #[test]
    fn json_means_the_same_and_commands_no_terminal() {
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
    fn ordinary_text_of_any_language_stays() {
        assert_eq!(visible("größe 日本 ok"), "größe 日本 ok");
    }

    #[test]
    fn different_bytes_never_look_alike() {
        assert_eq!(bytes(b"a\\x41\n\xff"), "a\\\\x41\\n\\xff");
        assert_eq!(bytes("\u{9b}\u{202e}ü".as_bytes()), "\\u{9b}\\u{202e}ü");
    }
}
