//! The gateway of one bay, the only egress. It terminates DNS, TLS and HTTP, and opens its own connections to
//! origins.
//!
//! A [`Gateway`] serves one bay on listeners that the caller opened in the bay's gateway namespace. There every
//! address is local: the local address of an accepted connection is the destination that the bay chose. The gateway
//! has no store, no rules and no clock for policies. It asks a [`Decider`], and reaches origins through an
//! [`Upstream`].
//!
//! ```text
//!  bay ─ DNS ──► dns ──► names: a permanent synthetic address for each name; no question is forwarded
//!
//!  bay ─ TCP ──► connection: address → name ── Decider::route
//!                  ├─ inspect ─ TLS (certificate by the bay's authority) or plain ─ HTTP/1.1, HTTP/2 (SSH: as git-ssh)
//!                  │              └─► exchange: one request ── Decider::decide ──► origin
//!                  ├─ passthrough ─ ClientHello: name = SNI ── Decider::decide ──► tunnel
//!                  ├─ host-itself ─ HTTP/1: as inspect; anything else: as tcp ─► the host's loopback, one port
//!                  ├─ git-ssh ─ SSH (a host key of the bay's own authority) ─ one command
//!                  │              └─► ssh: git's service ── Decider::decide ──► origin, with the operator's key
//!                  ├─ tcp ──────────────────────────────────── Decider::decide ──► tunnel
//!                  │    └─ a database whose password is a secret ─ secrets::login ──► postgres: the login, then tunnel
//!                  └─ refuse ─ answered with a reason if the client speaks TLS, HTTP or SSH, closed otherwise
//!  bay ─ proxy ► CONNECT: `connection` to the named host; an absolute URL: `exchange`
//! ```
//!
//! The checks on an HTTP request, in this order. If one fails, the gateway stops. It answers and records as the table
//! says:
//!
//! | step | if it fails |
//! |---|---|
//! | fewer than the maximum of connections are open | closed, recorded |
//! | the address has a name, or is itself the destination | closed, recorded |
//! | the client speaks TLS or HTTP, within limits of size and time | closed, recorded (if HTTP was begun, 400, 414 or 431; a head that is too slow is not recorded) |
//! | fewer than the maximum of requests are under way | 503, recorded |
//! | one length, one `Host`; the only upgrade is a complete WebSocket handshake | 400, 403 |
//! | name of the address = SNI = `Host` = `:authority`, and the request has a canonical form ([`bay_policy::canonicalise`]) | 403 |
//! | no sentinel is misplaced, and no foreign credential goes to a host whose secrets are managed ([`secrets`]) | 403 |
//! | [`Decider::decide`] allows the request and has recorded it; it may wait for a person | 403 with the explanation; 503 with `Retry-After` if nobody has answered |
//! | a short body, or the part of a longer one that has arrived, contains no sentinel ([`secrets`]), and no form field that asks for another method | 403 |
//! | the values of the secrets are available, and the record of their use is on disk ([`Decider::attach`]) | 503 |
//! | the name resolves, unless a kept connection is used | 502, 504 |
//! | the address of the new or kept connection is permitted ([`bay_policy::check_address`]) | 403 |
//! | the connection opens, and TLS has a verified certificate | 502, 504 |
//! | the head of the answer arrives within limits of size and time | 502, 504 |
//! | the bodies keep moving, and the policy still allows the request | the stream is cut, recorded |
//!
//! The gateway builds the head of the request that it sends from the canonical request and from parsed headers. It
//! does not copy the bytes of the bay's own head, so the origin cannot read another request in them. It passes bodies
//! on as they arrive and does not follow redirects. It removes `Alt-Svc` and hop-by-hop headers. It passes a
//! WebSocket on only after the origin has proved that it took part in the handshake.
//!
//! The HTTP answers of a host that a secret is for are scrubbed of its value, and so is what plain `tcp` connections
//! to that host return. [`scrub`] says what is found and what is not.
//!
//! The gateway reports the end of every ruling exactly once ([`Decider::ended`]), also if the bay disconnects
//! halfway. [`limits`] bounds what a bay can make the gateway hold in memory.
#![forbid(unsafe_code)]

mod answers;
pub mod authority;
mod bay_connection;
mod body;
mod connection;
pub mod decider;
pub mod dns;
mod exchange;
pub mod first_line;
mod forms;
mod gateway;
mod headers;
pub mod hello;
mod http_server;
pub mod limits;
mod listener;
pub mod names;
mod origin;
mod policy;
pub mod postgres;
mod progress;
mod proxy;
mod registry;
pub mod scrub;
pub mod secrets;
pub mod sight;
mod ssh;
mod state;
mod stream;
mod tunnel;
pub mod upstream;

pub use answers::{FAILURE_HEADER, LINE_HEADER, RECORD_HEADER};
pub use authority::{Authority, AuthorityError, SavedAuthority};
pub use decider::{
    Caller, Decider, Ended, Ending, Failure, Known, LookUp, RecordId, Refused, Ruling, Waiting,
};
pub use dns::Datagrams;
pub use gateway::{Gateway, Settings};
pub use limits::Timeouts;
pub use listener::{Arrival, Arrivals, Own};
pub use names::{Names, NamesError, Pools, SavedNames};
pub use sight::{Beginning, Sight};
pub use stream::Io;
pub use upstream::{SshLogin, SystemUpstream, Upstream};
