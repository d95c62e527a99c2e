//! Rounds, medians and ratios.

use std::time::Duration;

use serde::Serialize;

/// The unit of a number, and which direction is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Unit {
    #[serde(rename = "ms")]
    Milliseconds,
    #[serde(rename = "µs")]
    Microseconds,
    #[serde(rename = "times")]
    Times,
    #[serde(rename = "MiB")]
    Mebibytes,
    #[serde(rename = "MB/s")]
    MegabytesPerSecond,
    #[serde(rename = "per second")]
    PerSecond,
}

impl Unit {
    fn more_is_better(self) -> bool {
        matches!(self, Self::MegabytesPerSecond | Self::PerSecond)
    }

    #[must_use]
    pub fn show(self, value: f64) -> String {
        match self {
            Self::Milliseconds if value.abs() < 10.0 => format!("{value:.2} ms"),
            Self::Milliseconds => format!("{value:.1} ms"),
            Self::Microseconds => format!("{value:.2} µs"),
            Self::Times => format!("{value:.2} times"),
            Self::Mebibytes => format!("{value:.2} MiB"),
            Self::MegabytesPerSecond => format!("{value:.0} MB/s"),
            Self::PerSecond => format!("{value:.0}/s"),
        }
    }
}

/// The threshold for a contestant.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Bar {
    /// This ratio to the median of another contestant, at most or at least depending on the unit.
    Of(f64, &'static str),
    /// This absolute number.
    Is(f64),
}

/// The results of one contestant, round by round.
#[derive(Debug, Clone)]
pub(crate) struct Series {
    name: String,
    unit: Unit,
    samples: Vec<f64>,
    bars: Vec<Bar>,
}

impl Series {
    pub(crate) fn new(name: impl Into<String>, bar: Option<(f64, &'static str)>) -> Self {
        let bars = bar.into_iter().map(|(share, peer)| Bar::Of(share, peer)).collect();
        Self { name: name.into(), unit: Unit::Milliseconds, samples: Vec::new(), bars }
    }

    pub(crate) fn of(name: impl Into<String>, unit: Unit, bars: &[Bar]) -> Self {
        Self { name: name.into(), unit, samples: Vec::new(), bars: bars.to_vec() }
    }

    pub(crate) fn took(&mut self, took: Duration) {
        self.samples.push(took.as_secs_f64() * 1000.0);
    }

    pub(crate) fn was(&mut self, value: f64) {
        self.samples.push(value);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    pub(crate) fn median(&self) -> f64 {
        self.at(0.5)
    }

    pub(crate) fn at(&self, quantile: f64) -> f64 {
        let mut sorted = self.samples.clone();
        sorted.sort_by(f64::total_cmp);
        // Nearest rank. The cast is of a small non-negative number.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
        let rank = ((sorted.len() as f64 * quantile).ceil() as usize).saturating_sub(1);
        sorted.get(rank).copied().unwrap_or(f64::NAN)
    }
}

#[derive(Debug, Serialize)]
pub struct Scored {
    pub title: String,
    pub rounds: usize,
    pub lines: Vec<Line>,
    pub notes: Vec<String>,
}

#[derive(Debug, Serialize)]
pub struct Line {
    pub name: String,
    pub unit: Unit,
    pub median: f64,
    pub p95: f64,
    pub bars: Vec<Judged>,
}

/// One bar and the result.
#[derive(Debug, Serialize)]
pub struct Judged {
    /// The ratio to the median of the other contestant, or the median itself.
    pub reached: Option<f64>,
    pub bar: f64,
    pub against: Option<&'static str>,
    pub at_least: bool,
    pub verdict: &'static str,
}

impl Judged {
    fn new(reached: Option<f64>, bar: f64, against: Option<&'static str>, at_least: bool) -> Self {
        let verdict = match reached {
            None => "not comparable",
            Some(value) if (at_least && value >= bar) || (!at_least && value <= bar) => "reached",
            Some(_) => "missed",
        };
        Self { reached, bar, against, at_least, verdict }
    }

    #[must_use]
    pub fn show(&self, unit: Unit) -> String {
        let sign = if self.at_least { "≥" } else { "≤" };
        match self.against {
            Some(peer) => format!("{sign} {:.3} of {peer}", self.bar),
            None => format!("{sign} {}", unit.show(self.bar)),
        }
    }
}

pub(crate) fn score(title: &str, series: &[Series], notes: Vec<String>) -> Scored {
    let median_of = |name: &str| series.iter().find(|s| s.name == name).map(Series::median);
    let lines = series
        .iter()
        .map(|one| {
            let at_least = one.unit.more_is_better();
            let judge = |bar: &Bar| match *bar {
                Bar::Of(share, peer) => {
                    let ratio = median_of(peer).map(|other| one.median() / other);
                    Judged::new(ratio, share, Some(peer), at_least)
                }
                Bar::Is(value) => Judged::new(Some(one.median()), value, None, at_least),
            };
            Line {
                name: one.name.clone(),
                unit: one.unit,
                median: one.median(),
                p95: one.at(0.95),
                bars: one.bars.iter().map(judge).collect(),
            }
        })
        .collect();
    let rounds = series.iter().map(|one| one.samples.len()).max().unwrap_or(0);
    Scored { title: title.to_owned(), rounds, lines, notes }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(name: &str, unit: Unit, values: &[f64], bars: &[Bar]) -> Series {
        Series { samples: values.to_vec(), ..Series::of(name, unit, bars) }
    }

    #[test]
    fn the_median_is_compared_with_the_named_peer() {
        let bay = series("bay", Unit::Milliseconds, &[9.0, 10.0, 90.0], &[Bar::Of(0.5, "peer")]);
        let peer = series("peer", Unit::Milliseconds, &[20.0, 10.0, 30.0], &[]);
        let scored = score("t", &[bay, peer], vec![]);
        assert_eq!(scored.lines[0].bars[0].reached, Some(0.5));
        assert_eq!(scored.lines[0].bars[0].verdict, "reached");
        assert!(scored.lines[1].bars.is_empty());
    }

    #[test]
    fn a_missing_peer_does_not_count_as_reached() {
        let bay = series("bay", Unit::Milliseconds, &[9.0], &[Bar::Of(0.5, "peer")]);
        assert_eq!(score("t", &[bay], vec![]).lines[0].bars[0].verdict, "not comparable");
    }

    #[test]
    fn more_work_in_a_second_is_better_and_more_milliseconds_are_worse() {
        let verdict = |unit| {
            let scored = score("t", &[series("bay", unit, &[500.0], &[Bar::Is(400.0)])], vec![]);
            scored.lines[0].bars[0].verdict
        };
        assert_eq!(verdict(Unit::MegabytesPerSecond), "reached");
        assert_eq!(verdict(Unit::Milliseconds), "missed");
    }
}
