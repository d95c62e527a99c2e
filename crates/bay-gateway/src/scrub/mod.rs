//! Scrubs the answers of origins of values that the bay must not see.
//!
//! An origin may return a secret that a request carried: in an echo, an error, a redirect or a cookie. It may also
//! store the value and send it to another bay. So the answers of a secret's hosts that the gateway can read are
//! scrubbed: head, body and trailers, whichever bay asked. A found value is overwritten with the bay's own sentinel in
//! the same spelling and of the same length. A bay that never had the secret gets [`REDACTION`] instead.
//!
//! ```text
//!  Patterns: values × spellings ──► Prefilter: skips places where no value can begin (most of a text)
//!                                     │ candidates
//!                                     ▼
//!  frames ──► (Decoder) ──► Stream ── Pattern::look ─ whole value ──► overwritten, passed on
//!                             │                     └ significant prefix ─► held until complete; counted as a guess if it is not a value
//!                             └─► other bytes are passed on; the last ones only when no more arrive at once
//! ```
//!
//! | encoding | what is found |
//! |---|---|
//! | the value as text | each character plain or escaped, in any mix: `%41`, `%2541`; `\u0041`, `\x41`, `\/`; `&#65;`, `&#x41;`, `&amp;`; `=41` with soft line breaks |
//! | base64 | both alphabets, with or without padding, in lines, at any of the three alignments (so also within `user:value`); the two special characters also escaped as in URLs and JSON |
//! | hexadecimal | upper and lower case in any mix |
//! | UTF-16 | either byte order |
//! | compressed | gzip, deflate, Brotli, Zstandard: passed on decompressed |
//! | names of headers | in any case; the header is removed |
//!
//! A request to such a host does not ask for an answer that the scrubber could not read ([`prepare`]). If the answer
//! is unreadable all the same, it is not passed on ([`Unreadable`]): ranges, unknown compressions, compressed gRPC
//! messages.
//!
//! **Guesses.** A bay can make a server store a guess and return it. If anything visible depended on the number of
//! correct characters (what is overwritten, what is held back, where a stream is split), the bay could determine the
//! value one character at a time. So what is too short to be significant changes nothing, and the end of every piece
//! is held back alike. A prefix is *significant* if it is at least six bytes longer than what the sentinel reveals. A
//! significant prefix is held, because it probably begins the value. If it turns out not to, it counts as a guess. So
//! does a whole value that the request did not carry. After too many guesses ([`Guesses`], [`Tally`]) the bay gets
//! nothing more from the host until the secret has another value. Counting does not prevent guesses from a short list
//! of candidates. So a value that is easy to guess is refused when it is set. If the operator insists, an answer is
//! cut where such a value occurs.
//!
//! **What is not found**: a value in any other encoding (reversed, encrypted, paraphrased), a value split by other
//! bytes (in two fields, or by the headers of WebSocket frames), a value in a compressed file *within* the answer,
//! and a value in another letter case in a body. A server that wants to reveal the value can do so. Only not sending
//! the value protects it from a server that cannot be trusted. Values shorter than [`MIN_VALUE_BYTES`] are not
//! searched for and are refused when they are set. If the origin pauses within a value, or cuts it off, the bay sees
//! a prefix that is not significant.
//!
//! Memory for each answer: about the longest spelling of a value, and the piece that has just arrived. A compressed
//! answer also needs 64 KiB and the window of the compression (32 KiB for gzip, 16 MiB for Brotli, 8 MiB for
//! Zstandard), however large the decompressed body is.

mod body;
mod coding;
mod gzip;
mod head;
mod pattern;
mod patterns;
mod prefilter;
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
