//! `.npmrc`: `registry` and `@scope:registry`. Lines with credentials (`//host/:_authToken`) name no registry.

use super::{Finds, Found, lines};

#[must_use]
pub fn npmrc(text: &str) -> Vec<Found> {
    let mut finds = Finds::default();
    for (number, line) in lines(text) {
        let Some((key, value)) = line.split_once('=') else { continue };
        let key = key.trim();
        if key == "registry" || (key.starts_with('@') && key.ends_with(":registry")) {
            finds.add(value, number, key);
        }
    }
    finds.0
}
