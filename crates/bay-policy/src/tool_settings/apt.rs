//! APT: lines of `sources.list`, and `URIs` of `*.sources`.

use super::{Finds, Found, lines};

/// `sources.list` and `sources.list.d/*.list`: `deb [options] URL suite…`.
#[must_use]
pub fn apt_list(text: &str) -> Vec<Found> {
    let mut finds = Finds::default();
    for (number, line) in lines(text) {
        let line = line.split('#').next().unwrap_or("").trim();
        let Some((kind, rest)) = line.split_once(char::is_whitespace) else { continue };
        if !matches!(kind, "deb" | "deb-src") {
            continue;
        }
        let rest = rest.trim_start();
        let rest = match rest.strip_prefix('[') {
            Some(options) => options.split_once(']').map_or("", |(_, rest)| rest),
            None => rest,
        };
        if let Some(url) = rest.split_whitespace().next() {
            finds.add(url, number, kind);
        }
    }
    finds.0
}

/// `sources.list.d/*.sources` (deb822): the field `URIs`, which may continue over several lines, in enabled stanzas.
#[must_use]
pub fn apt_sources(text: &str) -> Vec<Found> {
    let mut finds = Finds::default();
    let mut stanza: Vec<(usize, String)> = Vec::new();
    let mut enabled = true;
    let mut in_uris = false;
    for (number, line) in lines(text).chain([(0, "")]) {
        if line.trim().is_empty() {
            if enabled {
                stanza.iter().for_each(|(number, url)| finds.add(url, *number, "URIs"));
            }
            (stanza, enabled, in_uris) = (Vec::new(), true, false);
            continue;
        }
        if line.starts_with('#') {
            continue;
        }
        let value = if line.starts_with([' ', '\t']) {
            line
        } else {
            let (field, value) = line.split_once(':').unwrap_or((line, ""));
            in_uris = field.eq_ignore_ascii_case("URIs");
            if field.eq_ignore_ascii_case("Enabled") {
                enabled = !matches!(value.trim(), "no" | "false" | "without" | "off" | "disable");
            }
            value
        };
        if in_uris {
            stanza.extend(value.split_whitespace().map(|url| (number, url.to_owned())));
        }
    }
    finds.0
}
