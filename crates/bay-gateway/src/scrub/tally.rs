//! Counts guesses of values in answers. At the limit of one of the counts, the gateway closes the value's hosts to the
//! bay.
//!
//! | found in an answer | counts as | limit |
//! |---|---|---|
//! | a significant prefix that was held and was not a value, or whose reader left meanwhile | a prefix: the delay may have confirmed one more character | [`MAX_BEGINNINGS`] |
//! | the whole value, in an answer to a request that did not carry it | a hit, once for each answer | [`MAX_HITS`] |
//! | the whole value, in a connection: a login to a database, or bytes that are passed on | a hit, each time | [`MAX_HITS`] |
//! | the whole value, in a WebSocket whose handshake carried it | a hit, each time after the first [`ECHOES`] | [`MAX_HITS`] |
//! | the whole value, in an answer to a request that carried it | nothing: servers echo what they receive | |
//! | the whole value, if it is easy to guess | a hit, whatever the request was; the answer is cut there | [`MAX_HITS`] |
//! | a significant prefix in the middle of a text, followed by other text | a near miss: examining it took longer | [`MAX_NEAR_MISSES`] |

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Significant prefixes that were not values. Each may have confirmed one more character of a guess.
pub const MAX_BEGINNINGS: u32 = 8;
/// Whole values in answers to requests that did not carry them. A single one confirms a guess.
pub const MAX_HITS: u32 = 4;
/// Whole values in one WebSocket that carried the secret, before further ones count.
pub const ECHOES: u32 = 4;
/// Significant prefixes in the middle of texts. Examining one takes a few processor steps longer, so measuring the
/// next character needs very many of them. Six base64 characters match by chance once in 2^36 places, six hexadecimal
/// digits once in 2^24.
pub const MAX_NEAR_MISSES: u32 = 10_000;

/// The number of guesses of one secret's value in the answers to one bay.
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
        // Never below zero: a stream removes only what it counted, and only once.
        self.beginnings.fetch_sub(1, Relaxed);
    }

    pub(super) fn note_near_miss(&self) {
        self.near_misses.fetch_add(1, Relaxed);
    }

    fn note_hit(&self) {
        self.hits.fetch_add(1, Relaxed);
    }

    /// Whether there were too many guesses. The bay then gets nothing more that could confirm one.
    #[must_use]
    pub fn are_too_many(&self) -> bool {
        self.beginnings.load(Relaxed) >= MAX_BEGINNINGS
            || self.hits.load(Relaxed) >= MAX_HITS
            || self.near_misses.load(Relaxed) >= MAX_NEAR_MISSES
    }
}

/// How whole values in one answer, or in one connection, are counted.
#[derive(Debug, Default)]
pub struct Tally {
    /// Counters of the secrets that the request carried.
    carried: Vec<Arc<Guesses>>,
    connection: bool,
    /// Counters that this answer has already increased.
    counted: Vec<Arc<Guesses>>,
    echoes: u32,
    weak: bool,
}

fn has(all: &[Arc<Guesses>], one: &Arc<Guesses>) -> bool {
    all.iter().any(|other| Arc::ptr_eq(other, one))
}

impl Tally {
    /// Counts for one answer, to a request that carried these secrets.
    #[must_use]
    pub fn answer(carried: Vec<Arc<Guesses>>) -> Self {
        Self { carried, ..Self::default() }
    }

    /// Counts for a long-lived connection, begun by a request that carried these secrets. A login to a database
    /// carries none, because no query needs the password.
    #[must_use]
    pub fn connection(carried: Vec<Arc<Guesses>>) -> Self {
        Self { carried, connection: true, ..Self::default() }
    }

    /// Counts a whole value.
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

    /// Whether a value occurred that is easy to guess. The rest of the answer is then cut.
    pub(super) fn has_weak(&self) -> bool {
        self.weak
    }
}
