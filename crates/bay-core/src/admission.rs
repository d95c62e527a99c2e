//! Admission: whether the host has enough memory for bays that are restored from memory checkpoints.
//!
//! A restore reads memory as fast as the disk delivers it, so many restores at once could use up the host's memory.
//! Each restore is admitted by what the kernel reports as available at that moment, less the host's reserve, less
//! all that the admitted restores need:
//!
//! ```text
//!  fits                                        admitted; counted until its restore is done
//!  does not fit, others are under way          waits until one of them is done, then checks again; refused
//!                                              after TURN_WITHIN
//!  does not fit, and no other is under way     refused
//! ```
//! If the kernel does not report what is available, every restore is admitted.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bay_types::{CoreError, ErrorCode, Hint};
use tokio::sync::Notify;

/// Unless the operator sets another reserve, it is the host's memory divided by this.
const RESERVE_SHARE: u64 = 20;
/// The least reserve in bytes, unless the operator sets another.
const RESERVE_LEAST: u64 = 256 << 20;
/// How long a restore waits for those that are under way.
const TURN_WITHIN: Duration = Duration::from_secs(120);

#[derive(Debug)]
pub(crate) struct Admission {
    /// The host's reserve in bytes.
    reserve: u64,
    /// Returns how many bytes are available without swapping.
    available: fn() -> Option<u64>,
    /// What the admitted restores need, in bytes.
    taking: Mutex<u64>,
    done: Notify,
}

/// An admitted restore. It counts until dropped.
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

/// Why a restore does not fit. All sizes are in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shortage {
    needed: u64,
    room: u64,
    reserve: u64,
    /// Other restores are under way; there may be room when they are done.
    busy: bool,
}

impl Shortage {
    /// The error for a caller, who knows what to do `next`.
    pub(crate) fn refusal(&self, what: &str, hint: impl Into<Hint>) -> CoreError {
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        let Self { needed, room, reserve, busy } = *self;
        let others = if busy { ", and other bays that are being restored need some" } else { "" };
        CoreError::new(
            ErrorCode::NotEnough,
            format!(
                "{what} needs {} MiB of memory, and this host can give {} MiB: {} MiB stay with the host{others}",
                mib(needed),
                room >> 20,
                mib(reserve),
            ),
            hint,
        )
    }
}

impl Admission {
    /// With this reserve, or with the default share of the host's memory.
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

    /// Whether there is memory for a restore now. This reserves nothing.
    pub(crate) fn fits(&self, needed: u64) -> Result<(), Shortage> {
        let taking = *self.taking();
        self.look(needed, taking)
    }

    /// Admits a restore, or returns what is missing.
    pub(crate) fn enter(&self, needed: u64) -> Result<Admitted<'_>, Shortage> {
        let mut taking = self.taking();
        self.look(needed, *taking)?;
        *taking = taking.saturating_add(needed);
        Ok(Admitted { by: self, bytes: needed })
    }

    /// Admits a restore, if necessary after restores that are under way. Waits for at most [`TURN_WITHIN`].
    pub(crate) async fn enter_in_turn(&self, needed: u64) -> Result<Admitted<'_>, Shortage> {
        let turn = async {
            loop {
                let done = self.done.notified();
                tokio::pin!(done);
                // Before the check, so that an end in between is not missed.
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

    /// A host with 1,000 MiB available and a reserve of 100.
    fn host() -> Admission {
        Admission { available: || Some(1000 * MIB), ..Admission::new(Some(100), 0) }
    }

    #[test]
    fn available_memory_is_read_from_the_kernels_report() {
        let told = "MemTotal:       24619304 kB\nMemFree:         3212 kB\nMemAvailable:   2048 kB\n";
        assert_eq!(available_in(told), Some(2 * MIB));
        assert_eq!(available_in("MemTotal: 1 kB\n"), None);
        assert!(available_here().is_some());
    }

    #[test]
    fn the_host_keeps_a_share_of_its_memory_unless_the_operator_sets_another() {
        assert_eq!(Admission::new(None, 20_000).reserve, 1000 * MIB);
        assert_eq!(Admission::new(None, 1000).reserve, RESERVE_LEAST);
        assert_eq!(Admission::new(Some(7), 20_000).reserve, 7 * MIB);
    }

    #[test]
    fn an_admitted_restore_counts_until_it_is_done() {
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
            "it needs 901 MiB of memory, and this host can give 900 MiB: 100 MiB stay with the host"
        );
    }

    #[tokio::test]
    async fn a_restore_that_does_not_fit_beside_others_waits_for_them() {
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
    fn without_a_report_of_the_kernel_every_restore_is_admitted() {
        let host = Admission { available: || None, ..host() };
        assert!(host.enter(u64::MAX).is_ok());
    }
}
