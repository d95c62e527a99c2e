//! From which checkpoint a bay's state descended at each point of its life, as far as the checkpoint still exists.

use std::collections::HashMap;

use bay_types::BayId;
use bay_types::CheckpointName;
use bay_types::event::{BayEvent, CheckpointEvent, Event, EventBody};

/// The descent, built event by event.
#[derive(Debug, Default)]
pub(super) struct Descent {
    /// From each event on, the state descends from this checkpoint.
    heads: Vec<(u64, Option<CheckpointName>)>,
    checkpoints: HashMap<CheckpointName, Checkpoint>,
    /// A restore to a checkpoint of another bay was requested. The state then descends from none of this bay's.
    from_elsewhere: bool,
}

#[derive(Debug, Default)]
struct Checkpoint {
    parent: Option<CheckpointName>,
    removed: bool,
}

impl Descent {
    /// Adds an event. Most kinds change nothing.
    pub(super) fn push(&mut self, bay: BayId, event: &Event) {
        match event.read() {
            EventBody::Checkpoint(CheckpointEvent::Made(made)) => {
                let Some(name) = made.name.get() else { return };
                self.checkpoints.insert(*name, Checkpoint { parent: made.parent, removed: false });
                self.heads.push((event.seq, Some(*name)));
            }
            EventBody::Checkpoint(CheckpointEvent::Removed(removed)) => {
                if let Some(name) = removed.name.get() {
                    self.checkpoints.entry(*name).or_default().removed = true;
                }
            }
            EventBody::Bay(BayEvent::RestoreAsked(asked)) => {
                self.from_elsewhere = asked.bay.is_some_and(|other| other != bay);
            }
            EventBody::Bay(BayEvent::Restored(restored)) => {
                let elsewhere = std::mem::take(&mut self.from_elsewhere)
                    || restored.bay.get().is_some_and(|other| *other != bay);
                let head = restored.checkpoint.get().copied().filter(|_| !elsewhere);
                self.heads.push((event.seq, head));
            }
            // The state of another bay descends from this bay's checkpoint only if the event says so.
            EventBody::Bay(BayEvent::Promoted(promoted)) => self.heads.push((event.seq, promoted.checkpoint)),
            _ => {}
        }
    }

    /// The checkpoint to fork from for the state right after this event: the nearest one that was not removed.
    pub(super) fn at(&self, seq: u64) -> Option<CheckpointName> {
        let after = self.heads.partition_point(|(head, _)| *head <= seq);
        let mut name = self.heads.get(after.checked_sub(1)?)?.1?;
        // Parents are older, so this ends. The limit is for a record that contradicts this.
        for _ in 0..=self.checkpoints.len() {
            match self.checkpoints.get(&name) {
                Some(checkpoint) if checkpoint.removed => name = checkpoint.parent?,
                Some(_) | None => return Some(name),
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn event(seq: u64, kind: &str, body: Value) -> Event {
        Event {
            seq,
            at: jiff::Timestamp::UNIX_EPOCH,
            bay: None,
            kind: kind.to_owned(),
            body,
            hash: String::new(),
        }
    }

    fn made(seq: u64, name: &str, parent: Option<&str>) -> Event {
        event(seq, "checkpoint.made", json!({ "name": name, "parent": parent, "kind": "files" }))
    }

    fn descent(bay: BayId, events: &[Event]) -> Descent {
        let mut descent = Descent::default();
        events.iter().for_each(|event| descent.push(bay, event));
        descent
    }

    fn at(descent: &Descent, seq: u64) -> Option<String> {
        descent.at(seq).map(|name| name.to_string())
    }

    #[test]
    fn every_point_names_the_newest_checkpoint_before_it() {
        let all = [made(3, "v1", None), made(7, "v2", Some("v1"))];
        let found = descent(BayId::generate(), &all);
        let found_at: Vec<_> = [1, 3, 5, 7, 90].map(|seq| at(&found, seq)).into();
        assert_eq!(
            found_at,
            [None, Some("v1"), Some("v1"), Some("v2"), Some("v2")].map(|name| name.map(str::to_owned))
        );
    }

    #[test]
    fn after_a_restore_the_state_descends_from_its_checkpoint() {
        let bay = BayId::generate();
        let all = [
            made(1, "v1", None),
            made(2, "v2", Some("v1")),
            event(3, "bay.restore-asked", json!({ "checkpoint": "v1", "bay": bay })),
            event(4, "bay.restored", json!({ "checkpoint": "v1" })),
            made(6, "v3", Some("v1")),
        ];
        let found = descent(bay, &all);
        let found_at: Vec<_> = [2, 3, 4, 5, 6].map(|seq| at(&found, seq).unwrap()).into();
        assert_eq!(found_at, ["v2", "v2", "v1", "v1", "v3"]);
    }

    #[test]
    fn a_removed_checkpoint_is_replaced_by_its_ancestor() {
        let all = [
            made(1, "v1", None),
            made(2, "v2", Some("v1")),
            made(3, "v3", Some("v2")),
            event(4, "checkpoint.removed", json!({ "name": "v2" })),
            event(5, "checkpoint.removed", json!({ "name": "v3" })),
        ];
        assert_eq!(at(&descent(BayId::generate(), &all), 3).as_deref(), Some("v1"));
        let mut more = all.to_vec();
        more.push(event(6, "checkpoint.removed", json!({ "name": "v1" })));
        assert_eq!(at(&descent(BayId::generate(), &more), 3), None);
    }

    #[test]
    fn the_state_of_another_bay_descends_from_no_checkpoint_of_this_one() {
        let other = BayId::generate();
        let all = [
            made(1, "v1", None),
            event(2, "bay.restore-asked", json!({ "checkpoint": "v9", "bay": other })),
            event(3, "bay.restored", json!({ "checkpoint": "v9" })),
        ];
        let found = descent(BayId::generate(), &all);
        assert_eq!((at(&found, 2).as_deref(), found.at(3)), (Some("v1"), None));
    }

    proptest! {
        #[test]
        fn any_record_has_an_answer(events in prop::collection::vec((0_usize..5, 0_u8..4, prop::option::of(0_u8..4)), 0..40)) {
            let mut descent = Descent::default();
            for (seq, (kind, name, parent)) in (1..).zip(events) {
                let kind = bay_store::DESCENT_KINDS[kind];
                let body = json!({ "name": format!("v{name}"), "checkpoint": format!("v{name}"), "parent": parent.map(|p| format!("v{p}")) });
                descent.push(BayId::generate(), &event(seq, kind, body));
                let _ = descent.at(seq);
            }
        }
    }
}
