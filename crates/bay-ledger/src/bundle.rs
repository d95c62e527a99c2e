//! Exported events. A bundle is lines of JSON: a header with a signed head and the proof that the events belong to
//! it, then the events. A verifier needs only the public key and one pass, and keeps no event in memory.

use serde::{Deserialize, Serialize};

use crate::event::EventRecord;
use crate::hash::Hash;
use crate::note::{Head, NoteError, PublicKey};
use crate::proof::{root_by_inclusion, roots_by_consistency};
use crate::tree::{Frontier, MAX_SIZE, subtrees};

/// Longest line: the largest event with every byte escaped.
pub const MAX_LINE: usize = 256 << 10;
/// The version of this format.
const VERSION: u32 = 1;

/// The first line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// Identifies the file format and its version.
    pub workbay_ledger: u32,
    /// The signed head.
    pub head: String,
    pub evidence: Evidence,
}

/// The proof that the events, or an older head, belong to the signed head. Numbers of events count from 1.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Evidence {
    /// The events `from` to `to`, with the full subtrees before and after them. If `to` is below `from`, there are
    /// no events.
    Range { from: u64, to: u64, before: Vec<Hash>, behind: Vec<Hash> },
    /// One event, with its inclusion proof.
    Inclusion { event: u64, path: Vec<Hash> },
    /// No events: the head continues an older one of size `old`.
    Consistency { old: u64, path: Vec<Hash> },
}

impl Header {
    #[must_use]
    pub fn new(head: String, evidence: Evidence) -> Self {
        Self { workbay_ledger: VERSION, head, evidence }
    }
}

/// Why a bundle or a record does not verify.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Flaw {
    #[error("line {line} is not what a bundle has there: {why}")]
    Malformed { line: u64, why: String },
    #[error(transparent)]
    Head(#[from] NoteError),
    #[error("event {expected} is missing: event {found} stands in its place")]
    Order { expected: u64, found: u64 },
    #[error("event {seq} was changed: its hash does not fit what it says")]
    Edited { seq: u64 },
    #[error("the events end before event {expected}, and {to} were promised")]
    Cut { expected: u64, to: u64 },
    #[error("the events do not lead to the signed root of {size} events: one was changed, moved or put in")]
    Root { size: u64 },
    #[error(
        "the log is forked: at {size} events it has the root {found}, and a head signed on {time} says {known}"
    )]
    Fork { size: u64, found: Hash, known: Hash, time: jiff::Timestamp },
    #[error("the log is cut: it has {size} events, and a head signed on {time} has {known}")]
    Behind { size: u64, known: u64, time: jiff::Timestamp },
}

/// How a bundle relates to a head that the verifier already knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// The bundle's head continues it, or is the same.
    Continues,
    /// The bundle is older: it cannot prove that the known head continues it.
    Older,
    /// The bundle lacks the events that are needed to compare the two heads.
    Unknown,
}

/// The result of a successful verification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified {
    pub head: Head,
    /// Numbers of the first and the last event; `None` without events.
    pub events: Option<(u64, u64)>,
    /// One per known head, in the given order.
    pub standing: Vec<Standing>,
}

/// Writes a bundle.
#[derive(Debug)]
pub struct Bundle;

impl Bundle {
    /// A header or an event as a line of a bundle.
    #[must_use]
    pub fn line<T: Serialize>(value: &T) -> Vec<u8> {
        // Serialization fails only for maps with other keys than strings; there are none.
        let mut line = serde_json::to_vec(value).unwrap_or_default();
        line.push(b'\n');
        line
    }
}

/// Verifies a bundle line by line.
#[derive(Debug)]
pub struct Verifier {
    key: PublicKey,
    known: Vec<(Head, Standing)>,
    lines: u64,
    begun: Option<Begun>,
}

#[derive(Debug)]
struct Begun {
    head: Head,
    evidence: Evidence,
    /// The tree up to the last event read.
    frontier: Frontier,
    /// The expected number of the next event.
    next: u64,
    /// The number of the last event.
    to: u64,
    leaf: Option<Hash>,
}

impl Verifier {
    /// `known` are heads of the same log from earlier; the bundle must not contradict them.
    #[must_use]
    pub fn new(key: PublicKey, known: Vec<Head>) -> Self {
        let known = known.into_iter().map(|head| (head, Standing::Unknown)).collect();
        Self { key, known, lines: 0, begun: None }
    }

