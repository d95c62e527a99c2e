//! Cargo's `config.toml`: the indices of registries, and the registries of sources.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{Finds, Found, MAX_SETTINGS_BYTES};

#[must_use]
pub fn cargo_config(text: &str) -> Vec<Found> {
    let mut finds = Finds::default();
    if text.len() > MAX_SETTINGS_BYTES {
        return Vec::new();
    }
    let (table, _) = DeTable::parse_recoverable(text);
    for (section, key) in [("registries", "index"), ("source", "registry")] {
        let entries = table.get_ref().get(section).and_then(|section| section.get_ref().as_table());
        for (name, entry) in entries.into_iter().flatten() {
            let value: Option<&Spanned<DeValue<'_>>> =
                entry.get_ref().as_table().and_then(|entry| entry.get(key));
            let Some((value, url)) = value.and_then(|value| Some((value, value.get_ref().as_str()?))) else {
                continue;
            };
            let url = url.strip_prefix("sparse+").unwrap_or(url);
            let before = text.get(..value.span().start).unwrap_or("");
            let line = before.bytes().filter(|byte| *byte == b'\n').count() + 1;
            finds.add(url, line, &format!("{section}.{}.{key}", name.get_ref()));
        }
    }
    finds.0
}
