//! Tests of the policy through its public API, one module per subject: evasions, decisions, explanations, presets. This
//! file has their helpers.
#![forbid(unsafe_code)]

mod addresses;
mod decisions;
mod docs;
mod execs;
mod explanations;
mod files;
mod git;
mod host_itself;
mod hosts;
mod layers;
mod paths;
mod presets;
mod properties;
mod reachable_hosts;
mod requests;
mod settings;

use bay_policy::{CanonicalRequest, CompiledPolicy, Decision, Layer, Layers, Places, decide, parse};
use jiff::Timestamp;

fn now() -> Timestamp {
    "2026-11-16T12:00:00Z".parse().unwrap()
}

fn layer(layer: Layer, text: &str) -> bay_policy::LayerPolicy {
    parse(layer, &format!("{layer}.toml"), text, &Places::default())
        .unwrap_or_else(|problems| panic!("{problems}"))
}

/// A policy with only the bay's layer.
fn policy(text: &str) -> CompiledPolicy {
    CompiledPolicy::new(Layers { bay: Some(layer(Layer::Bay, text)), ..Layers::default() })
}

fn request(line: &str) -> CanonicalRequest {
    CanonicalRequest::from_line(line).unwrap_or_else(|refusal| panic!("{line}: {refusal}"))
}

fn decided(policy: &CompiledPolicy, line: &str) -> Decision {
    decide(policy, &request(line), now())
}

/// `allow`, `ask`, `deny`, or `refused` if the request has no canonical form.
fn outcome(policy: &CompiledPolicy, line: &str) -> String {
    match CanonicalRequest::from_line(line) {
        Ok(request) => decide(policy, &request, now()).outcome.to_string(),
        Err(_) => "refused".to_owned(),
    }
}
