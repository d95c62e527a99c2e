//! What a git push changes: read as git would, or not at all, and more of the same bytes never changes what was read.
#![no_main]

use bay_policy::push::{commands, is_ref};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some(read) = commands(bytes) else { return };
    assert!(read.end <= bytes.len() && read.updates.iter().all(|update| is_ref(&update.name)));
    let mut longer = bytes.to_vec();
    longer.extend_from_slice(b"PACK and more");
    assert_eq!(commands(&longer), Some(read));
});
