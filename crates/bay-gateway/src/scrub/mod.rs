//! Answers of origins, scrubbed of values that the bay must not see.
//!
//! A request that carried a secret may be answered with it: in an echo, an error, a redirect, a cookie; and a server may keep it and
//! repeat it to somebody else. Every answer of a secret's hosts goes through here, head, body and trailers, whichever bay asked. A value
//! that is found is overwritten with the bay's own sentinel in the same spelling, byte for byte, so that lengths stay what they are; a
//! bay without the secret reads [`REDACTION`] there.
//!
//! ```text
//!  Patterns: values × spellings ──► Grams: where nothing can begin (most of a text)
//!                                     │ where something may
//!                                     ▼
//!  frames ──► (Decoder) ──► Stream ── Pattern::look ─ whole ──► overwritten, goes on
//!                             │                     └ begins tellingly ─► held back until it is clear; counted if it is nothing
//!                             └─► the rest goes on; its end only when nothing more comes at once
//! ```
//!
//! | what | how it may be written |
//! |---|---|
//! | the value as text | each character as it is or escaped, in any mix: `%41`, `%2541`; `\u0041`, `\x41`, `\/`; `&#65;`, `&#x41;`, `&amp;`; `=41` with soft line breaks |
//! | base64 | both alphabets, with or without padding, in lines, at any of the three alignments (so also within `user:value`); the two special characters also as URLs and JSON write them |
//! | hexadecimal | capitals and small letters in any mix |
//! | UTF-16 | either byte order |
//! | compressed | gzip, deflate, Brotli, Zstandard: unpacked, and passed on as they are then |
//! | names of headers | whatever became of the capitals; the header goes |
//!
//! A request that carries a secret asks for nothing that could not be read here ([`prepare`]); an answer that comes in
//! such a form all the same is not passed on ([`Unreadable`]): ranges, unknown compressions, compressed gRPC messages.
//!
//! **Guesses.** A bay can have a server keep a guess and send it back. If anything that can be seen depended on how far it is right (what is
//! overwritten, held back, or where a stream is divided), the value could be read off character by character. So only a
//! whole value is overwritten, and the end of every piece is held back alike. A beginning that is more than what the sentinel tells and six
//! bytes is held, for it is likely to be the value; one that comes to nothing is counted, and so are whole values that nobody
//! sent. After a few of them ([`Guesses`], [`Tally`]) nothing of the host is passed on to this bay until the secret has another value.
//! A list of candidates finds a value that is in the list, whatever is counted: so values that are easy to guess are refused when
//! they are set, and if somebody insists, an answer ends where such a value is in it.
//!
//! **What is not found**: a value that is written in any other way (backwards, encrypted, in other words: a server that
//! wants to tell it can), that is divided by something else (half of it here and half there, or by the heads of WebSocket frames),
//! that is in a compressed file *within* the answer, or that has another case of letters in a body. What keeps a
//! secret from a server that cannot be trusted is that it is never sent there. A value shorter than
//! [`MIN_VALUE_BYTES`] is not looked for at all, and is refused when it is set. Of a value that the origin divides by a pause, or
//! cuts off, a beginning that is not telling is seen.
//!
//! Memory for each answer: the longest spelling of a value, and where it is compressed 64 KiB and the window of the
//! compression (32 KiB of gzip, 16 MiB of Brotli, 8 MiB of Zstandard), whatever the answer unpacks to.

mod body;
mod coding;
mod grams;
mod gzip;
mod head;
mod pattern;
mod patterns;
mod spelling;
mod stream;
mod tally;
#[cfg(test)]
mod tests;
mod zstandard;

pub use body::Scrubbed;
pub use coding::{Coding, CodingError};
pub use head::{Unreadable, headers, open, prepare, readable_yet};
pub use patterns::{Hidden, MAX_VALUE_BYTES, MIN_VALUE_BYTES, Patterns, REDACTION, ValueError};
pub use stream::{Renewal, Stream};
pub use tally::{ECHOES, Guesses, MAX_BEGINNINGS, MAX_HITS, MAX_NEAR_MISSES, Tally};
