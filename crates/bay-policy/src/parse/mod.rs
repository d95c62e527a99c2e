//! Policy files: TOML that is parsed key by key, so that each mistake is reported with its position, reason and fix.
//!
//! The parser goes on after a mistake, so that one run reports as many as it can find. A file with a mistake has no
//! effect at all. `docs/policy.md` describes the language.

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
/// Most rules of one layer, with those of its preset and one for each destination. Also most of its rules on commands,
/// and most of its tables of grants.
pub const MAX_RULES: usize = 10_000;
/// Most problems that are reported for one file.
pub const MAX_PROBLEMS: usize = 50;
/// Most values in one list of a file.
pub const MAX_VALUES: usize = 1_000;

/// Parses one layer from the text of a file.
///
/// `file` is only a name, for messages and origins. `places` are the values of `@registries` and other placeholders.
pub fn parse(layer: Layer, file: &str, text: &str, places: &Places) -> Result<LayerPolicy, Problems> {
    document::parse(layer, file, text, places, document::Extending::Allowed)
}

impl Preset {
    /// Parses the preset as a layer. `places` replace its placeholders, such as `@registries`.
    ///
    /// # Errors
    /// If a destination cannot be expressed as a rule.
    pub fn load(self, layer: Layer, places: &Places) -> Result<LayerPolicy, Problems> {
        document::parse(layer, &self.file_name(), self.text(), places, document::Extending::Refused)
    }
}
