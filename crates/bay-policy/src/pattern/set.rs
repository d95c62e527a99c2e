//! Sets of ports and of methods.

use std::fmt;

use serde::{Serialize, Serializer};

use crate::canonical::{GitService, Scheme};

/// Ports of a rule.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Ports {
    /// The default port of the scheme.
    Default,
    Any,
    /// First and last port of each range, sorted and disjoint.
    Ranges(Vec<(u16, u16)>),
}

impl Ports {
    /// Sorts ranges and joins adjacent ones.
    #[must_use]
    pub fn ranges(mut ranges: Vec<(u16, u16)>) -> Self {
        ranges.sort_unstable();
        let mut joined: Vec<(u16, u16)> = Vec::with_capacity(ranges.len());
        for (first, last) in ranges {
            match joined.last_mut() {
                Some(before) if first <= before.1.saturating_add(1) => before.1 = before.1.max(last),
                _ => joined.push((first, last)),
            }
        }
        Self::Ranges(joined)
    }

    pub(crate) fn contains(&self, port: u16, scheme: Scheme) -> bool {
        match self {
            Self::Default => port == scheme.default_port(),
            Self::Any => true,
            Self::Ranges(ranges) => ranges.iter().any(|(first, last)| (*first..=*last).contains(&port)),
        }
    }

    fn as_ranges(&self, scheme: Scheme) -> Vec<(u16, u16)> {
        match self {
            Self::Default => vec![(scheme.default_port(), scheme.default_port())],
            Self::Any => vec![(1, u16::MAX)],
            Self::Ranges(ranges) => ranges.clone(),
        }
    }

    pub(crate) fn covers(&self, other: &Self, scheme: Scheme) -> bool {
        let own = self.as_ranges(scheme);
        other
            .as_ranges(scheme)
            .iter()
            .all(|(first, last)| own.iter().any(|(from, to)| from <= first && last <= to))
    }

    pub(crate) fn overlaps(&self, other: &Self, scheme: Scheme) -> bool {
        let own = self.as_ranges(scheme);
        other
            .as_ranges(scheme)
            .iter()
            .any(|(first, last)| own.iter().any(|(from, to)| from <= last && first <= to))
    }

    /// The number of ports.
    pub(crate) fn count(&self) -> u32 {
        let ranges = self.as_ranges(Scheme::Https);
        ranges.iter().map(|(first, last)| u32::from(last - first) + 1).sum()
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Any => f.write_str("*"),
            Self::Ranges(ranges) => {
                for (at, (first, last)) in ranges.iter().enumerate() {
                    f.write_str(if at == 0 { "" } else { "," })?;
                    if first == last { write!(f, "{first}")? } else { write!(f, "{first}-{last}")? }
                }
                Ok(())
            }
        }
    }
}

impl Serialize for Ports {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Methods of a rule.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Methods {
    Any,
    /// Sorted, without duplicates.
    Set(Vec<String>),
}

/// The methods of an HTTP allow or ask that names neither methods nor branches.
pub const READING_METHODS: [&str; 2] = ["GET", "HEAD"];

impl Methods {
    #[must_use]
    pub fn reading() -> Self {
        Self::Set(READING_METHODS.map(str::to_owned).to_vec())
    }

    /// The methods of an allow or ask for git over SSH that names neither methods nor branches.
    #[must_use]
    pub fn fetching() -> Self {
        Self::Set(vec![GitService::Fetch.method().to_owned()])
    }

    /// The methods of an allow or ask for git over SSH that names branches and no methods.
    #[must_use]
    pub fn pushing() -> Self {
        Self::Set(vec![GitService::Push.method().to_owned()])
    }

    #[must_use]
    pub fn set(mut methods: Vec<String>) -> Self {
        methods.sort_unstable();
        methods.dedup();
        Self::Set(methods)
    }

    pub(crate) fn contains(&self, method: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Set(methods) => methods.iter().any(|own| own == method),
        }
    }

    pub(crate) fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Any, _) => true,
            (Self::Set(_), Self::Any) => false,
            (Self::Set(own), Self::Set(others)) => others.iter().all(|other| own.contains(other)),
        }
    }

    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Any, _) | (_, Self::Any) => true,
            (Self::Set(own), Self::Set(others)) => others.iter().any(|other| own.contains(other)),
        }
    }

    /// Whether every method in the set only reads, by the definition of the methods.
    #[must_use]
    pub fn only_read(&self) -> bool {
        match self {
            Self::Any => false,
            Self::Set(methods) => methods.iter().all(|method| {
                READING_METHODS.contains(&method.as_str())
                    || method == "OPTIONS"
                    || method == GitService::Fetch.method()
            }),
        }
    }

    pub(crate) fn as_strings(&self) -> Vec<&str> {
        match self {
            Self::Any => vec!["*"],
            Self::Set(methods) => methods.iter().map(String::as_str).collect(),
        }
    }
}

impl Serialize for Methods {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.as_strings().serialize(serializer)
    }
}
