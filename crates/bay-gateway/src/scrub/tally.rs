//! What answers have of values in them, counted. A bay that tries to find a value out is noticed, and the value's hosts are closed
//! to it.
//!
//! | what an answer has in it | counts as | limit |
//! |---|---|---|
//! | a telling beginning that was held back and came to nothing, or whose reader left meanwhile | a beginning: the delay may have shown one character more | [`MAX_BEGINNINGS`] |
//! | the whole value, in an answer to a request that did not carry it | a hit, once for each answer | [`MAX_HITS`] |
//! | the whole value, in a connection: a login to a database, or bytes that are passed on | a hit, each time | [`MAX_HITS`] |
//! | the whole value, in a WebSocket whose handshake carried it | a hit, each time after the first [`ECHOES`] | [`MAX_HITS`] |
//! | the whole value, in an answer to a request that carried it | nothing: servers repeat what they are sent | |
//! | the whole value, and it is easy to guess | a hit, whatever was asked; the answer ends there | [`MAX_HITS`] |
//! | a telling beginning in the middle of a text, and then something else | a near miss: looking at it took longer | [`MAX_NEAR_MISSES`] |

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Telling beginnings that were none. Each may have shown one character more to a bay that guesses, so there are few.
pub const MAX_BEGINNINGS: u32 = 8;
/// Whole values in answers that had no reason to have them. One of them tells a bay that its guess was right.
pub const MAX_HITS: u32 = 4;
/// Whole values in one WebSocket that carried the secret, before they count.
pub const ECHOES: u32 = 4;
/// Telling beginnings in the middle of texts. Looking at one takes longer than looking at a shorter one, by a few steps of the
/// processor, so it takes very many of them to measure the next character. By chance six characters of base64 are there once in 2^36 places,
/// six hexadecimal digits once in 2^24.
pub const MAX_NEAR_MISSES: u32 = 10_000;

/// How often answers had guesses of one secret's value in them, for one bay.
#[derive(Debug, Default)]
pub struct Guesses {
    beginnings: AtomicU32,
    hits: AtomicU32,
    near_misses: AtomicU32,
}

impl Guesses {
    pub(super) fn note_beginning(&self) {
        self.beginnings.fetch_add(1, Relaxed);
    }

    pub(super) fn forget_beginning(&self) {
        // Never below what was counted: each is forgotten once, by the stream that counted it.
        self.beginnings.fetch_sub(1, Relaxed);
    }

    pub(super) fn note_near_miss(&self) {
        self.near_misses.fetch_add(1, Relaxed);
    }

    fn note_hit(&self) {
        self.hits.fetch_add(1, Relaxed);
    }

    /// Whether somebody is guessing. Then nothing more is passed on that could tell whether a guess was right.
    #[must_use]
    pub fn are_too_many(&self) -> bool {
        self.beginnings.load(Relaxed) >= MAX_BEGINNINGS
            || self.hits.load(Relaxed) >= MAX_HITS
            || self.near_misses.load(Relaxed) >= MAX_NEAR_MISSES
    }
}

/// How whole values in one answer, or in one connection, count.
#[derive(Debug, Default)]
pub struct Tally {
    /// Of the secrets that the request carried.
    carried: Vec<Arc<Guesses>>,
    connection: bool,
    /// Whose values this answer was counted for.
    counted: Vec<Arc<Guesses>>,
    echoes: u32,
    weak: bool,
}

fn has(all: &[Arc<Guesses>], one: &Arc<Guesses>) -> bool {
    all.iter().any(|other| Arc::ptr_eq(other, one))
}

impl Tally {
    /// Of one answer, to a request that carried these secrets.
    #[must_use]
    pub fn answer(carried: Vec<Arc<Guesses>>) -> Self {
        Self { carried, ..Self::default() }
    }

    /// Of a connection that may go on for ever, begun by a request that carried these secrets. A login to a database carries
    /// none: no query has to do with the password.
    #[must_use]
    pub fn connection(carried: Vec<Arc<Guesses>>) -> Self {
        Self { carried, connection: true, ..Self::default() }
    }

    /// Takes note of a whole value.
    pub(super) fn hit(&mut self, guesses: &Arc<Guesses>, weak: bool) {
        let carried = has(&self.carried, guesses);
        let expected = match (self.connection, weak) {
            (_, true) => false,
            (false, false) => carried || has(&self.counted, guesses),
            (true, false) => {
                self.echoes += u32::from(carried);
                carried && self.echoes <= ECHOES
            }
        };
        self.weak |= weak;
        if !expected {
            guesses.note_hit();
            self.counted.push(Arc::clone(guesses));
        }
    }

    /// Whether a value was there that is easy to guess: nothing more of the answer is passed on.
    pub(super) fn has_weak(&self) -> bool {
        self.weak
    }
}
