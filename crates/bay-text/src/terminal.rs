//! Filters a command's output for a person's terminal: colours pass, and every other terminal sequence is shown as
//! text.
//!
//! Output of a bay is hostile. It can contain sequences that set the clipboard (OSC 52) or the title, clear the screen,
//! move the cursor over earlier output, or make the terminal send input. The filter passes:
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
/// Resets all colours.
const RESET: &[u8] = b"\x1b[0m";
const ESCAPE: u8 = 0x1b;
/// The rendition that makes text invisible.
const CONCEAL: u32 = 8;

/// The filter state of one stream.
#[derive(Debug, Default)]
pub struct Filter {
    /// The incomplete end of the last piece.
    held: Vec<u8>,
    /// Whether a colour was set and not reset.
    coloured: bool,
    /// Whether the last line is incomplete.
    mid_line: bool,
}

/// The unit that begins at a byte of the stream.
enum Unit {
    /// This many bytes pass unchanged.
    Pass(usize),
    /// A colour of this many bytes, and whether it resets all colours.
    Colour(usize, bool),
    /// A run of this many carriage returns, and whether a line break follows it.
    Return { length: usize, breaks: bool },
    /// A character of this many bytes that is escaped.
    Hidden(char, usize),
    /// A byte that is escaped.
    Byte(u8),
    /// More bytes are needed to decide.
    Incomplete,
}

impl Filter {
    /// The output for the next piece of the stream.
    #[must_use]
    pub fn push(&mut self, piece: &[u8]) -> Vec<u8> {
        self.run(piece, false)
    }

    /// The output at the end of the stream: the buffered bytes, and a reset of its colours.
    #[must_use]
    pub fn finish(&mut self) -> Vec<u8> {
        let mut out = self.run(&[], true);
        if std::mem::take(&mut self.coloured) {
            out.extend_from_slice(RESET);
        }
        out
    }

    /// The output before a message of this program: a reset of colours and the end of the line. Otherwise a bay could
    /// hide the message, or make it part of its own line.
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
                    // One carriage return stands for the whole run.
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

/// The unit at the beginning of `bytes`, which are not empty. With `last`, no bytes follow them.
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

/// Whether a colour's parameters reset all colours. `None` if a terminal may conceal text for them.
///
/// Only 38 and 48 count as the beginning of a colour whose numbers have no meaning by themselves, because every
/// terminal knows them. A terminal that does not know 58 (the underline's colour) would read its numbers one by one.
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
    /// Longest UTF-8 encoding of a character.
    const LONGEST: usize = 4;
    let begin = &bytes[..bytes.len().min(LONGEST)];
    let chunk = match begin.utf8_chunks().next() {
        Some(chunk) if !chunk.valid().is_empty() => chunk.valid(),
        // It could become a character with the next bytes.
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
