//! What a flush in a bay waits for.

use serde::{Deserialize, Serialize};

use crate::text_enum::text_enum;

/// What `fsync` and its kin wait for in a bay.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Durability {
    /// The disk: what a program has flushed survives a power cut of the host.
    #[default]
    Strict,
    /// Nothing. The daemon writes what is new to the disk every few seconds. A power cut of the host loses what is newer;
    /// any other crash loses nothing.
    Relaxed,
}

impl Durability {
    #[must_use]
    pub fn is_strict(&self) -> bool {
        *self == Self::Strict
    }
}

text_enum!(Durability { Strict = "strict", Relaxed = "relaxed" });
