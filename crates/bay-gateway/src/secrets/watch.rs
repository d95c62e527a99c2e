//! Searches the data and trailers of request bodies for sentinels in transit.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use hyper::body::Frame;

use super::{Misuse, Secrets};

/// Receives a misuse that was found.
type Tell = Box<dyn Fn(Misuse) + Send + Sync>;

/// Scans a body frame by frame. It also finds sentinels that span frames.
pub(crate) struct Watch {
    secrets: Arc<Secrets>,
    tell: Tell,
    /// The end of the scanned bytes, at least one byte shorter than the longest sentinel.
    tail: Vec<u8>,
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").finish_non_exhaustive()
    }
}

impl Watch {
    pub(super) fn new(secrets: Arc<Secrets>, tell: Tell) -> Self {
        Self { secrets, tell, tail: Vec::new() }
    }

    /// Whether the frame may be passed on. Reports a sentinel that lies or ends in it.
    pub(crate) fn passes(&mut self, frame: &Frame<Bytes>) -> bool {
        let found = match (frame.data_ref(), frame.trailers_ref()) {
            (Some(data), _) => self.see(data),
            (None, Some(trailers)) => {
                self.tail.clear();
                trailers.values().find_map(|value| self.find(value.as_bytes()))
            }
            (None, None) => None,
        };
        if let Some(at) = found {
            (self.tell)(Misuse::in_body(&self.secrets.held()[at]));
        }
        found.is_none()
    }

    fn find(&self, bytes: &[u8]) -> Option<usize> {
        Some(self.secrets.in_bodies.as_ref()?.first(bytes)?.0)
    }

    /// The secret whose sentinel lies or ends in these bytes.
    pub(super) fn see(&mut self, bytes: &[u8]) -> Option<usize> {
        let keep = self.secrets.in_bodies.as_ref()?.longest.saturating_sub(1);
        if !self.tail.is_empty() {
            // A sentinel that spans two frames ends within the first bytes of the second.
            let mut border = self.tail.clone();
            border.extend_from_slice(&bytes[..keep.min(bytes.len())]);
            if let Some(at) = self.find(&border) {
                return Some(at);
            }
        }
        if let Some(at) = self.find(bytes) {
            return Some(at);
        }
        if bytes.len() >= keep {
            self.tail.clear();
            self.tail.extend_from_slice(&bytes[bytes.len() - keep..]);
        } else {
            self.tail.extend_from_slice(bytes);
            let surplus = self.tail.len().saturating_sub(keep);
            self.tail.drain(..surplus);
        }
        None
    }
}
