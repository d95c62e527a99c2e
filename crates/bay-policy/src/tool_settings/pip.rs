//! `pip.conf`: `index-url`, `extra-index-url`, `index` and `find-links`, in any section, also over several lines.

use super::{Finds, Found, lines};

#[must_use]
pub fn pip_conf(text: &str) -> Vec<Found> {
    let mut finds = Finds::default();
    let mut setting = String::new();
    for (number, line) in lines(text) {
        let content = line.trim();
        if content.is_empty() || content.starts_with(['#', ';', '[']) {
            if content.starts_with('[') {
                setting.clear();
            }
            continue;
        }
        let continues = line.starts_with([' ', '\t']);
        let value = match content.split_once(['=', ':']).filter(|_| !continues) {
            Some((key, value)) => {
                setting = key.trim().to_ascii_lowercase().replace('_', "-");
                value
            }
            None => content,
        };
        if matches!(setting.as_str(), "index-url" | "extra-index-url" | "find-links" | "index") {
            value.split_whitespace().for_each(|url| finds.add(url, number, &setting));
        }
    }
    finds.0
}
