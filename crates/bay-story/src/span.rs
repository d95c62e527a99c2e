//! Where the time went: each moment of a bay's life belongs to one kind of time.
//!
//! This is an estimate by rule. It knows when commands ran and when requests were under way, and not what a command did in
//! between.

use std::collections::BTreeMap;

use bay_types::story::{TimeKind, TimeShare, Work};

/// A period, whose begin and end are in milliseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) from: i64,
    pub(crate) to: i64,
    pub(crate) what: What,
}

/// What a span is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum What {
    Command(Work),
    /// A request of a command.
    Request,
    /// The bay did not run.
    Stopped,
}

/// The most telling kind of what goes on at one moment.
fn kind(active: &BTreeMap<What, u64>) -> TimeKind {
    let goes_on = |what| active.contains_key(&what);
    if goes_on(What::Stopped) {
        return TimeKind::Stopped;
    }
    let runs = |work| goes_on(What::Command(work));
    if goes_on(What::Request) && !runs(Work::Agent) {
        return TimeKind::WaitingForNetwork;
    }
    // Tools inside an agent are its children and no commands of their own, so an agent comes after them.
    for (work, kind) in [
        (Work::Testing, TimeKind::Testing),
        (Work::Building, TimeKind::Building),
        (Work::Installing, TimeKind::Installing),
        (Work::Network, TimeKind::WaitingForNetwork),
        (Work::Agent, TimeKind::Agent),
        (Work::Other, TimeKind::OtherCommands),
        (Work::Shell, TimeKind::OtherCommands),
    ] {
        if runs(work) {
            return kind;
        }
    }
    TimeKind::Idle
}

/// How much of the time between `from` and `to` each kind takes, most first. The shares add up to the whole.
pub(crate) fn shares(spans: &[Span], from: i64, to: i64) -> Vec<TimeShare> {
    let mut changes: Vec<(i64, What, bool)> = Vec::with_capacity(spans.len() * 2);
    for span in spans {
        let (begin, end) = (span.from.clamp(from, to.max(from)), span.to.clamp(from, to.max(from)));
        if begin < end {
            changes.push((begin, span.what, true));
            changes.push((end, span.what, false));
        }
    }
    changes.sort_unstable_by_key(|(at, ..)| *at);
    let mut active: BTreeMap<What, u64> = BTreeMap::new();
    let mut sums: BTreeMap<TimeKind, i64> = BTreeMap::new();
    let mut before = from;
    for (at, what, begins) in changes {
        if at > before {
            *sums.entry(kind(&active)).or_default() += at - before;
            before = at;
        }
        if begins {
            *active.entry(what).or_default() += 1;
        } else if let Some(count) = active.get_mut(&what) {
            *count -= 1;
            if *count == 0 {
                active.remove(&what);
            }
        }
    }
    if to > before {
        *sums.entry(kind(&active)).or_default() += to - before;
    }
    let mut shares: Vec<TimeShare> = sums
        .into_iter()
        // Milliseconds of centuries are exact enough.
        .map(|(kind, ms)| {
            #[allow(clippy::cast_precision_loss)]
            let seconds = ms as f64 / 1000.0;
            TimeShare { kind, seconds }
        })
        .collect();
    shares.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    shares
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn span(from: i64, to: i64, what: What) -> Span {
        Span { from: from * 1000, to: to * 1000, what }
    }

    fn of(spans: &[Span], to: i64) -> Vec<(TimeKind, f64)> {
        shares(spans, 0, to * 1000).into_iter().map(|share| (share.kind, share.seconds)).collect()
    }

    #[test]
    fn each_moment_has_one_kind() {
        let spans = [
            span(0, 10, What::Command(Work::Installing)),
            span(2, 8, What::Request),
            span(3, 5, What::Request),
            span(20, 50, What::Command(Work::Testing)),
            span(30, 60, What::Command(Work::Other)),
            span(70, 90, What::Stopped),
        ];
        assert_eq!(
            of(&spans, 100),
            [
                (TimeKind::Testing, 30.0),
                (TimeKind::Idle, 30.0),
                (TimeKind::Stopped, 20.0),
                (TimeKind::OtherCommands, 10.0),
                (TimeKind::WaitingForNetwork, 6.0),
                (TimeKind::Installing, 4.0),
            ]
        );
    }

    #[test]
    fn a_long_agent_does_not_hide_the_tests_beside_it() {
        let spans = [span(0, 100, What::Command(Work::Agent)), span(10, 40, What::Command(Work::Testing))];
        assert_eq!(of(&spans, 100), [(TimeKind::Agent, 70.0), (TimeKind::Testing, 30.0)]);
    }

    proptest! {
        #[test]
        fn the_shares_add_up_to_the_whole(
            spans in prop::collection::vec((-50_i64..200, -50_i64..200, 0_usize..4), 0..40), to in -10_i64..150,
        ) {
            let kinds = [What::Command(Work::Testing), What::Command(Work::Other), What::Request, What::Stopped];
            let spans: Vec<Span> = spans.into_iter().map(|(from, to, what)| span(from, to, kinds[what])).collect();
            let sum: f64 = of(&spans, to).iter().map(|(_, seconds)| seconds).sum();
            #[allow(clippy::cast_precision_loss)]
            let whole = to.max(0) as f64;
            prop_assert!((sum - whole).abs() < 0.001, "{sum} of {whole}");
        }
    }
}
