//! Settings of tools on the operator's machine: which registries and mirrors they use.
//!
//! Most functions parse the text of a file, which the caller has read, and return its destinations. Text that does not
//! parse is skipped, because these files belong to other programs and may contain anything. User names, passwords and
//! queries of URLs are dropped here.

mod apt;
mod cargo;
mod defaults;
mod git;
mod npm;
mod pip;

pub use apt::{apt_list, apt_sources};
pub use cargo::cargo_config;
pub use defaults::{Tool, default_places};
pub use git::git_config;
pub use npm::npmrc;
pub use pip::pip_conf;

use serde::Serialize;

use crate::place::Place;

/// Longest settings file that is parsed.
pub const MAX_SETTINGS_BYTES: usize = 1 << 20;
/// Most destinations that one file gives.
pub const MAX_FOUND: usize = 256;

/// A destination and the setting that names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Found {
    pub place: Place,
    /// The line number, from 1.
    pub line: usize,
    /// The name of the setting, to show where the destination comes from.
    pub setting: String,
}

/// The destination of a URL in an environment variable, under the same limit of length as a file.
#[must_use]
pub fn variable(value: &str) -> Option<Place> {
    if value.len() > MAX_SETTINGS_BYTES { None } else { place(value.trim_start_matches("sparse+")) }
}

/// Collects destinations without duplicates.
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

/// The destination of a URL without its credentials, query and fragment.
fn place(url: &str) -> Option<Place> {
    let url = url.trim().trim_matches(['"', '\'']);
    // A variable in a URL has no known value here.
    if url.contains('$') {
        return None;
    }
    let (scheme, rest) = url.split_once("://")?;
    let rest = rest.split(['?', '#']).next()?;
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let authority = authority.rsplit('@').next()?;
    Place::parse(&format!("{scheme}://{authority}{path}")).ok()
}

/// The lines of a file with their numbers. A file that is too long has none.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let text = if text.len() > MAX_SETTINGS_BYTES { "" } else { text };
    text.lines().enumerate().map(|(at, line)| (at + 1, line))
}
