//! Resolves the hosts of the operator's own registries. An internal mirror has a private address, which a policy must
//! name.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use bay_policy::{AddressClass, Place, classify};
use bay_types::policy::FoundPlace;

/// Time limit of all lookups together. The addresses of a slower name stay unknown.
const WITHIN: Duration = Duration::from_secs(3);

/// Adds the private addresses that names resolve to, and returns notes. Other special addresses only get a note.
pub(super) async fn private_addresses(places: Vec<&mut FoundPlace>) -> Vec<String> {
    let mut names: BTreeMap<String, u16> = BTreeMap::new();
    for found in &places {
        if let Ok(place) = Place::parse(&found.url)
            && let Some(name) = place.host().name()
        {
            names.insert(name.to_owned(), place.port());
        }
    }
    let look_ups: Vec<_> = names
        .into_iter()
        .map(|(name, port)| {
            tokio::spawn(async move {
                let found = tokio::net::lookup_host((name.clone(), port)).await;
                let addresses: Vec<IpAddr> = found.into_iter().flatten().map(|found| found.ip()).collect();
                (name, addresses)
            })
        })
        .collect();
    let deadline = tokio::time::Instant::now() + WITHIN;
    let mut known: BTreeMap<String, Vec<IpAddr>> = BTreeMap::new();
    for look_up in look_ups {
        if let Ok(Ok((name, addresses))) = tokio::time::timeout_at(deadline, look_up).await {
            known.insert(name, addresses);
        }
    }
    let mut notes = Vec::new();
    for (name, addresses) in &known {
        let of = |wanted: fn(AddressClass) -> bool| -> Vec<String> {
            let matching = addresses.iter().filter(|address| wanted(classify(**address)));
            matching.map(ToString::to_string).collect()
        };
        let named = of(|class| matches!(class, AddressClass::Private | AddressClass::Shared));
        if !named.is_empty() {
            notes.push(format!(
                "{name} resolves to {}, which is private: the policy names it, so that it can be reached",
                named.join(", ")
            ));
        }
        let other =
            of(|class| !matches!(class, AddressClass::Public | AddressClass::Private | AddressClass::Shared));
        if !other.is_empty() {
            notes.push(format!(
                "{name} resolves to {}, which stays refused: a rule of yours has to name it with `address`",
                other.join(", ")
            ));
        }
    }
    for found in places {
        let Ok(place) = Place::parse(&found.url) else { continue };
        let Some(addresses) = place.host().name().and_then(|name| known.get(name)) else { continue };
        found.addresses = place.resolving_to(addresses.iter().copied()).addresses().to_vec();
    }
    notes
}
