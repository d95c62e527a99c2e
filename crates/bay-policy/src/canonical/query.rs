//! Queries: the form that is sent, and the names and values in it.

use std::fmt;

use serde::{Serialize, Serializer};

use super::percent::{self, Piece};
use super::refusal::{Part, Refusal, RefusalCode};

/// Longest query.
pub const MAX_QUERY_BYTES: usize = 32 * 1024;

/// A query in its canonical form. An empty query is the same as none.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct CanonicalQuery {
    wire: Option<String>,
    pairs: Vec<(String, String)>,
    /// The pairs if semicolons divide them too, as some servers do. `None` if that makes no difference.
    divided: Option<Vec<(String, String)>>,
}

impl CanonicalQuery {
    /// Parses the text after the question mark.
    pub fn parse(text: Option<&str>) -> Result<Self, Refusal> {
        let refuse = |code, why: String, next: &str| Err(Refusal::new(Part::Query, code, why, next));
        let Some(text) = text.filter(|text| !text.is_empty()) else { return Ok(Self::default()) };
        if text.len() > MAX_QUERY_BYTES {
            return refuse(
                RefusalCode::TooLong,
                format!("the query is longer than {MAX_QUERY_BYTES} bytes"),
                "send it in a body",
            );
        }
        // Queries hold personal data and tokens, so messages do not repeat them.
        let Some(pieces) = percent::pieces(text) else {
            return refuse(
                RefusalCode::BadPercentEncoding,
                "the query has a % without two hexadecimal digits".to_owned(),
                "write a percent sign as %25",
            );
        };
        for piece in &pieces {
            match (piece, piece.byte()) {
                (Piece::Plain(_), 0..=0x20 | 0x7f) | (Piece::Encoded(_), 0) => {
                    return refuse(
                        RefusalCode::ControlCharacter,
                        "the query has a space, a NUL or another control character".to_owned(),
                        "remove it; a space is written as %20",
                    );
                }
                (Piece::Plain(_), b'#') => {
                    return refuse(
                        RefusalCode::Fragment,
                        "the query has a fragment".to_owned(),
                        "leave out the # and what follows it",
                    );
                }
                (Piece::Plain(_), 0x80..) => {
                    return refuse(
                        RefusalCode::NotAscii,
                        "the query has bytes beyond ASCII".to_owned(),
                        "percent-encode them",
                    );
                }
                _ => {}
            }
        }
        let mut wire = String::with_capacity(text.len());
        pieces.iter().for_each(|piece| percent::write(*piece, plain_in_a_query, &mut wire));
        let pairs = pairs(&pieces, |piece| *piece == Piece::Plain(b'&'));
        let has_semicolon = pieces.contains(&Piece::Plain(b';'));
        let divided =
            has_semicolon.then(|| self::pairs(&pieces, |piece| matches!(piece, Piece::Plain(b'&' | b';'))));
        Ok(Self { wire: Some(wire), pairs, divided })
    }

    /// The text that is sent after the question mark.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        self.wire.as_deref()
    }

    /// Decoded names and values in their order.
    pub fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.pairs.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Every way in which a server may divide the query.
    pub(crate) fn readings(&self) -> impl Iterator<Item = &[(String, String)]> {
        std::iter::once(self.pairs.as_slice()).chain(self.divided.as_deref())
    }
}

impl fmt::Display for CanonicalQuery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.wire.as_ref().map_or(Ok(()), |wire| write!(f, "?{wire}"))
    }
}

impl Serialize for CanonicalQuery {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.wire.serialize(serializer)
    }
}

fn pairs(pieces: &[Piece], divides: fn(&Piece) -> bool) -> Vec<(String, String)> {
    let decode = |pieces: &[Piece]| {
        let bytes: Vec<u8> = pieces
            .iter()
            .map(|piece| if *piece == Piece::Plain(b'+') { b' ' } else { piece.byte() })
            .collect();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let parts = pieces.split(divides).filter(|part| !part.is_empty());
    parts
        .map(|part| match part.iter().position(|piece| *piece == Piece::Plain(b'=')) {
            Some(at) => (decode(&part[..at]), decode(&part[at + 1..])),
            None => (decode(part), String::new()),
        })
        .collect()
}

/// Characters of a query that need no encoding, beyond the unreserved ones. Every client sends brackets unencoded.
fn plain_in_a_query(byte: u8) -> bool {
    matches!(
        byte,
        b'!' | b'$'
            | b'&'
            | b'\''
            | b'('
            | b')'
            | b'*'
            | b'+'
            | b','
            | b';'
            | b'='
            | b':'
            | b'@'
            | b'/'
            | b'?'
            | b'['
            | b']'
    )
}
