//! The bay's input of an SSH command. The gateway can read it ahead before it passes anything on.

use async_trait::async_trait;
use bay_policy::push::{Commands, CommandsError, read_commands};
use bytes::BytesMut;
use russh::{ChannelMsg, ChannelReadHalf};
use tokio::time::timeout;

use crate::limits::{LOOK_WITHIN, MAX_LOOK_BYTES, PACK_QUIET};
use crate::sight::{Beginning, ReadAhead};

/// The read half of the bay's channel, with the bytes that were read but not yet passed on.
pub(super) struct Ahead {
    bay: ChannelReadHalf,
    pub(super) seen: BytesMut,
    /// Whether the bay has sent the end of its input.
    pub(super) eof: bool,
    gone: bool,
}

impl Ahead {
    pub(super) fn new(bay: ChannelReadHalf) -> Self {
        Self { bay, seen: BytesMut::new(), eof: false, gone: false }
    }

    /// Reads one more message. `false` if the bay has closed the channel or disconnected. Cancel-safe.
    pub(super) async fn more(&mut self) -> bool {
        match self.bay.wait().await {
            Some(ChannelMsg::Data { data }) => self.seen.extend_from_slice(&data),
            Some(ChannelMsg::Eof) => self.eof = true,
            Some(ChannelMsg::Close) | None => self.gone = true,
            Some(_) => {}
        }
        !self.gone
    }

    /// Waits for the commands of a push: its refs and options. `None` if they cannot be read.
    pub(super) async fn commands(&mut self) -> Option<Commands> {
        loop {
            match read_commands(&self.seen) {
                Ok(commands) => return Some(commands),
                Err(CommandsError::Unexpected) => return None,
                Err(CommandsError::Incomplete) if self.seen.len() >= MAX_LOOK_BYTES => return None,
                Err(CommandsError::Incomplete) => {}
            }
            if self.eof || !self.more().await {
                // A client that sends nothing changes nothing.
                let none = Commands { updates: Vec::new(), options: Vec::new(), end: 0 };
                return self.seen.is_empty().then_some(none);
            }
        }
    }

    /// Reads until the input pauses, within limits of size and time. At the end of its input a client waits for the
    /// server, and no marker shows where that end is.
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
