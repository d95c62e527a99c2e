//! How an area of events is defined, and how its bodies are read.
//!
//! Bodies are read field by field: a field that is missing or has another shape is lost, but the rest of the event
//! is not. A record may have events of any release, so reading never fails.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

/// The key of a body's version. A body without it has version 1.
pub const VERSION_KEY: &str = "version";

/// The kind of events of this type, and the version of the body that this release writes.
///
/// The version rises only when a field changes its meaning. New fields keep it: readers ignore fields that they do
/// not know.
pub trait Recorded {
    const KIND: &'static str;
    const VERSION: u64;
}

/// A field that every event of its kind has. In an event of another release it may have another shape, or be
/// missing (then it is `Odd(Value::Null)`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Field<T> {
    Is(T),
    Odd(Value),
}

impl<T> Field<T> {
    pub fn get(&self) -> Option<&T> {
        match self {
            Self::Is(value) => Some(value),
            Self::Odd(_) => None,
        }
    }
}

impl<T> From<T> for Field<T> {
    fn from(value: T) -> Self {
        Self::Is(value)
    }
}

/// For parsing only: a writer must give a value.
impl<T> Default for Field<T> {
    fn default() -> Self {
        Self::Odd(Value::Null)
    }
}

impl<T: Serialize> Serialize for Field<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Is(value) => value.serialize(serializer),
            Self::Odd(value) => value.serialize(serializer),
        }
    }
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for Field<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        Ok(serde_json::from_value(value.clone()).map_or(Self::Odd(value), Self::Is))
    }
}

/// Parses a field, or uses the default if it has another shape.
pub(super) fn lenient<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned + Default,
{
    Ok(serde_json::from_value(Value::deserialize(deserializer)?).unwrap_or_default())
}

/// The body of an event of this version.
pub(super) fn write<T: Serialize>(event: &T, version: u64) -> Value {
    // Only a path that is not UTF-8 has no JSON. Then the event is recorded without its body rather than not at
    // all.
    let mut body = serde_json::to_value(event)
        .unwrap_or_else(|error| serde_json::json!({ "left_out": error.to_string() }));
    if version > 1
        && let Some(body) = body.as_object_mut()
    {
        body.insert(VERSION_KEY.to_owned(), version.into());
    }
    body
}

/// Parses a body of this or an earlier version. `None` if it is not an object, or if a newer release wrote it in an
/// unknown version.
pub(super) fn read<T: DeserializeOwned>(body: &Value, known: u64) -> Option<T> {
    let version = match body.as_object()?.get(VERSION_KEY) {
        None => 1,
        Some(version) => version.as_u64()?,
    };
    if version > known {
        return None;
    }
    T::deserialize(body).ok()
}

/// A kind of event, for `EVENTS.md` and for tests over all kinds.
#[derive(Debug, Clone, Copy)]
pub struct KindInfo {
    pub kind: &'static str,
    pub version: u64,
    /// Lines of its documentation.
    pub about: &'static [&'static str],
    pub fields: &'static [FieldInfo],
}

#[derive(Debug, Clone, Copy)]
pub struct FieldInfo {
    pub name: &'static str,
    pub about: &'static [&'static str],
    /// Its type, as it is written in Rust.
    pub rust_type: &'static str,
    /// Its serde attributes.
    pub attributes: &'static str,
}

/// The version of a kind: 1 unless given.
macro_rules! version {
    () => {
        1
    };
    ($version:literal) => {
        $version
    };
}

