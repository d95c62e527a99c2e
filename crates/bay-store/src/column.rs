//! Conversion of values to and from the columns of tables.

use jiff::Timestamp;

/// The current time, as precise as it is stored and hashed.
pub(crate) fn now() -> Timestamp {
    // Every database can hold microseconds.
    Timestamp::now().round(jiff::Unit::Microsecond).unwrap_or_else(|_| Timestamp::now())
}

pub(crate) fn to_i64(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

pub(crate) fn to_u64(n: i64) -> u64 {
    u64::try_from(n).unwrap_or(0)
}
