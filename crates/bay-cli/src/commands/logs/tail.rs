//! Finds where the last lines of kept output begin.

use std::collections::VecDeque;

use bay_client::{Client, FrameReader, broken};
use bay_types::ErrorCode;
use bay_types::frame::Frame;
use bay_types::output::OutputRequest;
use http_body_util::BodyExt;
use serde::Deserialize;

use crate::failure::Failure;

/// How much of the end is read first. If it has too few lines, more is read …
const FIRST_WINDOW: u64 = 64 << 10;
/// … this many times as much, until it has enough or is the whole output.
const GROWTH: u64 = 8;

/// How much output there is, of an exec or of the log of a service.
#[derive(Debug, Deserialize)]
struct Extent {
    #[serde(alias = "log_end")]
    output_bytes: u64,
}

/// The offset at which the last lines begin.
pub(crate) async fn offset(client: &mut Client, path: &str, lines: u64) -> Result<u64, Failure> {
    let end = match client.get(path).await {
        Ok(Extent { output_bytes }) => output_bytes,
        // The services of a paused bay can be read, but not asked about. All of the log is read then.
        Err(error) if error.code == ErrorCode::BayState => 0,
        Err(error) => return Err(error.into()),
    };
    let mut window = FIRST_WINDOW;
    loop {
        let from = end.saturating_sub(window);
        let mut last = LastLines::from(from, lines);
        let request = OutputRequest { since: from, ..OutputRequest::default() };
        read(client, &format!("{path}/output?{}", request.query()), &mut last).await?;
        if let Some(offset) = last.found() {
            return Ok(offset);
        }
        window = window.saturating_mul(GROWTH);
    }
}

async fn read(client: &mut Client, path: &str, last: &mut LastLines) -> Result<(), Failure> {
    let mut body = client.download(path).await?;
    let mut frames = FrameReader::new((), &[]);
    while let Some(piece) = body.frame().await {
        let piece = piece.map_err(|_| broken("the output ended in the middle"))?;
        let Some(data) = piece.data_ref() else { continue };
        frames.feed(data);
        while let Some(frame) = frames.next().map_err(|e| broken(&e.to_string()))? {
            match frame {
                Frame::Stdout(bytes) | Frame::Stderr(bytes) => last.output(&bytes),
                Frame::Gap(gap) => last.gap(gap.dropped),
                Frame::Error(error) => return Err(error.into()),
                _ => {}
            }
        }
    }
    Ok(())
}

/// Where the newest lines of a stretch of output begin.
#[derive(Debug)]
struct LastLines {
    from: u64,
    at: u64,
    wanted: usize,
    /// The next byte begins a line.
    begins: bool,
    starts: VecDeque<u64>,
}

impl LastLines {
    fn from(from: u64, wanted: u64) -> Self {
        let wanted = usize::try_from(wanted).unwrap_or(usize::MAX);
        // Only the first byte of all output is known to begin a line.
        Self { from, at: from, wanted, begins: from == 0, starts: VecDeque::new() }
    }

    fn output(&mut self, bytes: &[u8]) {
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            if self.begins {
                self.starts.push_back(self.at);
                if self.starts.len() > self.wanted {
                    self.starts.pop_front();
                }
            }
            self.begins = line.ends_with(b"\n");
            self.at += line.len() as u64;
        }
    }

    fn gap(&mut self, dropped: u64) {
        self.at = self.at.saturating_add(dropped);
        self.begins = true;
    }

    /// None if earlier output may have more of the last lines.
    fn found(&self) -> Option<u64> {
        if self.wanted == 0 {
            return Some(self.at);
        }
        match self.starts.front() {
            Some(first) if self.starts.len() >= self.wanted || self.from == 0 => Some(*first),
            None if self.from == 0 => Some(0),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last(from: u64, lines: u64, pieces: &[&str]) -> Option<u64> {
        let mut last = LastLines::from(from, lines);
        for piece in pieces {
            last.output(piece.as_bytes());
        }
        last.found()
    }

    #[test]
    fn the_last_lines_are_counted_whether_the_last_one_ends_or_not() {
        assert_eq!(last(0, 1, &["one\ntwo\nthree\n"]), Some(8));
        assert_eq!(last(0, 1, &["one\ntwo\nthr"]), Some(8));
        assert_eq!(last(0, 2, &["on", "e\n", "two\nth", "r"]), Some(4));
        assert_eq!(last(0, 9, &["one\ntwo\n"]), Some(0));
        assert_eq!(last(0, 9, &[]), Some(0));
        assert_eq!(last(0, 0, &["one\ntwo"]), Some(7));
    }

    #[test]
    fn a_window_that_begins_in_a_line_does_not_count_that_line() {
        assert_eq!(last(100, 1, &["rest\nwhole\n"]), Some(105));
        assert_eq!(last(100, 2, &["rest\nwhole\n"]), None);
    }

    #[test]
    fn output_after_a_gap_begins_a_line() {
        let mut last = LastLines::from(0, 1);
        last.output(b"half");
        last.gap(1000);
        last.output(b"of it\n");
        assert_eq!(last.found(), Some(1004));
    }
}
