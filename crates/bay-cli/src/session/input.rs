//! The direction to the exec: standard input and the terminal's size, as frames.

use std::collections::VecDeque;
use std::io::Read;

use bay_types::InputId;
use bay_types::exec::TtySize;
use bay_types::frame::{Frame, INPUT_WINDOW};
use tokio::sync::mpsc;

/// Most bytes of standard input in one frame.
const CHUNK: usize = 64 * 1024;
/// Most chunks that are read ahead.
const AHEAD: usize = 4;
/// The signal that makes programs on a terminal redraw.
const SIGWINCH: i32 = 28;

/// Standard input. A thread reads it from the first request on, because most commands end before they would have read
/// anything.
#[derive(Debug)]
pub(super) struct Chunks {
    /// Standard input has ended, or was never attached.
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

    /// The next chunk, or `None` at the end. Cancel safe.
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

/// The data for the guest: the frame being sent, the input that the guest may not have yet, and the terminal's size.
///
/// If the guest of the present connection supports offsets, input has offsets. It is then kept until the command took
/// it. What the guest has not received is sent again on the next connection. Otherwise sent input is dropped here.
#[derive(Debug)]
pub(super) struct Outbox {
    id: InputId,
    offsets: bool,
    frame: Vec<u8>,
    position: usize,
    /// The frame contains the last chunk before the first unsent one.
    carries_chunk: bool,
    /// Chunks with the offset of their first byte.
    kept: VecDeque<(u64, Vec<u8>)>,
    /// The index of the first chunk that was in no frame on this connection.
    unsent: usize,
    /// The offset of the next input.
    end: u64,
    /// The command took the input before this offset.
    taken: u64,
    ended: bool,
    end_sent: bool,
    /// Input without offsets was written to the present connection.
    sent_without: bool,
    /// A pending size. A newer one replaces it.
    size: Option<TtySize>,
    redraw: bool,
}

impl Outbox {
    pub(super) fn new() -> Self {
        Self {
            id: InputId::generate(),
            offsets: false,
            frame: Vec::new(),
            position: 0,
            carries_chunk: false,
            kept: VecDeque::new(),
            unsent: 0,
            end: 0,
            taken: 0,
            ended: false,
            end_sent: false,
            sent_without: false,
            size: None,
            redraw: false,
        }
    }

    /// For a command that somebody else started: without input to attach, the command's own input does not end.
    pub(super) fn joins(&mut self, attached: bool) {
        if !attached {
            *self = Self::new();
        }
    }

    /// The id of this input for the guest.
    pub(super) fn id(&self) -> InputId {
        self.id
    }

    pub(super) fn unsent(&self) -> &[u8] {
        &self.frame[self.position..]
    }

    pub(super) fn is_empty(&self) -> bool {
        self.position >= self.frame.len()
    }

    /// Whether there is room for another chunk of input.
    pub(super) fn has_room(&self) -> bool {
        if self.offsets {
            self.end.saturating_sub(self.taken) + CHUNK as u64 <= INPUT_WINDOW
        } else {
            self.is_empty() && self.kept.is_empty()
        }
    }

    pub(super) fn sent(&mut self, bytes: usize) {
        self.position += bytes;
        if !self.is_empty() {
            return;
        }
        self.frame.clear();
        self.position = 0;
        if std::mem::take(&mut self.carries_chunk) && !self.offsets {
            self.kept.pop_front();
            self.unsent -= 1;
        }
        self.fill();
    }

    /// Adds a chunk of input, or its end.
    pub(super) fn push(&mut self, chunk: Option<Vec<u8>>) {
        match chunk {
            Some(bytes) => {
                let offset = self.end;
                self.end += bytes.len() as u64;
                self.kept.push_back((offset, bytes));
            }
            None => self.ended = true,
        }
        self.fill();
    }

    pub(super) fn resize(&mut self, size: TtySize) {
        self.size = Some(size);
        self.fill();
    }

    /// Makes the programs on the terminal redraw.
    pub(super) fn redraw(&mut self) {
        self.redraw = true;
        self.fill();
    }

    /// Notes that the command took the input before this offset.
    pub(super) fn taken(&mut self, offset: u64) {
        self.taken = self.taken.max(offset);
        self.forget_before(offset);
    }

    /// Begins with a new connection. `received` is the amount of input that the guest has, if it reports that. Returns
    /// whether input may be lost.
    pub(super) fn connected(&mut self, received: Option<u64>) -> bool {
        let mut lost = std::mem::take(&mut self.sent_without);
        if self.offsets && received.is_none() {
            // A daemon of an earlier release replaced the previous one. To send input twice would be worse than to lose
            // it.
            let whole = self.unsent - usize::from(self.carries_chunk);
            self.kept.drain(..whole);
            lost |= whole > 0;
        }
        self.offsets = received.is_some();
        self.frame.clear();
        (self.position, self.unsent) = (0, 0);
        (self.carries_chunk, self.end_sent) = (false, false);
        if let Some(received) = received {
            self.forget_before(received);
            let first = self.kept.front().map_or(self.end, |(offset, _)| *offset);
            if received < first {
                // The bay was restored to a moment with less input. The rest was lost with the processes that had read
                // it.
                self.taken = self.taken.max(first);
            }
        }
        self.fill();
        lost
    }

    fn forget_before(&mut self, offset: u64) {
        while let Some((first, bytes)) = self.kept.front()
            && first + bytes.len() as u64 <= offset
        {
            self.kept.pop_front();
            self.unsent = self.unsent.saturating_sub(1);
        }
    }

