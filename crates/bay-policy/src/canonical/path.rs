//! Paths: their segments, the form that is sent, and the ways in which servers may divide them.

use std::fmt;

use serde::{Serialize, Serializer};
use unicode_normalization::UnicodeNormalization;

use super::percent::{self, Piece};
use super::refusal::{Part, Quoted, Refusal, RefusalCode};

/// Longest path.
pub const MAX_PATH_BYTES: usize = 8 * 1024;
/// Most segments of a path, in either reading.
pub const MAX_SEGMENTS: usize = 256;

/// A path in its canonical form.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CanonicalPath {
    wire: String,
    readings: Vec<Reading>,
}

/// One way in which a server may divide a path. A decision considers all of them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Reading {
    pub(crate) segments: Vec<Segment>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Segment {
    /// The decoded segment. Allow rules are compared with it.
    pub(crate) exact: Box<str>,
    /// The segment as the most forgiving server would read it. Deny and ask rules are compared with it.
    folded: Option<Box<str>>,
}

impl Segment {
    pub(crate) fn folded(&self) -> &str {
        self.folded.as_deref().unwrap_or(&self.exact)
    }

    fn new(exact: String) -> Self {
        let folded = fold(&exact);
        Self { folded: (folded != exact).then(|| folded.into()), exact: exact.into() }
    }
}

impl Reading {
    /// The segments without the empty one after a final slash.
    pub(crate) fn without_final_slash(&self) -> &[Segment] {
        match self.segments.split_last() {
            Some((last, rest)) if last.exact.is_empty() && !rest.is_empty() => rest,
            _ => &self.segments,
        }
    }
}

impl CanonicalPath {
    /// Parses a path that begins with `/`, without its query.
    pub fn parse(text: &str) -> Result<Self, Refusal> {
        let refuse = |code, why: String, next: &str| Err(Refusal::new(Part::Path, code, why, next));
        if !text.starts_with('/') {
            return refuse(
                RefusalCode::NotAbsolute,
                format!("the path {} does not begin with a slash", Quoted(text)),
                "send it from the root of the host",
            );
        }
        if text.len() > MAX_PATH_BYTES {
            return refuse(
                RefusalCode::TooLong,
                format!("the path is longer than {MAX_PATH_BYTES} bytes"),
                "shorten it",
            );
        }
        let Some(pieces) = percent::pieces(text) else {
            return refuse(
                RefusalCode::BadPercentEncoding,
                format!("the path {} has a % without two hexadecimal digits", Quoted(text)),
                "write a percent sign as %25",
            );
        };
        forbidden_bytes(text, &pieces)?;
        let mut wire = String::with_capacity(text.len());
        let mut strict = Vec::new();
        for (at, segment) in pieces.split(|piece| *piece == Piece::Plain(b'/')).enumerate().skip(1) {
            if at > MAX_SEGMENTS {
                return too_many_segments();
            }
            wire.push('/');
            segment.iter().for_each(|piece| percent::write(*piece, plain_in_a_path, &mut wire));
            let Ok(exact) = String::from_utf8(segment.iter().map(|piece| piece.byte()).collect()) else {
                return refuse(
                    RefusalCode::NotUtf8,
                    format!("the path {} is not UTF-8 when decoded", Quoted(text)),
                    "encode it as UTF-8, in the shortest form",
                );
            };
            if exact.contains(char::is_control) {
                return control_character(text);
            }
            strict.push(exact);
        }
        let readings = readings(strict)?;
        for reading in &readings {
            suspicious_segments(text, reading)?;
        }
        Ok(Self { wire, readings })
    }

    /// The form that is sent.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.wire
    }

    /// Decoded segments, as most servers divide them. A path that ends in a slash ends in an empty segment.
    pub fn segments(&self) -> impl Iterator<Item = &str> {
        self.readings[0].segments.iter().map(|segment| &*segment.exact)
    }

    pub(crate) fn readings(&self) -> &[Reading] {
        &self.readings
    }
}

impl fmt::Display for CanonicalPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.wire)
    }
}

impl Serialize for CanonicalPath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.wire)
    }
}

/// The segment as the most forgiving server reads it: compatibility forms as the letters they represent, capitals as
/// small letters, without dots and spaces at the end.
pub(crate) fn fold(exact: &str) -> String {
    let folded = fold_letters(exact);
    let trimmed = folded.trim_end_matches(['.', ' ']);
    if trimmed.is_empty() { folded } else { trimmed.to_owned() }
}

/// Folds the letters of a part of a segment as [`fold`] does, but keeps dots and spaces at its end.
pub(crate) fn fold_letters(exact: &str) -> String {
    if exact.is_ascii() {
        return exact.to_ascii_lowercase();
    }
    // Upper case first: the long s and the Kelvin sign have no small letter of their own.
    exact.nfkc().flat_map(char::to_uppercase).flat_map(char::to_lowercase).collect()
}

