//! The byte stream of an attached exec: `Upgrade: bay-frames/1`, then frames both ways.
//!
//! A frame is a kind byte, a big-endian `u32` length and that many bytes. Output frames carry consecutive parts of
//! the exec's output. The reader counts their bytes from the offset that it requested, so it always knows where to
//! resume.
//!
//! Input can have offsets too. A client sends the header [`INPUT`] with an [`InputId`] of its own. The answer says
//! how many bytes of that input the guest has received so far, over all of the client's connections. The client
//! sends [`Frame::Input`] from that offset on, and keeps each byte until [`Frame::Taken`] confirms it. The guest
//! drops bytes that it already has. So a cut connection neither loses nor repeats a byte: the daemon cuts all
//! connections before it captures the memory of a bay.
//!
//! ```text
//!  client                                                    guest
//!    POST …/attach          bay-input: input_7f… ─────────►
//!          ◄───────── 101   bay-input: 0                      received 0
//!    Input 0 "ab" ────────────────────────────────────────►  received 2
//!          ◄────────────────────────────────────── Taken 2    the command's pipe took both
//!    Input 2 "cd" ───────── ✂ cut
//!    POST …/attach          bay-input: input_7f… ─────────►
//!          ◄───────── 101   bay-input: 2                      so "cd" is sent again
//! ```
//! A guest or daemon of an earlier release omits the header from its answer. The client then sends
//! [`Frame::Stdin`], whose bytes can be lost with the connection. A client of an earlier release never sends the
//! header.

use serde::{Deserialize, Serialize};

use crate::error::ApiError;
use crate::exec::{Exit, TtySize};
use crate::output::OutputCheck;

/// Token of the `Upgrade` header.
pub const UPGRADE: &str = "bay-frames/1";
/// Longest payload of a frame. A connection that announces a longer one is closed.
pub const MAX_PAYLOAD: usize = 256 * 1024;
pub const HEADER_LEN: usize = 5;
/// Header of an attach request and of its answer; see the overview of this module.
pub const INPUT: &str = "bay-input";
/// Most bytes of input that a client sends beyond what the command has taken. The guest buffers this many, so that
/// it keeps reading and notices when the connection is cut.
pub const INPUT_WINDOW: u64 = 1 << 20;
const OFFSET_LEN: usize = 8;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    // Towards the exec.
    Stdin(Vec<u8>),
    StdinEof,
    Resize(TtySize),
    Signal(i32),
    /// Input with the offset of its first byte.
    Input(u64, Vec<u8>),
    /// The input ends at this offset.
    InputEnd(u64),
    // From the exec.
    Stdout(Vec<u8>),
    Stderr(Vec<u8>),
    Gap(Gap),
    /// The end of the exec, and whether the output is what the command wrote, if that is known.
    Exit(Exit, Option<OutputCheck>),
    /// The stream cannot go on.
    Error(ApiError),
    /// The command took the input before this offset.
    Taken(u64),
    /// When the output in the following frames came, in milliseconds since 1970; 0 if that was not recorded. Only sent
    /// to a reader that asks for times.
    Time(u64),
}

/// Output that is missing here, or will be missing for a later reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap {
    /// How many bytes are missing. Zero: the following output is passed on but not kept.
    pub dropped: u64,
    #[serde(default)]
    pub why: GapReason,
}

/// Why output is not kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GapReason {
    /// The bound on kept output was reached, and the oldest output was dropped.
    #[default]
    Bound,
    /// The bay's disk was full.
    DiskFull,
}

/// An invalid frame. The connection cannot be used after it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("a frame of {0} bytes was announced; the most is {MAX_PAYLOAD}")]
    TooLong(usize),
    #[error("a frame of unknown kind {0}")]
    UnknownKind(u8),
    #[error("a frame of kind {0} has a malformed body")]
    Malformed(u8),
}

#[derive(Serialize, Deserialize)]
struct SignalBody {
    signal: i32,
}

#[derive(Serialize, Deserialize)]
struct ExitBody {
    #[serde(flatten)]
    exit: Exit,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    check: Option<OutputCheck>,
}

const STDIN: u8 = 0;
const STDIN_EOF: u8 = 1;
const RESIZE: u8 = 2;
const SIGNAL: u8 = 3;
const INPUT_AT: u8 = 4;
const INPUT_END: u8 = 5;
const STDOUT: u8 = 16;
const STDERR: u8 = 17;
const GAP: u8 = 18;
const EXIT: u8 = 19;
const ERROR: u8 = 20;
const TAKEN: u8 = 21;
const TIME: u8 = 22;

/// The header of an output frame, for senders that write the payload themselves.
#[must_use]
pub fn output_header(stderr: bool, len: u32) -> [u8; HEADER_LEN] {
    header(if stderr { STDERR } else { STDOUT }, len)
}

fn header(kind: u8, len: u32) -> [u8; HEADER_LEN] {
    let l = len.to_be_bytes();
    [kind, l[0], l[1], l[2], l[3]]
}

