//! Floods of refusals are counted: if a bay is refused the same ten thousand times in a second, the record gets a
//! few events and one sum.
//!
//! In each window, the first few refusals of a kind get an event each, up to a limit for all kinds. Further refusals
//! are counted, and each sum is an event at the end of the window. A window distinguishes a limited number of kinds.
//! The sum of all further kinds has the number of different names, up to a limit, and lists the first of them.

use std::collections::hash_map::RandomState;
use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher;
use std::time::{Duration, Instant};

/// The length of a window.
pub(super) const WINDOW: Duration = Duration::from_secs(10);
/// The most refusals of one kind that get an event each in a window.
pub(super) const EACH: u32 = 20;
/// The kind of names beyond the limit of a bay. One of them gets an event in each window, so that a flood of names
/// does not write them into the record.
pub(super) const TOO_MANY_NAMES: &str = "too-many-names";
/// The most refusals of all kinds that get an event each in a window, without that of [`TOO_MANY_NAMES`].
pub(super) const TOGETHER: u32 = 200;
/// How many kinds a window distinguishes, besides [`TOO_MANY_NAMES`]. Further kinds have one sum for each
/// [`Kind::what`].
const MAX_KINDS: usize = 256;
/// How many different names the sum of further kinds counts. It keeps a hash of eight bytes of each.
const MAX_DISTINCT: usize = 16_384;
/// How many names the sum of further kinds lists.
const SAMPLE: usize = 64;
/// The most bytes of the names that the sum of further kinds lists, because the body of an event is bounded.
const SAMPLE_BYTES: usize = 8 << 10;

/// What makes two refusals the same for a reader of the record.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Kind {
    pub(super) what: &'static str,
    /// Host and port, or a name.
    pub(super) of: String,
}

#[derive(Debug, Clone, Copy, Default)]
struct Tally {
    told: u32,
    /// The number of the last event of this kind.
    last: u64,
    more: u64,
}

/// How to record a refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Say {
    /// It gets its own event, whose number must be reported with [`Floods::recorded`].
    Record(Kind),
    /// It was added to a sum. The number is that of the last event of its kind; if there is none, it is 0.
    Counted(u64),
}

/// The refusals of a window that got no event of their own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sum {
    pub(super) kind: Kind,
    /// The number of the last event of the same kind. If no refusal of the kind got an event, it is 0.
    pub(super) like: u64,
    pub(super) count: u64,
    /// The names of a sum of several kinds; then [`Kind::of`] is empty.
    pub(super) names: Option<Names>,
}

/// The names in a sum of several kinds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Names {
    /// How many different names there were, up to [`MAX_DISTINCT`].
    pub(super) distinct: usize,
    /// The first names.
    pub(super) sample: Vec<String>,
}

/// The refusals of kinds beyond [`MAX_KINDS`] in a window.
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
    /// Random keys: a bay cannot choose names with the same hash.
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
        // Names beyond the limit get their event whatever else there was: so many names come before them that they
        // would use up the window.
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
            return Say::Record(kind);
        }
        tally.more += 1;
        Say::Counted(tally.last)
    }

    pub(super) fn recorded(&mut self, kind: &Kind, event: u64) {
        if let Some(tally) = self.kinds.get_mut(kind) {
            tally.last = tally.last.max(event);
        }
    }

    /// Ends the window if it is over, or `at_once`, and returns its sums.
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
    fn the_first_of_a_kind_have_events_and_the_rest_is_a_sum() {
        let start = Instant::now();
        let mut floods = Floods::new(start);
        for event in 0..1000 {
            match floods.add(kind(1)) {
                Say::Record(kind) => floods.recorded(&kind, event),
                Say::Counted(last) => assert_eq!(last, u64::from(EACH) - 1),
            }
        }
        assert_eq!(floods.add(kind(2)), Say::Record(kind(2)));
        assert!(floods.turn(start, false).is_empty());
        let sums = floods.turn(start + WINDOW, false);
        assert_eq!(sums, [Sum { kind: kind(1), like: 19, count: 980, names: None }]);
        assert_eq!(floods.add(kind(1)), Say::Record(kind(1)));
    }

    #[test]
    fn of_names_beyond_the_limit_one_has_an_event() {
        let start = Instant::now();
        let mut floods = Floods::new(start);
        // The names before them used up all events and all kinds.
        (0..1000).for_each(|of| drop(floods.add(kind(of))));
        let names = || Kind { what: TOO_MANY_NAMES, of: String::new() };
        assert_eq!(floods.add(names()), Say::Record(names()));
        floods.recorded(&names(), 7);
        assert!((0..999).all(|_| floods.add(names()) == Say::Counted(7)));
        let sums = floods.turn(start + WINDOW, false);
        assert!(sums.contains(&Sum { kind: names(), like: 7, count: 999, names: None }), "{sums:?}");
    }

    #[test]
    fn many_kinds_take_neither_the_record_nor_memory() {
        let start = Instant::now();
        let mut floods = Floods::new(start);
        let told = (0..100_000).filter(|of| matches!(floods.add(kind(*of)), Say::Record(_))).count();
        assert_eq!(told, TOGETHER as usize);
        assert!(floods.kinds.len() <= MAX_KINDS + 1);
        let further = &floods.further["deny"];
        assert!(further.seen.len() <= MAX_DISTINCT && further.sample.len() <= SAMPLE);
        let counted: u64 = floods.turn(start, true).iter().map(|sum| sum.count).sum();
        assert_eq!(counted, 100_000 - u64::from(TOGETHER));
    }

    #[test]
    fn the_sum_of_further_kinds_has_the_number_of_names() {
        let start = Instant::now();
        let mut floods = Floods::new(start);
        (0..MAX_KINDS).for_each(|of| drop(floods.add(kind(of))));
        // A hundred further names, three refusals each, and one refusal of another sort.
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
