//! How much is kept of execs.

use crate::spool;

/// Finished execs whose output and end are kept. If there are more, the execs that ended first are deleted first.
const FINISHED_EXECS: usize = 256;
/// Output kept of all finished execs together, in bytes. The exec that ended last is kept in any case.
const FINISHED_BYTES: u64 = 1 << 30;

/// How much is kept of execs; the constants of this crate by default.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    pub output: spool::Bounds,
    pub finished_execs: usize,
    pub finished_bytes: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            output: spool::Bounds::default(),
            finished_execs: FINISHED_EXECS,
            finished_bytes: FINISHED_BYTES,
        }
    }
}
