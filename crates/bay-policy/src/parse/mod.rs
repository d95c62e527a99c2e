//! Policy files: TOML that is read key by key, so that every mistake is told with its place, its reason and a way out.
//!
//! All mistakes of a file are collected; a file with one has no effect at all. `docs/policy.md` tells the language.

mod document;
mod examples;
mod exec;
mod reader;
mod rule;

use crate::layer::LayerPolicy;
use crate::place::Places;
use crate::preset::Preset;
use crate::problem::Problems;
use crate::rule::Layer;

/// Largest policy file.
pub const MAX_FILE_BYTES: usize = 1 << 20;
/// Most rules of one layer, presets and places counted.
pub const MAX_RULES: usize = 10_000;
/// Most problems told of one file.
pub const MAX_PROBLEMS: usize = 50;
/// Most values of one key of a rule.
pub const MAX_VALUES: usize = 1_000;

/// Reads one layer from the text of a file.
///
/// `file` is only for messages and origins. `places` are what `@registries` and its like stand for.
pub fn parse(layer: Layer, file: &str, text: &str, places: &Places) -> Result<LayerPolicy, Problems> {
    document::parse(layer, file, text, places, document::Extending::Allowed)
}

impl Preset {
    /// Reads the preset as a layer. `places` replace its placeholders, such as `@registries`.
    ///
    /// # Errors
    /// When a place cannot be written as a rule.
    pub fn load(self, layer: Layer, places: &Places) -> Result<LayerPolicy, Problems> {
        let file = format!("preset:{}", self.name());
        document::parse(layer, &file, self.text(), places, document::Extending::Refused)
    }
}
