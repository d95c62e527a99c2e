//! Messages that wait for one webhook, with a queue for each bay.
//!
//! Bays take turns, and each has at most one delivery under way. So a bay whose messages the receiver refuses, or answers
//! slowly, delays no other bay. A message that has to be sent again keeps its place until it is due, and messages about
//! other approvals pass it. Messages about one approval keep their order.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use bay_types::{ApprovalId, BayId};
use tokio::time::Instant;

use super::Message;

/// The most messages of one bay that wait for one webhook. Later ones are lost, without any loss for other bays.
pub(crate) const MAX_OF_BAY: usize = 64;
/// The first wait between two attempts. Each further wait is twice as long, up to [`RETRY_MOST`].
const RETRY_FIRST: Duration = Duration::from_secs(1);
/// The longest wait between two attempts.
const RETRY_MOST: Duration = Duration::from_secs(60);
/// A message whose next attempt would be due later than this after it was queued is given up. By default, a
/// question is open for as long.
const GIVE_UP_AFTER: Duration = Duration::from_secs(15 * 60);

/// A message, and the approval and the bay that it is about.
#[derive(Debug, Clone)]
pub(crate) struct AboutApproval {
    pub(crate) bay: BayId,
    pub(crate) approval: ApprovalId,
    pub(crate) message: Message,
}

#[derive(Debug)]
struct Queued {
    about: AboutApproval,
    due: Instant,
    /// How long the next retry waits.
    wait: Duration,
    give_up_at: Instant,
}

#[derive(Debug)]
struct OfBay {
    bay: BayId,
    /// Whether one of its messages is under way. That message stays in the queue until its delivery ended.
    sending: bool,
    queue: VecDeque<Queued>,
}

impl OfBay {
    /// The message to send next: of the first ones about each approval, the one that is due first.
    fn next(&self) -> Option<&Queued> {
        let mut seen = HashSet::new();
        self.queue.iter().filter(|queued| seen.insert(queued.about.approval)).min_by_key(|queued| queued.due)
    }
}

/// All messages that wait for one webhook.
#[derive(Debug, Default)]
pub(crate) struct DeliveryQueue {
    /// Bays with messages; the one whose last turn is longest ago comes first.
    bays: VecDeque<OfBay>,
}

impl DeliveryQueue {
    /// Adds a message; false if the bay has as many as it may have, and the message is lost.
    #[must_use]
    pub(crate) fn add(&mut self, about: AboutApproval, now: Instant) -> bool {
        let bay = about.bay;
        let queued = Queued { about, due: now, wait: RETRY_FIRST, give_up_at: now + GIVE_UP_AFTER };
        match self.bays.iter_mut().find(|of| of.bay == bay) {
            Some(of) if of.queue.len() >= MAX_OF_BAY => return false,
            Some(of) => of.queue.push_back(queued),
            None => self.bays.push_back(OfBay { bay, sending: false, queue: [queued].into() }),
        }
        true
    }

    /// The next message to send, if one is due. Its bay sends no other until [`Self::arrived`] or [`Self::failed`].
    pub(crate) fn take(&mut self, now: Instant) -> Option<AboutApproval> {
        let is_ready = |of: &OfBay| !of.sending && of.next().is_some_and(|queued| queued.due <= now);
        let at = self.bays.iter().position(is_ready)?;
        let mut of = self.bays.remove(at)?;
        let next = of.next().map(|queued| queued.about.clone());
        of.sending = next.is_some();
        self.bays.push_back(of);
        next
    }

