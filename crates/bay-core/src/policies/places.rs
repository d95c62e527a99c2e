//! URLs that `@registries`, `@forge` and the like stand for, as the client found them in settings: checked, and
//! turned into what rules use.

use bay_policy::{Place, Places};
use bay_types::policy::{FoundPlace, FoundPlaces, MAX_PLACES};
use bay_types::{CoreError, ErrorCode};

use crate::channel::plain_text;

/// How many characters of the name of the setting are kept beside its URL.
const MAX_FROM: usize = 200;

/// Checks the places that a client found and brings them into one form. A place with credentials is an error, so
/// that none is stored.
pub(crate) fn checked(found: &FoundPlaces) -> Result<FoundPlaces, CoreError> {
    let list = |places: &[FoundPlace]| -> Result<Vec<FoundPlace>, CoreError> {
        if places.len() > MAX_PLACES {
            return Err(CoreError::new(
                ErrorCode::InvalidInput,
                format!("the policy comes with too many places: {}", places.len()),
                format!("give at most {MAX_PLACES} of one kind; write rules instead"),
            ));
        }
        places.iter().map(parse_place).collect()
    };
    Ok(FoundPlaces {
        registries: list(&found.registries)?,
        forge: list(&found.forge)?,
        proposed: list(&found.proposed)?,
        listed: list(&found.listed)?,
    })
}

fn parse_place(given: &FoundPlace) -> Result<FoundPlace, CoreError> {
    let place = Place::parse(&given.url).map_err(|refusal| {
        CoreError::new(
            ErrorCode::InvalidInput,
            format!("a place that came with the policy cannot be used: {refusal}"),
            "places are https://HOST/PATH without credentials, query or fragment",
        )
    })?;
    let place = place.resolving_to(given.addresses.iter().copied());
    Ok(FoundPlace {
        url: place.to_string(),
        from: plain_text(&given.from).chars().take(MAX_FROM).collect(),
        addresses: place.addresses().to_vec(),
    })
}

/// The places that rules refer to. A stored place that cannot be parsed is left out. If the bay has a repository,
/// `forge` is its place, and the only one of its kind.
pub(crate) fn places(found: &FoundPlaces, forge: Option<&Place>) -> Places {
    let list = |places: &[FoundPlace]| {
        let read = |found: &FoundPlace| {
            Some(Place::parse(&found.url).ok()?.resolving_to(found.addresses.iter().copied()))
        };
        places.iter().filter_map(read).collect::<Vec<Place>>()
    };
    Places {
        registries: list(&found.registries),
        forge: match forge {
            None => list(&found.forge),
            // A place from the settings may also have the addresses of the name.
            Some(forge) => {
                let same = list(&found.forge).into_iter().find(|place| place.is(forge));
                vec![same.unwrap_or_else(|| forge.clone())]
            }
        },
        proposed: list(&found.proposed),
        listed: list(&found.listed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_in_a_place_are_refused_and_public_addresses_are_not_named() {
        let place = |url: &str| FoundPlace {
            url: url.to_owned(),
            from: "a\u{1b}b".to_owned(),
            addresses: ["10.0.0.5", "192.0.2.1", "127.0.0.1", "169.254.169.254"]
                .map(|address| address.parse().unwrap())
                .to_vec(),
        };
        assert!(parse_place(&place("https://me:secret@packages.example.com/")).is_err());
        let kept = parse_place(&place("https://Packages.example.com/simple")).unwrap();
        assert_eq!(kept.url, "https://packages.example.com/simple/");
        assert_eq!(kept.addresses, ["10.0.0.5".parse::<std::net::IpAddr>().unwrap()]);
        assert!(!kept.from.contains('\u{1b}'));
    }
}
