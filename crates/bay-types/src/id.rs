//! Typed ids and names. An id is a kind prefix and a UUIDv7, so that ids sort by time and never mix.

use std::fmt;
use std::str::FromStr;

use bay_text::clip;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// How many characters of an invalid id or name an error message quotes: the caller may have sent kilobytes.
const MAX_QUOTED: usize = 64;

/// A string that is not a valid id or name, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is not a valid {kind}: {why}")]
pub struct ParseIdError {
    pub kind: &'static str,
    pub given: String,
    pub why: &'static str,
}

macro_rules! typed_id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Uuid);

        impl $name {
            /// The kind prefix, underscore included.
            pub const PREFIX: &'static str = concat!($prefix, "_");

            /// The id of nothing.
            pub const NONE: Self = Self(Uuid::nil());

            /// A new id; later ids sort after earlier ones.
            #[must_use]
            pub fn generate() -> Self {
                Self(Uuid::now_v7())
            }

            /// The last eight hexadecimal digits, for tables and messages.
            #[must_use]
            pub fn short(&self) -> String {
                let whole = self.0.simple().to_string();
                whole[24..].to_owned()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}{}", Self::PREFIX, self.0.simple())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = ParseIdError;
            fn from_str(given: &str) -> Result<Self, Self::Err> {
                let fail = |why| ParseIdError { kind: concat!($prefix, " id"), given: clip(given, MAX_QUOTED), why };
                let hex = given
                    .strip_prefix(Self::PREFIX)
                    .ok_or_else(|| fail(concat!("it must start with ", $prefix, "_")))?;
                if hex.len() != 32 || !hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
                    return Err(fail("32 lower-case hexadecimal digits must follow the prefix"));
                }
                Uuid::try_parse(hex).map(Self).map_err(|_| fail("it is not a UUID"))
            }
        }

        impl TryFrom<String> for $name {
            type Error = ParseIdError;
            fn try_from(given: String) -> Result<Self, Self::Error> {
                given.parse()
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> Self {
                id.to_string()
            }
        }
    };
}

typed_id!(
    /// One bay. After `bay rm` its name can be used again, its id never.
    BayId, "bay"
);
typed_id!(
    /// One exec. The caller chooses the id, so that repeating a request is harmless.
    ExecId, "exec"
);
typed_id!(
    /// One imported image.
    ImageId, "img"
);
typed_id!(
    /// One cached repository.
    RepoId, "repo"
);

typed_id!(
    /// One approval.
    ApprovalId, "ask"
);

typed_id!(
    /// One client's input for one exec, over all of its connections.
    InputId, "input"
);

typed_id!(
    /// One forward of a bay's ports, from its opening to its end.
    ForwardId, "fwd"
);

/// The name of a bay: also its hostname, so it follows the rules of a DNS label.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct BayName(String);

impl BayName {
    /// Longest name, with the suffix of a fork. A DNS label allows 63.
    pub const MAX_LEN: usize = 40;

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Derives a valid name from free text such as a directory name; `bay` if no character can be used.
    #[must_use]
    pub fn slug(text: &str) -> Self {
        let mut out = String::new();
        for c in text.chars().flat_map(char::to_lowercase) {
            if out.len() >= Self::MAX_LEN {
                break;
            }
            if c.is_ascii_alphanumeric() {
                out.push(c);
            } else if !out.is_empty() && !out.ends_with('-') {
                out.push('-');
            }
        }
        let trimmed = out.trim_matches('-');
        Self(if trimmed.is_empty() { "bay".to_owned() } else { trimmed.to_owned() })
    }
}

impl fmt::Display for BayName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for BayName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for BayName {
    type Err = ParseIdError;
    fn from_str(given: &str) -> Result<Self, Self::Err> {
        let fail = |why| Err(ParseIdError { kind: "bay name", given: clip(given, MAX_QUOTED), why });
        if given.is_empty() {
            return fail("it is empty");
        }
        if given.len() > Self::MAX_LEN {
            return fail("it is longer than 40 characters");
        }
        if !given.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-')) {
            return fail("only lower-case letters a-z, digits and '-' are allowed");
        }
        if given.starts_with('-') || given.ends_with('-') {
            return fail("it must not begin or end with '-'");
        }
        Ok(Self(given.to_owned()))
    }
}

impl TryFrom<String> for BayName {
    type Error = ParseIdError;
    fn try_from(given: String) -> Result<Self, Self::Error> {
        given.parse()
    }
}