    /// Reads the next line, with or without its line break.
    ///
    /// # Errors
    /// The first flaw.
    pub fn line(&mut self, line: &[u8]) -> Result<(), Flaw> {
        self.lines += 1;
        let number = self.lines;
        let malformed = |why: String| Flaw::Malformed { line: number, why };
        if line.len() > MAX_LINE {
            return Err(malformed(format!("it is longer than {MAX_LINE} bytes")));
        }
        let Some(begun) = &mut self.begun else {
            let header: Header = serde_json::from_slice(line).map_err(|e| malformed(e.to_string()))?;
            self.begun = Some(begin(header, &self.key, number)?);
            self.look(true)?;
            return Ok(());
        };
        let event: EventRecord = serde_json::from_slice(line).map_err(|e| malformed(e.to_string()))?;
        if begun.next > begun.to {
            return Err(malformed(format!("event {} was the last that was promised", begun.to)));
        }
        if event.seq != begun.next {
            return Err(Flaw::Order { expected: begun.next, found: event.seq });
        }
        let leaf = event.leaf();
        if leaf != event.hash {
            return Err(Flaw::Edited { seq: event.seq });
        }
        begun.next += 1;
        match begun.evidence {
            Evidence::Inclusion { .. } => begun.leaf = Some(leaf),
            _ => {
                if !begun.frontier.push(leaf, |_, _| {}) {
                    return Err(malformed("there is no room for more events".to_owned()));
                }
                self.look(false)?;
            }
        }
        Ok(())
    }

    /// Compares with those known heads that can be compared at this point.
    fn look(&mut self, at_header: bool) -> Result<(), Flaw> {
        let Some(begun) = &self.begun else { return Ok(()) };
        let ranged = matches!(begun.evidence, Evidence::Range { .. });
        for (known, standing) in &mut self.known {
            let found = if at_header && known.size == begun.head.size {
                begun.head.root
            } else if ranged && known.size == begun.frontier.size() {
                begun.frontier.root()
            } else if at_header && known.size > begun.head.size {
                *standing = Standing::Older;
                continue;
            } else {
                continue;
            };
            if found != known.root {
                let (size, time) = (known.size, known.time);
                return Err(Flaw::Fork { size, found, known: known.root, time });
            }
            *standing = Standing::Continues;
        }
        Ok(())
    }

    /// # Errors
    /// When something is missing, or when the events do not lead to the signed root.
    pub fn finish(mut self) -> Result<Verified, Flaw> {
        let Some(begun) = self.begun.take() else {
            return Err(Flaw::Malformed { line: 1, why: "it is empty".to_owned() });
        };
        let Begun { head, evidence, mut frontier, next, to, leaf } = begun;
        if next <= to {
            return Err(Flaw::Cut { expected: next, to });
        }
        let wrong = Flaw::Root { size: head.size };
        let events = match evidence {
            Evidence::Range { from, behind, .. } => {
                let missing = subtrees(frontier.size()..head.size);
                if missing.len() != behind.len() {
                    return Err(wrong);
                }
                for (node, hash) in missing.into_iter().zip(behind) {
                    if !frontier.push_full(node.level, hash, |_, _| {}) {
                        return Err(wrong);
                    }
                }
                if frontier.size() != head.size || frontier.root() != head.root {
                    return Err(wrong);
                }
                (from <= to).then_some((from, to))
            }
            Evidence::Inclusion { event, path } => {
                let root = leaf.and_then(|leaf| root_by_inclusion(event - 1, head.size, leaf, &path));
                if root != Some(head.root) {
                    return Err(wrong);
                }
                Some((event, event))
            }
            Evidence::Consistency { old, path } => {
                for (known, standing) in self.known.iter_mut().filter(|(known, _)| known.size == old) {
                    let roots = roots_by_consistency(old, head.size, known.root, &path);
                    if roots != Some((known.root, head.root)) {
                        let found = roots.map_or_else(Hash::of_nothing, |(before, _)| before);
                        return Err(Flaw::Fork { size: old, found, known: known.root, time: known.time });
                    }
                    *standing = Standing::Continues;
                }
                None
            }
        };
        Ok(Verified {
            head,
            events,
            standing: self.known.into_iter().map(|(_, standing)| standing).collect(),
        })
    }
}

fn begin(header: Header, key: &PublicKey, line: u64) -> Result<Begun, Flaw> {
    let malformed = |why: &str| Flaw::Malformed { line, why: why.to_owned() };
    if header.workbay_ledger != VERSION {
        return Err(malformed("it is of a version that this release does not know"));
    }
    let head = Head::open(&header.head, key)?;
    let (frontier, next, to) = match &header.evidence {
        Evidence::Range { from, to, before, .. } => {
            if *from == 0 || *from > MAX_SIZE || *to > head.size || from.saturating_sub(1) > *to {
                return Err(malformed("the numbers of its events do not fit its head"));
            }
            let frontier = Frontier::new(from - 1, before.clone())
                .ok_or_else(|| malformed("the subtrees before its events do not fit their number"))?;
            (frontier, *from, *to)
        }
        Evidence::Inclusion { event, .. } => {
            if *event == 0 || *event > head.size {
                return Err(malformed("the number of its event does not fit its head"));
            }
            (Frontier::default(), *event, *event)
        }
        Evidence::Consistency { old, .. } => {
            if *old == 0 || *old > head.size {
                return Err(malformed("the older size does not fit its head"));
            }
            (Frontier::default(), 1, 0)
        }
    };
    Ok(Begun { head, evidence: header.evidence, frontier, next, to, leaf: None })
}
