//! Proofs and verification of the event record.

mod proofs;
mod verify;

pub use verify::Verdict;