impl From<BayName> for String {
    fn from(name: BayName) -> Self {
        name.0
    }
}

/// `v1`, `v2`, …
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct CheckpointName(u32);

impl CheckpointName {
    /// The first number a bay gives.
    pub const FIRST: Self = Self(1);

    /// `None` for zero, which is no checkpoint's number.
    #[must_use]
    pub fn new(number: u32) -> Option<Self> {
        (number > 0).then_some(Self(number))
    }

    #[must_use]
    pub fn number(self) -> u32 {
        self.0
    }

    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for CheckpointName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}", self.0)
    }
}

impl From<CheckpointName> for String {
    fn from(name: CheckpointName) -> Self {
        name.to_string()
    }
}

impl FromStr for CheckpointName {
    type Err = ParseIdError;

    fn from_str(given: &str) -> Result<Self, ParseIdError> {
        let digits = given.strip_prefix('v').filter(|digits| !digits.starts_with(['0', '+']));
        digits.and_then(|digits| digits.parse().ok()).map(Self).ok_or_else(|| ParseIdError {
            kind: "checkpoint",
            given: given.to_owned(),
            why: "checkpoints are called v1, v2 and so on",
        })
    }
}

impl TryFrom<String> for CheckpointName {
    type Error = ParseIdError;

    fn try_from(given: String) -> Result<Self, ParseIdError> {
        given.parse()
    }
}

/// The name of a service, unique in its bay. It is a file name and an environment value, so it is plain.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ServiceName(String);

impl ServiceName {
    pub const MAX_LEN: usize = 40;

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for ServiceName {
    type Err = ParseIdError;
    fn from_str(given: &str) -> Result<Self, Self::Err> {
        let fail = |why| {
            // An error message quotes the input, but never kilobytes of it.
            let given = given.chars().take(Self::MAX_LEN + 1).collect();
            Err(ParseIdError { kind: "service name", given, why })
        };
        if given.is_empty() {
            return fail("it is empty");
        }
        if given.len() > Self::MAX_LEN {
            return fail("it is longer than 40 characters");
        }
        if !given.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_')) {
            return fail("only lower-case letters a-z, digits, '-' and '_' are allowed");
        }
        if !given.starts_with(|c: char| c.is_ascii_alphanumeric()) {
            return fail("it must begin with a letter or digit");
        }
        Ok(Self(given.to_owned()))
    }
}

impl TryFrom<String> for ServiceName {
    type Error = ParseIdError;
    fn try_from(given: String) -> Result<Self, Self::Error> {
        given.parse()
    }
}

impl From<ServiceName> for String {
    fn from(name: ServiceName) -> Self {
        name.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_id_survives_printing_and_parsing() {
        let id = BayId::generate();
        assert_eq!(id.to_string().parse::<BayId>(), Ok(id));
        assert!(id.to_string().ends_with(&id.short()));
    }

    #[test]
    fn an_id_of_another_kind_is_refused() {
        assert!(ExecId::generate().to_string().parse::<BayId>().is_err());
    }

    #[test]
    fn a_checkpoint_name_is_v_and_a_number_and_nothing_else() {
        for number in [1, 2, 10, u32::MAX] {
            let name = CheckpointName::new(number).unwrap();
            assert_eq!(name.to_string().parse::<CheckpointName>().unwrap(), name);
        }
        for odd in ["", "v", "v0", "v01", "v+1", "v-1", "V1", "1", "v1 ", "v4294967296", "v1.2", "../v1"] {
            assert!(odd.parse::<CheckpointName>().is_err(), "{odd:?}");
        }
    }

    proptest! {
        #[test]
        fn a_slug_is_always_a_valid_name(text in "\\PC{0,200}") {
            let name = BayName::slug(&text);
            prop_assert_eq!(name.as_str().parse::<BayName>(), Ok(name.clone()));
        }

        #[test]
        fn a_valid_name_is_its_own_slug(text in "[a-z0-9]([a-z0-9]|-[a-z0-9]){0,19}") {
            let slug = BayName::slug(&text);
            prop_assert_eq!(slug.as_str(), text);
        }

        #[test]
        fn no_text_makes_the_parser_panic_or_accept_other_characters(text in any::<String>()) {
            if let Ok(name) = text.parse::<BayName>() {
                prop_assert!(name.as_str().bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-'));
            }
        }
    }
}
