//! Waiting for something to become true, with a deadline, never for time to pass.

use std::time::{Duration, Instant};

/// How long anything on this machine may take before a test calls it broken. Generous: two cores, many daemons.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Time between two looks.
const BETWEEN_LOOKS: Duration = Duration::from_millis(10);

/// Looks until `look` gives something, and returns it.
///
/// # Panics
/// When [`PATIENCE`] is used up; `what` says what was waited for.
pub fn until<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    match within(PATIENCE, look) {
        Some(seen) => seen,
        None => panic!("waited {PATIENCE:?} for {what}"),
    }
}

/// Looks until `look` gives something or the time is over.
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

/// Lets time pass: between two looks, or before a fault that is meant to strike at a random moment.
#[expect(clippy::disallowed_methods, reason = "the one place that sleeps, so that nothing else has to")]
pub fn pause(time: Duration) {
    std::thread::sleep(time);
}
