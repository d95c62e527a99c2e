//! Patterns of paths: segments, `*` within a segment, `**` for all segments that follow.

use std::fmt;

use serde::{Serialize, Serializer};

use super::Strictness;
use crate::canonical::path::{Reading, Segment, fold, fold_letters};
use crate::canonical::refusal::{Part, Quoted, RefusalCode};
use crate::canonical::{CanonicalPath, Refusal};

/// Replaces a star while a pattern passes through the canonicaliser as a path does. It is a private-use character, and
/// patterns that contain it are refused.
const STAR: char = '\u{f8ff}';
const STAR_ENCODED: &str = "%EF%A3%BF";

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PathPattern {
    text: Box<str>,
    segments: Vec<SegmentPattern>,
    /// Whether any number of segments may follow.
    open: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct SegmentPattern {
    exact: Glob,
    folded: Glob,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Glob {
    Literal(Box<str>),
    /// A text with this prefix and this suffix. If both are empty, the text must not be.
    Around(Box<str>, Box<str>),
}

impl Glob {
    fn matches(&self, text: &str) -> bool {
        match self {
            Self::Literal(literal) => **literal == *text,
            Self::Around(before, behind) => {
                !text.is_empty()
                    && text.len() >= before.len() + behind.len()
                    && text.starts_with(&**before)
                    && text.ends_with(&**behind)
            }
        }
    }

    fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (_, Self::Literal(literal)) => self.matches(literal),
            (Self::Literal(_), Self::Around(..)) => false,
            (Self::Around(before, behind), Self::Around(other_before, other_behind)) => {
                other_before.starts_with(&**before) && other_behind.ends_with(&**behind)
            }
        }
    }

    fn overlaps(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Literal(literal), _) => other.matches(literal),
            (_, Self::Literal(literal)) => self.matches(literal),
            (Self::Around(before, behind), Self::Around(other_before, other_behind)) => {
                (before.starts_with(&**other_before) || other_before.starts_with(&**before))
                    && (behind.ends_with(&**other_behind) || other_behind.ends_with(&**behind))
            }
        }
    }
}

