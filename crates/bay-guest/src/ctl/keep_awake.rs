//! How long a bay is kept awake, by a clock that cannot be set and that also counts time in which the host is
//! suspended. So neither setting the time of day nor a suspended laptop changes the duration.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use rustix::time::{ClockId, clock_gettime};

/// If the end by the wall clock has moved by at least this since it was promised, the wall clock was set.
const SET: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy)]
pub(super) struct KeepAwake {
    /// The end, as a time since boot.
    ends: Duration,
    /// The end by the wall clock, as it was promised.
    promised: Timestamp,
}

/// Time since boot, including time in which the host was suspended.
pub(super) fn since_boot() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0))
}

impl KeepAwake {
    /// None if the end is too late for a timestamp.
    pub(super) fn new(seconds: u64, since_boot: Duration, now: Timestamp) -> Option<Self> {
        let promised = now.checked_add(SignedDuration::from_secs(i64::try_from(seconds).ok()?)).ok()?;
        Some(Self { ends: since_boot.checked_add(Duration::from_secs(seconds))?, promised })
    }

    /// The end by the wall clock as it is now. None if the end has passed.
    pub(super) fn until(&self, since_boot: Duration, now: Timestamp) -> Option<Timestamp> {
        let left = self.ends.checked_sub(since_boot).filter(|left| !left.is_zero())?;
        let until = now.checked_add(left).unwrap_or(Timestamp::MAX);
        let as_told = until.duration_since(self.promised).unsigned_abs() < SET;
        Some(if as_told { self.promised } else { until })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60;
    const HOUR: u64 = 3600;

    #[test]
    fn setting_the_clock_does_not_change_how_long_a_bay_is_kept_awake() {
        let noon: Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
        let boot = Duration::from_secs(500);
        let later = |seconds| boot + Duration::from_secs(seconds);
        let keep_awake = KeepAwake::new(30 * MINUTE, boot, noon).unwrap();
        let promised: Timestamp = "2026-01-01T12:30:00Z".parse().unwrap();
        let wall = |seconds: u64| noon + Duration::from_secs(seconds);
        assert_eq!(keep_awake.until(boot, noon), Some(promised));
        assert_eq!(keep_awake.until(later(10 * MINUTE), wall(10 * MINUTE)), Some(promised));
        // Set back or forward by hours: ten minutes have passed, twenty are left.
        for jumped in [noon - Duration::from_secs(5 * HOUR), wall(5 * HOUR)] {
            let until = keep_awake.until(later(10 * MINUTE), jumped).unwrap();
            assert_eq!(until, jumped + Duration::from_secs(20 * MINUTE));
            assert_eq!(keep_awake.until(later(30 * MINUTE), jumped), None);
        }
        // The host was suspended for an hour, and both clocks went on.
        assert_eq!(keep_awake.until(later(HOUR), wall(HOUR)), None);
        assert!(KeepAwake::new(u64::MAX, boot, noon).is_none());
    }
}