/// Defines the events of one area: a struct for each kind, and an enum of all kinds.
macro_rules! area {
    (
        $(#[doc = $about:literal])*
        $area:ident: $event:ident;
        $(
            $(#[doc = $doc:literal])*
            $variant:ident($body:ident) = $kind:literal $(version $version:literal)? {
                $(
                    $(#[doc = $field_doc:literal])*
                    $(#[serde($($attribute:tt)*)])?
                    $field:ident: $type:ty,
                )*
            }
        )*
    ) => {
        $(
            $(#[doc = $doc])*
            #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
            pub struct $body {
                $(
                    $(#[doc = $field_doc])*
                    $(#[serde($($attribute)*)])?
                    #[serde(default, deserialize_with = "crate::event::area::lenient")]
                    pub $field: $type,
                )*
            }

            impl crate::event::Recorded for $body {
                const KIND: &'static str = $kind;
                const VERSION: u64 = crate::event::area::version!($($version)?);
            }

            impl From<$body> for crate::event::EventBody {
                fn from(body: $body) -> Self {
                    Self::$area($event::$variant(body))
                }
            }
        )*

        $(#[doc = $about])*
        // Only one is in memory at a time.
        #[allow(clippy::large_enum_variant)]
        #[derive(Debug, Clone, PartialEq)]
        pub enum $event {
            $( $(#[doc = $doc])* $variant($body), )*
        }

        impl $event {
            /// Lines of the area's documentation.
            pub(super) const ABOUT: &'static [&'static str] = &[$($about),*];

            pub const KINDS: &'static [crate::event::KindInfo] = &[
                $(
                    crate::event::KindInfo {
                        kind: $kind,
                        version: crate::event::area::version!($($version)?),
                        about: &[$($doc),*],
                        fields: &[
                            $(
                                crate::event::FieldInfo {
                                    name: stringify!($field),
                                    about: &[$($field_doc),*],
                                    rust_type: stringify!($type),
                                    attributes: concat!($(stringify!($($attribute)*))?),
                                },
                            )*
                        ],
                    },
                )*
            ];

            #[must_use]
            pub fn kind(&self) -> &'static str {
                match self { $( Self::$variant(_) => $kind, )* }
            }

            pub(super) fn body(&self) -> serde_json::Value {
                match self {
                    $( Self::$variant(body) =>
                        crate::event::area::write(body, crate::event::area::version!($($version)?)), )*
                }
            }

            pub(super) fn read(kind: &str, body: &serde_json::Value) -> Option<Self> {
                match kind {
                    $( $kind => crate::event::area::read(body, crate::event::area::version!($($version)?))
                        .map(Self::$variant), )*
                    _ => None,
                }
            }
        }
    };
}

pub(super) use {area, version};

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Changed {
        #[serde(default, deserialize_with = "lenient")]
        name: String,
        #[serde(default, deserialize_with = "lenient")]
        size: Field<u64>,
        #[serde(default, deserialize_with = "lenient")]
        hint: Option<u8>,
    }

    #[test]
    fn a_field_of_another_shape_costs_that_field_alone() {
        let read: Changed =
            read(&json!({ "name": "a", "size": "large", "hint": -1, "more": [] }), 1).unwrap();
        let odd = Field::Odd(json!("large"));
        assert_eq!(read, Changed { name: "a".to_owned(), size: odd, hint: None });
        // What it held instead is not lost.
        assert_eq!(write(&read, 1), json!({ "name": "a", "size": "large", "hint": null }));
        let empty: Changed = super::read(&json!({}), 1).unwrap();
        assert_eq!(empty, Changed { name: String::new(), size: Field::default(), hint: None });
    }

    #[test]
    fn a_version_is_written_from_the_second_on_and_a_newer_one_is_not_misread() {
        let changed = Changed { name: "a".to_owned(), size: Field::Is(1), hint: None };
        assert_eq!(write(&changed, 1), json!({ "name": "a", "size": 1, "hint": null }));
        let second = write(&changed, 2);
        assert_eq!(second, json!({ "name": "a", "size": 1, "hint": null, "version": 2 }));
        assert_eq!(read::<Changed>(&second, 2).as_ref(), Some(&changed));
        assert_eq!(read::<Changed>(&write(&changed, 1), 2), Some(changed));
        assert_eq!(read::<Changed>(&second, 1), None);
        assert_eq!(read::<Changed>(&json!({ "version": "odd" }), 2), None);
        assert_eq!(read::<Changed>(&json!([1]), 1), None);
    }
}
