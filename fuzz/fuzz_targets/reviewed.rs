//! Patches and package lists from an agent's tree, as the daemon reads them.
#![no_main]

use bay_diff::packages;
use bay_types::diff::{Change, Content, DiffEntry};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let packages = packages::parse(bytes);
    assert!(packages::changes(&packages, &packages).is_empty());
    let (path, patch) = bytes.split_at(bytes.len().min(16));
    let content = Content::Text {
        added: 1,
        removed: 1,
        patch: Some(String::from_utf8_lossy(patch).into_owned()),
        lossy: false,
    };
    for change in [Change::Modified, Change::Deleted] {
        let found = bay_diff::review(&[DiffEntry::new(change, path, None, None, content.clone())]);
        serde_json::to_vec(&found).expect("what was found can be written");
    }
});
