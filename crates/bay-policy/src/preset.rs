//! Presets: policies that ship with the product.

/// What the names of presets' files begin with. A policy of an operator should have no such name: it would be taken for
/// the preset.
const FILE_PREFIX: &str = "preset:";

/// One of the presets. `presets/` has their files.
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

    /// The name of its policy file, in origins and wherever a policy is named.
    #[must_use]
    pub fn file_name(self) -> String {
        format!("{FILE_PREFIX}{}", self.name())
    }

    /// The preset whose policy file has this name.
    #[must_use]
    pub fn of_file(name: &str) -> Option<Self> {
        name.strip_prefix(FILE_PREFIX).and_then(Self::named)
    }

    /// Its policy file.
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
}
