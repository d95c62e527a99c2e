//! Output that the disk had no room for, held in memory for those who follow the exec now.
//!
//! Readers normally read output from the disk, so if the bay's disk is full they would see nothing. This module holds a
//! bounded stretch of output for each exec, with a bound for all execs together. The command waits only briefly for a
//! slow reader; then the reader is told how much it missed.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bay_types::ExecId;
use tokio::sync::Notify;

/// Bytes held for one exec. The oldest are dropped first.
const EXEC_BYTES: usize = 1 << 20;
/// Bytes held for all execs together. The exec that printed least recently is dropped first.
const ALL_BYTES: usize = 4 << 20;
/// What a piece costs besides its bytes, so that many short pieces are bounded too.
const PIECE_COST: usize = 64;
/// Bytes up to which a piece is extended.
const PIECE_BYTES: usize = 64 << 10;
/// If a reader has so many bytes left to read, the command waits for it …
const AHEAD_BYTES: u64 = 512 << 10;
/// … but no longer than this per chunk. So a reader that does not read slows the command down, but does not stop it.
const AHEAD_WAIT: Duration = Duration::from_millis(50);

#[derive(Debug, Default)]
pub(crate) struct UnsavedOutput {
    held: Mutex<Held>,
    /// Notified after every read.
    read: Notify,
}

#[derive(Debug, Default)]
struct Held {
    execs: HashMap<ExecId, Stretch>,
    cost: usize,
    /// Counts pushes.
    turn: u64,
}

#[derive(Debug, Default)]
struct Stretch {
    /// Ordered by offset. There may be holes, for bytes that the disk took.
    pieces: VecDeque<Piece>,
    cost: usize,
    /// The count of pushes at this exec's last push.
    turn: u64,
    /// The offset up to which any reader has read.
    read_to: u64,
}

#[derive(Debug)]
struct Piece {
    start: u64,
    stderr: bool,
    bytes: Vec<u8>,
}

impl Piece {
    fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    fn cost(&self) -> usize {
        self.bytes.len() + PIECE_COST
    }
}

/// What is held at an offset.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum At {
    /// This many bytes of one stream, which are now in the buffer.
    Bytes {
        stderr: bool,
        len: usize,
    },
    /// Nothing before this offset.
    From(u64),
    Nothing,
}

impl UnsavedOutput {
    fn held(&self) -> std::sync::MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Holds bytes of an exec's output that are not on disk. `start` is the offset of the first byte.
    pub(crate) fn push(&self, id: ExecId, start: u64, stderr: bool, bytes: &[u8]) {
        let skip = bytes.len().saturating_sub(EXEC_BYTES - PIECE_COST);
        let (start, bytes) = (start + skip as u64, &bytes[skip..]);
        let held = &mut *self.held();
        held.turn += 1;
        let stretch = held.execs.entry(id).or_default();
        held.cost -= stretch.cost;
        stretch.turn = held.turn;
        match stretch.pieces.back_mut() {
            Some(last)
                if last.stderr == stderr
                    && last.end() == start
                    && last.bytes.len() + bytes.len() <= PIECE_BYTES =>
            {
                last.bytes.extend_from_slice(bytes);
                stretch.cost += bytes.len();
            }
            _ => {
                let piece = Piece { start, stderr, bytes: bytes.to_vec() };
                stretch.cost += piece.cost();
                stretch.pieces.push_back(piece);
            }
        }
        while stretch.cost > EXEC_BYTES {
            let Some(oldest) = stretch.pieces.pop_front() else { break };
            stretch.cost -= oldest.cost();
        }
        held.cost += stretch.cost;
        while held.cost > ALL_BYTES {
            let Some(oldest) = held.execs.iter().min_by_key(|(_, s)| s.turn).map(|(id, _)| *id) else {
                break;
            };
            held.forget(oldest);
        }
    }

    /// Copies what is held of an exec at an offset into `buffer`.
    pub(crate) fn read(&self, id: ExecId, at: u64, buffer: &mut [u8]) -> At {
        let mut held = self.held();
        let Some(stretch) = held.execs.get_mut(&id) else { return At::Nothing };
        let next = stretch.pieces.partition_point(|piece| piece.end() <= at);
        let Some(piece) = stretch.pieces.get(next) else { return At::Nothing };
        let Some(inside) = at.checked_sub(piece.start) else { return At::From(piece.start) };
        let bytes = piece.bytes.get(usize::try_from(inside).unwrap_or(usize::MAX)..).unwrap_or_default();
        let len = bytes.len().min(buffer.len());
        buffer[..len].copy_from_slice(&bytes[..len]);
        let stderr = piece.stderr;
        stretch.read_to = stretch.read_to.max(at + len as u64);
        drop(held);
        self.read.notify_waiters();
        At::Bytes { stderr, len }
    }

