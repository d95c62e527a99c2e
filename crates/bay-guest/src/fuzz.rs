//! Access for the fuzz targets in `fuzz/` to parsers that are otherwise private. Compiled for fuzzing only.

use std::os::fd::BorrowedFd;

pub use crate::envd::fuzz::{envelopes, multipart};

/// Extracts a tar archive into the directory `into` below `root`. Returns whether the archive was accepted.
pub fn extract(root: BorrowedFd<'_>, into: &str, archive: &[u8]) -> bool {
    crate::files::fuzz_extract(root, into, archive)
}

/// The value of a key in a query, parsed as a request's query. None if the query is refused.
pub fn query(text: &str, key: &str) -> Option<Option<Vec<u8>>> {
    crate::http::fuzz_query(text, key)
}
