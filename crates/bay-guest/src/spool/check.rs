//! Hashes of output. The writer computes them as it writes, and readers compare them with what they read later.
//!
//! Each segment has a hash of its own: the bound drops whole segments from the front, and the hashes of the others stay
//! valid.

use bay_types::output::{OutputCheck, OutputHash, Sha256Hash};
use sha2::{Digest, Sha256};

use super::layout::encode_entry;

/// The running hash of one stretch of output.
#[derive(Debug, Clone)]
pub(super) struct Stretch {
    start: u64,
    end: u64,
    bytes: Sha256,
    streams: Sha256,
    stderr: Option<bool>,
}

impl Stretch {
    pub(super) fn new(start: u64) -> Self {
        Self { start, end: start, bytes: Sha256::new(), streams: Sha256::new(), stderr: None }
    }

    pub(super) fn add(&mut self, stderr: bool, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        if self.stderr != Some(stderr) {
            self.streams.update(encode_entry(self.end, stderr));
            self.stderr = Some(stderr);
        }
        self.bytes.update(bytes);
        self.end = self.end.saturating_add(bytes.len() as u64);
    }

    pub(super) fn hash(&self) -> OutputHash {
        OutputHash {
            start: self.start,
            bytes: self.end - self.start,
            sha256: Sha256Hash(self.bytes.clone().finalize().into()),
            streams_sha256: Sha256Hash(self.streams.clone().finalize().into()),
        }
    }
}

/// Hashes output as a reader reads it, and at the end compares it with the recorded hashes.
#[derive(Debug)]
pub struct Check {
    since: u64,
    at: u64,
    read: Vec<Stretch>,
    /// Parts that were read of a stretch, but not from its beginning. They cannot be compared.
    loose: Vec<(u64, u64)>,
}

impl Check {
    /// For a reader that begins at the offset `since`.
    #[must_use]
    pub fn new(since: u64) -> Self {
        Self { since, at: since, read: Vec::new(), loose: Vec::new() }
    }