    /// Waits briefly for readers that are behind, before more is pushed.
    pub(crate) async fn let_readers_catch_up(&self, id: ExecId) {
        let caught_up = async {
            loop {
                let read = self.read.notified();
                if self.unread(id) < AHEAD_BYTES {
                    return;
                }
                read.await;
            }
        };
        let _ = tokio::time::timeout(AHEAD_WAIT, caught_up).await;
    }

    fn unread(&self, id: ExecId) -> u64 {
        let held = self.held();
        let Some(stretch) = held.execs.get(&id) else { return 0 };
        stretch.pieces.back().map_or(0, |last| last.end().saturating_sub(stretch.read_to))
    }

    pub(crate) fn forget(&self, id: ExecId) {
        self.held().forget(id);
    }
}

impl Held {
    fn forget(&mut self, id: ExecId) {
        if let Some(gone) = self.execs.remove(&id) {
            self.cost -= gone.cost;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(recent: &UnsavedOutput, id: ExecId, at: u64) -> (At, Vec<u8>) {
        let mut buffer = vec![0; 16];
        let found = recent.read(id, at, &mut buffer);
        buffer.truncate(if let At::Bytes { len, .. } = found { len } else { 0 });
        (found, buffer)
    }

    #[test]
    fn output_is_found_at_its_offset_and_holes_are_reported() {
        let (recent, id) = (UnsavedOutput::default(), ExecId::generate());
        assert_eq!(recent.read(id, 0, &mut [0; 4]), At::Nothing);
        recent.push(id, 10, false, b"ab");
        recent.push(id, 12, false, b"cd");
        recent.push(id, 14, true, b"err");
        recent.push(id, 30, false, b"later");
        assert_eq!(read(&recent, id, 3).0, At::From(10));
        assert_eq!(read(&recent, id, 11), (At::Bytes { stderr: false, len: 3 }, b"bcd".to_vec()));
        assert_eq!(read(&recent, id, 14), (At::Bytes { stderr: true, len: 3 }, b"err".to_vec()));
        assert_eq!(read(&recent, id, 17).0, At::From(30));
        assert_eq!(read(&recent, id, 35).0, At::Nothing);
        assert_eq!(read(&recent, ExecId::generate(), 10).0, At::Nothing);
    }

    #[test]
    fn neither_one_exec_nor_all_of_them_hold_more_than_their_bound() {
        let recent = UnsavedOutput::default();
        let chatty = ExecId::generate();
        for n in 0..100_000 {
            recent.push(chatty, n, n % 2 == 0, b"x");
        }
        recent.push(chatty, 100_000, false, &vec![b'y'; 3 * EXEC_BYTES]);
        let end = 100_000 + 3 * EXEC_BYTES as u64;
        assert!(matches!(read(&recent, chatty, end - 1).0, At::Bytes { len: 1, .. }));
        assert!(matches!(read(&recent, chatty, 0).0, At::From(start) if start >= end - EXEC_BYTES as u64));
        let others: Vec<ExecId> = (0..20).map(|_| ExecId::generate()).collect();
        for id in &others {
            recent.push(*id, 0, false, &vec![b'z'; EXEC_BYTES / 2]);
        }
        assert!(recent.held().cost <= ALL_BYTES);
        assert_eq!(read(&recent, chatty, 0).0, At::Nothing);
        assert!(matches!(read(&recent, others[19], 0).0, At::Bytes { .. }));
        for id in &others {
            recent.forget(*id);
        }
        assert_eq!(recent.held().cost, 0);
    }

    #[tokio::test]
    async fn a_reader_that_does_not_read_delays_a_command_only_briefly() {
        let (recent, id) = (UnsavedOutput::default(), ExecId::generate());
        recent.push(id, 0, false, &vec![b'x'; EXEC_BYTES / 2 + PIECE_COST]);
        let began = tokio::time::Instant::now();
        recent.let_readers_catch_up(id).await;
        assert!(began.elapsed() >= AHEAD_WAIT);
        let _ = recent.read(id, 0, &mut [0; 1024]);
        assert!(recent.unread(id) < AHEAD_BYTES);
        recent.let_readers_catch_up(id).await;
    }
}
