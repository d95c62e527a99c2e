//! Which automatic checkpoints are no longer needed. This is decided when a checkpoint is made. Requested
//! checkpoints are never among them.
//!
//! The limits hold for each [`Cause`] separately, so a bay that restores itself in a loop uses up only its own share. A new
//! checkpoint removes only those of its own cause and of less trusted ones:
//!
//! ```text
//!   made by        may remove those of
//!   operator       operator, approval, inside
//!   approval       approval, inside
//!   inside         inside
//! ```

use bay_store::CheckpointRow;
use bay_types::CheckpointName;
use bay_types::principal::{APPROVAL, INSIDE};
use jiff::{SignedDuration, Timestamp};

/// So many of the newest automatic checkpoints of each cause stay, however old they are: they can undo what
/// happened last.
const ALWAYS_KEPT: usize = 3;
/// The most automatic checkpoints of one bay and one cause, without those that are promised (see [`dispensable`]).
const MOST: usize = 20;
/// Older automatic checkpoints are removed, except the newest [`ALWAYS_KEPT`] and promised ones.
const LONGEST: SignedDuration = SignedDuration::from_hours(7 * 24);
/// If less than one part in this many of the pool is free (an eighth), only [`ALWAYS_KEPT`] and promised ones stay.
const TIGHT_PART: u64 = 8;

/// Who caused a checkpoint, least trusted first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Cause {
    /// A process of the bay. An earlier release stored this for checkpoints of approvals too.
    Inside,
    /// An approval, which a process of the bay may have provoked.
    Approval,
    Operator,
}

impl Cause {
    const ALL: [Self; 3] = [Self::Inside, Self::Approval, Self::Operator];

    /// From the author that is stored with a checkpoint (see [`Principal::by`](bay_types::principal::Principal::by)).
    pub(super) fn of(by: &str) -> Self {
        match by {
            INSIDE => Self::Inside,
            APPROVAL => Self::Approval,
            _ => Self::Operator,
        }
    }
}

pub(super) fn is_tight(free: u64, total: u64) -> bool {
    free < total / TIGHT_PART
}

/// The automatic checkpoints of `known` that a new one made by `cause` removes. `known` is oldest first. Those in
/// `promised` stay: the one that the bay descends from, the one that is about to be restored, and those that the answer
/// to an open approval can restore.
pub(super) fn dispensable(
    known: &[CheckpointRow],
    promised: &[CheckpointName],
    cause: Cause,
    now: Timestamp,
    tight: bool,
) -> Vec<CheckpointName> {
    let removable = Cause::ALL.into_iter().filter(|of| *of <= cause);
    removable.flat_map(|of| dispensable_of(known, promised, of, now, tight)).collect()
}

fn dispensable_of(
    known: &[CheckpointRow],
    promised: &[CheckpointName],
    of: Cause,
    now: Timestamp,
    tight: bool,
) -> Vec<CheckpointName> {
    let automatic: Vec<&CheckpointRow> =
        known.iter().filter(|row| row.automatic.is_some() && Cause::of(&row.by) == of).collect();
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
    use bay_types::principal::Principal;

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

    fn by(by: &str, row: CheckpointRow) -> CheckpointRow {
        CheckpointRow { by: by.to_owned(), ..row }
    }

    fn gone_for(known: &[CheckpointRow], current: Option<u32>, cause: Cause, tight: bool) -> Vec<u32> {
        let promised: Vec<_> = current.and_then(CheckpointName::new).into_iter().collect();
        let now = NOW.parse().unwrap();
        dispensable(known, &promised, cause, now, tight).into_iter().map(CheckpointName::number).collect()
    }

    fn gone(known: &[CheckpointRow], current: Option<u32>, tight: bool) -> Vec<u32> {
        gone_for(known, current, Cause::Operator, tight)
    }

    #[test]
    fn requested_checkpoints_stay_however_old_and_however_tight() {
        let known: Vec<_> = (1..=50).map(|n| row(n, false, 10_000)).collect();
        assert!(gone(&known, None, true).is_empty());
    }

    #[test]
    fn automatic_checkpoints_are_removed_by_age_by_number_and_when_the_disk_is_tight() {
        let old: Vec<_> = (1..=5).map(|n| row(n, true, 200)).collect();
        assert_eq!(gone(&old, None, false), [1, 2]);
        assert_eq!(gone(&old, Some(1), false), [2], "what the bay descends from stays");
        let many: Vec<_> = (1..=24).map(|n| row(n, true, 1)).collect();
        assert_eq!(gone(&many, None, false), [1, 2, 3, 4]);
        let few: Vec<_> = (1..=5).map(|n| row(n, true, 1)).collect();
        assert!(gone(&few, None, false).is_empty());
        assert_eq!(gone(&few, None, true), [1, 2]);
    }

    #[test]
    fn checkpoints_caused_from_inside_remove_only_their_own() {
        // First checkpoints of the operator, then of approvals, then of a loop in the bay.
        let operators = (1..=5).map(|n| row(n, true, 300));
        let questions = (6..=10).map(|n| by("approval", row(n, true, 300)));
        let own = (11..=35).map(|n| by("inside", row(n, true, 1)));
        let known: Vec<_> = operators.chain(questions).chain(own).collect();
        assert_eq!(gone_for(&known, None, Cause::Inside, false), [11, 12, 13, 14, 15]);
        // A bay gains nothing if it fills the pool, or waits until the others are old.
        assert_eq!(gone_for(&known, None, Cause::Inside, true), (11..=32).collect::<Vec<_>>());
        assert_eq!(gone_for(&known, None, Cause::Approval, false), [11, 12, 13, 14, 15, 6, 7]);
        assert_eq!(gone_for(&known, None, Cause::Operator, false), [11, 12, 13, 14, 15, 6, 7, 1, 2]);
    }

    #[test]
    fn each_cause_is_read_from_the_stored_author() {
        assert_eq!(Cause::of(&Principal::bay(BayId::generate()).by()), Cause::Inside);
        assert_eq!(Cause::of(&Principal::approval().by()), Cause::Approval);
        for who in [Principal::operator(1000), Principal::token(1000)] {
            assert_eq!(Cause::of(&who.by()), Cause::Operator);
        }
    }
}
