//! The patterns that rules compare requests with. A pattern can match a request, cover another pattern (match
//! everything that the other matches), and overlap another (match something that the other matches). Decisions need the
//! first; lint and precedence need the others.

pub mod host;
pub mod path;
pub mod query;
pub mod set;

pub use host::HostPattern;
pub use path::PathPattern;
pub use query::QueryPattern;
pub use set::{Methods, Ports};

/// How forgiving a comparison is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Strictness {
    /// For allow rules: if some server may read the text in another way, it does not match.
    Exact,
    /// For deny and ask rules: if some server may read the text as the pattern, it matches.
    Forgiving,
}
