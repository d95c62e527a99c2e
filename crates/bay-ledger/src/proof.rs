//! The two proofs of RFC 6962, section 2.1. To make one is to name ranges of leaves whose hashes are wanted; to check one
//! is to arrive at a root. Proofs may be anything: whatever does not fit gives no root.

use std::ops::Range;

use crate::hash::{Hash, node_hash};

/// Where a tree of more than one leaf is split: the largest power of two below its size.
fn split(size: u64) -> u64 {
    1 << (size - 1).ilog2()
}

/// The ranges whose hashes prove that leaf `index` is in the tree of `size` leaves, lowest first. None when it has no
/// such leaf.
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

/// The root that an inclusion proof leads to from `leaf`.
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

/// The ranges whose hashes prove that the tree of `new` leaves continues the one of `old`, in the order of the RFC. None
/// when it cannot: there is nothing before the first leaf, nor after the last.
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
    // The old tree itself, when it is one whole subtree, is known to whoever asks.
    if !whole {
        ranges.push(within);
    }
    ranges.reverse();
    Some(ranges)
}

/// The old and the new root that a consistency proof leads to. `old_root` is where it begins when the old tree is one
/// full subtree; otherwise the proof brings its own beginning.
#[must_use]
pub fn roots_by_consistency(old: u64, new: u64, old_root: Hash, proof: &[Hash]) -> Option<(Hash, Hash)> {
    let ranges = consistency_ranges(old, new)?;
    if ranges.len() != proof.len() {
        return None;
    }
    let mut steps = ranges.into_iter().zip(proof).peekable();
    let begin = match steps.peek() {
        // Only a range that ends where the old tree does is its own last subtree.
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
