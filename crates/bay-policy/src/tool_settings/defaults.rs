//! The default sources of tools, which apply if nobody configured others: `presets/registries.toml`.

use toml::de::DeTable;

use crate::place::Place;

const REGISTRIES: &str = include_str!("../../../../presets/registries.toml");

/// A tool that downloads packages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Tool {
    Pip,
    Npm,
    Cargo,
    Apt,
}

impl Tool {
    pub const ALL: [Self; 4] = [Self::Pip, Self::Npm, Self::Cargo, Self::Apt];

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Pip => "pip",
            Self::Npm => "npm",
            Self::Cargo => "cargo",
            Self::Apt => "apt",
        }
    }
}

/// The destinations that a tool uses by default.
#[must_use]
pub fn default_places(tool: Tool) -> Vec<Place> {
    let (table, _) = DeTable::parse_recoverable(REGISTRIES);
    let listed = table.get_ref().get(tool.name()).and_then(|value| value.get_ref().as_array());
    let url = |value: &toml::Spanned<toml::de::DeValue<'_>>| Place::parse(value.get_ref().as_str()?).ok();
    listed.into_iter().flatten().filter_map(url).collect()
}
