//! Installing this executable on a host, and removing what an installation made.
//!
//! | module  | for |
//! |---------|-----|
//! | `place` | where things are, and the record of what was installed |
//! | `unit`  | the text of the systemd unit |
//! | `install` | `bay install` |
//! | `found` | what there is of an installation, found without a daemon |
//! | `remove` | the steps of `bay uninstall` |
//!
//! Identity comes before removal. A daemon's things are named after its id: its key, its control groups, its corner of
//! the pool. Its process holds the lock of its data directory. The executable is the installed one if its hash is on
//! record. What cannot be identified stays, and the report names it.

pub(crate) mod found;
pub(crate) mod install;
pub(crate) mod place;
pub(crate) mod remove;
mod unit;
