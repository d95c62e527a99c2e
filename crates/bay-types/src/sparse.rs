//! Sparse files: which bytes must be written, and how an archive describes a sparse file.
//!
//! A sparse member of an archive has the form that GNU tar calls PAX 1.0: extended records with the keys below, then a member
//! whose content begins with a map. The map is a list of decimal numbers, each followed by a line break: how many extents there
//! are, then the offset and the length of each. Zeros fill it up to a whole block, and the extents' bytes follow.

use std::ops::Range;

/// Zeros are left out in whole blocks of this size, the smallest unit that filesystems allocate.
pub const BLOCK: usize = 4096;
/// Most extents of a sparse file. The rest of the file after the last of them is sent completely.
pub const MAX_EXTENTS: usize = 65_536;
/// Block size of an archive.
pub const ARCHIVE_BLOCK: usize = 512;

pub const PAX_MAJOR: &str = "GNU.sparse.major";
pub const PAX_MINOR: &str = "GNU.sparse.minor";
pub const PAX_NAME: &str = "GNU.sparse.name";
pub const PAX_REAL_SIZE: &str = "GNU.sparse.realsize";
/// The member's name in its header. Its real name is in the records.
pub const PLACEHOLDER: &str = "GNUSparseFile.0/sparse";

/// A part of a file that holds data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    pub offset: u64,
    pub length: u64,
}

/// The parts of `bytes` that must be written if the rest of the file is zeros. `bytes` begins at `offset` of the
/// file.
#[must_use]
pub fn data_runs(offset: u64, bytes: &[u8]) -> Vec<Range<usize>> {
    static ZEROS: [u8; BLOCK] = [0; BLOCK];
    let mut runs: Vec<Range<usize>> = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        // Blocks are aligned to the file, because a hole covers whole blocks.
        let into_block = usize::try_from((offset.wrapping_add(at as u64)) % BLOCK as u64).unwrap_or(0);
        let end = bytes.len().min(at + BLOCK - into_block);
        if bytes[at..end] != ZEROS[..end - at] {
            match runs.last_mut() {
                Some(run) if run.end == at => run.end = end,
                _ => runs.push(at..end),
            }
        }
        at = end;
    }
    runs
}

/// The map of a sparse member, filled up to a whole block.
#[must_use]
pub fn map(extents: &[Extent]) -> Vec<u8> {
    let mut map = format!("{}\n", extents.len());
    for extent in extents {
        map.push_str(&format!("{}\n{}\n", extent.offset, extent.length));
    }
    let mut map = map.into_bytes();
    map.resize(map.len().next_multiple_of(ARCHIVE_BLOCK), 0);
    map
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn whole_blocks_of_zeros_are_left_out() {
        let mut bytes = vec![0; 3 * BLOCK];
        let runs = |since, bytes: &[u8]| -> Vec<(usize, usize)> {
            data_runs(since, bytes).into_iter().map(|run| (run.start, run.end)).collect()
        };
        assert_eq!(runs(0, &bytes), []);
        bytes[BLOCK] = 1;
        assert_eq!(runs(0, &bytes), [(BLOCK, 2 * BLOCK)]);
        assert_eq!(runs(10, &bytes), [(BLOCK - 10, 2 * BLOCK - 10)]);
        assert_eq!(runs(0, &[1; 5]), [(0, 5)]);
        assert_eq!(runs(0, &[]), []);
    }

    #[test]
    fn a_map_is_whole_blocks() {
        let map = map(&[Extent { offset: 4096, length: 8 }]);
        assert_eq!(map.len(), ARCHIVE_BLOCK);
        assert!(map.starts_with(b"1\n4096\n8\n\0"));
    }

    proptest! {
        #[test]
        fn what_is_left_out_is_zeros_and_nothing_else(
            offset in any::<u64>(),
            blocks in proptest::collection::vec((any::<bool>(), 1_usize..6000), 0..6),
        ) {
            let bytes: Vec<u8> =
                blocks.iter().flat_map(|(data, length)| std::iter::repeat_n(u8::from(*data), *length)).collect();
            let mut copy = vec![0; bytes.len()];
            for run in data_runs(offset, &bytes) {
                copy[run.clone()].copy_from_slice(&bytes[run]);
            }
            prop_assert_eq!(copy, bytes);
        }
    }
}
