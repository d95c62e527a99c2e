//! One TCP connection over a stream of bytes between two processes.
//!
//! ```text
//!  client ═TCP═ relay ──pieces── pass ──pieces── relay ═TCP═ server
//!              (CLI)           (daemon)         (guest)
//! ```
//!
//! In both directions the stream is a sequence of pieces: a length as four big-endian bytes, then so many bytes. The
//! length 0 says that this direction has ended; the other one may continue (a half-close).
//!
//! | the stream ends                          | the relay does                                          |
//! |------------------------------------------|---------------------------------------------------------|
//! | after the end of both directions         | it closes the TCP connection in order                   |
//! | before that: a process died, a bay stopped, an address was reset | it resets the TCP connection    |
//!
//! A plain stream could not tell the two apart: half a download would look like a whole one. The daemon in the middle
//! does not parse the pieces. The buffers have a limit, so a reader that stops reading stops its sender.
#![forbid(unsafe_code)]

mod buffer;
mod hang_up;
mod pass;
mod pieces;
mod relay;

pub use hang_up::hung_up;
pub use pass::{Moved, pass};
pub use relay::{End, relay, reset};
