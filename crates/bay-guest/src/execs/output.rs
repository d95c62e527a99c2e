//! Sends an exec's output from the spool to one reader, as fast as this reader takes it.

use std::os::fd::AsFd;
use std::sync::Arc;

use bay_types::exec::Exit;
use bay_types::frame::{self, Frame, Gap, GapReason, HEADER_LEN, MAX_PAYLOAD};
use bay_types::output::{OutputCheck, OutputHash};
use bay_types::{ApiError, ErrorCode, ExecId};
use bytes::Bytes;
use tokio::sync::{mpsc, watch};

use super::exec::{Exec, Life};
use super::unsaved_output::At;
use super::{Execs, Found};
use crate::spool::{Check, Piece, Reader, SpoolError, Wait};

/// Whether a reader waits for output that is still to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Follow {
    UntilExit,
    WhatIsThere,
}

/// Frames of one exec's output for one reader.
pub(crate) struct Output {
    execs: Arc<Execs>,
    id: ExecId,
    /// None while nothing is on disk because the disk was full from the start.
    reader: Option<Reader>,
    at: u64,
    life: watch::Receiver<Life>,
    /// Keeps `life` open if the exec is finished and nobody else holds the sender.
    _finished: Option<watch::Sender<Life>>,
    /// Header and payload of one frame. Allocated when there is something to send.
    buffer: Vec<u8>,
    /// Where to stop once the exec has ended, and its end. Children that print for ever must not delay it.
    last: Option<(u64, Exit)>,
    /// Root in the bay can change the files after the writer wrote them and before this reader reads them.
    check: Check,
    /// Hashes that the writer computed. None while the exec runs, or if an earlier guest ran it.
    hashes: Option<Arc<[OutputHash]>>,
    follow: Follow,
    /// The reader was told that the disk had no room for part of the output.
    gap_reported: bool,
    over: bool,
    /// The frame in the buffer goes out after the one with its time.
    after_time: Option<usize>,
    /// The frame of a time, while it goes out.
    time: Vec<u8>,
}

impl Output {
    pub(crate) fn of(
        execs: &Arc<Execs>,
        found: &Found,
        since: u64,
        follow: Follow,
    ) -> Result<Self, ApiError> {
        let state = execs.context.state.as_fd();
        let (reader, life, finished) = match found {
            Found::Live(exec) => {
                let bounded_to = Some(Arc::clone(&exec.bounded_to));
                (Reader::follow(state, exec.id(), since, bounded_to), exec.life.subscribe(), None)
            }
            Found::Finished(status) => {
                let life = Life {
                    output_start: status.output_start,
                    output_end: status.output_bytes,
                    ended: super::ended_of(status),
                    hashes: status.output_hashes.as_deref().map(Arc::from),
                    ..Life::default()
                };
                let (sender, receiver) = watch::channel(life);
                (
                    Reader::follow(
                        state,
                        status.spec.id,
                        since,
                        status.bounded_to.map(|to| Arc::new(to.into())),
                    ),
                    receiver,
                    Some(sender),
                )
            }
        };
        let reader = match reader {
            Ok(reader) => Some(reader),
            Err(SpoolError::Absent(_)) => None,
            Err(e) => return Err(ApiError::internal(&e)),
        };
        Ok(Self {
            execs: Arc::clone(execs),
            id: found.id(),
            reader,
            at: since,
            life,
            _finished: finished,
            buffer: Vec::new(),
            last: None,
            check: Check::new(since),
            hashes: None,
            follow,
            gap_reported: false,
            over: false,
            after_time: None,
            time: Vec::new(),
        })
    }

    /// Sends also when output came.
    pub(crate) fn with_times(self, timed: bool) -> Self {
        let reader = self.reader.map(|reader| reader.with_times(timed));
        Self { reader, ..self }
    }

    /// The next frame as it goes over the wire, or None after the last. Waits for output if necessary.
    pub(crate) async fn next(&mut self) -> Option<&[u8]> {
        if self.over {
            return None;
        }
        if let Some(len) = self.after_time.take() {
            return Some(&self.buffer[..len]);
        }
        loop {
            let (end, ended) = {
                let life = self.life.borrow_and_update();
                if self.last.is_none() {
                    self.hashes.clone_from(&life.hashes);
                }
                (life.output_end, life.ended)
            };
            if let (None, Some(ended)) = (self.last, ended) {
                self.last = Some((end, ended.exit));
            }
            let limit = self.last.map_or(end, |(last, _)| last);
            if self.at < limit {
                return match self.read(limit).await {
                    Ok(len) => Some(self.after_its_time(len)),
                    Err(error) => Some(self.finish(&Frame::Error(ApiError::internal(&error)))),
                };
            }
            if let Some((_, exit)) = self.last {
                let check = self.checked();
                return Some(self.finish(&Frame::Exit(exit, check)));
            }
            if self.follow == Follow::WhatIsThere || self.life.changed().await.is_err() {
                self.over = true;
                return None;
            }
        }
    }

    /// The frame in the buffer, or first the frame of its time, if that is another than before.
    fn after_its_time(&mut self, len: usize) -> &[u8] {
        match std::mem::take(&mut self.time) {
            time if time.is_empty() => &self.buffer[..len],
            time => {
                self.after_time = Some(len);
                self.time = time;
                &self.time
            }
        }
    }

    /// Whether this reader got what the command wrote. If an earlier guest ran the exec, only the daemon can tell.
    fn checked(&self) -> Option<OutputCheck> {
        self.hashes.as_deref().map(|hashes| self.check.finish(Some(hashes)))
    }

