//! Which events of secrets concern a bay. A secret belongs to no bay: it is for all bays, or for those that it names.

use std::collections::HashMap;

use bay_store::Store;
use bay_types::BayId;
use bay_types::event::{Event, EventBody, SecretEvent};

use super::super::record_stream::PAGE;
use crate::daemon::Daemon;

/// The most secrets of which the scope is remembered. A daemon has fewer at a time.
const MAX_SECRETS: usize = 10_000;
/// The most ancestors of a fork that are considered: a fork has their secrets.
const MAX_ANCESTORS: usize = 16;

/// The scopes of secrets, built event by event.
#[derive(Debug)]
pub(super) struct SecretScope {
    /// The bay and its ancestors, as far as these bays still exist.
    bays: Vec<String>,
    /// Whether the bay has the secret.
    has: HashMap<String, bool>,
}

impl SecretScope {
    /// The scopes as of event `up_to`.
    pub(super) async fn of(daemon: &Daemon, bay: BayId, up_to: u64) -> Result<Self, bay_store::StoreError> {
        let mut scope = Self { bays: lineage(daemon, bay), has: HashMap::new() };
        scope.read(&daemon.store, 0, up_to).await?;
        Ok(scope)
    }

    /// Events that concern the bay, after `since` up to `up_to`, oldest first.
    pub(super) async fn read(
        &mut self,
        store: &Store,
        since: u64,
        up_to: u64,
    ) -> Result<Vec<Event>, bay_store::StoreError> {
        let mut found = Vec::new();
        let mut after = since;
        loop {
            let page = store.secret_events(after, up_to, PAGE).await?;
            let more = page.len() == PAGE as usize;
            after = page.last().map_or(up_to, |event| event.seq);
            found.extend(page.into_iter().filter(|event| self.concerns(event)));
            if !more {
                return Ok(found);
            }
        }
    }

    /// Whether an event concerns the bay. Events come in order.
    fn concerns(&mut self, event: &Event) -> bool {
        let EventBody::Secret(secret) = event.read() else { return false };
        let name = match &secret {
            SecretEvent::Set(set) => {
                let has = set.bays.is_empty() || set.bays.iter().any(|bay| self.bays.contains(bay));
                if self.has.len() >= MAX_SECRETS && !self.has.contains_key(&set.name) {
                    return has;
                }
                let had = self.has.insert(set.name.clone(), has).unwrap_or(false);
                // A secret that the bay loses concerns it too.
                return has || had;
            }
            SecretEvent::Removed(removed) => return self.has.remove(&removed.name).unwrap_or(false),
            SecretEvent::Rotated(rotated) => &rotated.name,
            SecretEvent::Stale(stale) => &stale.name,
        };
        self.has.get(name).copied().unwrap_or(false)
    }
}

fn lineage(daemon: &Daemon, bay: BayId) -> Vec<String> {
    let mut all = vec![bay.to_string()];
    let mut at = bay;
    while all.len() <= MAX_ANCESTORS
        && let Ok(handle) = daemon.bays.find(&at.to_string())
        && let Some(parent) = handle.row().forked_from.map(|from| from.bay)
    {
        all.push(parent.to_string());
        at = parent;
    }
    all
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn event(kind: &str, body: Value) -> Event {
        let at = jiff::Timestamp::UNIX_EPOCH;
        Event { seq: 1, at, bay: None, kind: kind.to_owned(), body, hash: String::new() }
    }

    #[test]
    fn a_secret_concerns_the_bays_that_have_it_or_lose_it() {
        let own = BayId::generate().to_string();
        let other = BayId::generate().to_string();
        let mut scope = SecretScope { bays: vec![own.clone()], has: HashMap::new() };
        let mut concerns = |kind: &str, body: Value| scope.concerns(&event(kind, body));
        assert!(concerns("secret.set", json!({ "name": "ALL", "bays": [] })));
        assert!(concerns("secret.set", json!({ "name": "OWN", "bays": [other, own] })));
        assert!(!concerns("secret.set", json!({ "name": "OTHER", "bays": [other] })));
        assert!(concerns("secret.rotated", json!({ "name": "OWN" })));
        assert!(!concerns("secret.rotated", json!({ "name": "OTHER" })));
        assert!(!concerns("secret.rotated", json!({ "name": "unknown" })));
        assert!(concerns("secret.set", json!({ "name": "OWN", "bays": [other] })), "the bay loses it");
        assert!(!concerns("secret.stale", json!({ "name": "OWN" })));
        assert!(concerns("secret.removed", json!({ "name": "ALL" })));
        assert!(!concerns("secret.removed", json!({ "name": "ALL" })), "it has been removed");
    }
}
