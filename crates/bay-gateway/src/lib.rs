//! The one door out of a bay: DNS, TLS and HTTP, ended here and begun anew towards the origin.
//!
//! A [`Gateway`] serves one bay on listeners that somebody else opened in the bay's gateway namespace, where every
//! address is local: the local end of a connection is where the bay wanted to go. It has no store, no clock of policy and
//! no rules; it asks a [`Decider`], and reaches origins through an [`Upstream`].
//!
//! ```text
//!  bay ─ DNS ──► dns ──► names: one synthetic address for each name, for ever; nothing leaves
//!
//!  bay ─ TCP ──► connection: address → name ── Decider::route
//!                  ├─ inspect ─ TLS (certificate by the bay's own authority) or plain ─ HTTP/1.1, HTTP/2
//!                  │              └─► exchange: one request ── Decider::decide ──► origin
//!                  ├─ passthrough ─ ClientHello: name = SNI ── Decider::decide ──► tunnel
//!                  ├─ git-ssh ─ SSH (a host key of the bay's own authority) ─ one command
//!                  │              └─► ssh: git's service ── Decider::decide ──► origin, with the operator's key
//!                  ├─ tcp ──────────────────────────────────── Decider::decide ──► tunnel
//!                  │    └─ a database whose password is a secret ─ secrets::login ──► postgres: its login, then tunnel
//!                  └─ refuse ─ answered with a reason where it speaks TLS or HTTP, closed otherwise
//!  bay ─ proxy ► CONNECT: `connection` with the host it names; a whole URL: `exchange`
//! ```
//!
//! The order of checks on a request, each of which ends it with an answer and a record:
//!
//! | step | if it fails |
//! |---|---|
//! | there is room for the connection | closed, recorded |
//! | there is room for the request | 503, recorded |
//! | the address has a name, or is itself the destination | closed, recorded |
//! | it is TLS or HTTP within bounds of size and time | 400 or 431 where HTTP was begun, closed, recorded |
//! | one length, one `Host`; the only upgrade is a whole WebSocket handshake | 400, 403 |
//! | name of the address = SNI = `Host` = `:authority`, and a canonical form ([`bay_policy::canonicalise`]) | 403 |
//! | no sentinel is where no secret belongs, and no other credential goes to a host that a secret is for ([`secrets`]) | 403 |
//! | [`Decider::decide`] says allow, and has it on record; it may wait for a person | 403 with the explanation; 503 with `Retry-After` while nobody has answered |
//! | a short body, or what is there of a longer one, has no sentinel in it ([`secrets`]) | 403 |
//! | the values of secrets are to be had, and that they are used is on the disk ([`Decider::attach`]) | 503 |
//! | the address that is dialled, or that a kept connection has, is permitted ([`bay_policy::check_address`]) | 403 |
//! | name, connection, TLS with a verified certificate | 502, 504 |
//! | the head of the answer, within bounds of size and time | 502, 504 |
//! | the bodies go on moving, and the policy still allows it | the stream is cut, recorded |
//!
//! What is sent is built from the canonical request and from headers that were read, never from the bay's bytes: what
//! two parsers could read in two ways does not survive. Bodies are passed on frame by frame. Redirects are answers like
//! others. `Alt-Svc` and headers of one connection are taken out. A WebSocket is passed on only after the origin proved
//! that it took part in the handshake.
//!
//! An answer to a request that carried a secret shows no value of it ([`scrub`]).
//!
//! What comes from a host that a secret is for is scrubbed of its value ([`scrub`]).
//!
//! Every ruling is told its end exactly once ([`Decider::ended`]), also where the bay goes away in the middle.
//! All memory is bounded by [`limits`].
#![forbid(unsafe_code)]

mod answers;
pub mod authority;
mod bay_connection;
mod body;
mod connection;
pub mod decider;
pub mod dns;
mod exchange;
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
