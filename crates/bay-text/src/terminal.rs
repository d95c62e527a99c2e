//! What a command wrote, on its way to a person's terminal: colours pass, everything else that a terminal would obey is shown.
//!
//! Output of a bay is hostile: it can hold sequences that set the clipboard (OSC 52) or the title, clear the screen, move
//! the cursor over what was printed before, or make the terminal answer as if somebody typed. The filter passes:
//!
//! - printable text in valid UTF-8, tabs and line breaks;
//! - carriage returns directly before a line break. Any other carriage return would let a line overwrite itself: it is shown
//!   as `\r` and followed by a line break, so that every state of a progress bar is on a line of its own;
//! - colours: `ESC [ … m` with at most [`MAX_COLOUR`] digits and separators, unless it conceals text (8).
//!
//! Everything else is written out: control characters and bytes that are no UTF-8 as `\x1b`, characters that nobody sees
//! ([`crate::invisible`]) and C1 controls as `\u{9b}`.
//!
//! The filter reads a stream in pieces of any size. What could be the beginning of something longer waits for the next piece:
//! an incomplete character (three bytes at most), an incomplete colour, or a carriage return. So the output does not depend on
//! where the stream was divided, and a colour or a character always leaves in one piece.

use std::io::Write as _;

use crate::invisible::misleads;

/// The most digits and separators of a colour; a true colour for text, background and underline takes 50.
const MAX_COLOUR: usize = 64;
/// Ends all colours.
const RESET: &[u8] = b"\x1b[0m";
const ESCAPE: u8 = 0x1b;
/// The rendition that makes text invisible.
const CONCEAL: u32 = 8;

/// The state of one stream.
#[derive(Debug, Default)]
pub struct Filter {
    /// The incomplete end of the last piece.
    held: Vec<u8>,
    /// A colour was set and not ended.
    coloured: bool,
    /// The last line has no end yet.
    mid_line: bool,
}

/// What begins at a byte of the stream.
enum Unit {
    /// So many bytes pass as they are.
    Pass(usize),
    /// A colour of so many bytes; whether it ends all colours.
    Colour(usize, bool),
    /// So many bytes: a run of carriage returns, and a line break after it or not.
    Return { length: usize, breaks: bool },
    /// A character of so many bytes that is written out.
    Hidden(char, usize),
    /// A byte that is written out.
    Byte(u8),
    /// More has to come before it is known.
    Incomplete,
}

impl Filter {
    /// What to write for the next piece of the stream.
    #[must_use]
    pub fn push(&mut self, piece: &[u8]) -> Vec<u8> {
        self.run(piece, false)
    }

    /// What to write at the end of the stream: what was held back, and the end of its colours.
    #[must_use]
    pub fn finish(&mut self) -> Vec<u8> {
        let mut out = self.run(&[], true);
        if std::mem::take(&mut self.coloured) {
            out.extend_from_slice(RESET);
        }
        out
    }

    /// What to write before a message of this program among the output: the end of colours and of the line. Otherwise a bay could
    /// hide the message, or have it continue a line of its own.
    #[must_use]
    pub fn interrupt(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        if std::mem::take(&mut self.coloured) {
            out.extend_from_slice(RESET);
        }
        if std::mem::take(&mut self.mid_line) {
            out.push(b'\n');
        }
        out
    }

    fn run(&mut self, piece: &[u8], last: bool) -> Vec<u8> {
        let joined;
        let mut rest = if self.held.is_empty() {
            piece
        } else {
            joined = [&*std::mem::take(&mut self.held), piece].concat();
            &*joined
        };
        let mut out = Vec::with_capacity(rest.len() + RESET.len());
        while !rest.is_empty() {
            let taken = match unit(rest, last) {
                Unit::Pass(length) => {
                    out.extend_from_slice(&rest[..length]);
                    length
                }
                Unit::Colour(length, ends) => {
                    out.extend_from_slice(&rest[..length]);
                    self.coloured = !ends;
                    length
                }
                Unit::Return { length, breaks } => {
                    out.extend_from_slice(if breaks { b"\r\n" } else { b"\\r\n" });
                    length
                }
                Unit::Hidden(c, length) => {
                    let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
                    length
                }
                Unit::Byte(byte) => {
                    let _ = write!(out, "\\x{byte:02x}");
                    1
                }
                Unit::Incomplete => {
                    // Of a run of carriage returns one says as much as all.
                    self.held = if rest[0] == b'\r' { vec![b'\r'] } else { rest.to_vec() };
                    break;
                }
            };
            rest = &rest[taken..];
        }
        if let Some(last) = out.last() {
            self.mid_line = *last != b'\n';
        }
        out
    }
}

