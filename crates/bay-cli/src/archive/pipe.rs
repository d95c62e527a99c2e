//! Connects a thread that reads or writes a tar with the HTTP body.

use std::io::{self, Read, Write};

use bytes::{Buf, Bytes};
use tokio::sync::mpsc;

/// Most pieces in the channel.
const WAITING: usize = 4;
/// Number of bytes that are collected before they are sent.
const PIECE: usize = 256 * 1024;

pub(super) type Pieces = mpsc::Receiver<io::Result<Bytes>>;

/// Collects written bytes into large pieces and sends them.
#[derive(Debug)]
pub(super) struct PipeWriter {
    sender: mpsc::Sender<io::Result<Bytes>>,
    buffer: Vec<u8>,
}

impl PipeWriter {
    pub(super) fn new() -> (Self, Pieces) {
        let (sender, receiver) = mpsc::channel(WAITING);
        (Self { sender, buffer: Vec::with_capacity(PIECE) }, receiver)
    }

    /// Aborts the stream with an error, so that the receiver does not treat it as complete.
    pub(super) fn fail(self, error: &io::Error) {
        let _ = self.sender.blocking_send(Err(io::Error::new(error.kind(), error.to_string())));
    }
}

impl Write for PipeWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.buffer.len() + bytes.len() > PIECE {
            self.flush()?;
        }
        let taken = bytes.len().min(PIECE);
        self.buffer.extend_from_slice(&bytes[..taken]);
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let piece = Bytes::from(std::mem::replace(&mut self.buffer, Vec::with_capacity(PIECE)));
        let gone = || io::Error::new(io::ErrorKind::BrokenPipe, "the receiver stopped listening");
        self.sender.blocking_send(Ok(piece)).map_err(|_| gone())
    }
}

/// Reads the pieces that arrive over the connection.
#[derive(Debug)]
pub(super) struct PipeReader {
    receiver: Pieces,
    piece: Bytes,
}

impl PipeReader {
    pub(super) fn new() -> (mpsc::Sender<io::Result<Bytes>>, Self) {
        let (sender, receiver) = mpsc::channel(WAITING);
        (sender, Self { receiver, piece: Bytes::new() })
    }
}

impl Read for PipeReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            match self.receiver.blocking_recv() {
                Some(piece) => self.piece = piece?,
                None => return Ok(0),
            }
        }
        let taken = buffer.len().min(self.piece.len());
        self.piece.copy_to_slice(&mut buffer[..taken]);
        Ok(taken)
    }
}
