//! What rules compare requests with. Each pattern can match, cover another (match all that the other does), and overlap
//! another (match something that the other does): decisions need the first, lint and precedence the others.

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
    /// For allow: what is not certainly meant does not match.
    Exact,
    /// For deny and ask: what some server may take for it does.
    Forgiving,
}
