//! For how long a bay is to stay awake: by a clock that goes on while the host sleeps and that nobody can set, so that
//! neither a clock that is put right nor a night in a bag makes a lease longer or shorter than it was asked for.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use rustix::time::{ClockId, clock_gettime};

/// How far two readings of the two clocks may be apart before somebody has set the one that can be set.
const SET: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy)]
pub(super) struct Lease {
    /// Since boot.
    ends: Duration,
    /// The same as it was told.
    told: Timestamp,
}

/// Time since boot, also that spent asleep.
pub(super) fn since_boot() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0))
}

impl Lease {
    /// None when that is beyond what can be told.
    pub(super) fn new(seconds: u64, since_boot: Duration, now: Timestamp) -> Option<Self> {
        let told = now.checked_add(SignedDuration::from_secs(i64::try_from(seconds).ok()?)).ok()?;
        Some(Self { ends: since_boot.checked_add(Duration::from_secs(seconds))?, told })
    }

    /// Until when by the clock on the wall, as that goes now; none when it has run out.
    pub(super) fn until(&self, since_boot: Duration, now: Timestamp) -> Option<Timestamp> {
        let left = self.ends.checked_sub(since_boot).filter(|left| !left.is_zero())?;
        let until = now.checked_add(left).unwrap_or(Timestamp::MAX);
        let as_told = until.duration_since(self.told).unsigned_abs() < SET;
        Some(if as_told { self.told } else { until })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60;
    const HOUR: u64 = 3600;

    #[test]
    fn a_clock_that_jumps_makes_a_lease_neither_longer_nor_shorter() {
        let noon: Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
        let boot = Duration::from_secs(500);
        let later = |seconds| boot + Duration::from_secs(seconds);
        let lease = Lease::new(30 * MINUTE, boot, noon).unwrap();
        let told: Timestamp = "2026-01-01T12:30:00Z".parse().unwrap();
        let wall = |seconds: u64| noon + Duration::from_secs(seconds);
        assert_eq!(lease.until(boot, noon), Some(told));
        assert_eq!(lease.until(later(10 * MINUTE), wall(10 * MINUTE)), Some(told));
        // Set back or forward by hours: ten minutes of it are over, twenty are left.
        for jumped in [noon - Duration::from_secs(5 * HOUR), wall(5 * HOUR)] {
            let until = lease.until(later(10 * MINUTE), jumped).unwrap();
            assert_eq!(until, jumped + Duration::from_secs(20 * MINUTE));
            assert_eq!(lease.until(later(30 * MINUTE), jumped), None);
        }
        // The host slept for an hour, and both clocks went on.
        assert_eq!(lease.until(later(HOUR), wall(HOUR)), None);
        assert!(Lease::new(u64::MAX, boot, noon).is_none());
    }
}
