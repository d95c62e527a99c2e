//! The shape of the tree. A tree of `n` leaves is a row of full subtrees, one per bit of `n`, the largest first: the
//! frontier. Appending merges from its right end.
//!
//! Of the inner nodes, only the rows at every [`TILE_HEIGHT`]th level are stored: any other node is folded from at
//! most `2^(TILE_HEIGHT - 1)` hashes of the row below it. So an append stores on average one hash per 256 leaves
//! besides its leaf, and a proof reads a bounded number of hashes in each of `log256 n` rows.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::hash::{Hash, node_hash};

/// Most leaves of a tree: sums of sizes fit into a `u64`, and numbers into an `i64`.
pub const MAX_SIZE: u64 = 1 << 62;
/// Stored rows are this many levels apart.
pub const TILE_HEIGHT: u32 = 8;

/// A full subtree: `2^level` leaves from `index * 2^level` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Node {
    pub level: u32,
    pub index: u64,
}

/// Adjacent hashes of a stored row, from which a node is folded. Row 0 is the leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    pub level: u32,
    pub first: u64,
    pub count: u64,
}

impl Node {
    /// The stored hashes of this node.
    #[must_use]
    pub fn row(self) -> Row {
        let above = self.level % TILE_HEIGHT;
        Row { level: self.level - above, first: self.index << above, count: 1 << above }
    }

    /// Whether it is a stored inner node.
    #[must_use]
    pub fn is_kept(self) -> bool {
        self.level > 0 && self.level.is_multiple_of(TILE_HEIGHT)
    }
}

/// The roots of the full subtrees: enough to append, and to compute the root.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Frontier {
    size: u64,
    peaks: Vec<Hash>,
}

impl Frontier {
    /// The frontier of `size` leaves, from the roots of its full subtrees, largest first. `None` if their number is
    /// wrong.
    #[must_use]
    pub fn new(size: u64, peaks: Vec<Hash>) -> Option<Self> {
        (size <= MAX_SIZE && peaks.len() == size.count_ones() as usize).then_some(Self { size, peaks })
    }

    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    #[must_use]
    pub fn peaks(&self) -> &[Hash] {
        &self.peaks
    }

    #[must_use]
    pub fn root(&self) -> Hash {
        fold_subtrees(&self.peaks)
    }

    /// Appends a leaf and passes each completed node to `completed`. Returns false, and does nothing, if the tree
    /// is full.
    #[must_use]
    pub fn push(&mut self, leaf: Hash, completed: impl FnMut(Node, Hash)) -> bool {
        self.push_full(0, leaf, completed)
    }

    /// Appends a full subtree of `2^level` leaves. Returns false, and does nothing, if none can begin here.
    #[must_use]
    pub fn push_full(&mut self, level: u32, hash: Hash, mut completed: impl FnMut(Node, Hash)) -> bool {
        let Some(leaves) = 1_u64.checked_shl(level) else { return false };
        if !self.size.is_multiple_of(leaves) || leaves > MAX_SIZE - self.size {
            return false;
        }
        let (mut level, mut hash) = (level, hash);
        while self.size >> level & 1 == 1 {
            let Some(left) = self.peaks.pop() else { break };
            hash = node_hash(&left, &hash);
            level += 1;
            completed(Node { level, index: self.size >> level }, hash);
        }
        self.peaks.push(hash);
        self.size += leaves;
        true
    }
}

/// The full subtrees that make up the leaves of `range`, from left to right.
#[must_use]
pub fn subtrees(range: Range<u64>) -> Vec<Node> {
    let mut found = Vec::new();
    let mut at = range.start;
    while at < range.end {
        let level = at.trailing_zeros().min((range.end - at).ilog2());
        found.push(Node { level, index: at >> level });
        at += 1 << level;
    }
    found
}

/// The hash over full subtrees of decreasing size, as at the right edge of a tree.
#[must_use]
pub fn fold_subtrees(hashes: &[Hash]) -> Hash {
    let mut right_to_left = hashes.iter().rev();
    match right_to_left.next() {
        None => Hash::of_nothing(),
        Some(last) => right_to_left.fold(*last, |right, left| node_hash(left, &right)),
    }
}

/// The hash over a row whose length is a power of two; `None` for other lengths.
#[must_use]
pub fn fold_full(mut row: Vec<Hash>) -> Option<Hash> {
    if !row.len().is_power_of_two() {
        return None;
    }
    while row.len() > 1 {
        row = row.as_chunks::<2>().0.iter().map(|[left, right]| node_hash(left, right)).collect();
    }
    row.pop()
}
