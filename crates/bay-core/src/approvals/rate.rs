//! How often a bay may cause a new question.

use std::time::{Duration, Instant};

/// New questions per minute, after as many at once.
pub(super) const A_MINUTE: u32 = 30;

#[derive(Debug, Default)]
pub(super) struct Rate {
    /// When what was taken is paid back.
    paid: Option<Instant>,
}

impl Rate {
    /// Takes one question, if the rate allows it now.
    pub(super) fn take(&mut self, now: Instant) -> bool {
        let each = Duration::from_secs(60) / A_MINUTE;
        let paid = self.paid.map_or(now, |paid| paid.max(now));
        if paid.duration_since(now) + each > Duration::from_secs(60) {
            return false;
        }
        self.paid = Some(paid + each);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thirty_at_once_and_then_one_every_other_second() {
        let (mut rate, now) = (Rate::default(), Instant::now());
        assert_eq!((0..100).filter(|_| rate.take(now)).count(), A_MINUTE as usize);
        let later = now + Duration::from_secs(10);
        assert_eq!((0..100).filter(|_| rate.take(later)).count(), 5);
    }
}