/// What is at the beginning of `bytes`, which are not empty. With `last`, nothing comes after them.
fn unit(bytes: &[u8], last: bool) -> Unit {
    let plain = |byte: &u8| matches!(byte, b' '..=b'~' | b'\t' | b'\n');
    let run = bytes.iter().take_while(|byte| plain(byte)).count();
    if run > 0 {
        return Unit::Pass(run);
    }
    match bytes[0] {
        b'\r' => {
            let length = bytes.iter().take_while(|byte| **byte == b'\r').count();
            match bytes.get(length) {
                Some(b'\n') => Unit::Return { length: length + 1, breaks: true },
                None if !last => Unit::Incomplete,
                _ => Unit::Return { length, breaks: false },
            }
        }
        ESCAPE => colour(bytes, last),
        byte if byte < 0x80 => Unit::Byte(byte),
        byte => character(bytes, byte, last),
    }
}

fn colour(bytes: &[u8], last: bool) -> Unit {
    let parameters =
        bytes.iter().skip(2).take(MAX_COLOUR + 1).take_while(|b| matches!(b, b'0'..=b'9' | b';' | b':'));
    let length = parameters.count();
    match (bytes.get(1), bytes.get(2 + length)) {
        (None, _) if !last => Unit::Incomplete,
        (Some(b'['), None) if !last && length <= MAX_COLOUR => Unit::Incomplete,
        (Some(b'['), Some(b'm')) if length <= MAX_COLOUR => match rendition(&bytes[2..2 + length]) {
            Some(ends) => Unit::Colour(2 + length + 1, ends),
            None => Unit::Byte(ESCAPE),
        },
        _ => Unit::Byte(ESCAPE),
    }
}

/// Whether a colour's parameters end all colours; `None` if a terminal may conceal text for them.
///
/// Only 38 and 48 are taken to introduce a colour whose numbers mean nothing by themselves: every terminal knows those. One that
/// does not know 58 (the underline's colour) would read its numbers one by one.
fn rendition(parameters: &[u8]) -> Option<bool> {
    let number = |digits: &[u8]| {
        digits.iter().fold(0_u32, |n, d| n.saturating_mul(10).saturating_add(u32::from(d - b'0')))
    };
    let mut fields = parameters.split(|byte| *byte == b';').map(|field| {
        let mut parts = field.split(|byte| *byte == b':');
        (parts.next().map_or(0, number), field.contains(&b':'))
    });
    let mut ends = true;
    while let Some((first, divided)) = fields.next() {
        match first {
            CONCEAL => return None,
            38 | 48 if !divided => {
                let left_out = match fields.next() {
                    Some((5, false)) => 1,
                    Some((2, false)) => 3,
                    _ => return None,
                };
                ends = false;
                if (0..left_out).any(|_| fields.next().is_none_or(|(_, divided)| divided)) {
                    return None;
                }
            }
            0 if !divided => ends = true,
            _ => ends = false,
        }
    }
    Some(ends)
}

fn character(bytes: &[u8], first: u8, last: bool) -> Unit {
    /// The longest character in UTF-8.
    const LONGEST: usize = 4;
    let begin = &bytes[..bytes.len().min(LONGEST)];
    let chunk = match begin.utf8_chunks().next() {
        Some(chunk) if !chunk.valid().is_empty() => chunk.valid(),
        // It could become a character with what comes next.
        _ if !last && std::str::from_utf8(begin).is_err_and(|error| error.error_len().is_none()) => {
            return Unit::Incomplete;
        }
        _ => return Unit::Byte(first),
    };
    match chunk.chars().next() {
        Some(c) if misleads(c) => Unit::Hidden(c, c.len_utf8()),
        Some(c) => Unit::Pass(c.len_utf8()),
        None => Unit::Byte(first),
    }
}

#[cfg(test)]
#[path = "terminal_tests.rs"]
mod tests;
