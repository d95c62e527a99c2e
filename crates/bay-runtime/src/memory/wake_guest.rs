//! The first request to a restored guest: it gets its new socket and its configuration, and runs the fork hooks.
//!
//! Only the guest runs at this time. Its answer is still not trusted: it is bounded in length and time.

use std::io::{self, BufRead, BufReader, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use bay_types::guest::{FORK_HOOKS_TIME, MAX_WOKEN, WAKE_UPGRADE, Wake, Woken};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

/// How long the guest may take, in addition to the time for hooks.
const ANSWER_TIME: Duration = Duration::from_secs(10);
/// Longest head of its answer.
const MAX_HEAD: u64 = 8 << 10;

/// Sends the new listening socket over the socket with which the guest was restored.
pub(super) fn wake(socket: &Path, wake: &Wake, listener: impl AsFd) -> io::Result<Woken> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(ANSWER_TIME))?;
    stream.set_write_timeout(Some(ANSWER_TIME))?;
    let body = serde_json::to_vec(wake)?;
    let head = format!(
        "POST /v1/wake HTTP/1.1\r\nhost: guest\r\nconnection: upgrade\r\nupgrade: {WAKE_UPGRADE}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    (&stream).write_all(&[head.as_bytes(), &body].concat())?;

    let mut reader = BufReader::new(&stream);
    let mut answer = String::new();
    loop {
        let mut line = String::new();
        (&mut reader).take(MAX_HEAD).read_line(&mut line)?;
        if line.trim_end().is_empty() || answer.len() as u64 > MAX_HEAD {
            break;
        }
        answer.push_str(&line);
    }
    if !answer.starts_with("HTTP/1.1 101 ") {
        let said = answer.lines().next().unwrap_or("nothing").to_owned();
        return Err(io::Error::other(format!("it answered {said:?}")));
    }

    let descriptors = [listener.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(io::ErrorKind::OutOfMemory.into());
    }
    sendmsg(&stream, &[IoSlice::new(b"s")], &mut ancillary, SendFlags::NOSIGNAL)?;

    stream.set_read_timeout(Some(FORK_HOOKS_TIME + ANSWER_TIME))?;
    let mut said = Vec::new();
    reader.take(MAX_WOKEN).read_to_end(&mut said)?;
    Ok(serde_json::from_slice(&said)?)
}