    /// Makes the next frame if there is none.
    fn fill(&mut self) {
        if !self.is_empty() {
            return;
        }
        if let Some(size) = self.size.take() {
            Frame::Resize(size).encode(&mut self.frame);
        }
        if std::mem::take(&mut self.redraw) {
            Frame::Signal(SIGWINCH).encode(&mut self.frame);
        }
        if !self.frame.is_empty() {
            return;
        }
        if let Some((offset, bytes)) = self.kept.get(self.unsent) {
            // Both the frame and the next connection need the bytes.
            let bytes = bytes.clone();
            let frame = if self.offsets { Frame::Input(*offset, bytes) } else { Frame::Stdin(bytes) };
            frame.encode(&mut self.frame);
            self.unsent += 1;
            self.carries_chunk = true;
            self.sent_without |= !self.offsets;
        } else if self.ended && !std::mem::replace(&mut self.end_sent, true) {
            let frame = if self.offsets { Frame::InputEnd(self.end) } else { Frame::StdinEof };
            frame.encode(&mut self.frame);
        }
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

    fn sent_whole(outbox: &mut Outbox) -> Vec<Frame> {
        let mut all = Vec::new();
        while !outbox.is_empty() {
            all.extend(frames(outbox.unsent()));
            outbox.sent(outbox.unsent().len());
        }
        all
    }

    #[test]
    fn input_that_the_guest_has_not_received_is_sent_again_with_its_offset() {
        let mut outbox = Outbox::new();
        assert!(!outbox.connected(Some(0)));
        for chunk in ["ab", "cd", "ef"] {
            outbox.push(Some(chunk.into()));
        }
        outbox.push(None);
        let input = |offset, text: &str| Frame::Input(offset, text.into());
        let all = [input(0, "ab"), input(2, "cd"), input(4, "ef"), Frame::InputEnd(6)];
        assert_eq!(sent_whole(&mut outbox), all);
        outbox.taken(2);
        assert!(!outbox.connected(Some(3)));
        assert_eq!(sent_whole(&mut outbox), all[1..], "a chunk of which a part has come is sent whole");
        assert!(!outbox.connected(Some(6)));
        assert_eq!(sent_whole(&mut outbox), all[3..]);
    }

    #[test]
    fn no_more_input_is_read_than_the_guest_has_room_for() {
        let mut outbox = Outbox::new();
        outbox.connected(Some(0));
        let mut pushed = 0;
        while outbox.has_room() {
            outbox.push(Some(vec![7; CHUNK]));
            pushed += CHUNK as u64;
            sent_whole(&mut outbox);
        }
        assert_eq!(pushed, INPUT_WINDOW);
        outbox.taken(1);
        assert!(!outbox.has_room());
        outbox.taken(CHUNK as u64);
        assert!(outbox.has_room());
    }

    #[test]
    fn a_restored_bay_gets_the_remaining_input_and_read_input_is_not_kept() {
        let mut outbox = Outbox::new();
        outbox.connected(Some(0));
        while outbox.has_room() {
            outbox.push(Some(vec![7; CHUNK]));
        }
        sent_whole(&mut outbox);
        assert!(!outbox.connected(Some(INPUT_WINDOW)));
        assert!(!outbox.has_room());
        assert!(!outbox.connected(Some(10)));
        assert!(outbox.has_room() && outbox.is_empty());
        outbox.push(Some(b"x".to_vec()));
        assert_eq!(sent_whole(&mut outbox), [Frame::Input(INPUT_WINDOW, b"x".to_vec())]);
    }

    #[test]
    fn an_earlier_guest_gets_input_without_offsets_and_a_cut_frame_is_sent_again() {
        let mut outbox = Outbox::new();
        assert!(!outbox.connected(None));
        outbox.push(Some(b"hello".to_vec()));
        assert!(!outbox.has_room());
        outbox.sent(3);
        assert!(outbox.connected(None), "some may be lost");
        assert_eq!(sent_whole(&mut outbox), [Frame::Stdin(b"hello".to_vec())]);
        assert!(outbox.has_room());
        outbox.push(None);
        assert_eq!(sent_whole(&mut outbox), [Frame::StdinEof]);
        assert!(outbox.connected(None));
        assert_eq!(sent_whole(&mut outbox), [Frame::StdinEof], "the end is said again");
        assert!(!outbox.connected(None));
    }

    #[test]
    fn a_daemon_of_another_release_may_take_over_under_a_client() {
        let mut outbox = Outbox::new();
        outbox.connected(Some(0));
        outbox.push(Some(b"ab".to_vec()));
        sent_whole(&mut outbox);
        outbox.push(Some(b"cd".to_vec()));
        outbox.sent(1);
        assert!(outbox.connected(None), "of what was sent nobody knows");
        assert_eq!(sent_whole(&mut outbox), [Frame::Stdin(b"cd".to_vec())]);
        outbox.push(Some(b"ef".to_vec()));
        sent_whole(&mut outbox);
        assert!(outbox.connected(Some(0)), "nor now");
        outbox.push(Some(b"gh".to_vec()));
        assert_eq!(sent_whole(&mut outbox), [Frame::Input(6, b"gh".to_vec())]);
    }

    #[test]
    fn only_the_newest_pending_size_is_sent() {
        let mut outbox = Outbox::new();
        outbox.connected(Some(0));
        outbox.push(Some(b"x".to_vec()));
        outbox.resize(TtySize { cols: 1, rows: 1 });
        outbox.resize(TtySize { cols: 2, rows: 2 });
        outbox.redraw();
        outbox.sent(outbox.unsent().len());
        let redrawn = [Frame::Resize(TtySize { cols: 2, rows: 2 }), Frame::Signal(SIGWINCH)];
        assert_eq!(frames(outbox.unsent()), redrawn);
    }
}