/// Characters of a path that need no encoding (RFC 3986, `pchar`), beyond the unreserved ones. `;` is refused.
fn plain_in_a_path(byte: u8) -> bool {
    matches!(byte, b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b',' | b'=' | b':' | b'@')
}

fn forbidden_bytes(text: &str, pieces: &[Piece]) -> Result<(), Refusal> {
    let refuse = |code, why: &str, next: &str| {
        Err(Refusal::new(Part::Path, code, format!("the path {} {why}", Quoted(text)), next))
    };
    for piece in pieces {
        match (piece, piece.byte()) {
            (_, 0..=0x1f | 0x7f) | (Piece::Plain(_), b' ') => return control_character(text),
            (_, b'\\') => {
                return refuse(
                    RefusalCode::Backslash,
                    "has a backslash, which some servers take for a slash",
                    "use a slash",
                );
            }
            (_, b';') => {
                return refuse(
                    RefusalCode::PathParameters,
                    "has a semicolon, behind which some servers cut a segment off",
                    "send parameters in the query",
                );
            }
            (Piece::Plain(_), b'#') => {
                return refuse(
                    RefusalCode::Fragment,
                    "has a fragment",
                    "leave out the # and what follows it",
                );
            }
            (Piece::Plain(_), b'?') => {
                return refuse(RefusalCode::Invalid, "has a question mark", "write it as %3F");
            }
            (Piece::Plain(_), 0x80..) => {
                return refuse(RefusalCode::NotAscii, "has bytes beyond ASCII", "percent-encode them");
            }
            _ => {}
        }
    }
    if percent::encoded_twice(pieces) {
        return refuse(
            RefusalCode::DoubleEncoding,
            "is percent-encoded twice, which some servers undo once and some twice",
            "encode it once",
        );
    }
    Ok(())
}

fn control_character<T>(text: &str) -> Result<T, Refusal> {
    Err(Refusal::new(
        Part::Path,
        RefusalCode::ControlCharacter,
        format!("the path {} has a space, a NUL or another control character", Quoted(text)),
        "remove it; a space is written as %20",
    ))
}

fn too_many_segments<T>() -> Result<T, Refusal> {
    Err(Refusal::new(
        Part::Path,
        RefusalCode::TooLong,
        format!("the path has more than {MAX_SEGMENTS} segments"),
        "shorten it",
    ))
}

/// The segments as sent. If a slash is encoded within one of them, a second reading divides it there.
fn readings(strict: Vec<String>) -> Result<Vec<Reading>, Refusal> {
    let compatible = |segment: &str| -> String {
        if segment.is_ascii() { segment.to_owned() } else { segment.nfkc().collect() }
    };
    let hides_a_slash = |segment: &String| {
        segment.contains('/') || (!segment.is_ascii() && compatible(segment).contains('/'))
    };
    let divided: Option<Vec<String>> = strict.iter().any(hides_a_slash).then(|| {
        let parts = strict.iter().flat_map(|segment| {
            let parts: Vec<String> = compatible(segment).split('/').map(str::to_owned).collect();
            parts
        });
        parts.take(MAX_SEGMENTS + 1).collect()
    });
    let mut readings = Vec::with_capacity(1 + usize::from(divided.is_some()));
    for segments in [Some(strict), divided].into_iter().flatten() {
        if segments.len() > MAX_SEGMENTS {
            return too_many_segments();
        }
        readings.push(Reading { segments: segments.into_iter().map(Segment::new).collect() });
    }
    Ok(readings)
}

/// Refuses segments that servers resolve or drop in different ways: empty ones, and ones of nothing but dots.
fn suspicious_segments(text: &str, reading: &Reading) -> Result<(), Refusal> {
    let last = reading.segments.len() - 1;
    for (at, segment) in reading.segments.iter().enumerate() {
        if segment.exact.is_empty() && at != last {
            return Err(Refusal::new(
                Part::Path,
                RefusalCode::EmptySegment,
                format!(
                    "the path {} has two slashes in a row, which some servers take for one",
                    Quoted(text)
                ),
                "send one slash",
            ));
        }
        // A compatibility form of a backslash, a semicolon or a percent sign is harmless to all but the most forgiving
        // servers. The folded form contains it, and deny and ask rules are compared with that form.
        let dots = |text: &str| !text.is_empty() && text.chars().all(|char| char == '.' || char == ' ');
        if dots(segment.folded()) && !segment.exact.trim_matches(' ').is_empty() {
            return Err(Refusal::new(
                Part::Path,
                RefusalCode::DotSegment,
                format!(
                    "the path {} has a segment of dots, which servers resolve in different ways",
                    Quoted(text)
                ),
                "send the path that is meant",
            ));
        }
    }
    Ok(())
}
