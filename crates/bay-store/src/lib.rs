//! What the daemon must not forget, in one SQLite file: bays with their execs, checkpoints and costs, policies,
//! approvals, and the hashed record of events.
//!
//! ```text
//!   writer: one connection behind a lock          readers: a small pool
//!      BEGIN IMMEDIATE                                SELECT …
//!        change a row
//!        append its event (a leaf of the ledger's tree)
//!        move the tree's frontier (size, hashes)
//!      COMMIT ── wakes ──► the sync task: after 30 ms, one fdatasync of the log for all commits since
//! ```
//!
//! If a change of a row has an event, one transaction makes the change and appends the event: the database never
//! holds one without the other. Some changes have no event, such as costs and the handle of a runtime. A committed
//! transaction survives `kill -9` of the daemon at once, and a power cut after about [`SYNC_WITHIN`], or when
//! [`Store::event_durable`] has returned.
//!
//! Failure paths:
//! * **The file is not a database, or is damaged**: [`StoreError::Damaged`] with the path. The store repairs,
//!   deletes and overwrites nothing. It makes a new database under another name and moves it into place when it is
//!   complete. So an empty file under the real name is damage, not a first start.
//! * **A newer release wrote the database**: [`StoreError::Newer`]. The file is not changed.
//! * **The disk is full or read-only**: SQLite rolls the transaction back, the caller gets [`StoreError::Full`] or
//!   [`StoreError::ReadOnly`], and the stored data stays as it was.
//! * **A caller drops its future in the middle of a transaction**: the next transaction begins with a rollback. In
//!   memory the store keeps only the end of the event record. It discards that after a transaction that it did not
//!   see commit, and reads it again.
//! * **Somebody edited, removed or reordered events**: [`Store::events_verify`] names the first event that does not
//!   verify. If all hashes were replaced too, only a head that was signed before shows it: readers check proofs
//!   (`ledger_…`) against one.
//! * **The log cannot be flushed**: the daemon logs an error, and [`Store::event_durable`] fails from then on.
//!
//! Most of the SQL is portable (`$1`, text timestamps, no upserts beyond `ON CONFLICT`). What begins transactions,
//! reads JSON or checks the file is SQLite's own.
#![forbid(unsafe_code)]

mod append_queue;
mod approval;
mod bay;
mod checkpoint;
mod column;
mod cost;
mod draft;
mod error;
mod event;
mod event_row;
mod exec;
mod id_ranges;
mod ledger;
mod meta;
mod policy;
mod schema;
mod store;
mod sync;
#[cfg(test)]
mod tests;
mod timeline;
mod traffic;
mod tree;
mod writer;

pub use approval::{Answered, ApprovalRow, Lasting};
pub use bay::{BayNew, BayRow, NameChoice};
pub use checkpoint::{CheckpointNew, CheckpointRow};
pub use cost::CostRow;
pub use draft::{Draft, MAX_BODY};
pub use error::StoreError;
pub use exec::{ExecRow, Findings, Inserted};
pub use id_ranges::{FIRST_ID_BASE, LAST_ID_BASE};
pub use ledger::Verdict;
pub use policy::{GrantRow, PolicyNew, PolicyRow, PolicyTexts, Scope};
pub use store::Store;
pub use sync::SYNC_WITHIN;
pub use timeline::{Begin, DESCENT_KINDS};
pub use traffic::TrafficWanted;
