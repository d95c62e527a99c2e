//! PostgreSQL with a password that the bay does not have.
//!
//! A connection that a `tcp` rule allows is passed on unread. Where the secrets of the bay have a password for a database
//! there, the gateway takes part in the login instead, and in nothing after it:
//!
//! ```text
//!  bay's client                      gateway                                   database
//!   ── SSLRequest ─────────────────► TLS by the bay's authority
//!   ── user, database ─────────────► Secrets::login: which secret?
//!   ◄─ SCRAM-SHA-256 ──────────────► is it the sentinel that it knows?
//!                                    Decider::decide, on record
//!                                    Decider::attach: the value, durably on record
//!                                    verified TLS ───────────────────────────► SSLRequest
//!                                    SCRAM-SHA-256, md5, or the password ────► user, database
//!   ◄─ logged in ─────────────────── logged in ◄──────────────────────────────
//!   ◄══════════════ passed on; what comes back is scrubbed of the value ═════►
//! ```
//!
//! What goes wrong is told as an error of PostgreSQL, with what, why and what next. A request to cancel a query is passed
//! on to the same place; it has a key of its own. What a client says beside its user and database is passed on by a list
//! ([`parameters`]); a replica, which reads every database, is only one that the secret is for. Of newer versions of the protocol 3.0 is spoken.
//!
//! What is not done: channel binding (the client's TLS ends here), certificates or Kerberos as credentials, the
//! replication of passwords that a client *sets* (`ALTER ROLE … PASSWORD` sends what the bay has: the sentinel).

mod database;
#[cfg(any(fuzzing, test))]
pub mod fuzz;
mod parameters;
mod scram;
mod session;
mod wire;

pub(crate) use session::serve;

/// How TLS clients of PostgreSQL say what they are going to speak.
const ALPN: &[u8] = b"postgresql";
