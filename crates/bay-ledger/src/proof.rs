//! The two proofs of RFC 6962, section 2.1. Making a proof means to list ranges of leaves whose hashes it needs;
//! checking one means to compute a root. A proof is untrusted: if it does not fit, there is no root.

use std::ops::Range;

use crate::hash::{Hash, node_hash};

/// Where a tree of more than one leaf splits: the largest power of two below its size.
fn split(size: u64) -> u64 {
    1 << (size - 1).ilog2()
}

/// The ranges whose hashes prove that leaf `index` is in the tree of `size` leaves, lowest first. `None` if the
/// tree has no such leaf.
#[must_use]
pub fn inclusion_ranges(index: u64, size: u64) -> Option<Vec<Range<u64>>> {
    if index >= size {
        return None;
    }
    let (mut ranges, mut within) = (Vec::new(), 0..size);
    while within.end - within.start > 1 {
        let middle = within.start + split(within.end - within.start);
        if index < middle {
            ranges.push(middle..within.end);
            within.end = middle;
        } else {
            ranges.push(within.start..middle);
            within.start = middle;
        }
    }
    ranges.reverse();
    Some(ranges)
}

/// The root that an inclusion proof computes from `leaf`.
#[must_use]
pub fn root_by_inclusion(index: u64, size: u64, leaf: Hash, proof: &[Hash]) -> Option<Hash> {
    let ranges = inclusion_ranges(index, size)?;
    if ranges.len() != proof.len() {
        return None;
    }
    let fold = |hash: Hash, (range, other): (Range<u64>, &Hash)| {
        if range.start > index { node_hash(&hash, other) } else { node_hash(other, &hash) }
    };
    Some(ranges.into_iter().zip(proof).fold(leaf, fold))
}

/// The ranges whose hashes prove that the tree of `new` leaves continues the tree of `old` leaves, in the order of
/// the RFC. `None` if `old` is zero or above `new`.
#[must_use]
pub fn consistency_ranges(old: u64, new: u64) -> Option<Vec<Range<u64>>> {
    if old == 0 || old > new {
        return None;
    }
    let (mut ranges, mut within, mut whole) = (Vec::new(), 0..new, true);
    while old != within.end {
        let middle = within.start + split(within.end - within.start);
        if old <= middle {
            ranges.push(middle..within.end);
            within.end = middle;
        } else {
            ranges.push(within.start..middle);
            within.start = middle;
            whole = false;
        }
    }
    // If the old tree is one full subtree, the verifier knows its hash already.
    if !whole {
        ranges.push(within);
    }
    ranges.reverse();
    Some(ranges)
}

/// The old and the new root that a consistency proof computes. `old_root` is its first hash if the old tree is one
/// full subtree; otherwise the proof has its own.
#[must_use]
pub fn roots_by_consistency(old: u64, new: u64, old_root: Hash, proof: &[Hash]) -> Option<(Hash, Hash)> {
    let ranges = consistency_ranges(old, new)?;
    if ranges.len() != proof.len() {
        return None;
    }
    let mut steps = ranges.into_iter().zip(proof).peekable();
    let begin = match steps.peek() {
        // Only a range that ends with the old tree is its last subtree.
        Some((range, hash)) if range.end == old && range.start > 0 => {
            let hash = **hash;
            steps.next();
            hash
        }
        _ => old_root,
    };
    let (mut before, mut after) = (begin, begin);
    for (range, other) in steps {
        if range.start >= old {
            after = node_hash(&after, other);
        } else {
            before = node_hash(other, &before);
            after = node_hash(other, &after);
        }
    }
    Some((before, after))
}
