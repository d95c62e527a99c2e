//! Policies by which browsers trust additional certificates: for all users, before any browser profile exists, and for
//! browsers that are installed later.

use std::io;

use bay_types::guest::CERTIFICATE;
use serde_json::{Value, json};

use super::Wanted;
use super::tree::{Tree, invalid_data};

/// Chromium of distributions and of Playwright; Chrome; Chrome for Testing.
const CHROMIUM: [&str; 3] = [
    "etc/chromium/policies/managed/workbay.json",
    "etc/opt/chrome/policies/managed/workbay.json",
    "etc/opt/chrome_for_testing/policies/managed/workbay.json",
];
const FIREFOX: &str = "etc/firefox/policies/policies.json";
/// Longest policy of an image that is extended.
const MAX_POLICY: u64 = 1 << 20;

pub(super) fn install(tree: &Tree<'_>, wanted: &Wanted, attempt: &impl Fn(&str, io::Result<()>)) {
    let certificates: Vec<String> = wanted.trusted.iter().map(super::Certificate::base64).collect();
    let policy = format!("{:#}\n", json!({ "CACertificates": certificates }));
    for file in CHROMIUM {
        attempt(file, tree.write(file, policy.as_bytes()));
    }
    attempt(FIREFOX, write_firefox(tree));
}

/// Firefox has one file for all policies, which the image may have already.
fn write_firefox(tree: &Tree<'_>) -> io::Result<()> {
    let mut policy = match tree.read(FIREFOX, MAX_POLICY)? {
        None => json!({}),
        Some(text) => serde_json::from_slice(&text)?,
    };
    let mut at = &mut policy;
    for key in ["policies", "Certificates"] {
        let object = at.as_object_mut().ok_or_else(|| invalid_data("policies of another shape"))?;
        at = object.entry(key).or_insert_with(|| json!({}));
    }
    let object = at.as_object_mut().ok_or_else(|| invalid_data("policies of another shape"))?;
    let install = object.entry("Install").or_insert_with(|| json!([]));
    let list = install.as_array_mut().ok_or_else(|| invalid_data("policies of another shape"))?;
    let ours = Value::from(CERTIFICATE);
    if list.contains(&ours) {
        return Ok(());
    }
    list.push(ours);
    tree.write(FIREFOX, format!("{policy:#}\n").as_bytes())
}
