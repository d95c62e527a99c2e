//! The record of events as an append-only Merkle tree (RFC 6962), without any I/O: the tree and its proofs, the signed
//! heads, and the bundle in which events leave the machine with everything needed to check them.
//!
//! ```text
//!   event ── canonical bytes ──► leaf = SHA-256(0x00 ‖ bytes)        node = SHA-256(0x01 ‖ left ‖ right)
//!
//!              root ◄─ signed with size, log and time: a head        An event cannot be edited, removed, moved or put in
//!            ╱      ╲                                                without another root; two heads of one log are either
//!         node      node     frontier: the roots of the full         one a continuation of the other, or a fork that both
//!        ╱    ╲    ╱    ╲    subtrees, at most one per level;        signatures prove.
//!       e1    e2  e3    e4   an append needs nothing else
//! ```
//!
//! Heads are notes in the checkpoint format of C2SP (`tlog-checkpoint`), and keys are its `vkey` lines, so that other
//! verifiers can read them. All parsed input may come from an attacker: its sizes are bounded, it must not cause a
//! panic, and the hashes that decide are computed from the decoded bytes.
#![forbid(unsafe_code)]

mod bundle;
mod event;
mod hash;
mod note;
mod proof;
mod tree;

pub use bundle::{Bundle, Evidence, Flaw, Header, MAX_LINE, Standing, Verified, Verifier};
pub use event::EventRecord;
pub use hash::{Hash, leaf_hash, node_hash};
pub use note::{Head, MAX_NOTE, NoteError, PublicKey, SecretKey};
pub use proof::{consistency_ranges, inclusion_ranges, root_by_inclusion, roots_by_consistency};
pub use tree::{Frontier, MAX_SIZE, Node, Row, TILE_HEIGHT, fold_full, fold_subtrees, subtrees};

#[cfg(test)]
mod tests;
