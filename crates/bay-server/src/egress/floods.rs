//! Refusals beyond counting are counted: a bay that is refused ten thousand times in a second has one line for it.
//!
//! In each window the first few of a kind have an event of their own, and all together not more than a number of them.
//! The others are added up; the sum is an event when the window ends.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// How long refusals are added up.
pub(super) const WINDOW: Duration = Duration::from_secs(10);
/// Refusals of one kind with an event of their own, in a window.
pub(super) const EACH: u32 = 20;
/// The kind of names beyond what a bay may ask for: one in a window has an event of its own, so that a flood of names does
/// not write them into the record.
pub(super) const TOO_MANY_NAMES: &str = "too-many-names";
/// All of them together.
pub(super) const TOGETHER: u32 = 200;
/// Kinds that are told apart in a window; the rest is one.
const MAX_KINDS: usize = 256;

/// What makes two refusals the same for whoever reads the record.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Kind {
    pub(super) what: &'static str,
    /// Host and port, or a name.
    pub(super) of: String,
}

#[derive(Debug, Clone, Copy, Default)]
struct Tally {
    told: u32,
    /// The last event of its own.
    last: u64,
    more: u64,
}

/// What is to be done with a refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Say {
    /// It has an event of its own, whose number is to be told with [`Floods::told`].
    Tell(Kind),
    /// It was added to the sum of those like it; this is the last that has an event.
    Counted(u64),
}

/// Refusals that had no event of their own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sum {
    pub(super) kind: Kind,
    /// The last of its kind that has an event.
    pub(super) like: u64,
    pub(super) count: u64,
}

#[derive(Debug)]
pub(super) struct Floods {
    began: Instant,
    told: u32,
    kinds: HashMap<Kind, Tally>,
}

impl Floods {
    pub(super) fn new(now: Instant) -> Self {
        Self { began: now, told: 0, kinds: HashMap::new() }
    }

    pub(super) fn add(&mut self, kind: Kind) -> Say {
        // Told apart and told once whatever else there was: it comes after names beyond counting.
        let too_many_names = kind.what == TOO_MANY_NAMES;
        let known = too_many_names || self.kinds.contains_key(&kind);
        let kind = if known || self.kinds.len() < MAX_KINDS {
            kind
        } else {
            Kind { what: "many", of: String::new() }
        };
        let tally = self.kinds.entry(kind.clone()).or_default();
        let tell = if too_many_names { tally.told == 0 } else { tally.told < EACH && self.told < TOGETHER };
        if tell {
            tally.told += 1;
            self.told += 1;
            return Say::Tell(kind);
        }
        tally.more += 1;
        Say::Counted(tally.last)
    }

    pub(super) fn told(&mut self, kind: &Kind, event: u64) {
        if let Some(tally) = self.kinds.get_mut(kind) {
            tally.last = tally.last.max(event);
        }
    }

    /// The sums of the window that ends now, if it does.
    pub(super) fn turn(&mut self, now: Instant, at_once: bool) -> Vec<Sum> {
        if !at_once && now.saturating_duration_since(self.began) < WINDOW {
            return Vec::new();
        }
        self.began = now;
        self.told = 0;
        let ended = std::mem::take(&mut self.kinds);
        ended
            .into_iter()
            .filter(|(_, tally)| tally.more > 0)
            .map(|(kind, tally)| Sum { kind, like: tally.last, count: tally.more })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(of: usize) -> Kind {
        Kind { what: "deny", of: format!("h{of}:443") }
    }

    #[test]
    fn the_first_of_a_kind_are_told_and_the_rest_is_a_sum() {
        let start = Instant::now();
        let mut floods = Floods::new(start);
        for event in 0..1000 {
            match floods.add(kind(1)) {
                Say::Tell(kind) => floods.told(&kind, event),
                Say::Counted(last) => assert_eq!(last, u64::from(EACH) - 1),
            }
        }
        assert_eq!(floods.add(kind(2)), Say::Tell(kind(2)));
        assert!(floods.turn(start, false).is_empty());
        let sums = floods.turn(start + WINDOW, false);
        assert_eq!(sums, [Sum { kind: kind(1), like: 19, count: 980 }]);
        assert_eq!(floods.add(kind(1)), Say::Tell(kind(1)));
    }

    #[test]
    fn of_names_that_are_too_many_one_is_told() {
        let start = Instant::now();
        let mut floods = Floods::new(start);
        // Those before them took all events and all kinds.
        (0..1000).for_each(|of| drop(floods.add(kind(of))));
        let names = || Kind { what: TOO_MANY_NAMES, of: String::new() };
        assert_eq!(floods.add(names()), Say::Tell(names()));
        floods.told(&names(), 7);
        assert!((0..999).all(|_| floods.add(names()) == Say::Counted(7)));
        let sums = floods.turn(start + WINDOW, false);
        assert!(sums.contains(&Sum { kind: names(), like: 7, count: 999 }), "{sums:?}");
    }

    #[test]
    fn many_kinds_take_neither_the_record_nor_memory() {
        let start = Instant::now();
        let mut floods = Floods::new(start);
        let told = (0..100_000).filter(|of| matches!(floods.add(kind(*of)), Say::Tell(_))).count();
        assert_eq!(told, TOGETHER as usize);
        assert!(floods.kinds.len() <= MAX_KINDS + 1);
        let counted: u64 = floods.turn(start, true).iter().map(|sum| sum.count).sum();
        assert_eq!(counted, 100_000 - u64::from(TOGETHER));
    }
}
