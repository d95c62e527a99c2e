//! Doors for the fuzz targets in `fuzz/`, to readers that are nobody else's business. Not in any other build.

use std::os::fd::BorrowedFd;

pub use crate::envd::fuzz::{envelopes, multipart};

/// Puts a tar archive into the directory `into` below `root`. True when it was taken.
pub fn extract(root: BorrowedFd<'_>, into: &str, archive: &[u8]) -> bool {
    crate::files::fuzz_extract(root, into, archive)
}

/// The values of a query under a key, as a request's or a form's. `None` when it is refused.
pub fn query(text: &str, key: &str) -> Option<Option<Vec<u8>>> {
    crate::http::fuzz_query(text, key)
}
