//! From the texts of a policy to the policy in force.

use std::sync::Arc;

use bay_policy::{
    CompiledPolicy, Grant, Layer, LayerPolicy, Layers, Otherwise, Place, Places, Preset, parse,
};
use bay_store::{BayRow, GrantRow, PolicyRow, PolicyTexts};
use bay_text::hex;
use bay_types::policy::FoundPlaces;
use jiff::Timestamp;
use serde_json::json;
use sha2::{Digest, Sha256};

use super::places;
use crate::channel::plain_text;

/// The policy of a bay that was given none.
pub(crate) const DEFAULT: Preset = Preset::Closed;
/// How many characters of the problems of a policy appear in a refusal.
const MAX_PROBLEM_CHARS: usize = 200;

/// The policy in force for a bay, and where it comes from.
#[derive(Debug)]
pub(crate) struct Effective {
    pub(crate) policy: Arc<CompiledPolicy>,
    pub(crate) sources: Vec<Source>,
    pub(crate) grants: Vec<GrantRow>,
}

/// Where a layer comes from.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) layer: Layer,
    /// When it was set, and the SHA-256 of its text; `None` if nobody set it, or the store could not be read.
    pub(crate) set: Option<(Timestamp, String)>,
    pub(crate) problems: Vec<String>,
}

impl Source {
    /// Whether the layer is there only because nobody set one. A layer that cannot be read is not.
    pub(crate) fn is_default(&self) -> bool {
        self.set.is_none() && self.problems.is_empty()
    }
}

impl Effective {
    /// Denies everything, because what was allowed cannot be read.
    pub(crate) fn unreadable(why: &str) -> Self {
        let problems = vec![format!("the policy could not be read: {why}")];
        let closed = closed(Layer::Bay, "unreadable", &problems);
        let policy = CompiledPolicy::new(Layers { bay: Some(closed), ..Layers::default() });
        Self {
            policy: Arc::new(policy),
            sources: vec![Source { layer: Layer::Bay, set: None, problems }],
            grants: Vec::new(),
        }
    }
}

/// The project of a bay: the repository that its workspace began from.
pub(crate) fn project(row: &BayRow) -> Option<String> {
    row.origin.as_ref().map(|origin| origin.location.clone())
}

pub(crate) fn sha256(text: &str) -> String {
    let digest = Sha256::digest(text.as_bytes());
    hex::encode(digest)
}

/// A layer that denies everything because it cannot be read. Its rule gives the reason in each refusal.
fn closed(layer: Layer, name: &str, problems: &[String]) -> LayerPolicy {
    let problem: String = problems.join("; ").chars().take(MAX_PROBLEM_CHARS).collect();
    let reason = format!("the policy cannot be read, so it denies everything: {}", plain_text(&problem));
    // Printable characters have the same form in TOML as in JSON.
    let rule = format!(
        "[[rule]]\nid = \"unreadable\"\noutcome = \"deny\"\nhost = \"*\"\nreason = {}\n",
        json!(reason)
    );
    let rules = parse(layer, name, &rule, &Places::default()).map(|layer| layer.rules).unwrap_or_default();
    LayerPolicy {
        layer,
        file: name.to_owned(),
        description: problems.first().map(|problem| format!("denies everything: {problem}")),
        extends: None,
        otherwise: Otherwise::Deny,
        ingress: Some(false),
        rules,
        execs: Vec::new(),
        grants: Vec::new(),
    }
}

/// Parses the text of a layer, or returns everything that is wrong with it.
pub(crate) fn read(
    layer: Layer,
    name: &str,
    text: &str,
    places: &Places,
) -> Result<LayerPolicy, Vec<String>> {
    parse(layer, name, text, places)
        .map_err(|problems| problems.0.iter().map(ToString::to_string).collect::<Vec<_>>())
}

/// The layer of a row. A layer that cannot be read denies everything.
pub(crate) fn layer_of(layer: Layer, row: &PolicyRow, forge: Option<&Place>) -> (LayerPolicy, Vec<String>) {
    let read = match serde_json::from_str::<FoundPlaces>(&row.places) {
        Ok(found) => read(layer, &row.name, &row.text, &places::places(&found, forge)),
        Err(error) => Err(vec![format!("the places kept with it cannot be read: {error}")]),
    };
    match read {
        Ok(policy) => (policy, Vec::new()),
        Err(problems) => (closed(layer, &row.name, &problems), problems),
    }
}

pub(crate) fn default_layer() -> LayerPolicy {
    DEFAULT.load(Layer::Bay, &Places::default()).unwrap_or_else(|problems| {
        closed(Layer::Bay, DEFAULT.name(), &[format!("the preset cannot be read: {problems}")])
    })
}

/// The grants of a row: one, unless its text cannot be read any more.
pub(crate) fn grants_of(row: &GrantRow) -> Result<Vec<Grant>, Vec<String>> {
    read(Layer::Bay, &format!("grant {}", row.id), &row.text, &Places::default()).map(|layer| layer.grants)
}

/// Compiles the layers and grants of a bay. `reach` are the ports of the host that are open to the bay. A layer
/// that cannot be read closes them, and makes all grants void.
pub(crate) fn compile(texts: &PolicyTexts, forge: Option<&Place>, reach: &[u16]) -> Effective {
    let mut sources = Vec::new();
    let mut read = |layer: Layer, row: Option<&PolicyRow>| {
        let row = row?;
        let (policy, problems) = layer_of(layer, row, forge);
        sources.push(Source { layer, set: Some((row.set_at, sha256(&row.text))), problems });
        Some(policy)
    };
    let host = read(Layer::Host, texts.host.as_ref());
    let project = read(Layer::Project, texts.project.as_ref());
    let mut bay = read(Layer::Bay, texts.bay.as_ref()).unwrap_or_else(|| {
        sources.push(Source { layer: Layer::Bay, set: None, problems: Vec::new() });
        default_layer()
    });
    // A grant permits what no rule covers. If a layer cannot be read, nobody knows what it covers.
    let readable = sources.iter().all(|source| source.problems.is_empty());
    if readable {
        for row in &texts.grants {
            match grants_of(row) {
                Ok(grants) => bay.grants.extend(grants),
                Err(problems) => {
                    if let Some(own) = sources.iter_mut().find(|source| source.layer == Layer::Bay) {
                        own.problems.extend(problems);
                    }
                }
            }
        }
    } else {
        bay.grants.clear();
    }
    let policy = CompiledPolicy::new(Layers { host, project, bay: Some(bay) });
    Effective {
        policy: Arc::new(if readable { policy.reaching(reach) } else { policy }),
        sources,
        grants: texts.grants.clone(),
    }
}
