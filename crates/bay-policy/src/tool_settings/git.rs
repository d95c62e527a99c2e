//! Git's settings: URLs of remotes, and URLs that `insteadOf` substitutes for others.

use super::{Finds, Found, lines};

#[must_use]
pub fn git_config(text: &str) -> Vec<Found> {
    let mut finds = Finds::default();
    // The section and its name in quotes.
    let mut section = (String::new(), String::new());
    for (number, line) in lines(text) {
        let line = line.trim();
        if let Some(header) = line.strip_prefix('[') {
            let header = header.split(']').next().unwrap_or("");
            let (kind, name) = header.split_once(char::is_whitespace).unwrap_or((header, ""));
            section = (kind.to_ascii_lowercase(), name.trim().trim_matches('"').to_owned());
            continue;
        }
        let Some((key, value)) = line.split_once('=') else { continue };
        let key = key.trim().to_ascii_lowercase();
        match (section.0.as_str(), key.as_str()) {
            ("remote", "url" | "pushurl") => finds.add(value, number, &format!("remote.{key}")),
            ("url", "insteadof") => finds.add(&section.1, number, "url.insteadOf"),
            _ => {}
        }
    }
    finds.0
}