fn decode_offset(kind: u8, body: &[u8]) -> Result<u64, FrameError> {
    body.try_into().map(u64::from_be_bytes).map_err(|_| FrameError::Malformed(kind))
}

/// If a payload is split, each part has the offset of its own first byte.
fn encode_input(mut offset: u64, bytes: &[u8], out: &mut Vec<u8>) {
    for part in bytes.chunks(MAX_PAYLOAD - OFFSET_LEN) {
        let len = OFFSET_LEN + part.len();
        // A part and its offset are at most MAX_PAYLOAD, which fits.
        out.extend_from_slice(&header(INPUT_AT, u32::try_from(len).unwrap_or(u32::MAX)));
        out.extend_from_slice(&offset.to_be_bytes());
        out.extend_from_slice(part);
        offset += part.len() as u64;
    }
}

impl Frame {
    /// Appends the frame to `out`. A payload over [`MAX_PAYLOAD`] is split into several frames.
    pub fn encode(&self, out: &mut Vec<u8>) {
        fn json<T: Serialize>(value: &T) -> Vec<u8> {
            serde_json::to_vec(value).unwrap_or_default()
        }
        if let Frame::Input(offset, bytes) = self {
            return encode_input(*offset, bytes, out);
        }
        let (kind, body): (u8, std::borrow::Cow<'_, [u8]>) = match self {
            Frame::Stdin(b) => (STDIN, b.into()),
            Frame::StdinEof => (STDIN_EOF, (&[][..]).into()),
            Frame::Resize(size) => (RESIZE, json(size).into()),
            Frame::Signal(signal) => (SIGNAL, json(&SignalBody { signal: *signal }).into()),
            Frame::Stdout(b) => (STDOUT, b.into()),
            Frame::Stderr(b) => (STDERR, b.into()),
            Frame::Gap(gap) => (GAP, json(gap).into()),
            Frame::Exit(exit, check) => (EXIT, json(&ExitBody { exit: *exit, check: *check }).into()),
            Frame::Error(error) => (ERROR, json(error).into()),
            Frame::InputEnd(offset) => (INPUT_END, offset.to_be_bytes().to_vec().into()),
            Frame::Taken(offset) => (TAKEN, offset.to_be_bytes().to_vec().into()),
            Frame::Time(at) => (TIME, at.to_be_bytes().to_vec().into()),
            Frame::Input(..) => return,
        };
        if body.is_empty() {
            out.extend_from_slice(&header(kind, 0));
        }
        for part in body.chunks(MAX_PAYLOAD) {
            // A part is at most MAX_PAYLOAD, which fits.
            out.extend_from_slice(&header(kind, u32::try_from(part.len()).unwrap_or(u32::MAX)));
            out.extend_from_slice(part);
        }
    }

    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.encode(&mut out);
        out
    }

    /// Decodes the first frame of `buffer`: the frame and its length, or `None` if more bytes are needed.
    ///
    /// # Errors
    /// When the bytes can never become a frame.
    pub fn decode(buffer: &[u8]) -> Result<Option<(Frame, usize)>, FrameError> {
        let Some((head, rest)) = buffer.split_first_chunk::<HEADER_LEN>() else {
            return Ok(None);
        };
        let kind = head[0];
        let len = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        if len > MAX_PAYLOAD {
            return Err(FrameError::TooLong(len));
        }
        if !matches!(kind, STDIN..=INPUT_END | STDOUT..=TIME) {
            return Err(FrameError::UnknownKind(kind));
        }
        let Some(body) = rest.get(..len) else {
            return Ok(None);
        };
        let bad = |_| FrameError::Malformed(kind);
        let frame = match kind {
            STDIN => Frame::Stdin(body.to_vec()),
            STDIN_EOF => Frame::StdinEof,
            RESIZE => Frame::Resize(serde_json::from_slice(body).map_err(bad)?),
            SIGNAL => Frame::Signal(serde_json::from_slice::<SignalBody>(body).map_err(bad)?.signal),
            STDOUT => Frame::Stdout(body.to_vec()),
            STDERR => Frame::Stderr(body.to_vec()),
            GAP => Frame::Gap(serde_json::from_slice(body).map_err(bad)?),
            EXIT => {
                let ExitBody { exit, check } = serde_json::from_slice(body).map_err(bad)?;
                Frame::Exit(exit, check)
            }
            INPUT_AT => {
                let (offset, bytes) = body.split_first_chunk().ok_or(FrameError::Malformed(kind))?;
                let offset = u64::from_be_bytes(*offset);
                // The end offset must not overflow.
                offset.checked_add(bytes.len() as u64).ok_or(FrameError::Malformed(kind))?;
                Frame::Input(offset, bytes.to_vec())
            }
            INPUT_END => Frame::InputEnd(decode_offset(kind, body)?),
            TAKEN => Frame::Taken(decode_offset(kind, body)?),
            TIME => Frame::Time(decode_offset(kind, body)?),
            _ => Frame::Error(serde_json::from_slice(body).map_err(bad)?),
        };
        Ok(Some((frame, HEADER_LEN + len)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_output_survives_the_wire(bytes in prop::collection::vec(any::<u8>(), 0..2000), stderr in any::<bool>()) {
            let frame = if stderr { Frame::Stderr(bytes) } else { Frame::Stdout(bytes) };
            let wire = frame.to_bytes();
            prop_assert_eq!(Frame::decode(&wire), Ok(Some((frame, wire.len()))));
        }

        #[test]
        fn no_bytes_make_the_decoder_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(Some((_, used))) = Frame::decode(&bytes) {
                prop_assert!(used <= bytes.len());
            }
        }

        #[test]
        fn a_cut_frame_waits_for_the_rest(bytes in prop::collection::vec(any::<u8>(), 1..200), cut in any::<prop::sample::Index>()) {
            let wire = Frame::Stdout(bytes).to_bytes();
            let cut = cut.index(wire.len());
            prop_assert_eq!(Frame::decode(&wire[..cut]), Ok(None));
        }
    }

    #[test]
    fn a_gap_without_a_reason_is_one_of_the_bound() {
        let mut wire = header(GAP, 14).to_vec();
        wire.extend_from_slice(br#"{"dropped": 7}"#);
        let gap = Gap { dropped: 7, why: GapReason::Bound };
        assert_eq!(Frame::decode(&wire), Ok(Some((Frame::Gap(gap), wire.len()))));
        let full = Frame::Gap(Gap { dropped: 0, why: GapReason::DiskFull });
        let wire = full.to_bytes();
        assert!(wire.ends_with(br#"{"dropped":0,"why":"disk-full"}"#));
        assert_eq!(Frame::decode(&wire), Ok(Some((full, wire.len()))));
    }

    #[test]
    fn an_exit_has_the_check_beside_it_and_may_come_without() {
        let exit = Exit { reason: crate::exec::EndReason::Exited, code: Some(1), signal: None };
        let plain = Frame::Exit(exit, None);
        let wire = plain.to_bytes();
        assert!(wire.ends_with(br#"{"reason":"exited","code":1}"#));
        assert_eq!(Frame::decode(&wire), Ok(Some((plain, wire.len()))));
        let checked = Frame::Exit(exit, Some(OutputCheck::Missing { from: 3, to: 9 }));
        let wire = checked.to_bytes();
        assert_eq!(Frame::decode(&wire), Ok(Some((checked, wire.len()))));
        // What an earlier release reads of it.
        assert_eq!(serde_json::from_slice::<Exit>(&wire[HEADER_LEN..]).unwrap(), exit);
    }

    #[test]
    fn input_says_where_it_belongs_also_when_it_is_split() {
        let long = vec![7; MAX_PAYLOAD + 100];
        let wire = Frame::Input(40, long.clone()).to_bytes();
        let (first, used) = Frame::decode(&wire).unwrap().unwrap();
        let (second, rest) = Frame::decode(&wire[used..]).unwrap().unwrap();
        assert_eq!(used + rest, wire.len());
        let (Frame::Input(40, head), Frame::Input(next, tail)) = (first, second) else { panic!("not input") };
        assert_eq!(next, 40 + head.len() as u64);
        assert_eq!([head, tail].concat(), long);
        for frame in [
            Frame::InputEnd(u64::MAX),
            Frame::Taken(1 << 40),
            Frame::Time(1 << 41),
            Frame::Input(3, b"x".to_vec()),
        ] {
            let wire = frame.to_bytes();
            assert_eq!(Frame::decode(&wire), Ok(Some((frame, wire.len()))));
        }
    }

    #[test]
    fn offsets_that_cannot_be_are_refused() {
        let input = |offset: u64, bytes: &[u8]| {
            let len = u32::try_from(OFFSET_LEN + bytes.len()).unwrap();
            [&header(INPUT_AT, len)[..], &offset.to_be_bytes(), bytes].concat()
        };
        assert_eq!(Frame::decode(&input(u64::MAX, b"x")), Err(FrameError::Malformed(INPUT_AT)));
        assert!(Frame::decode(&input(u64::MAX - 1, b"x")).is_ok());
        for kind in [INPUT_AT, INPUT_END, TAKEN, TIME] {
            let short = [&header(kind, 7)[..], &[0; 7]].concat();
            assert_eq!(Frame::decode(&short), Err(FrameError::Malformed(kind)));
        }
        for kind in [INPUT_END, TAKEN, TIME] {
            let long = [&header(kind, 9)[..], &[0; 9]].concat();
            assert_eq!(Frame::decode(&long), Err(FrameError::Malformed(kind)));
        }
    }

    #[test]
    fn a_long_payload_is_split() {
        let wire = Frame::Stdout(vec![7; MAX_PAYLOAD + 1]).to_bytes();
        let (first, used) = Frame::decode(&wire).unwrap().unwrap();
        assert_eq!(first, Frame::Stdout(vec![7; MAX_PAYLOAD]));
        assert_eq!(Frame::decode(&wire[used..]).unwrap().unwrap().0, Frame::Stdout(vec![7]));
    }
}
