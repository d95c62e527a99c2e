//! Trees on their way into and out of a bay, as tar streams.

mod pack;
mod pipe;
mod unpack;

pub(crate) use pack::{Packed, Packer, harmless_beginning, pack};
pub(crate) use unpack::{Unpacked, unpack};
