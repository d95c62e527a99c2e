//! Waits for a condition, with a deadline; and [`pause`], the one sleep of the tests.

use std::time::{Duration, Instant};

/// Time limit of a step, unless a test has one of its own. Generous: two cores, many daemons.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Time between two checks.
const BETWEEN_LOOKS: Duration = Duration::from_millis(10);

/// Calls `look` until it returns something, and returns that.
///
/// # Panics
/// If [`PATIENCE`] is over; `what` says what was waited for.
pub fn until<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    match within(PATIENCE, look) {
        Some(seen) => seen,
        None => panic!("waited {PATIENCE:?} for {what}"),
    }
}

/// Calls `look` until it returns something or the time is over.
pub fn within<T>(limit: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + limit;
    loop {
        if let Some(seen) = look() {
            return Some(seen);
        }
        if Instant::now() >= end {
            return None;
        }
        pause(BETWEEN_LOOKS);
    }
}

/// Sleeps: between two checks, or before a fault at a random moment.
#[expect(clippy::disallowed_methods, reason = "the one place that sleeps, so that nothing else has to")]
pub fn pause(time: Duration) {
    std::thread::sleep(time);
}
