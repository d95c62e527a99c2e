//! The policy argument of the command line.

use std::io::Read;
use std::path::Path;

use bay_client::{invalid, local};
use bay_policy::{Layer, LayerPolicy, Place, Places, Preset, Problems, parse};
use bay_types::policy::{FoundPlace, FoundPlaces, MAX_POLICY_BYTES, PolicySet};
use bay_types::{ApiError, ErrorCode};
use clap::Args;

use crate::git;
use crate::operator;

/// The flags of `bay up` for the policy of the new bay.
#[derive(Debug, Clone, Args)]
pub(crate) struct PolicyFlags {
    /// What may leave the bay: a preset (closed, coding, research, evaluation, autonomous, open) or a file [default:
    /// closed].
    #[arg(long, value_name = "PRESET|FILE")]
    pub(crate) policy: Option<String>,
    /// A URL that the preset `autonomous`, or a rule with `place = "@listed"`, may reach.
    #[arg(long, value_name = "URL", requires = "policy")]
    pub(crate) list: Vec<String>,
}

/// A preset, or the content of a file.
#[derive(Debug)]
pub(crate) enum Given {
    Preset(Preset),
    File { name: String, text: String },
}

/// Reads the preset or file of this name. A file with the name of a preset must be written as `./NAME`.
pub(crate) fn given(word: &str) -> Result<Given, ApiError> {
    if let Some(preset) = Preset::named(word) {
        return Ok(Given::Preset(preset));
    }
    if word == "-" {
        return Ok(Given::File {
            name: "stdin".to_owned(),
            text: bounded(std::io::stdin(), "standard input")?,
        });
    }
    let path = Path::new(word);
    let file = std::fs::File::open(path).map_err(|error| {
        if error.kind() == std::io::ErrorKind::NotFound {
            let known = Preset::ALL.map(Preset::name).join(", ");
            return ApiError::new(
                ErrorCode::PathNotFound,
                format!("{word:?} is neither a preset nor a file"),
                format!("the presets are {known}; a file is named by its path"),
            );
        }
        local(&format!("reading {word}"), &error)
    })?;
    let name =
        path.file_name().map_or_else(|| "policy".to_owned(), |name| name.to_string_lossy().into_owned());
    // The name is part of every message about a rule, so it must be one word on one line.
    let name: String =
        name.chars().map(|c| if c.is_control() || c.is_whitespace() { '_' } else { c }).collect();
    Ok(Given::File { name, text: bounded(file, word)? })
}

fn bounded(from: impl Read, name: &str) -> Result<String, ApiError> {
    let mut bytes = Vec::new();
    let most = MAX_POLICY_BYTES as u64 + 1;
    from.take(most).read_to_end(&mut bytes).map_err(|error| local(&format!("reading {name}"), &error))?;
    if bytes.len() > MAX_POLICY_BYTES {
        return Err(invalid(
            format!("{name} is longer than {MAX_POLICY_BYTES} bytes"),
            "use wider rules, or split it into layers",
        ));
    }
    String::from_utf8(bytes)
        .map_err(|_| invalid(format!("{name} is not text in UTF-8"), "a policy is a TOML file"))
}

impl Given {
    pub(crate) fn text(&self) -> &str {
        match self {
            Self::Preset(preset) => preset.text(),
            Self::File { text, .. } => text,
        }
    }

    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Preset(preset) => preset.name(),
            Self::File { name, .. } => name,
        }
    }

    /// The request that is sent to the daemon.
    pub(crate) fn with(&self, places: FoundPlaces) -> Result<PolicySet, ApiError> {
        if !places.listed.is_empty() && !operator::wants(self.text(), "@listed") {
            return Err(invalid(
                format!("{} has no rule that uses the URLs of --list", self.name()),
                "use the preset `autonomous`, or a rule with place = \"@listed\"",
            ));
        }
        let text = match self {
            Self::Preset(_) => None,
            Self::File { text, .. } => Some(text.clone()),
        };
        Ok(PolicySet { name: self.name().to_owned(), text, places })
    }

    /// The policy as a bay's own layer, with the destinations that the operator's tools are configured for.
    pub(crate) fn read(&self) -> Result<LayerPolicy, Problems> {
        let mut places = Places::default();
        if operator::wants(self.text(), "@registries") {
            let found = operator::Settings::of_caller().registries();
            places.registries = found.iter().filter_map(|found| Place::parse(&found.url).ok()).collect();
        }
        match self {
            Self::Preset(preset) => preset.load(Layer::Bay, &places),
            Self::File { name, text } => parse(Layer::Bay, name, text, &places),
        }
    }
}

/// Where the repository of a bay can be fetched: its origin, or the origin of the clone on this machine.
pub(crate) async fn forge_of(location: &str) -> Vec<FoundPlace> {
    if location.starts_with('/') {
        return forge_of_path(Path::new(location)).await;
    }
    operator::forge(location, "the bay's repository")
}

/// Where the repository in a directory of this machine can be fetched.
pub(crate) async fn forge_of_path(path: &Path) -> Vec<FoundPlace> {
    match git::upstream(path).await {
        Some(url) => operator::forge(&url, &format!("remote.origin.url of {}", path.display())),
        None => Vec::new(),
    }
}
