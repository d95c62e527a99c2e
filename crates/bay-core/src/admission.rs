//! Whether the host has the memory that bays will take which go on from where they were.
//!
//! What was kept of a bay comes back as fast as the disk gives it, so many of them at once could use up the host before
//! anybody can look. Each is let in by what the kernel says is available at that moment, less what stays with the host,
//! less what those that were let in and are still on their way have not taken yet:
//!
//! ```text
//!  fits                                        let in; counted until it is back
//!  does not fit, others are on their way       waits for one of them, then looks again
//!  does not fit, and nobody is on the way      refused
//! ```
//! A kernel that does not tell lets everybody in.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bay_types::{CoreError, ErrorCode, Hint};
use tokio::sync::Notify;

/// What stays with the host when nobody says otherwise: this part of its memory …
const RESERVE_SHARE: u64 = 20;
/// … and never less than this.
const RESERVE_LEAST: u64 = 256 << 20;
/// How long a bay waits for those before it.
const TURN_WITHIN: Duration = Duration::from_secs(120);

#[derive(Debug)]
pub(crate) struct Admission {
    /// Stays with the host, in bytes.
    reserve: u64,
    /// Asks how many bytes can be had without swapping.
    available: fn() -> Option<u64>,
    /// What those that were let in take.
    taking: Mutex<u64>,
    done: Notify,
}

/// Counts until dropped.
#[derive(Debug)]
pub(crate) struct Admitted<'a> {
    by: &'a Admission,
    bytes: u64,
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        *self.by.taking() -= self.bytes;
        self.by.done.notify_waiters();
    }
}

/// What is missing, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shortage {
    needed: u64,
    room: u64,
    reserve: u64,
    /// Others are on their way; when they are back there may be room.
    busy: bool,
}

impl Shortage {
    /// For a caller, who knows what to do instead.
    pub(crate) fn refusal(&self, what: &str, hint: impl Into<Hint>) -> CoreError {
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        let Self { needed, room, reserve, busy } = *self;
        let others = if busy { " and other bays that are coming back" } else { "" };
        CoreError::new(
            ErrorCode::NotEnough,
            format!(
                "{what} needs {} MiB of memory, and this host has {} MiB to give: {} MiB stay with the host{others}",
                mib(needed),
                room >> 20,
                mib(reserve),
            ),
            hint,
        )
    }
}

impl Admission {
    /// With so many MiB for the host, or with the usual share of what it has.
    pub(crate) fn new(reserve_mib: Option<u64>, host_mib: u64) -> Self {
        let usual = || (host_mib.saturating_mul(1 << 20) / RESERVE_SHARE).max(RESERVE_LEAST);
        let reserve = reserve_mib.map_or_else(usual, |mib| mib.saturating_mul(1 << 20));
        Self { reserve, available: available_here, taking: Mutex::default(), done: Notify::new() }
    }

    fn taking(&self) -> MutexGuard<'_, u64> {
        self.taking.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn look(&self, needed: u64, taking: u64) -> Result<(), Shortage> {
        let Some(available) = (self.available)() else { return Ok(()) };
        let room = available.saturating_sub(self.reserve).saturating_sub(taking);
        if needed <= room {
            return Ok(());
        }
        Err(Shortage { needed, room, reserve: self.reserve, busy: taking > 0 })
    }

    /// Whether so much could be had now. Promises nothing.
    pub(crate) fn fits(&self, needed: u64) -> Result<(), Shortage> {
        let taking = *self.taking();
        self.look(needed, taking)
    }

    /// Lets one in, or says what is missing.
    pub(crate) fn enter(&self, needed: u64) -> Result<Admitted<'_>, Shortage> {
        let mut taking = self.taking();
        self.look(needed, *taking)?;
        *taking = taking.saturating_add(needed);
        Ok(Admitted { by: self, bytes: needed })
    }

    /// The same, after those before it are back where that is what it takes.
    pub(crate) async fn enter_in_turn(&self, needed: u64) -> Result<Admitted<'_>, Shortage> {
        let turn = async {
            loop {
                let done = self.done.notified();
                tokio::pin!(done);
                // Before the look: an end in between is not missed.
                done.as_mut().enable();
                match self.enter(needed) {
                    Err(shortage) if shortage.busy => done.await,
                    other => return other,
                }
            }
        };
        match tokio::time::timeout(TURN_WITHIN, turn).await {
            Ok(entered) => entered,
            Err(_) => self.enter(needed),
        }
    }
}

fn available_here() -> Option<u64> {
    available_in(&std::fs::read_to_string("/proc/meminfo").ok()?)
}

fn available_in(meminfo: &str) -> Option<u64> {
    let value = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = value.trim().strip_suffix(" kB")?.parse().ok()?;
    kib.checked_mul(1 << 10)
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use super::*;

    const MIB: u64 = 1 << 20;

    /// A host with 1,000 MiB available, of which 100 stay.
    fn host() -> Admission {
        Admission { available: || Some(1000 * MIB), ..Admission::new(Some(100), 0) }
    }

    #[test]
    fn what_is_available_is_read_from_what_the_kernel_tells() {
        let told = "MemTotal:       24619304 kB\nMemFree:         3212 kB\nMemAvailable:   2048 kB\n";
        assert_eq!(available_in(told), Some(2 * MIB));
        assert_eq!(available_in("MemTotal: 1 kB\n"), None);
        assert!(available_here().is_some());
    }

    #[test]
    fn the_host_keeps_a_share_of_its_memory_unless_told_otherwise() {
        assert_eq!(Admission::new(None, 20_000).reserve, 1000 * MIB);
        assert_eq!(Admission::new(None, 1000).reserve, RESERVE_LEAST);
        assert_eq!(Admission::new(Some(7), 20_000).reserve, 7 * MIB);
    }

    #[test]
    fn what_is_on_its_way_counts_until_it_is_back() {
        let host = host();
        assert_eq!(host.fits(900 * MIB), Ok(()));
        let first = host.enter(600 * MIB).unwrap();
        let missing = host.enter(400 * MIB).unwrap_err();
        assert_eq!(missing, Shortage { needed: 400 * MIB, room: 300 * MIB, reserve: 100 * MIB, busy: true });
        assert!(host.enter(300 * MIB).is_ok());
        drop(first);
        assert!(host.enter(900 * MIB).is_ok());
        let refusal = host.fits(901 * MIB).unwrap_err().refusal("it", "wait");
        assert_eq!(refusal.code, ErrorCode::NotEnough);
        assert_eq!(
            refusal.message,
            "it needs 901 MiB of memory, and this host has 900 MiB to give: 100 MiB stay with the host"
        );
    }

    #[tokio::test]
    async fn whoever_does_not_fit_beside_the_others_waits_for_them() {
        let host = host();
        let first = host.enter(600 * MIB).unwrap();
        let mut second = Box::pin(host.enter_in_turn(500 * MIB));
        let waits = std::future::poll_fn(|context| Poll::Ready(second.as_mut().poll(context).is_pending()));
        assert!(waits.await);
        drop(first);
        assert!(second.await.is_ok());
        assert!(host.enter_in_turn(901 * MIB).await.is_err(), "there is nobody to wait for");
    }

    #[test]
    fn a_kernel_that_does_not_tell_lets_everybody_in() {
        let host = Admission { available: || None, ..host() };
        assert!(host.enter(u64::MAX).is_ok());
    }
}