/// A property of every matching path, by which an index rules out paths that cannot match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Landmark<'a> {
    /// The segment with this index equals this text when folded.
    Literal(usize, &'a str),
    /// The segment with this index begins with this text when folded.
    Prefix(usize, &'a str),
    Nothing,
}

/// An optional ending of repository names. Servers accept a name with and without it.
const GIT_SUFFIX: &str = ".git";

impl PathPattern {
    /// The patterns of the same repositories, each with and without `.git` at its end.
    #[must_use]
    pub fn of_repositories(patterns: Vec<Self>) -> Vec<Self> {
        let mut all: Vec<Self> = Vec::with_capacity(patterns.len() * 2);
        for pattern in patterns {
            let other = match pattern.text.strip_suffix(GIT_SUFFIX) {
                Some(short) => Self::parse(short).ok(),
                None if pattern.text.ends_with(['*', '/']) => None,
                None => Self::parse(&format!("{}{GIT_SUFFIX}", pattern.text)).ok(),
            };
            for one in [Some(pattern), other].into_iter().flatten() {
                if !all.contains(&one) {
                    all.push(one);
                }
            }
        }
        all
    }
}

impl PathPattern {
    /// Parses a pattern. Everything but the stars is brought into the form that paths of requests have.
    pub fn parse(text: &str) -> Result<Self, Refusal> {
        let refuse = |why: &str, next: &str| {
            Err(Refusal::new(
                Part::Path,
                RefusalCode::Invalid,
                format!("the path {} {why}", Quoted(text)),
                next,
            ))
        };
        if text.contains(STAR) || text.to_ascii_uppercase().contains(STAR_ENCODED) {
            return refuse("has a character that is kept for the stars of patterns", "leave it out");
        }
        let (fixed, open) = match text.strip_suffix("/**") {
            Some(fixed) => (fixed, true),
            None => (text, false),
        };
        if fixed.contains("**") {
            return refuse("has ** before its end", "use * for one segment and /** at the end");
        }
        if fixed.split('/').any(|segment| segment.matches('*').count() > 1) {
            return refuse("has two stars in one segment", "use one");
        }
        if open && fixed.is_empty() {
            return Ok(Self { text: "/**".into(), segments: Vec::new(), open });
        }
        let marked: String = fixed
            .chars()
            .map(|char| if char == '*' { STAR_ENCODED.to_owned() } else { encode(char) })
            .collect();
        let path = CanonicalPath::parse(&marked)?;
        let segments: Vec<SegmentPattern> = path.readings()[0].segments.iter().map(segment_pattern).collect();
        // A literal star of the path stays encoded, so that parsing the text again does not make it a wildcard.
        let wire = path.as_str().replace('*', "%2A").replace(STAR_ENCODED, "*");
        Ok(Self { text: if open { format!("{wire}/**") } else { wire }.into(), segments, open })
    }

    pub(crate) fn matches(&self, reading: &Reading, strictness: Strictness) -> bool {
        match strictness {
            Strictness::Exact => {
                let fits =
                    |(pattern, segment): (&SegmentPattern, &Segment)| pattern.exact.matches(&segment.exact);
                self.compare(&self.segments, &reading.segments, fits)
            }
            Strictness::Forgiving => {
                let fits = |(pattern, segment): (&SegmentPattern, &Segment)| {
                    pattern.folded.matches(segment.folded())
                };
                self.compare(self.without_final_slash(), reading.without_final_slash(), fits)
            }
        }
    }

    fn compare(
        &self,
        patterns: &[SegmentPattern],
        segments: &[Segment],
        fits: impl Fn((&SegmentPattern, &Segment)) -> bool,
    ) -> bool {
        let enough =
            if self.open { segments.len() >= patterns.len() } else { segments.len() == patterns.len() };
        enough && patterns.iter().zip(segments).all(fits)
    }

    fn without_final_slash(&self) -> &[SegmentPattern] {
        match self.segments.split_last() {
            Some((last, rest)) if !rest.is_empty() && last.exact == Glob::Literal("".into()) => rest,
            _ => &self.segments,
        }
    }

    /// A property of every matching path, for the index.
    pub(crate) fn landmark(&self) -> Landmark<'_> {
        let literal = self.segments.iter().enumerate().find_map(|(at, segment)| match &segment.folded {
            // A forgiving comparison ignores a slash at the end.
            Glob::Literal(literal) if !literal.is_empty() || self.segments.len() == 1 => {
                Some((at, &**literal))
            }
            _ => None,
        });
        if let Some((at, literal)) = literal {
            return Landmark::Literal(at, literal);
        }
        let prefix = self.segments.iter().enumerate().find_map(|(at, segment)| match &segment.folded {
            Glob::Around(before, _) if before.is_ascii() && before.len() > 1 => Some((at, &**before)),
            _ => None,
        });
        match prefix {
            // Without its last character, which a combining mark that follows could change.
            Some((at, before)) => Landmark::Prefix(at, &before[..before.len() - 1]),
            None => Landmark::Nothing,
        }
    }

    /// How specific the pattern is: the number of literal segments, and whether its end is fixed.
    pub(crate) fn specificity(&self) -> (usize, bool) {
        (self.segments.iter().filter(|segment| matches!(segment.exact, Glob::Literal(_))).count(), !self.open)
    }

    pub(crate) fn covers(&self, other: &Self) -> bool {
        let enough = if self.open {
            other.segments.len() >= self.segments.len()
        } else {
            !other.open && other.segments.len() == self.segments.len()
        };
        enough && self.segments.iter().zip(&other.segments).all(|(own, other)| own.exact.covers(&other.exact))
    }

    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        let (own_length, other_length) = (self.segments.len(), other.segments.len());
        let lengths = match (self.open, other.open) {
            (true, true) => true,
            (true, false) => other_length >= own_length,
            (false, true) => own_length >= other_length,
            (false, false) => own_length == other_length,
        };
        lengths
            && self
                .segments
                .iter()
                .zip(&other.segments)
                .all(|(own, other)| own.folded.overlaps(&other.folded))
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether it matches every path of a host.
    #[must_use]
    pub fn is_any(&self) -> bool {
        self.open && self.segments.is_empty()
    }
}

/// People write patterns, so letters beyond ASCII and spaces match themselves.
fn encode(char: char) -> String {
    if char == ' ' || !char.is_ascii() {
        let mut bytes = [0; 4];
        char.encode_utf8(&mut bytes).bytes().map(|byte| format!("%{byte:02X}")).collect()
    } else {
        char.to_string()
    }
}

fn segment_pattern(segment: &Segment) -> SegmentPattern {
    match segment.exact.split_once(STAR) {
        None => SegmentPattern {
            exact: Glob::Literal(segment.exact.clone()),
            folded: Glob::Literal(segment.folded().into()),
        },
        Some((before, behind)) => SegmentPattern {
            exact: Glob::Around(before.into(), behind.into()),
            folded: Glob::Around(fold_letters(before).into(), fold(behind).into()),
        },
    }
}

impl fmt::Display for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Serialize for PathPattern {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}
