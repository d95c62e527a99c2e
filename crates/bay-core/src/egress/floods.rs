//! Floods of refusals are added up: a bay that is refused ten thousand times in a second has one line for it.
//!
//! In each window the first few of a kind have an event of their own, and all together not more than a number of them.
//! The others are added up; the sum is an event when the window ends. A window keeps apart a bounded number of kinds. The
//! sum of all further ones states how many different names it stands for, and lists the first of them.

use std::collections::hash_map::RandomState;
use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher;
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
/// Kinds that are kept apart in a window. Of the others there is one sum for each [`Kind::what`].
const MAX_KINDS: usize = 256;
/// Different names that such a sum can count. It remembers eight bytes of each.
const MAX_DISTINCT: usize = 16_384;
/// Names that it lists, and their length together: the body of an event is bounded.
const SAMPLE: usize = 64;
const SAMPLE_BYTES: usize = 8 << 10;

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
    /// The names of a sum of more than one kind; its [`Kind::of`] is empty.
    pub(super) names: Option<Names>,
}

/// The names that the sum of more than one kind stands for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Names {
    /// How many different ones there were, up to [`MAX_DISTINCT`].
    pub(super) distinct: usize,
    /// The first of them.
    pub(super) sample: Vec<String>,
}

/// Refusals of kinds beyond [`MAX_KINDS`], in a window.
#[derive(Debug, Default)]
struct Further {
    count: u64,
    seen: HashSet<u64>,
    sample: Vec<String>,
    sample_bytes: usize,
}

impl Further {
    fn add(&mut self, hashes: &RandomState, of: String) {
        self.count += 1;
        if self.seen.len() < MAX_DISTINCT
            && self.seen.insert(hashes.hash_one(&of))
            && self.sample.len() < SAMPLE
            && self.sample_bytes + of.len() <= SAMPLE_BYTES
        {
            self.sample_bytes += of.len();
            self.sample.push(of);
        }
    }

    fn sum(self, what: &'static str) -> Sum {
        let names = Names { distinct: self.seen.len(), sample: self.sample };
        Sum { kind: Kind { what, of: String::new() }, like: 0, count: self.count, names: Some(names) }
    }
}

#[derive(Debug)]
pub(super) struct Floods {
    began: Instant,
    told: u32,
    kinds: HashMap<Kind, Tally>,
    further: HashMap<&'static str, Further>,
    /// Keyed by chance: a bay cannot choose names that count as one.
    hashes: RandomState,
}

impl Floods {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            began: now,
            told: 0,
            kinds: HashMap::new(),
            further: HashMap::new(),
            hashes: RandomState::new(),
        }
    }

    pub(super) fn add(&mut self, kind: Kind) -> Say {
        // Kept apart and told once whatever else there was: it comes after names beyond counting.
        let too_many_names = kind.what == TOO_MANY_NAMES;
        let known = too_many_names || self.kinds.contains_key(&kind);
        if !known && self.kinds.len() >= MAX_KINDS {
            self.further.entry(kind.what).or_default().add(&self.hashes, kind.of);
            return Say::Counted(0);
        }
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
        let kinds = std::mem::take(&mut self.kinds).into_iter().filter(|(_, tally)| tally.more > 0);
        let further = std::mem::take(&mut self.further).into_iter();
        kinds
            .map(|(kind, tally)| Sum { kind, like: tally.last, count: tally.more, names: None })
            .chain(further.map(|(what, further)| further.sum(what)))
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
        assert_eq!(sums, [Sum { kind: kind(1), like: 19, count: 980, names: None }]);
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
        assert!(sums.contains(&Sum { kind: names(), like: 7, count: 999, names: None }), "{sums:?}");
    }

    #[test]
    fn many_kinds_take_neither_the_record_nor_memory() {
        let start = Instant::now();
        let mut floods = Floods::new(start);
        let told = (0..100_000).filter(|of| matches!(floods.add(kind(*of)), Say::Tell(_))).count();
        assert_eq!(told, TOGETHER as usize);
        assert!(floods.kinds.len() <= MAX_KINDS + 1);
        let further = &floods.further["deny"];
        assert!(further.seen.len() <= MAX_DISTINCT && further.sample.len() <= SAMPLE);
        let counted: u64 = floods.turn(start, true).iter().map(|sum| sum.count).sum();
        assert_eq!(counted, 100_000 - u64::from(TOGETHER));
    }

    #[test]
    fn the_sum_of_further_kinds_states_how_many_names_it_stands_for() {
        let start = Instant::now();
        let mut floods = Floods::new(start);
        (0..MAX_KINDS).for_each(|of| drop(floods.add(kind(of))));
        // A hundred further names, each three times, and one refusal of another sort.
        (0..300).for_each(|number| drop(floods.add(kind(MAX_KINDS + number % 100))));
        let _counted = floods.add(Kind { what: "connection", of: "192.0.2.1:22".to_owned() });
        let sums = floods.turn(start, true);
        let of_many = |what| sums.iter().find(|sum| sum.kind.what == what && sum.names.is_some()).unwrap();
        let names = of_many("deny").names.as_ref().unwrap();
        assert_eq!((of_many("deny").count, names.distinct, names.sample.len()), (300, 100, SAMPLE));
        assert_eq!(names.sample[0], kind(MAX_KINDS).of);
        let connection = of_many("connection").names.as_ref().unwrap();
        assert_eq!((connection.distinct, connection.sample[0].as_str()), (1, "192.0.2.1:22"));
    }

    #[test]
    fn a_sum_lists_names_of_any_length_within_a_bound() {
        let mut floods = Floods::new(Instant::now());
        let long = |of: usize| Kind { what: "deny", of: format!("{}{of}", "x".repeat(1000)) };
        (0..MAX_KINDS + 100).for_each(|of| drop(floods.add(long(of))));
        let further = &floods.further["deny"];
        assert_eq!((further.seen.len(), further.sample.len()), (100, 8));
    }
}
