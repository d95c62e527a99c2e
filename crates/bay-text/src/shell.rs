//! Words of a command line as a person would type them.

use crate::escape::visible;

/// One word as a shell would read it back. Words of letters, digits and harmless punctuation need no quotes.
///
/// Quoting makes no text safe to show: see [`command`] for that.
#[must_use]
pub fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%^".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

/// A command line, safe to print.
#[must_use]
pub fn command(argv: &[String]) -> String {
    argv.iter().map(|word| quoted(&visible(word))).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_are_quoted_where_needed() {
        let argv = ["sh".into(), "-c".into(), "echo 'hi'".into(), String::new()];
        assert_eq!(command(&argv), "sh -c 'echo '\\''hi'\\''' ''");
    }

    #[test]
    fn a_word_that_had_to_be_escaped_is_quoted() {
        assert_eq!(command(&["\u{1b}".into()]), "'\\x1b'");
    }
}
