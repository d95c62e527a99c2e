//! Rounds, medians and ratios.

use std::time::Duration;

use serde::Serialize;

/// What one contestant took, round by round.
#[derive(Debug, Clone)]
pub(super) struct Series {
    pub(super) name: String,
    pub(super) samples: Vec<Duration>,
    /// At most this much of the median of that other contestant.
    pub(super) bar: Option<(f64, &'static str)>,
}

impl Series {
    pub(super) fn new(name: impl Into<String>, bar: Option<(f64, &'static str)>) -> Self {
        Self { name: name.into(), samples: Vec::new(), bar }
    }

    fn at(&self, quantile: f64) -> f64 {
        let mut sorted: Vec<f64> = self.samples.iter().map(|sample| sample.as_secs_f64() * 1000.0).collect();
        sorted.sort_by(f64::total_cmp);
        // Nearest rank; the cast is of a small non-negative number.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
        let rank = ((sorted.len() as f64 * quantile).ceil() as usize).saturating_sub(1);
        sorted.get(rank).copied().unwrap_or(f64::NAN)
    }
}

#[derive(Debug, Serialize)]
pub(super) struct Scored {
    pub(super) title: String,
    pub(super) rounds: usize,
    pub(super) lines: Vec<Line>,
    pub(super) notes: Vec<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct Line {
    pub(super) name: String,
    pub(super) median_ms: f64,
    pub(super) p95_ms: f64,
    /// Median over the median of the contestant it is measured against.
    pub(super) ratio: Option<f64>,
    pub(super) bar: Option<f64>,
    pub(super) against: String,
}

impl Line {
    pub(super) fn verdict(&self) -> &'static str {
        match (self.ratio, self.bar) {
            (Some(ratio), Some(bar)) if ratio <= bar => "reached",
            (Some(_), Some(_)) => "missed",
            (None, Some(_)) => "not comparable",
            _ => "",
        }
    }
}

pub(super) fn score(title: &str, series: &[Series], notes: Vec<String>) -> Scored {
    let lines = series
        .iter()
        .map(|one| {
            let against = one.bar.map(|(_, name)| name).unwrap_or_default();
            let other = series.iter().find(|s| s.name == against).map(|s| s.at(0.5));
            Line {
                name: one.name.clone(),
                median_ms: one.at(0.5),
                p95_ms: one.at(0.95),
                ratio: other.map(|other| one.at(0.5) / other),
                bar: one.bar.map(|(bar, _)| bar),
                against: against.to_owned(),
            }
        })
        .collect();
    let rounds = series.iter().map(|one| one.samples.len()).max().unwrap_or(0);
    Scored { title: title.to_owned(), rounds, lines, notes }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(name: &str, ms: &[u64], bar: Option<(f64, &'static str)>) -> Series {
        let samples = ms.iter().map(|ms| Duration::from_millis(*ms)).collect();
        Series { samples, ..Series::new(name, bar) }
    }

    #[test]
    fn the_median_is_compared_with_the_named_peer() {
        let scored = score(
            "t",
            &[series("bay", &[9, 10, 90], Some((0.5, "peer"))), series("peer", &[20, 10, 30], None)],
            vec![],
        );
        assert_eq!(scored.lines[0].ratio, Some(0.5));
        assert_eq!(scored.lines[0].verdict(), "reached");
        assert_eq!(scored.lines[1].verdict(), "");
    }

    #[test]
    fn a_missing_peer_is_no_victory() {
        let scored = score("t", &[series("bay", &[9], Some((0.5, "peer")))], vec![]);
        assert_eq!(scored.lines[0].verdict(), "not comparable");
    }
}
