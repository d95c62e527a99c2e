//! Settings of tools on the operator's machine: which registries and mirrors they use.
//!
//! Each function takes the text of a file and gives places; reading files is the caller's. Text that is not understood is
//! passed over: these files belong to other programs and may hold anything. Credentials in URLs are dropped here and
//! never come out.

mod apt;
mod cargo;
mod git;
mod npm;
mod pip;
mod usual;

pub use apt::{apt_list, apt_sources};
pub use cargo::cargo_config;
pub use git::git_config;
pub use npm::npmrc;
pub use pip::pip_conf;
pub use usual::{Tool, usual};

use serde::Serialize;

use crate::place::Place;

/// Longest settings file that is looked at.
pub const MAX_SETTINGS_BYTES: usize = 1 << 20;
/// Most places that one file gives.
pub const MAX_FOUND: usize = 256;

/// A place and the setting that names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Found {
    pub place: Place,
    /// From 1.
    pub line: usize,
    /// The name of the setting, for telling a person where it comes from.
    pub setting: String,
}

/// The place of a URL that a variable of the environment names, with the same care.
#[must_use]
pub fn variable(value: &str) -> Option<Place> {
    if value.len() > MAX_SETTINGS_BYTES { None } else { place(value.trim_start_matches("sparse+")) }
}

/// Collects places, each once.
#[derive(Debug, Default)]
struct Finds(Vec<Found>);

impl Finds {
    fn add(&mut self, url: &str, line: usize, setting: &str) {
        let Some(place) = place(url) else { return };
        if self.0.len() < MAX_FOUND && !self.0.iter().any(|found| found.place == place) {
            self.0.push(Found { place, line, setting: setting.to_owned() });
        }
    }
}

/// The place of a URL without its credentials, query and fragment.
fn place(url: &str) -> Option<Place> {
    let url = url.trim().trim_matches(['"', '\'']);
    // Not known here: variables of an environment that is not ours.
    if url.contains('$') {
        return None;
    }
    let (scheme, rest) = url.split_once("://")?;
    let rest = rest.split(['?', '#']).next()?;
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let authority = authority.rsplit('@').next()?;
    Place::parse(&format!("{scheme}://{authority}{path}")).ok()
}

/// Lines with their numbers, of a file that is not too long.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let text = if text.len() > MAX_SETTINGS_BYTES { "" } else { text };
    text.lines().enumerate().map(|(at, line)| (at + 1, line))
}
