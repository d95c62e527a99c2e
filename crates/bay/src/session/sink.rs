//! Where output goes: a thread that writes it, so that a slow reader of ours holds up neither signals nor input.

use std::io::{self, Write};

use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Pieces waiting to be written. With frames of a quarter megabyte at most, a few megabytes.
const WAITING: usize = 16;

#[derive(Debug)]
pub(super) struct Piece {
    pub(super) stderr: bool,
    pub(super) bytes: Vec<u8>,
}

/// The thread starts with the first piece: a command without output needs none.
#[derive(Debug, Default)]
pub(super) struct Sink {
    sender: Option<mpsc::Sender<Piece>>,
    writer: Option<JoinHandle<io::Result<()>>>,
}

impl Sink {
    fn sender(&mut self) -> &mpsc::Sender<Piece> {
        self.sender.get_or_insert_with(|| {
            let (sender, receiver) = mpsc::channel(WAITING);
            self.writer = Some(tokio::task::spawn_blocking(move || write_all(receiver)));
            sender
        })
    }

    /// Takes the piece if there is room, or hands it back.
    pub(super) fn offer(&mut self, piece: Piece) -> Option<Piece> {
        match self.sender().try_send(piece) {
            Ok(()) => None,
            Err(mpsc::error::TrySendError::Full(piece) | mpsc::error::TrySendError::Closed(piece)) => {
                Some(piece)
            }
        }
    }

    /// Waits for room, which stays: nobody else sends. `false` when the writer has given up.
    pub(super) async fn room(&mut self) -> bool {
        self.sender().reserve().await.is_ok()
    }

    /// Waits until everything is written, and tells why it could not be.
    pub(super) async fn finish(&mut self) -> io::Result<()> {
        self.sender = None;
        match self.writer.take() {
            Some(writer) => writer.await.map_err(io::Error::other)?,
            None => Ok(()),
        }
    }
}

fn write_all(mut pieces: mpsc::Receiver<Piece>) -> io::Result<()> {
    // Straight to the descriptor: a frame is a big enough buffer, and a line buffer would only copy it in parts.
    let (stdout, stderr) = (io::stdout(), io::stderr());
    while let Some(piece) = pieces.blocking_recv() {
        let result = if piece.stderr {
            stderr.lock().write_all(&piece.bytes)
        } else {
            unbuffered(&stdout, &piece.bytes)
        };
        match result {
            // Nobody listens to our standard error: the command's output is not less wanted for that.
            Err(_) if piece.stderr => {}
            other => other?,
        }
    }
    Ok(())
}

fn unbuffered(stdout: &io::Stdout, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(stdout, bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => wait_writable(stdout)?,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// A descriptor that somebody else made non-blocking.
fn wait_writable(stdout: &io::Stdout) -> io::Result<()> {
    let mut fds = [rustix::event::PollFd::new(stdout, rustix::event::PollFlags::OUT)];
    rustix::event::poll(&mut fds, None)?;
    Ok(())
}
