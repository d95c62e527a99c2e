//! Text from a bay, a repository or a server, made safe to show; clipping and encodings.
//!
//! Everything here is pure: no I/O, no state beyond the filter or the buffer that the caller holds. Which function to
//! use depends on who reads the text:
//!
//! | module       | what it is for                                                                     |
//! |--------------|------------------------------------------------------------------------------------|
//! | [`invisible`] | the one list of characters that nobody sees or that reorder a line                |
//! | [`escape`]   | names, paths and messages in a line of our own output; JSON that is printed        |
//! | [`foreign`]  | text of unknown origin inside an error message: one line of bounded length         |
//! | [`terminal`] | a stream of bytes that a command wrote, on its way to a person's terminal          |
//! | [`shell`]    | words of a command line as a person would type them                                |
//! | [`clip`]     | text that is too long for its place                                                |
//! | [`markup`]   | text in an HTML or SVG document                                                     |
//! | [`percent`]  | percent-encoding of URLs                                                           |
//! | [`hex`]      | bytes as hexadecimal digits                                                        |
//! | [`lines`]    | a stream of bytes divided into lines of bounded length                             |
//!
//! `bay-policy` keeps a decoder of its own: it must know of every character of a path whether it was encoded.
#![forbid(unsafe_code)]

pub mod clip;
pub mod escape;
pub mod foreign;
pub mod hex;
pub mod invisible;
pub mod lines;
pub mod markup;
pub mod percent;
pub mod shell;
pub mod terminal;

pub use clip::clip;
