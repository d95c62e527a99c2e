//! Stored output on its way to a caller, checked against the recorded hashes.
//!
//! The bytes come from files that root in the bay can write, through the guest or read by the daemon. Every frame
//! is passed on unchanged, except the exit: it gets the result of the check. If the output breaks off before the
//! exit, there is no result.

use bay_guest::spool::Check;
use bay_store::ExecRow;
use bay_types::frame::Frame;
use bay_types::output::{OutputCheck, OutputHash};
use bay_types::{CoreError, ErrorCode};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use tokio::sync::mpsc;

use crate::byte_stream::{self, ByteStream};

/// Pieces on their way to a slow reader. Each is one frame, or the rest behind a broken one.
const IN_FLIGHT: usize = 2;

/// Stored output, with the result of the check in its exit. `row` is an exec that is over; its output is read from
/// `since` on.
pub(crate) fn checked(from: ByteStream, row: &ExecRow, since: u64) -> ByteStream {
    let (to, checked) = mpsc::channel(IN_FLIGHT);
    let hashes = row.output_hashes.clone();
    tokio::spawn(pass(
        from,
        Checking { check: Check::new(since), hashes, since, wrote: row.output_bytes },
        to,
    ));
    byte_stream::received_until_error(checked)
}

struct Checking {
    check: Check,
    hashes: Option<Vec<OutputHash>>,
    since: u64,
    /// Bytes that the command wrote, as recorded.
    wrote: u64,
}

impl Checking {
    /// Returns the frame unchanged, or the exit with the result of the check.
    fn frame(&mut self, frame: &Frame, as_it_is: Bytes) -> Bytes {
        let expected = self.hashes.as_deref().unwrap_or_default();
        match frame {
            Frame::Stdout(bytes) => self.check.output(expected, false, bytes),
            Frame::Stderr(bytes) => self.check.output(expected, true, bytes),
            Frame::Gap(gap) => self.check.gap(gap.dropped),
            Frame::Exit(exit, _) => {
                let check = match self.check.finish(self.hashes.as_deref()) {
                    // There was output, but nothing was read and nothing is known of it. That does not count as
                    // intact.
                    OutputCheck::Intact
                        if self.hashes.as_ref().is_none_or(Vec::is_empty) && self.wrote > self.since =>
                    {
                        OutputCheck::Unchecked { from: self.since, to: self.wrote }
                    }
                    check => check,
                };
                return Frame::Exit(*exit, Some(check)).to_bytes().into();
            }
            _ => {}
        }
        as_it_is
    }
}

fn broke_off() -> CoreError {
    CoreError::new(
        ErrorCode::Interrupted,
        "the guest's answer ended before the end of the output",
        "repeat the command in a moment",
    )
}

async fn pass(mut from: ByteStream, mut checking: Checking, to: mpsc::Sender<Result<Bytes, CoreError>>) {
    let mut buffer = BytesMut::new();
    while let Some(piece) = from.next().await {
        let data = match piece {
            Ok(data) => data,
            Err(error) => {
                let why = error.downcast::<CoreError>().map_or_else(|_| broke_off(), |error| *error);
                let _ = to.send(Err(why)).await;
                return;
            }
        };
        buffer.extend_from_slice(&data);
        loop {
            match Frame::decode(&buffer) {
                Ok(Some((frame, used))) => {
                    let as_it_is = buffer.split_to(used).freeze();
                    if to.send(Ok(checking.frame(&frame, as_it_is))).await.is_err() {
                        return;
                    }
                }
                Ok(None) => break,
                // The reader sees the broken frame itself.
                Err(_) => {
                    let _ = to.send(Ok(buffer.freeze())).await;
                    return;
                }
            }
        }
    }
}
