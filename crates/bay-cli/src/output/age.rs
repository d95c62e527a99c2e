//! Times in the form that people use.

use jiff::Timestamp;

const MINUTE: i64 = 60;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;

/// The time since then: `3s`, `5m`, `2h`, `4d`. A time in the future counts as now.
pub(crate) fn since(then: Timestamp, now: Timestamp) -> String {
    span(now.as_second().saturating_sub(then.as_second()))
}

/// A number of seconds in its largest whole unit.
pub(crate) fn span(seconds: i64) -> String {
    match seconds.max(0) {
        s if s < MINUTE => format!("{s}s"),
        s if s < HOUR => format!("{}m", s / MINUTE),
        s if s < 2 * DAY => format!("{}h", s / HOUR),
        s => format!("{}d", s / DAY),
    }
}

/// A duration, more precise if it is short.
pub(crate) fn took(from: Timestamp, to: Timestamp) -> String {
    let ms = to.as_millisecond().saturating_sub(from.as_millisecond()).max(0);
    match ms {
        ms if ms < 1000 => format!("{ms}ms"),
        ms if ms < 60_000 => format!("{}.{}s", ms / 1000, ms % 1000 / 100),
        ms => span(ms / 1000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn ages_use_their_largest_unit() {
        let now = at(1_000_000);
        assert_eq!(since(at(1_000_000), now), "0s");
        assert_eq!(since(at(1_000_000 - 59), now), "59s");
        assert_eq!(since(at(1_000_000 - 3599), now), "59m");
        assert_eq!(since(at(1_000_000 - 47 * 3600), now), "47h");
        assert_eq!(since(at(1_000_000 - 9 * 86400), now), "9d");
    }

    #[test]
    fn a_time_in_the_future_is_now() {
        assert_eq!(since(at(10), at(5)), "0s");
    }

    #[test]
    fn short_durations_are_precise() {
        let from = Timestamp::from_millisecond(0).unwrap();
        let to = |ms| Timestamp::from_millisecond(ms).unwrap();
        assert_eq!(took(from, to(7)), "7ms");
        assert_eq!(took(from, to(1250)), "1.2s");
        assert_eq!(took(from, to(180_000)), "3m");
    }
}
