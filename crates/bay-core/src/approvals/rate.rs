//! How often new questions about a bay may be asked: about its requests, and about commands of the operator in it.

use std::time::{Duration, Instant};

/// New questions per minute. So many are allowed at once, and then one every two seconds.
pub(super) const A_MINUTE: u32 = 30;

#[derive(Debug, Default)]
pub(super) struct Rate {
    /// When the full number is allowed at once again.
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
