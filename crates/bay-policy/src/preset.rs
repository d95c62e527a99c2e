//! Presets: policies that ship with the product, as files.

use crate::parse::{LayerPolicy, parse_preset};
use crate::place::Places;
use crate::problem::Problems;
use crate::rule::Layer;

/// A policy by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Preset {
    #[default]
    Closed,
    Coding,
    Research,
    Evaluation,
    Autonomous,
    Open,
}

impl Preset {
    pub const ALL: [Self; 6] =
        [Self::Closed, Self::Coding, Self::Research, Self::Evaluation, Self::Autonomous, Self::Open];

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Coding => "coding",
            Self::Research => "research",
            Self::Evaluation => "evaluation",
            Self::Autonomous => "autonomous",
            Self::Open => "open",
        }
    }

    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|preset| preset.name() == name)
    }

    /// The file.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::Closed => include_str!("../../../presets/closed.toml"),
            Self::Coding => include_str!("../../../presets/coding.toml"),
            Self::Research => include_str!("../../../presets/research.toml"),
            Self::Evaluation => include_str!("../../../presets/evaluation.toml"),
            Self::Autonomous => include_str!("../../../presets/autonomous.toml"),
            Self::Open => include_str!("../../../presets/open.toml"),
        }
    }

    /// The policy, with the places that were found filled in. Fails only where a place cannot be written as a rule.
    pub fn load(self, layer: Layer, places: &Places) -> Result<LayerPolicy, Problems> {
        parse_preset(layer, &format!("preset:{}", self.name()), self.text(), places)
    }
}
