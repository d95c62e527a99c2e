//! Output for people and programs: data on standard output, messages on standard error.

pub(crate) mod age;
mod error;
pub(crate) mod output_check;
pub(crate) mod progress;
pub(crate) mod rows;
pub(crate) mod streams;
pub(crate) mod table;

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};

use bay_client::local;
use bay_text::escape;
use bay_text::terminal::Filter;
use serde::Serialize;

use crate::failure::Failure;
pub(crate) use error::report;

/// Prints data and a newline.
pub(crate) fn data(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    let text = for_stream(&out, text);
    written(out.write_all(&text).and_then(|()| out.write_all(b"\n")).and_then(|()| out.flush()))
}

/// Every verb escapes the text of bays and repositories where it builds its own text ([`escape`]). On a terminal, all
/// text also passes a [filter](Filter). If a verb forgot to escape a sequence, the terminal displays it and does not
/// execute it.
fn for_stream<'a>(stream: &impl IsTerminal, text: &'a str) -> Cow<'a, [u8]> {
    if !stream.is_terminal() {
        return Cow::Borrowed(text.as_bytes());
    }
    let mut filter = Filter::default();
    // The line break follows it, and a carriage return before that is harmless.
    let (text, ending) = text.strip_suffix('\r').map_or((text, ""), |text| (text, "\r"));
    Cow::Owned([filter.push(text.as_bytes()), filter.finish(), ending.into()].concat())
}

/// Prints a value as JSON, always indented, so that people and programs see the same text.
pub(crate) fn json<T: Serialize>(value: &T) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value).map_err(|e| bay_types::ApiError::internal(&e))?;
    data(&escape::json(text))
}

/// Prints a value as JSON on one line, for readers of a stream.
pub(crate) fn json_line<T: Serialize>(value: &T) -> Result<(), Failure> {
    let text = serde_json::to_string(value).map_err(|e| bay_types::ApiError::internal(&e))?;
    data(&escape::json(text))
}

/// Columns of the terminal of standard output. `None` if it is no terminal.
pub(crate) fn columns() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

/// Prints a message on standard error. A closed standard error is no failure.
pub fn talk(text: &str) {
    let mut out = io::stderr().lock();
    let text = for_stream(&out, text);
    let _ = out.write_all(&text).and_then(|()| out.write_all(b"\n"));
}

/// Prints a message on standard error without a line break, for a prompt.
pub(crate) fn ask(text: &str) {
    let mut out = io::stderr().lock();
    let text = for_stream(&out, text);
    let _ = out.write_all(&text).and_then(|()| out.flush());
}

pub(crate) fn written(result: io::Result<()>) -> Result<(), Failure> {
    match result {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Failure::BrokenPipe),
        Err(error) => Err(local("writing to standard output", &error).into()),
    }
}

/// Whether to use colours on standard output.
pub(crate) fn colours() -> bool {
    rustix::termios::isatty(io::stdout()) && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
}

/// Whether standard error is a terminal.
pub(crate) fn watched() -> bool {
    rustix::termios::isatty(io::stderr())
}

/// A number of bytes with a unit.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    // For display only: the rounding of the last digit is harmless.
    #[allow(clippy::cast_precision_loss)]
    let mut value = bytes as f64 / 1024.0;
    let mut unit = UNITS[0];
    for next in &UNITS[1..] {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    format!("{value:.1} {unit}")
}

/// `1 file`, `2 files`.
pub(crate) fn count(n: u64, noun: &str) -> String {
    if n == 1 { format!("1 {noun}") } else { format!("{n} {noun}s") }
}

/// A number with a comma between groups of three digits.
pub(crate) fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_numbers_are_grouped() {
        let shown = [0, 12, 999, 1204, 123_456, 1_000_000].map(grouped);
        assert_eq!(shown, ["0", "12", "999", "1,204", "123,456", "1,000,000"]);
    }

    #[test]
    fn sizes_are_short() {
        assert_eq!(size(0), "0 B");
        assert_eq!(size(1023), "1023 B");
        assert_eq!(size(1536), "1.5 KiB");
        assert_eq!(size(5 << 30), "5.0 GiB");
    }
}
