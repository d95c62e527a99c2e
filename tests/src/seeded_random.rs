//! Repeatable randomness: the seed is printed, and `BAY_SEED` sets it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// SplitMix64: small, good enough to choose verbs and moments, the same on every machine.
#[derive(Debug, Clone)]
pub struct SeededRandom(u64);

impl SeededRandom {
    /// Seeded by `BAY_SEED`, else by the clock. Prints the seed.
    #[must_use]
    pub fn announced(what: &str) -> Self {
        let seed = std::env::var("BAY_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or_else(|| {
            SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| u64::from(since.subsec_nanos()))
        });
        println!("{what}: BAY_SEED={seed} repeats this order of events");
        Self(seed)
    }

    #[must_use]
    pub fn seeded(seed: u64) -> Self {
        Self(seed)
    }

    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which must not be zero.
    pub fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.draw() % bound as u64).unwrap_or(0)
    }

    pub fn choose<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }

    /// A duration up to `longest`. Every order of magnitude is equally likely, so that faults hit at every scale.
    pub fn moment(&mut self, longest: Duration) -> Duration {
        let micros = u64::try_from(longest.as_micros()).unwrap_or(u64::MAX).max(2);
        let magnitude = 1 + self.draw() % u64::from(micros.ilog2());
        Duration::from_micros(self.draw() % (1 << magnitude))
    }
}

/// Rounds of random faults: 50, or 500 in `./test --soak`.
#[must_use]
pub fn rounds() -> usize {
    let wanted = std::env::var("BAY_ROUNDS").ok().and_then(|text| text.parse().ok());
    wanted.unwrap_or(if std::env::var_os("BAY_SOAK").is_some() { 500 } else { 50 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_give_equal_sequences() {
        let (mut one, mut other) = (SeededRandom::seeded(7), SeededRandom::seeded(7));
        for _ in 0..100 {
            assert_eq!(one.draw(), other.draw());
        }
    }

    #[test]
    fn a_moment_is_never_longer_than_its_bound() {
        let mut chance = SeededRandom::seeded(1);
        for _ in 0..10_000 {
            assert!(chance.moment(Duration::from_millis(300)) <= Duration::from_millis(300));
        }
    }
}
