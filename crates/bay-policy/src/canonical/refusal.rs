//! Why a request has no canonical form.

use std::fmt;

use serde::Serialize;

/// Longest part of a request that a reason repeats.
const MAX_QUOTED_CHARS: usize = 80;

/// The part of a request that is at fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    Host,
    Port,
    Method,
    Path,
    Query,
    Header,
    /// The names of one connection (looked up, SNI, Host, `:authority`), compared with each other.
    Names,
}

/// What is wrong with a request. The codes are stable: they are in the ledger and in answers to agents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RefusalCode {
    Empty,
    TooLong,
    Invalid,
    ControlCharacter,
    BadPercentEncoding,
    DoubleEncoding,
    NotUtf8,
    NotAscii,
    Backslash,
    DotSegment,
    EmptySegment,
    PathParameters,
    Fragment,
    NotAbsolute,
    Userinfo,
    Ipv4Notation,
    Ipv6Zone,
    /// A method that must never pass through a gateway.
    MethodRefused,
    /// A header or a field of a query that would make the origin serve another request than the one decided on.
    Override,
    NamesDiffer,
    NameMissing,
}

/// A request without a canonical form. It is never sent, whatever the rules say.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, thiserror::Error)]
#[error("{why}; {next}")]
pub struct Refusal {
    pub part: Part,
    pub code: RefusalCode,
    pub why: String,
    pub next: String,
}

impl Refusal {
    pub(crate) fn new(
        part: Part,
        code: RefusalCode,
        why: impl Into<String>,
        next: impl Into<String>,
    ) -> Self {
        Self { part, code, why: why.into(), next: next.into() }
    }
}

/// Untrusted text within a message. It is escaped, so that it can neither move a cursor nor forge a line, and cut.
pub(crate) struct Quoted<'a>(pub(crate) &'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("`")?;
        for (at, char) in self.0.chars().enumerate() {
            if at == MAX_QUOTED_CHARS {
                f.write_str("…")?;
                break;
            }
            if bay_text::invisible::misleads(char) {
                write!(f, "{}", char.escape_unicode())?;
            } else {
                write!(f, "{char}")?;
            }
        }
        f.write_str("`")
    }
}