    /// When the next message is due, of all bays that have none under way.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        let idle = self.bays.iter().filter(|of| !of.sending);
        idle.filter_map(OfBay::next).map(|queued| queued.due).min()
    }

    pub(crate) fn arrived(&mut self, about: &AboutApproval) {
        self.delivery_ended(about, |_| false);
    }

    /// Schedules a message again that did not arrive, if the failure may pass (`may_pass`); false if it is given
    /// up.
    #[must_use]
    pub(crate) fn failed(&mut self, about: &AboutApproval, may_pass: bool, now: Instant) -> bool {
        self.delivery_ended(about, |queued| {
            queued.due = now + queued.wait;
            queued.wait = (queued.wait * 2).min(RETRY_MOST);
            may_pass && queued.due < queued.give_up_at
        })
    }

    /// Lets the bay send again, and removes the message unless `keep` says otherwise. Returns whether it was kept.
    fn delivery_ended(&mut self, about: &AboutApproval, keep: impl FnOnce(&mut Queued) -> bool) -> bool {
        let Some(of) = self.bays.iter_mut().find(|of| of.bay == about.bay) else { return false };
        of.sending = false;
        let at = of.queue.iter().position(|queued| queued.about.message.id == about.message.id);
        let kept = at.and_then(|at| of.queue.get_mut(at)).is_some_and(keep);
        if let Some(at) = at.filter(|_| !kept) {
            of.queue.remove(at);
        }
        self.bays.retain(|of| !of.queue.is_empty());
        kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about(bay: BayId, approval: ApprovalId, name: &str) -> AboutApproval {
        let message = Message { id: name.to_owned(), body: bytes::Bytes::new() };
        AboutApproval { bay, approval, message }
    }

    fn taken(queue: &mut DeliveryQueue, now: Instant) -> Vec<String> {
        std::iter::from_fn(|| queue.take(now)).map(|about| about.message.id).collect()
    }

    #[test]
    fn bays_take_turns_and_each_has_one_delivery_under_way() {
        let (mut queue, now) = (DeliveryQueue::default(), Instant::now());
        let (loud, quiet) = (BayId::generate(), BayId::generate());
        for name in ["loud-1", "loud-2", "loud-3"] {
            assert!(queue.add(about(loud, ApprovalId::generate(), name), now));
        }
        assert!(queue.add(about(quiet, ApprovalId::generate(), "quiet-1"), now));
        let first = queue.take(now).unwrap();
        assert_eq!(first.message.id, "loud-1");
        assert_eq!(taken(&mut queue, now), ["quiet-1"], "the loud bay waits for its delivery");
        assert_eq!(queue.next_due(), None, "every bay has one under way");
        queue.arrived(&first);
        assert!(queue.add(about(quiet, ApprovalId::generate(), "quiet-2"), now));
        assert_eq!(taken(&mut queue, now), ["loud-2"], "and the quiet one for its own");
    }

    #[test]
    fn a_bay_that_floods_loses_its_own_messages_and_no_others() {
        let (mut queue, now) = (DeliveryQueue::default(), Instant::now());
        let (loud, quiet) = (BayId::generate(), BayId::generate());
        let added = (0..1000).filter(|at| {
            let one = about(loud, ApprovalId::generate(), &format!("loud-{at}"));
            queue.add(one, now)
        });
        assert_eq!(added.count(), MAX_OF_BAY);
        assert!(queue.add(about(quiet, ApprovalId::generate(), "quiet"), now));
        assert_eq!(taken(&mut queue, now), ["loud-0", "quiet"]);
    }

    #[test]
    fn a_retry_lets_other_approvals_pass_and_keeps_the_order_of_its_own() {
        let (mut queue, now) = (DeliveryQueue::default(), Instant::now());
        let (bay, question) = (BayId::generate(), ApprovalId::generate());
        assert!(queue.add(about(bay, question, "open"), now));
        assert!(queue.add(about(bay, question, "allowed"), now));
        assert!(queue.add(about(bay, ApprovalId::generate(), "another"), now));
        let open = queue.take(now).unwrap();
        assert!(queue.failed(&open, true, now), "it is sent again");
        let another = queue.take(now).unwrap();
        assert_eq!(another.message.id, "another");
        queue.arrived(&another);
        assert!(queue.take(now).is_none(), "the answer is not told before the question");
        assert_eq!(queue.next_due(), Some(now + RETRY_FIRST));
        let again = queue.take(now + RETRY_FIRST).unwrap();
        assert_eq!(again.message.id, "open");
        queue.arrived(&again);
        assert_eq!(taken(&mut queue, now + RETRY_FIRST), ["allowed"]);
    }

    #[test]
    fn a_message_is_sent_again_at_growing_intervals_and_given_up_with_its_age() {
        let (mut queue, begin) = (DeliveryQueue::default(), Instant::now());
        let one = about(BayId::generate(), ApprovalId::generate(), "one");
        assert!(queue.add(one.clone(), begin));
        let mut now = begin;
        let mut waits = Vec::new();
        loop {
            let sent = queue.take(now).unwrap();
            if !queue.failed(&sent, true, now) {
                break;
            }
            let due = queue.next_due().unwrap();
            waits.push(due.duration_since(now).as_secs());
            now = due;
        }
        assert_eq!(waits[..8], [1, 2, 4, 8, 16, 32, 60, 60]);
        assert!(now < begin + GIVE_UP_AFTER && now + RETRY_MOST >= begin + GIVE_UP_AFTER);
        assert!(queue.bays.is_empty(), "nothing is left of it");
        // A refusal for good is not repeated.
        assert!(queue.add(one, begin));
        let sent = queue.take(begin).unwrap();
        assert!(!queue.failed(&sent, false, begin) && queue.bays.is_empty());
    }
}
