//! Patterns of queries.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Strictness;
use crate::canonical::CanonicalQuery;

/// What a rule requires of the query.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum QueryPattern {
    #[default]
    Any,
    /// The request has no query.
    Nothing,
    /// Exactly this query, in its canonical form, so that an added parameter does not extend what a person allowed. Ask
    /// and deny ignore case.
    Exactly(String),
    /// Each of these names has one of its values. The query may contain other names too.
    Pairs(BTreeMap<String, ValuePattern>),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ValuePattern {
    Any,
    OneOf(Vec<String>),
}

impl ValuePattern {
    fn matches(&self, value: &str, strictness: Strictness) -> bool {
        match (self, strictness) {
            (Self::Any, _) => true,
            (Self::OneOf(values), Strictness::Exact) => values.iter().any(|one| one == value),
            (Self::OneOf(values), Strictness::Forgiving) => {
                values.iter().any(|one| one.trim().eq_ignore_ascii_case(value.trim()))
            }
        }
    }

    fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Any, _) => true,
            (Self::OneOf(_), Self::Any) => false,
            (Self::OneOf(values), Self::OneOf(others)) => others.iter().all(|other| values.contains(other)),
        }
    }

    fn overlaps(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Any, _) | (_, Self::Any) => true,
            (Self::OneOf(values), Self::OneOf(others)) => values.iter().any(|value| others.contains(value)),
        }
    }
}

impl QueryPattern {
    pub(crate) fn matches(&self, query: &CanonicalQuery, strictness: Strictness) -> bool {
        match self {
            Self::Any => true,
            Self::Nothing => query.as_str().is_none(),
            Self::Exactly(text) => query.as_str().is_some_and(|query| match strictness {
                Strictness::Exact => query == text,
                Strictness::Forgiving => query.eq_ignore_ascii_case(text),
            }),
            Self::Pairs(pairs) => pairs.iter().all(|(name, values)| match strictness {
                // A name that occurs twice has two values, and servers differ in which one they use: it does
                // not match exactly.
                Strictness::Exact => query.readings().all(|reading| {
                    let mut found = reading.iter().filter(|(other, _)| other.eq_ignore_ascii_case(name));
                    let first = found.next();
                    first.is_some_and(|(other, value)| other == name && values.matches(value, strictness))
                        && found.next().is_none()
                }),
                Strictness::Forgiving => query.readings().flatten().any(|(other, value)| {
                    other.trim().eq_ignore_ascii_case(name) && values.matches(value, strictness)
                }),
            }),
        }
    }

    pub(crate) fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Any, _) | (Self::Nothing, Self::Nothing) => true,
            (Self::Exactly(own), Self::Exactly(other)) => own == other,
            (Self::Pairs(own), Self::Pairs(others)) => {
                own.iter().all(|(name, values)| others.get(name).is_some_and(|other| values.covers(other)))
            }
            (Self::Nothing | Self::Exactly(_) | Self::Pairs(_), _) => false,
        }
    }

    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Any, _) | (_, Self::Any) | (Self::Nothing, Self::Nothing) => true,
            (Self::Exactly(own), Self::Exactly(other)) => own == other,
            // Assume an overlap without comparing the pairs: that is the safe answer.
            (Self::Exactly(_), Self::Pairs(_)) | (Self::Pairs(_), Self::Exactly(_)) => true,
            (Self::Nothing, _) | (_, Self::Nothing) => false,
            (Self::Pairs(own), Self::Pairs(others)) => {
                own.iter().all(|(name, values)| others.get(name).is_none_or(|other| values.overlaps(other)))
            }
        }
    }

    pub(crate) fn specificity(&self) -> usize {
        match self {
            Self::Any => 0,
            Self::Pairs(pairs) => pairs.len(),
            Self::Nothing | Self::Exactly(_) => usize::MAX,
        }
    }
}
