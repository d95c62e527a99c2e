//! What a bay sends for a command, read ahead of passing it on.

use async_trait::async_trait;
use bay_policy::push::{Commands, Unread, read_commands};
use bytes::BytesMut;
use russh::{ChannelMsg, ChannelReadHalf};
use tokio::time::timeout;

use crate::limits::{LOOK_WITHIN, MAX_LOOK_BYTES, PACK_QUIET};
use crate::sight::{Beginning, ReadAhead};

/// The bay's half of a channel. What was read is kept until it is passed on.
pub(super) struct Ahead {
    bay: ChannelReadHalf,
    pub(super) seen: BytesMut,
    /// Whether the bay said that nothing follows.
    pub(super) eof: bool,
    gone: bool,
}

impl Ahead {
    pub(super) fn new(bay: ChannelReadHalf) -> Self {
        Self { bay, seen: BytesMut::new(), eof: false, gone: false }
    }

    /// Reads one message more; false when the bay is gone. Nothing is lost where the caller does not wait for it.
    pub(super) async fn more(&mut self) -> bool {
        match self.bay.wait().await {
            Some(ChannelMsg::Data { data }) => self.seen.extend_from_slice(&data),
            Some(ChannelMsg::Eof) => self.eof = true,
            Some(ChannelMsg::Close) | None => self.gone = true,
            Some(_) => {}
        }
        !self.gone
    }

    /// The refs that a push changes and its options, waited for; nothing if they cannot be read.
    pub(super) async fn commands(&mut self) -> Option<Commands> {
        loop {
            match read_commands(&self.seen) {
                Ok(commands) => return Some(commands),
                Err(Unread::Odd) => return None,
                Err(Unread::NotAllThere) if self.seen.len() >= MAX_LOOK_BYTES => return None,
                Err(Unread::NotAllThere) => {}
            }
            if self.eof || !self.more().await {
                // Who says nothing changes nothing.
                let none = Commands { updates: Vec::new(), options: Vec::new(), end: 0 };
                return self.seen.is_empty().then_some(none);
            }
        }
    }

    /// The beginning, as much as comes without a pause: a client waits for its server at the end of it, and nothing says where
    /// that is.
    async fn look(&mut self) -> &[u8] {
        let reading = async {
            while self.seen.len() < MAX_LOOK_BYTES && !self.eof {
                if !timeout(PACK_QUIET, self.more()).await.unwrap_or(false) {
                    return;
                }
            }
        };
        timeout(LOOK_WITHIN, reading).await.ok();
        &self.seen[..self.seen.len().min(MAX_LOOK_BYTES)]
    }
}

#[async_trait]
impl ReadAhead for Ahead {
    async fn beginning(&mut self) -> Beginning {
        Beginning { bytes: self.look().await.to_vec(), whole: false, length: None }
    }
}
