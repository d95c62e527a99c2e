//! One synthetic IPv4 address and one IPv6 address for each name, for the life of a bay.
//!
//! A name's number is its position in a list, from 1. Its addresses are the first address of each pool plus that
//! number. Names are never removed, so an address that a process cached keeps its name, also in a fork or after a
//! restart of the daemon. For that, only the pools and the list of names must be stored.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Instant;

use ipnet::{Ipv4Net, Ipv6Net};
use serde::{Deserialize, Serialize};

use bay_policy::Host;

use crate::limits::{MAX_NAMES, MAX_NEW_NAMES, NEW_NAMES_WITHIN};

/// The networks of the synthetic addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pools {
    pub v4: Ipv4Net,
    pub v6: Ipv6Net,
}

impl Default for Pools {
    /// Networks without real origins: the IPv4 network for benchmarks, and a unique local IPv6 network.
    fn default() -> Self {
        Self {
            v4: Ipv4Net::new_assert(Ipv4Addr::new(198, 18, 0, 0), 15),
            v6: Ipv6Net::new_assert(Ipv6Addr::new(0xfd77, 0x6261, 0x7900, 0, 0, 0, 0, 0), 64),
        }
    }
}

/// The list in stored form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedNames {
    pub pools: Pools,
    /// In the order of their addresses.
    pub names: Vec<String>,
}

/// Why a stored list is invalid.
#[derive(Debug, thiserror::Error)]
pub enum NamesError {
    #[error("{0:?} in the list of names is not a canonical name")]
    NotAName(String),
    #[error("{0} is twice in the list of names")]
    Twice(String),
    #[error("the list has {0} names, more than its pools have addresses for")]
    TooMany(usize),
}

/// Names and their addresses.
#[derive(Debug, Clone)]
pub struct Names {
    pools: Pools,
    numbers: HashMap<Arc<str>, u32>,
    names: Vec<Arc<str>>,
    lately: Lately,
}

/// New names that the bay asked for in the current window, whatever the answer was.
#[derive(Debug, Clone, Default)]
struct Lately {
    since: Option<Instant>,
    names: HashSet<Box<str>>,
}

/// The meaning of an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Meaning {
    /// An address with a name.
    Name(Arc<str>),
    /// An address of the pools that no name has yet.
    Nobody,
    /// An address outside the pools.
    Foreign,
}

impl Names {
    #[must_use]
    pub fn new(pools: Pools) -> Self {
        Self { pools, numbers: HashMap::new(), names: Vec::new(), lately: Lately::default() }
    }

    /// Reads a list that [`Names::saved`] wrote.
    pub fn load(saved: &SavedNames) -> Result<Self, NamesError> {
        let mut names = Self::new(saved.pools);
        for name in &saved.names {
            match Host::parse(name) {
                Ok(Host::Name(canonical)) if *canonical == **name => {}
                _ => return Err(NamesError::NotAName(name.clone())),
            }
            match names.number(name) {
                Some((_, true)) => {}
                Some((_, false)) => return Err(NamesError::Twice(name.clone())),
                None => return Err(NamesError::TooMany(saved.names.len())),
            }
        }
        Ok(names)
    }

    #[must_use]
    pub fn saved(&self) -> SavedNames {
        SavedNames { pools: self.pools, names: self.names.iter().map(|name| name.to_string()).collect() }
    }

    /// The number of names that fit: [`MAX_NAMES`], or fewer if the smaller pool has fewer addresses without its first
    /// and its last.
    fn capacity(&self) -> usize {
        let v4 = 1u64 << (32 - self.pools.v4.prefix_len());
        let v6 = 1u64 << (128 - self.pools.v6.prefix_len()).min(62);
        usize::try_from(v4.min(v6).saturating_sub(2)).unwrap_or(MAX_NAMES).min(MAX_NAMES)
    }

    /// Whether a question for this name may be answered: the name has an address, was asked for in this window, or is
    /// one of the first [`MAX_NEW_NAMES`] in this window.
    pub(crate) fn may_ask(&mut self, name: &str, now: Instant) -> bool {
        if self.numbers.contains_key(name) {
            return true;
        }
        let lately = &mut self.lately;
        if lately.since.is_none_or(|since| now.saturating_duration_since(since) >= NEW_NAMES_WITHIN) {
            lately.since = Some(now);
            lately.names.clear();
        }
        if lately.names.contains(name) {
            return true;
        }
        let may = lately.names.len() < MAX_NEW_NAMES;
        if may {
            lately.names.insert(name.into());
        }
        may
    }

