//! Writes output on a separate thread, so that a slow reader delays neither signals nor input.

use std::io::{self, Write};

use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Most pieces in the queue. With frames of at most a quarter of a megabyte, a few megabytes.
const WAITING: usize = 16;

#[derive(Debug)]
pub(super) struct Piece {
    pub(super) stderr: bool,
    pub(super) bytes: Vec<u8>,
}

/// Writes output. The thread starts with the first piece: a command without output needs none.
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

    /// Queues the piece if there is room; otherwise returns it.
    pub(super) fn offer(&mut self, piece: Piece) -> Option<Piece> {
        match self.sender().try_send(piece) {
            Ok(()) => None,
            Err(mpsc::error::TrySendError::Full(piece) | mpsc::error::TrySendError::Closed(piece)) => {
                Some(piece)
            }
        }
    }

    /// Waits for room. No other sender can take it. `false` if the writer has given up.
    pub(super) async fn room(&mut self) -> bool {
        self.sender().reserve().await.is_ok()
    }

    /// Waits until everything is written, and returns the error if it could not be.
    pub(super) async fn finish(&mut self) -> io::Result<()> {
        self.sender = None;
        match self.writer.take() {
            Some(writer) => writer.await.map_err(io::Error::other)?,
            None => Ok(()),
        }
    }
}

fn write_all(mut pieces: mpsc::Receiver<Piece>) -> io::Result<()> {
    // Write directly to the descriptor: a frame is a large enough buffer, and a line buffer would only copy it in
    // parts.
    let (stdout, stderr) = (io::stdout(), io::stderr());
    while let Some(piece) = pieces.blocking_recv() {
        let result = if piece.stderr {
            stderr.lock().write_all(&piece.bytes)
        } else {
            unbuffered(&stdout, &piece.bytes)
        };
        match result {
            // A closed standard error does not make the command's output less wanted.
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

/// Waits until standard output accepts bytes. If another program made it non-blocking, a write can fail with `EAGAIN`.
fn wait_writable(stdout: &io::Stdout) -> io::Result<()> {
    let mut fds = [rustix::event::PollFd::new(stdout, rustix::event::PollFlags::OUT)];
    rustix::event::poll(&mut fds, None)?;
    Ok(())
}
