//! The core: every verb, the reconcilers that bring bays to their desired states, and the record of both.
//!
//! ```text
//!   a front ──► verbs (may the principal? policy, approval, limits)
//!                 │ one transaction: the desired state and its event
//!                 ▼
//!   bay-store ◄───────────────── registry (rows in memory)
//!                                   │ wakes
//!                     step (pure: desired and real ─► what next)
//!                                   ▼
//!   bay-pool, bay-backend, guest ◄─ reconcile, one task for each bay
//!                                   ▲
//!   guest events ──► follow ──► ends of execs           └── timer, death of PID 1, idle
//!                        ├──► telemetry: counters, costs, spans
//!                        └──► changes: which files changed meanwhile
//!   held requests ──► approvals: asked, answered by a person, used; all of it on record
//!   a bay's connections ──► egress (policy, who, record) ──► the world; verbs/traffic reads that record for people
//! ```
//!
//! What must hold for every front holds here. A front parses a request, calls a verb with the principal that sent
//! it, and encodes the result. The store, the pool and the backends are private to this crate.
//!
//! Failure paths:
//! * **The daemon is killed** at any line: every desired state is stored before anything is done about it, every step
//!   may be repeated, and `adopt` finds what is incomplete by the bay's id.
//! * **A guest dies**: the bay's state shows it at once. If the bay should run, the reconciler starts it again a
//!   few times, then reports the bay as failed.
//! * **A guest lies, floods or stalls**: plain answers and lines are bounded, and so is the wait for them
//!   (`channel`, `follow`). Streams have no bound, and a stream waits for the slower end.
//! * **A caller hangs up**: the daemon completes a change that it has begun. A stream ends.
//! * **The disk is full or read-only, the database or the pool damaged**: an [`OpenError`] or an error answer that
//!   says what to do. The daemon deletes and overwrites nothing to get out of it.
//!
//! Tests can make the daemon or the runtime helper die at named points: see `fault`.
#![forbid(unsafe_code)]

mod admission;
mod adopt;
mod approvals;
mod assemble;
mod authorize;
mod backends;
mod background;
pub mod byte_stream;
mod changes;
mod channel;
mod checked_output;
mod daemon;
mod durability;
mod egress;
mod fault;
mod follow;
mod gateway_files;
mod gateway_settings;
mod guest_connection;
mod guest_hints;
mod host_size;
mod idle;
mod inside_requests;
mod keyring;
mod last_usage;
mod ledger;
mod notify;
mod open_error;
mod open_forwards;
mod outgoing_http;
mod policies;
mod progress;
mod reconcile;
mod registry;
mod restarts;
mod secrets;
mod spool;
mod step;
mod telemetry;
#[doc(hidden)]
pub mod testing;
mod validate;
pub mod verbs;

pub use approvals::ApprovalsConfig;
pub use assemble::Parts;
pub use channel::{Answer, plain_text};
pub use daemon::Daemon;
pub use fault::Fault;
pub use gateway_settings::{EgressConfig, SshKey};
pub use host_size::HostSize;
pub use keyring::{forget_new_key, key_path, look as look_at_keys, makes_key};
pub use open_error::{OpenError, io_code};
pub use progress::ProgressReporter;
pub use telemetry::Collector;
