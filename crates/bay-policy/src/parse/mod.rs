//! Policy files: TOML that is read key by key, so that every mistake is told with its place, its reason and a way out.
//!
//! All mistakes of a file are collected; a file with one has no effect at all. `docs/policy.md` tells the language.

mod document;
mod examples;
mod exec;
mod reader;
mod rule;

use jiff::Timestamp;
use serde::Serialize;

use crate::exec::ExecRule;
use crate::place::Places;
use crate::problem::Problems;
use crate::rule::{Grant, Layer, Outcome, Rule};

/// Largest policy file.
pub const MAX_FILE_BYTES: usize = 1 << 20;
/// Most rules of one layer, presets and places counted.
pub const MAX_RULES: usize = 10_000;
/// Most problems told of one file.
pub const MAX_PROBLEMS: usize = 50;
/// Most values of one key of a rule.
pub const MAX_VALUES: usize = 1_000;

/// What a layer says to requests that none of its rules speaks of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Otherwise {
    Deny,
    Ask,
    /// What the layers before it say. Not for the first.
    Inherit,
}

impl Otherwise {
    pub(crate) fn outcome(self) -> Option<Outcome> {
        match self {
            Self::Deny => Some(Outcome::Deny),
            Self::Ask => Some(Outcome::Ask),
            Self::Inherit => None,
        }
    }
}

/// A file that was read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LayerPolicy {
    pub layer: Layer,
    pub file: String,
    pub description: Option<String>,
    /// Name of the preset it begins with.
    pub extends: Option<String>,
    pub otherwise: Otherwise,
    /// Whether ports of the bay may be reached from outside; silence leaves it to the other layers.
    pub ingress: Option<bool>,
    pub rules: Vec<Rule>,
    /// Rules on commands.
    pub execs: Vec<ExecRule>,
    /// Only of the bay's layer.
    pub grants: Vec<Grant>,
}

/// Reads one layer from the text of a file.
///
/// `file` is only for messages and origins. `places` are what `@registries` and its like stand for.
pub fn parse(layer: Layer, file: &str, text: &str, places: &Places) -> Result<LayerPolicy, Problems> {
    document::parse(layer, file, text, places, document::Extending::Allowed)
}

/// Reads a preset, which cannot begin with another.
pub(crate) fn parse_preset(
    layer: Layer,
    file: &str,
    text: &str,
    places: &Places,
) -> Result<LayerPolicy, Problems> {
    document::parse(layer, file, text, places, document::Extending::Refused)
}

/// Far enough away never to be reached.
pub(crate) const NEVER: Timestamp = Timestamp::MAX;