    /// The number of a canonical name, which a new name gets now, and whether it is new. `None` if no new name fits.
    pub(crate) fn number(&mut self, name: &str) -> Option<(u32, bool)> {
        if let Some(number) = self.numbers.get(name) {
            return Some((*number, false));
        }
        if self.names.len() >= self.capacity() {
            return None;
        }
        // The first address of a network is not a host address.
        let number = u32::try_from(self.names.len() + 1).ok()?;
        let name: Arc<str> = name.into();
        self.names.push(name.clone());
        self.numbers.insert(name, number);
        Some((number, true))
    }

    pub(crate) fn v4(&self, number: u32) -> Ipv4Addr {
        Ipv4Addr::from(u32::from(self.pools.v4.network()).wrapping_add(number))
    }

    pub(crate) fn v6(&self, number: u32) -> Ipv6Addr {
        Ipv6Addr::from(u128::from(self.pools.v6.network()).wrapping_add(u128::from(number)))
    }

    /// The meaning of an address.
    #[must_use]
    pub fn meaning(&self, address: IpAddr) -> Meaning {
        let number = match address {
            IpAddr::V4(address) if self.pools.v4.contains(&address) => {
                u128::from(u32::from(address) - u32::from(self.pools.v4.network()))
            }
            IpAddr::V6(address) if self.pools.v6.contains(&address) => {
                u128::from(address) - u128::from(self.pools.v6.network())
            }
            _ => return Meaning::Foreign,
        };
        let at = number.checked_sub(1).and_then(|at| usize::try_from(at).ok());
        match at.and_then(|at| self.names.get(at)) {
            Some(name) => Meaning::Name(name.clone()),
            None => Meaning::Nobody,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_keeps_its_addresses_through_saving_and_loading() {
        let mut names = Names::new(Pools::default());
        let (first, new) = names.number("a.test").unwrap();
        assert!(new);
        let (second, _) = names.number("b.test").unwrap();
        assert_ne!(names.v4(first), names.v4(second));
        let mut loaded = Names::load(&names.saved()).unwrap();
        assert_eq!(loaded.number("b.test"), Some((second, false)));
        assert_eq!(loaded.meaning(names.v4(first).into()), Meaning::Name("a.test".into()));
        assert_eq!(loaded.meaning(names.v6(second).into()), Meaning::Name("b.test".into()));
        let (third, new) = loaded.number("c.test").unwrap();
        assert!(new && third != first && third != second);
    }

    #[test]
    fn a_full_pool_gives_no_address_twice() {
        let pools = Pools { v4: "192.0.2.0/29".parse().unwrap(), ..Pools::default() };
        let mut names = Names::new(pools);
        let given: Vec<_> = (0..20).filter_map(|at| names.number(&format!("n{at}.test"))).collect();
        assert_eq!(given.len(), 6);
        assert_eq!(names.number("n0.test"), Some((1, false)));
        assert_eq!(names.meaning("192.0.2.7".parse().unwrap()), Meaning::Nobody);
        assert_eq!(names.meaning("192.0.2.0".parse().unwrap()), Meaning::Nobody);
        assert_eq!(names.meaning("192.0.2.8".parse().unwrap()), Meaning::Foreign);
    }

    #[test]
    fn so_many_new_names_are_asked_for_in_a_minute_and_known_ones_always() {
        let (mut names, start) = (Names::new(Pools::default()), Instant::now());
        names.number("known.test").unwrap();
        let mut asked = 0..;
        let mut flood = |names: &mut Names, now| {
            let new = asked.by_ref().take(5 * MAX_NEW_NAMES).map(|at| format!("n{at}.test"));
            new.filter(|name| names.may_ask(name, now)).count()
        };
        assert_eq!(flood(&mut names, start), MAX_NEW_NAMES);
        assert!(names.may_ask("known.test", start));
        assert!(names.may_ask("n0.test", start), "the same again is nothing new");
        assert!(!names.may_ask("new.test", start));
        assert_eq!(flood(&mut names, start + NEW_NAMES_WITHIN), MAX_NEW_NAMES);
        assert!(names.lately.names.len() <= MAX_NEW_NAMES);
    }

    #[test]
    fn a_list_with_a_name_that_is_none_or_is_twice_is_refused() {
        let saved = |list: &[&str]| SavedNames {
            pools: Pools::default(),
            names: list.iter().map(|name| (*name).to_owned()).collect(),
        };
        assert!(matches!(Names::load(&saved(&["A.test"])), Err(NamesError::NotAName(_))));
        assert!(matches!(Names::load(&saved(&["192.0.2.1"])), Err(NamesError::NotAName(_))));
        assert!(matches!(Names::load(&saved(&["a.test", "a.test"])), Err(NamesError::Twice(_))));
    }
}
