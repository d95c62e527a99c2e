//! What goes towards the exec: standard input and the terminal's size, as frames.

use std::io::Read;

use bay_types::exec::TtySize;
use bay_types::frame::Frame;
use tokio::sync::mpsc;

/// How much of standard input one frame carries.
const CHUNK: usize = 64 * 1024;
/// Chunks read ahead of what is sent.
const AHEAD: usize = 4;

/// Standard input, read by a thread that starts with the first question: most commands are over before they would
/// have read anything.
#[derive(Debug)]
pub(super) struct Chunks {
    /// Nothing more comes, or nothing ever did.
    ended: bool,
    receiver: Option<mpsc::Receiver<Vec<u8>>>,
}

impl Chunks {
    pub(super) fn new(attached: bool) -> Self {
        Self { ended: !attached, receiver: None }
    }

    pub(super) fn ended(&self) -> bool {
        self.ended
    }

    /// The next chunk, `None` at the end. Nothing is lost when this is cancelled.
    pub(super) async fn next(&mut self) -> Option<Vec<u8>> {
        let receiver = self.receiver.get_or_insert_with(|| {
            let (sender, receiver) = mpsc::channel(AHEAD);
            std::thread::spawn(move || pump(&sender));
            receiver
        });
        let chunk = receiver.recv().await;
        self.ended = chunk.is_none();
        chunk
    }
}

/// The frame being sent, and what waits behind it.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    frame: Vec<u8>,
    position: usize,
    /// A size that waits for its turn; only the newest counts.
    size: Option<TtySize>,
    /// Input bytes handed to the present connection.
    sent_bytes: u64,
    end_sent: bool,
}

impl Outbox {
    pub(super) fn unsent(&self) -> &[u8] {
        &self.frame[self.position..]
    }

    pub(super) fn is_empty(&self) -> bool {
        self.position >= self.frame.len()
    }

    pub(super) fn sent(&mut self, bytes: usize) {
        self.position += bytes;
        if !self.is_empty() {
            return;
        }
        self.frame.clear();
        self.position = 0;
        if let Some(size) = self.size.take() {
            Frame::Resize(size).encode(&mut self.frame);
        }
    }

    /// A chunk of input, or its end.
    pub(super) fn push(&mut self, chunk: Option<Vec<u8>>) {
        match chunk {
            Some(bytes) => {
                self.sent_bytes += bytes.len() as u64;
                Frame::Stdin(bytes).encode(&mut self.frame);
            }
            None => {
                self.end_sent = true;
                Frame::StdinEof.encode(&mut self.frame);
            }
        }
    }

    pub(super) fn resize(&mut self, size: TtySize) {
        if self.is_empty() {
            Frame::Resize(size).encode(&mut self.frame);
        } else {
            self.size = Some(size);
        }
    }

    /// Makes ready for another connection. A frame that was cut is sent again whole, and so is the end of input.
    /// Returns whether bytes may have been lost with the old one.
    pub(super) fn rewind(&mut self) -> bool {
        self.position = 0;
        if self.end_sent && self.frame.is_empty() {
            Frame::StdinEof.encode(&mut self.frame);
        }
        std::mem::take(&mut self.sent_bytes) > 0
    }
}

fn pump(sender: &mpsc::Sender<Vec<u8>>) {
    let mut input = std::io::stdin().lock();
    loop {
        let mut chunk = vec![0; CHUNK];
        match input.read(&mut chunk) {
            Ok(0) => return,
            Ok(n) => {
                chunk.truncate(n);
                if sender.blocking_send(chunk).is_err() {
                    return;
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(mut bytes: &[u8]) -> Vec<Frame> {
        let mut frames = Vec::new();
        while let Some((frame, used)) = Frame::decode(bytes).unwrap() {
            frames.push(frame);
            bytes = &bytes[used..];
        }
        assert!(bytes.is_empty());
        frames
    }

    #[test]
    fn a_cut_frame_is_sent_again_whole_on_the_next_connection() {
        let mut input = Outbox::default();
        input.push(Some(b"hello".to_vec()));
        input.sent(3);
        assert!(input.rewind());
        assert_eq!(frames(input.unsent()), [Frame::Stdin(b"hello".to_vec())]);
    }

    #[test]
    fn the_end_of_input_is_said_again_on_the_next_connection() {
        let mut input = Outbox::default();
        input.push(None);
        input.sent(input.unsent().len());
        assert!(!input.rewind());
        assert_eq!(frames(input.unsent()), [Frame::StdinEof]);
    }

    #[test]
    fn only_the_newest_of_waiting_sizes_is_sent() {
        let mut input = Outbox::default();
        input.push(Some(b"x".to_vec()));
        input.resize(TtySize { cols: 1, rows: 1 });
        input.resize(TtySize { cols: 2, rows: 2 });
        input.sent(input.unsent().len());
        assert_eq!(frames(input.unsent()), [Frame::Resize(TtySize { cols: 2, rows: 2 })]);
    }
}
