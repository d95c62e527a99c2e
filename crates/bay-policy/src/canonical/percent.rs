//! Percent-encoding: which bytes are decoded, kept or encoded.

/// One piece of a path or a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Piece {
    /// A byte that was written as itself.
    Plain(u8),
    /// A byte that was written as `%XX`.
    Encoded(u8),
}

impl Piece {
    pub(super) fn byte(self) -> u8 {
        match self {
            Self::Plain(byte) | Self::Encoded(byte) => byte,
        }
    }
}

/// Splits text into pieces. `None` if a `%` is not followed by two hexadecimal digits.
pub(super) fn pieces(text: &str) -> Option<Vec<Piece>> {
    let bytes = text.as_bytes();
    let mut pieces = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at] == b'%' {
            let high = hexadecimal(*bytes.get(at + 1)?)?;
            let low = hexadecimal(*bytes.get(at + 2)?)?;
            pieces.push(Piece::Encoded(high << 4 | low));
            at += 3;
        } else {
            pieces.push(Piece::Plain(bytes[at]));
            at += 1;
        }
    }
    Some(pieces)
}

fn hexadecimal(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

/// Whether two digits follow an encoded percent sign: a second decoding would give another text.
pub(super) fn encoded_twice(pieces: &[Piece]) -> bool {
    pieces.windows(3).any(|window| {
        window[0] == Piece::Encoded(b'%') && window[1..].iter().all(|piece| piece.byte().is_ascii_hexdigit())
    })
}

/// Appends a piece in its one wire form. Unreserved characters are plain. Characters that were plain and may be plain
/// stay plain. Everything else is `%XX` with capitals.
pub(super) fn write(piece: Piece, may_be_plain: fn(u8) -> bool, wire: &mut String) {
    let byte = piece.byte();
    let unreserved = byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~');
    if unreserved || matches!(piece, Piece::Plain(byte) if may_be_plain(byte)) {
        wire.push(char::from(byte));
    } else {
        const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
        wire.push('%');
        wire.push(char::from(DIGITS[usize::from(byte >> 4)]));
        wire.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
}
