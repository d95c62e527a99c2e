//! Access for the fuzz targets in `fuzz/` to parsers that are otherwise private. Compiled for fuzzing only.

use std::os::fd::OwnedFd;

/// Unpacks an archive from a bay into a directory.
pub fn unpack(archive: &[u8], directory: &OwnedFd) {
    let _ = crate::archive::unpack_from(archive, directory);
}
