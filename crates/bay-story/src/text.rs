//! Texts of unknown origin, made safe; and numbers in words.

use bay_text::{clip, foreign};

/// The most characters of a text that is read for a label.
const READ: usize = 4096;

/// A text on one line, safe for a terminal, with at most `limit` characters.
pub(crate) fn safe(text: &str, limit: usize) -> String {
    clip(&foreign::one_line(&text.chars().take(READ).collect::<String>(), READ), limit)
}

/// A command line on one line, safe for a terminal, with at most `limit` characters.
pub(crate) fn command_line(argv: &[String], limit: usize) -> String {
    // More words than characters are never shown.
    let words: Vec<String> =
        argv.iter().take(limit).map(|word| word.chars().take(limit + 1).collect()).collect();
    safe(&bay_text::shell::command(&words), limit)
}

/// `1 file`, `2 files`.
pub(crate) fn count(n: u64, noun: &str) -> String {
    match n {
        1 => format!("1 {noun}"),
        n if noun.ends_with("ch") => format!("{n} {noun}es"),
        n => match noun.strip_suffix('y').filter(|stem| !stem.ends_with(['a', 'e', 'o', 'u'])) {
            Some(stem) => format!("{n} {stem}ies"),
            None => format!("{n} {noun}s"),
        },
    }
}

/// Bytes in the units that people use.
pub(crate) fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{} KiB", bytes >> 10),
        1_048_576..1_073_741_824 => format!("{} MiB", bytes >> 20),
        _ => format!("{} GiB", bytes >> 30),
    }
}

/// Seconds in the units that people use.
pub(crate) fn duration(seconds: f64) -> String {
    if !seconds.is_finite() || seconds < 0.0 {
        return "?".to_owned();
    }
    if seconds < 0.001 {
        return "0 s".to_owned();
    }
    if seconds < 1.0 {
        return format!("{:.0} ms", seconds * 1000.0);
    }
    if seconds < 60.0 {
        return format!("{seconds:.1} s");
    }
    // Beyond a minute nobody needs the fraction.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let whole = seconds as u64;
    match whole {
        0..3600 => format!("{} m {} s", whole / 60, whole % 60),
        3600..86_400 => format!("{} h {} m", whole / 3600, whole % 3600 / 60),
        _ => format!("{} d {} h", whole / 86_400, whole % 86_400 / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_in_words_that_people_use() {
        assert_eq!(
            ["file", "directory", "day"].map(|noun| count(2, noun)),
            ["2 files", "2 directories", "2 days"]
        );
        assert_eq!(count(1, "branch"), "1 branch");
        assert_eq!(count(0, "branch"), "0 branches");
        assert_eq!([5, 2048, 3 << 20, 5 << 30].map(size), ["5 B", "2 KiB", "3 MiB", "5 GiB"]);
        assert_eq!(
            [0.0, 0.25, 4.84, 125.0, 7300.0].map(duration),
            ["0 s", "250 ms", "4.8 s", "2 m 5 s", "2 h 1 m"]
        );
        assert_eq!([f64::NAN, f64::INFINITY, -1.0].map(duration), ["?", "?", "?"]);
    }

    #[test]
    fn no_text_controls_a_terminal_or_is_long() {
        let evil = format!("a\u{1b}]0;t\u{7}\r\n\u{202e}\u{9b}2J{}", "x".repeat(100_000));
        for safe in [safe(&evil, 40), command_line(&[evil.clone(), evil.clone()], 40)] {
            assert!(safe.chars().count() <= 41, "{safe}");
            assert!(!safe.chars().any(|c| c.is_control() || c == '\u{202e}'), "{safe:?}");
        }
    }
}
