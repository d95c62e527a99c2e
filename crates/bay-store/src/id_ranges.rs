//! Ranges of user ids, one per bay.
//!
//! Root in a bay is `id_base` on the host; the bay owns the next [`ID_RANGE`] ids. Ranges lie between
//! [`FIRST_ID_BASE`] and [`LAST_ID_BASE`], which gives 28,670 slots. Several daemons on one host do not know of
//! each other, so each begins at a slot derived from its own id and goes upwards. With ten daemons of five bays
//! each, two ranges coincide with a probability of about 1 in 70. Two such bays share the kernel's per-user
//! accounting, but no files and no processes. Ranges that `/etc/subuid` or `/etc/subgid` assign when the daemon
//! starts are skipped. A slot is used again only after the cursor has passed all others, so that a new bay does
//! not get the ids of leftovers of a recent one.

use std::collections::HashSet;
use std::path::Path;

use bay_types::runtime::ID_RANGE;
use sha2::{Digest, Sha256};

/// Lowest first id of a bay: far above the ids that distributions give to users and `useradd` gives as sub-ids.
pub const FIRST_ID_BASE: u32 = 0x1000_0000;
/// Highest first id of a bay. Above it, systemd uses a range for foreign images, and some tools read still higher
/// ids as negative numbers.
pub const LAST_ID_BASE: u32 = 0x7FFD_0000;

/// Number of slots.
pub(crate) const SLOTS: u32 = (LAST_ID_BASE - FIRST_ID_BASE) / ID_RANGE + 1;

/// Ids that the host assigned to somebody else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reserved {
    first: u64,
    count: u64,
}

pub(crate) fn base_of(slot: u32) -> u32 {
    FIRST_ID_BASE + (slot % SLOTS) * ID_RANGE
}

/// The slot where a daemon begins.
pub(crate) fn first_slot(daemon_id: &str) -> u32 {
    let hash = Sha256::digest(daemon_id.as_bytes());
    u32::from_be_bytes([hash[0], hash[1], hash[2], hash[3]]) % SLOTS
}

/// The next free slot from `cursor` on; each slot is tried once.
pub(crate) fn choose(cursor: u32, taken: &HashSet<u32>, reserved: &[Reserved]) -> Option<u32> {
    (0..SLOTS).map(|step| (cursor % SLOTS + step) % SLOTS).find(|slot| {
        let base = base_of(*slot);
        let (start, end) = (u64::from(base), u64::from(base) + u64::from(ID_RANGE));
        !taken.contains(&base)
            && !reserved.iter().any(|r| r.first < end && start < r.first.saturating_add(r.count))
    })
}

pub(crate) fn reserved_on_host() -> Vec<Reserved> {
    ["/etc/subuid", "/etc/subgid"]
        .iter()
        .filter_map(|file| std::fs::read_to_string(Path::new(file)).ok())
        .flat_map(|text| parse(&text))
        .collect()
}

/// Lines of `name:first:count`; other lines are ignored.
fn parse(text: &str) -> Vec<Reserved> {
    text.lines()
        .filter_map(|line| {
            let mut parts = line.trim().rsplitn(3, ':');
            let count = parts.next()?.trim().parse().ok()?;
            let first = parts.next()?.trim().parse().ok()?;
            parts.next()?;
            Some(Reserved { first, count })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sub_id_files_are_read_and_malformed_lines_are_skipped() {
        let text = "alice:100000:65536\n\n# no\nbob:268435456:65536\nbroken:1\n";
        assert_eq!(
            parse(text),
            vec![Reserved { first: 100_000, count: 65536 }, Reserved { first: 268_435_456, count: 65536 }]
        );
    }

    #[test]
    fn a_range_assigned_by_the_host_is_skipped() {
        let reserved = [Reserved { first: u64::from(FIRST_ID_BASE) + 70_000, count: 10 }];
        assert_eq!(choose(1, &HashSet::new(), &reserved), Some(2));
    }

    #[test]
    fn when_every_slot_is_taken_none_is_chosen() {
        let taken = (0..SLOTS).map(base_of).collect();
        assert_eq!(choose(5, &taken, &[]), None);
    }

    proptest! {
        #[test]
        fn a_chosen_range_is_free_and_inside_the_span(cursor in any::<u32>(), taken in prop::collection::hash_set(0..SLOTS, 0..50)) {
            let taken: HashSet<u32> = taken.into_iter().map(base_of).collect();
            let base = base_of(choose(cursor, &taken, &[]).unwrap());
            prop_assert!(!taken.contains(&base));
            prop_assert!((FIRST_ID_BASE..=LAST_ID_BASE).contains(&base));
            prop_assert_eq!(base % ID_RANGE, 0);
        }

        #[test]
        fn daemons_begin_inside_the_span(id in ".{0,40}") {
            prop_assert!(first_slot(&id) < SLOTS);
        }
    }
}
