//! PostgreSQL logins with a password that the bay does not have.
//!
//! The gateway passes a connection that a `tcp` rule allows on without parsing. If one of the bay's secrets is a
//! password for a database there, the gateway takes part in the login. After it, it passes bytes on and scrubs answers:
//!
//! ```text
//!  bay's client                      gateway                                   database
//!   ── SSLRequest ─────────────────► TLS by the bay's authority
//!   ── user, database ─────────────► Secrets::login: which secret?
//!   ◄─ SCRAM-SHA-256 ──────────────► does it know the sentinel?
//!                                    Decider::decide, recorded
//!                                    Decider::attach: the value, with its use on disk
//!                                    verified TLS ───────────────────────────► SSLRequest
//!                                    SCRAM-SHA-256, md5, or the password ────► user, database
//!   ◄─ logged in ─────────────────── logged in ◄──────────────────────────────
//!   ◄══════════════ passed on; answers are scrubbed of the value ═════════════►
//! ```
//!
//! The client gets most failures as PostgreSQL errors with the reason and the next step. A request to cancel a query
//! is passed on to the same place, if the policy allows that. It carries a key of its own. Other parameters of the
//! client are passed on if they are on a list ([`parameters`]). A client may be a replica, which reads every
//! database, only if the secret says so. If a client offers a newer protocol version, the gateway negotiates 3.0.
//!
//! Not implemented: channel binding (the gateway terminates the client's TLS), certificates or Kerberos as
//! credentials, and values for passwords that a client *sets* (`ALTER ROLE … PASSWORD` sends what the bay has: the
//! sentinel).

mod database;
#[cfg(any(fuzzing, test))]
pub mod fuzz;
mod parameters;
mod scram;
mod session;
mod wire;

pub(crate) use session::serve;

/// The ALPN protocol of PostgreSQL over TLS.
const ALPN: &[u8] = b"postgresql";
