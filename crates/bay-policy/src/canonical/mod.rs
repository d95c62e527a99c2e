//! One form for each request, and a reason for each request that has none.
//!
//! The request that was decided on is the request that is sent. A [`CanonicalRequest`] can only be made here, and the
//! gateway takes the method, the target and the host that it sends from it. It passes on the headers and the body
//! beside it. If two servers could read the same text as two requests, one of three rules applies:
//!
//! - spelling that means the same everywhere is normalised (`%7E` and `~`, `Example.COM.` and `example.com`);
//! - spelling that may mean two things and has an honest use is kept, and both readings must be allowed (`%2F` within a
//!   segment, which clients of package registries send, and `;` in a query);
//! - everything else is refused with its reason (in a path: `..`, `//`, `;x`, `\`, NUL, double encoding, invalid
//!   UTF-8).

mod git;
pub mod host;
pub mod overrides;
pub mod path;
mod percent;
pub mod query;
pub mod refusal;
pub mod request;
mod request_line;

pub use git::{GitService, GitSsh};
pub use host::{Host, HostWarning};
pub use path::CanonicalPath;
pub use query::CanonicalQuery;
pub use refusal::{Part, Refusal, RefusalCode};
pub use request::{CanonicalRequest, Connection, Http, RawRequest, Scheme, WEBSOCKET, What, canonicalise};
