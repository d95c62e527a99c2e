//! Which automatic checkpoints are not needed any more. Those that somebody asked for are never thinned.

use bay_store::CheckpointRow;
use bay_types::CheckpointName;
use jiff::{SignedDuration, Timestamp};

/// The newest automatic ones always stay: they are the way back from what was done last.
const ALWAYS_KEPT: usize = 3;
/// Automatic ones of a bay, at most.
const MOST: usize = 20;
/// An automatic one that is older goes.
const LONGEST: SignedDuration = SignedDuration::from_hours(7 * 24);
/// Less of the pool free than one part in so many: only [`ALWAYS_KEPT`] stay.
const TIGHT_PART: u64 = 8;

pub(super) fn is_tight(free: u64, total: u64) -> bool {
    free < total / TIGHT_PART
}

/// Oldest first, as `known` is. Those in `promised` stay: what the bay descends from, and what an open question can be answered with.
pub(super) fn dispensable(
    known: &[CheckpointRow],
    promised: &[CheckpointName],
    now: Timestamp,
    tight: bool,
) -> Vec<CheckpointName> {
    let automatic: Vec<&CheckpointRow> = known.iter().filter(|row| row.automatic.is_some()).collect();
    let sure = automatic.len().saturating_sub(ALWAYS_KEPT);
    let too_many = automatic.len().saturating_sub(MOST);
    automatic[..sure]
        .iter()
        .enumerate()
        .filter(|(index, row)| *index < too_many || tight || now.duration_since(row.created_at) > LONGEST)
        .map(|(_, row)| row.name)
        .filter(|name| !promised.contains(name))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bay_types::BayId;
    use bay_types::checkpoint::CheckpointKind;

    const NOW: &str = "2026-01-31T00:00:00Z";

    fn row(number: u32, automatic: bool, hours_ago: i64) -> CheckpointRow {
        CheckpointRow {
            bay: BayId::generate(),
            name: CheckpointName::new(number).unwrap(),
            parent: None,
            kind: CheckpointKind::Files,
            message: None,
            by: "uid 0".to_owned(),
            automatic: automatic.then(|| "before something".to_owned()),
            after_exec: None,
            created_at: NOW.parse::<Timestamp>().unwrap() - SignedDuration::from_hours(hours_ago),
            pause_us: 0,
            without_memory: Vec::new(),
        }
    }

    fn gone(known: &[CheckpointRow], current: Option<u32>, tight: bool) -> Vec<u32> {
        let promised: Vec<_> = current.and_then(CheckpointName::new).into_iter().collect();
        let now = NOW.parse().unwrap();
        dispensable(known, &promised, now, tight).into_iter().map(CheckpointName::number).collect()
    }

    #[test]
    fn what_somebody_asked_for_stays_however_old_and_however_tight() {
        let known: Vec<_> = (1..=50).map(|n| row(n, false, 10_000)).collect();
        assert!(gone(&known, None, true).is_empty());
    }

    #[test]
    fn automatic_ones_go_by_age_by_number_and_when_the_disk_is_tight() {
        let old: Vec<_> = (1..=5).map(|n| row(n, true, 200)).collect();
        assert_eq!(gone(&old, None, false), [1, 2]);
        assert_eq!(gone(&old, Some(1), false), [2], "what the bay descends from stays");
        let many: Vec<_> = (1..=24).map(|n| row(n, true, 1)).collect();
        assert_eq!(gone(&many, None, false), [1, 2, 3, 4]);
        let few: Vec<_> = (1..=5).map(|n| row(n, true, 1)).collect();
        assert!(gone(&few, None, false).is_empty());
        assert_eq!(gone(&few, None, true), [1, 2]);
    }
}