    /// Takes the next bytes, if the recorded hashes are known already.
    pub fn output(&mut self, expected: &[OutputHash], stderr: bool, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let at = self.at;
            let inside = expected.iter().find(|hash| hash.start <= at && at < hash.end());
            let until = match inside {
                Some(hash) => hash.end(),
                None => expected
                    .iter()
                    .map(|hash| hash.start)
                    .filter(|start| *start > at)
                    .min()
                    .unwrap_or(u64::MAX),
            };
            // At least one byte: at the greatest possible offset this loop would not end otherwise.
            let here = usize::try_from(until - at).unwrap_or(usize::MAX).clamp(1, bytes.len());
            let (now, rest) = bytes.split_at(here);
            self.piece(inside.map(|hash| hash.start), stderr, now);
            bytes = rest;
        }
    }

    /// Takes the next bytes, all from the stretch that begins at `start`. None if the bytes were never kept.
    pub(crate) fn piece(&mut self, start: Option<u64>, stderr: bool, bytes: &[u8]) {
        let at = self.at;
        self.at = at.saturating_add(bytes.len() as u64);
        match self.read.last_mut() {
            Some(last) if start == Some(last.start) && last.end == at => last.add(stderr, bytes),
            _ if start == Some(at) => {
                let mut fresh = Stretch::new(at);
                fresh.add(stderr, bytes);
                self.read.push(fresh);
            }
            _ => match self.loose.last_mut() {
                Some((_, end)) if *end == at => *end = self.at,
                _ => self.loose.push((at, self.at)),
            },
        }
    }

    /// Takes note of bytes that are missing from what is read.
    pub fn gap(&mut self, dropped: u64) {
        self.at = self.at.saturating_add(dropped);
    }

    /// The result: the worst difference that was found, at its first offset. `expected` is None if no hash is recorded.
    #[must_use]
    pub fn finish(&self, expected: Option<&[OutputHash]>) -> OutputCheck {
        let known = expected.unwrap_or_default();
        let (mut missing, mut partial) = (None, false);
        for hash in known.iter().filter(|hash| hash.end() > self.since) {
            let (from, to) = (hash.start, hash.end());
            match self.read.iter().find(|read| read.start == from).map(Stretch::hash) {
                Some(read) if read == *hash => {}
                // The stretch ends too early. Which of its bytes were changed is unknown.
                Some(read) if read.bytes < hash.bytes => missing = missing.or(Some((read.end(), to))),
                Some(_) => return OutputCheck::Changed { from, to },
                None if from < self.since => partial = true,
                None => missing = missing.or(Some((from, to))),
            }
        }
        if let Some((from, to)) = missing {
            return OutputCheck::Missing { from, to };
        }
        // If the reader began in the middle of a recorded stretch, the rest of that stretch cannot be compared, but is
        // no error.
        let is_known = |at: u64| known.iter().any(|hash| hash.start <= at && at < hash.end());
        let unknown = self.read.iter().map(|read| (read.start, read.end)).chain(self.loose.iter().copied());
        if let Some((from, to)) = unknown.filter(|(from, _)| !is_known(*from)).min() {
            return OutputCheck::Unchecked { from, to };
        }
        if partial { OutputCheck::Partial } else { OutputCheck::Intact }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two stretches with a hole of ten bytes between them.
    fn written() -> Vec<OutputHash> {
        let mut one = Stretch::new(0);
        one.add(false, b"out");
        one.add(true, b"err");
        let mut two = Stretch::new(16);
        two.add(true, b"more");
        vec![one.hash(), two.hash()]
    }

    fn read(since: u64, pieces: &[(bool, &str)], gap_before_last: u64) -> OutputCheck {
        let hashes = written();
        let mut check = Check::new(since);
        for (n, (stderr, bytes)) in pieces.iter().enumerate() {
            if n + 1 == pieces.len() {
                check.gap(gap_before_last);
            }
            check.output(&hashes, *stderr, bytes.as_bytes());
        }
        check.finish(Some(&hashes))
    }

    #[test]
    fn output_matches_what_was_written_however_it_is_split() {
        assert_eq!(read(0, &[(false, "out"), (true, "err"), (true, "more")], 10), OutputCheck::Intact);
        assert_eq!(
            read(0, &[(false, "o"), (false, "ut"), (true, "e"), (true, "rr"), (true, "more")], 10),
            OutputCheck::Intact
        );
        assert_eq!(read(4, &[(true, "rr"), (true, "more")], 10), OutputCheck::Partial);
        assert_eq!(read(16, &[(true, "more")], 0), OutputCheck::Intact);
    }

    #[test]
    fn changed_and_missing_output_is_found() {
        let first = OutputCheck::Changed { from: 0, to: 6 };
        assert_eq!(read(0, &[(false, "Out"), (true, "err"), (true, "more")], 10), first);
        // With the streams exchanged.
        assert_eq!(read(0, &[(true, "out"), (true, "err"), (true, "more")], 10), first);
        assert_eq!(read(0, &[(true, "out"), (false, "err"), (true, "more")], 10), first);
        assert_eq!(read(0, &[(false, "outerr"), (true, "more")], 10), first);
        assert_eq!(
            read(0, &[(false, "out"), (true, "err"), (true, "less")], 10),
            OutputCheck::Changed { from: 16, to: 20 }
        );
        // Output where nothing was kept, and after the end.
        assert_eq!(
            read(0, &[(false, "out"), (true, "err"), (false, "0123456789"), (true, "more")], 0),
            OutputCheck::Unchecked { from: 6, to: 16 }
        );
        assert_eq!(
            read(16, &[(true, "more"), (true, "and more")], 0),
            OutputCheck::Unchecked { from: 20, to: 28 }
        );
        assert_eq!(read(0, &[(false, "out"), (true, "err")], 0), OutputCheck::Missing { from: 16, to: 20 });
        assert_eq!(read(0, &[(true, "more")], 16), OutputCheck::Missing { from: 0, to: 6 });
        assert_eq!(read(0, &[(false, "out"), (true, "more")], 13), OutputCheck::Missing { from: 3, to: 6 });
    }

    #[test]
    fn without_a_hash_the_result_is_unknown_and_empty_output_is_correct() {
        let mut check = Check::new(0);
        assert_eq!(check.finish(None), OutputCheck::Intact);
        check.output(&[], false, b"said");
        assert_eq!(check.finish(None), OutputCheck::Unchecked { from: 0, to: 4 });
        assert_eq!(check.finish(Some(&[])), OutputCheck::Unchecked { from: 0, to: 4 });
    }

    #[test]
    fn hashes_that_make_no_sense_cause_no_failure() {
        let hash = Stretch::new(0).hash();
        let odd = [
            OutputHash { start: u64::MAX, bytes: 9, ..hash },
            OutputHash { start: 2, bytes: u64::MAX, ..hash },
            hash,
        ];
        let mut check = Check::new(1);
        check.output(&odd, false, b"some bytes");
        check.gap(u64::MAX);
        check.output(&odd, true, b"more");
        let _ = check.finish(Some(&odd));
    }
}