    fn finish(&mut self, frame: &Frame) -> &[u8] {
        self.over = true;
        self.buffer = frame.to_bytes();
        &self.buffer
    }

    /// Puts one frame into the buffer and returns its length.
    async fn read(&mut self, limit: u64) -> Result<usize, SpoolError> {
        self.buffer.resize(HEADER_LEN + MAX_PAYLOAD, 0);
        let held = self.execs.unsaved_output.read(self.id, self.at, &mut self.buffer[HEADER_LEN..]);
        match held {
            At::Bytes { .. } if !self.gap_reported => {
                return Ok(self.put_gap(Gap { dropped: 0, why: GapReason::DiskFull }));
            }
            At::Bytes { stderr, len } => {
                // Output after the end of the exec is not sent.
                let len = len.min(usize::try_from(limit - self.at).unwrap_or(usize::MAX));
                self.at += len as u64;
                self.hash_payload(None, stderr, len);
                if let Some(reader) = &mut self.reader {
                    reader.seek(self.at);
                    self.time = reader.time_frame().unwrap_or_default();
                }
                return Ok(self.put_output(stderr, len));
            }
            At::From(_) | At::Nothing => {}
        }
        // Where the output held in memory begins. Output that is not on disk is missing only up to there.
        let held_from = if let At::From(start) = held { start } else { u64::MAX };
        let Some(mut reader) = self.reader.take() else {
            let end = limit.min(held_from);
            let gap = Gap { dropped: end - self.at, why: GapReason::DiskFull };
            self.at = end;
            return Ok(self.put_gap(gap));
        };
        reader.extend(limit);
        let piece = match reader.next_waiting(&mut self.buffer[HEADER_LEN..], Wait::Never)? {
            Some(piece) => piece,
            None => {
                let mut buffer = std::mem::take(&mut self.buffer);
                let task = tokio::task::spawn_blocking(move || {
                    let piece = reader.next(&mut buffer[HEADER_LEN..]);
                    (reader, buffer, piece)
                });
                let (back, buffer, piece) =
                    task.await.map_err(|_| SpoolError::Damaged("it could not be read"))?;
                (reader, self.buffer) = (back, buffer);
                piece?
            }
        };
        let piece = match piece {
            Piece::Gap(gap) if reader.offset() > held_from => {
                reader.seek(held_from);
                Piece::Gap(Gap { dropped: held_from - self.at, ..gap })
            }
            other => other,
        };
        self.at = reader.offset();
        let segment = reader.segment_start();
        if let Piece::Output { .. } = piece {
            self.time = reader.time_frame().unwrap_or_default();
        }
        self.reader = Some(reader);
        Ok(match piece {
            Piece::Output { stderr, len } => {
                self.hash_payload(segment, stderr, len);
                self.put_output(stderr, len)
            }
            Piece::Gap(gap) => self.put_gap(gap),
            // Unreachable: below the limit there is always a piece or a gap.
            Piece::End => 0,
        })
    }

    /// Hashes the payload in the buffer. Before the end of the exec, only the segments of its stretches are known.
    /// Output of children after the end is in the same segments, but in no stretch.
    fn hash_payload(&mut self, segment: Option<u64>, stderr: bool, len: usize) {
        let bytes = &self.buffer[HEADER_LEN..HEADER_LEN + len];
        match &self.hashes {
            Some(hashes) => self.check.output(hashes, stderr, bytes),
            None => self.check.piece(segment, stderr, bytes),
        }
    }

    /// Writes the header of a frame whose payload is in the buffer already.
    fn put_output(&mut self, stderr: bool, len: usize) -> usize {
        let header = frame::output_header(stderr, u32::try_from(len).unwrap_or(0));
        self.buffer[..HEADER_LEN].copy_from_slice(&header);
        HEADER_LEN + len
    }

    fn put_gap(&mut self, gap: Gap) -> usize {
        self.gap_reported |= gap.why == GapReason::DiskFull;
        self.check.gap(gap.dropped);
        let bytes = Frame::Gap(gap).to_bytes();
        self.buffer[..bytes.len()].copy_from_slice(&bytes);
        bytes.len()
    }
}

/// Chunks of a body that wait for a slow reader.
const BODY_QUEUE: usize = 2;

/// Sends the frames as a plain body.
pub(crate) fn body(mut output: Output) -> mpsc::Receiver<std::io::Result<Bytes>> {
    let (sender, receiver) = mpsc::channel(BODY_QUEUE);
    tokio::spawn(async move {
        loop {
            let next = tokio::select! {
                next = output.next() => next,
                // The reader went away while there was nothing to send.
                () = sender.closed() => return,
            };
            let Some(frame) = next else { return };
            if sender.send(Ok(Bytes::copy_from_slice(frame))).await.is_err() {
                return;
            }
        }
    });
    receiver
}

/// The exec, if it can take input.
pub(crate) fn live(found: &Found) -> Option<&Arc<Exec>> {
    match found {
        Found::Live(exec) => Some(exec),
        Found::Finished(_) => None,
    }
}

/// Refuses an offset beyond the end of the output.
pub(crate) fn check_since(found: &Found, since: u64) -> Result<(), ApiError> {
    let end = match found {
        Found::Live(exec) => exec.life.borrow().output_end,
        Found::Finished(status) => status.output_bytes,
    };
    if since > end {
        return Err(ApiError::new(
            ErrorCode::InvalidInput,
            format!("the output has no byte {since} yet: it ends at {end}"),
            "begin at an earlier byte",
        ));
    }
    Ok(())
}
