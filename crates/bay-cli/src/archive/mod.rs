//! File trees that are copied into or out of a bay, as tar streams.

mod pack;
mod pipe;
mod sparse;
mod unpack;

pub(crate) use pack::{Packed, Packer, STAT_BLOCK, harmless_beginning, pack, too_sparse};
#[cfg(fuzzing)]
pub(crate) use unpack::unpack_from;
pub(crate) use unpack::{Unpacked, unpack, unpack_file};
