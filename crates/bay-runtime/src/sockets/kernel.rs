//! Netlink requests about the network namespace in which the socket was opened.

use std::io;
use std::time::Duration;

use netlink_sys::{Socket, SocketAddr};
use rustix::net::sockopt::{Timeout, set_socket_timeout};

// From linux/netlink.h.
const HEADER: usize = 16;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_DUMP: u16 = 0x300;
/// Flags in an attribute's type: its content are attributes, or is in network byte order.
const NLA_FLAGS: u16 = 0xc000;
pub(super) const NLA_NESTED: u16 = 0x8000;

/// The kernel answers during the request. This is a precaution for the case that it does not.
const ANSWER_WITHIN: Duration = Duration::from_millis(200);
/// The kernel's largest datagram, unless it is given more room.
const DATAGRAM: usize = 32 << 10;
/// Datagrams of earlier requests that are skipped before a request is given up.
const MAX_STRAY: usize = 16;
/// Most datagrams that are read for one list.
const MAX_DATAGRAMS: usize = 4096;

/// A netlink socket. One request at a time.
#[derive(Debug)]
pub(super) struct Kernel {
    socket: Socket,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Kernel {
    /// In the calling thread's network namespace.
    pub(super) fn open(protocol: isize) -> io::Result<Self> {
        let mut socket = Socket::new(protocol)?;
        socket.bind_auto()?;
        // From here on, only the kernel can send to this socket. Otherwise root in the bay, which may send to every
        // netlink socket of its namespace, could answer for the kernel.
        socket.connect(&SocketAddr::new(0, 0))?;
        set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER_WITHIN))?;
        set_socket_timeout(&socket, Timeout::Send, Some(ANSWER_WITHIN))?;
        Ok(Self { socket, sequence: 0, buffer: vec![0; DATAGRAM] })
    }

    /// Sends one request. Returns the type and body of its answer.
    pub(super) fn ask(&mut self, kind: u16, question: &[u8]) -> io::Result<(u16, &[u8])> {
        self.send(kind, 0, question)?;
        for _ in 0..MAX_STRAY {
            let length = self.receive()?;
            let answer = first(&self.buffer[..length])
                .filter(|message| message.sequence == self.sequence)
                .map(|message| (message.kind, HEADER..HEADER + message.body.len()));
            if let Some((kind, body)) = answer {
                let body = &self.buffer[body];
                return if kind == NLMSG_ERROR { Err(error_of(body)) } else { Ok((kind, body)) };
            }
        }
        Err(io::ErrorKind::TimedOut.into())
    }

    /// Sends a command and waits for its acknowledgement.
    pub(super) fn command(&mut self, kind: u16, order: &[u8]) -> io::Result<()> {
        self.send(kind, NLM_F_ACK, order)?;
        for _ in 0..MAX_STRAY {
            let length = self.receive()?;
            if let Some(message) = first(&self.buffer[..length])
                && message.sequence == self.sequence
                && message.kind == NLMSG_ERROR
            {
                return if message.body.first_chunk() == Some(&[0; 4]) {
                    Ok(())
                } else {
                    Err(error_of(message.body))
                };
            }
        }
        Err(io::ErrorKind::TimedOut.into())
    }

    /// Requests a list, and passes every entry to `each`.
    pub(super) fn list(&mut self, kind: u16, question: &[u8], mut each: impl FnMut(&[u8])) -> io::Result<()> {
        self.send(kind, NLM_F_DUMP, question)?;
        for _ in 0..MAX_DATAGRAMS {
            let length = self.receive()?;
            let mut rest = &self.buffer[..length];
            while let Some(message) = first(rest) {
                rest = message.rest;
                if message.sequence != self.sequence {
                    continue;
                }
                match message.kind {
                    NLMSG_DONE => return Ok(()),
                    NLMSG_ERROR => return Err(error_of(message.body)),
                    _ => each(message.body),
                }
            }
        }
        Err(io::ErrorKind::InvalidData.into())
    }

    fn send(&mut self, kind: u16, flags: u16, body: &[u8]) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let length = HEADER + body.len();
        let mut message = Vec::with_capacity(length);
        message.extend(u32::try_from(length).unwrap_or_default().to_ne_bytes());
        message.extend(kind.to_ne_bytes());
        message.extend((flags | NLM_F_REQUEST).to_ne_bytes());
        message.extend(self.sequence.to_ne_bytes());
        message.extend([0; 4]);
        message.extend(body);
        self.socket.send(&message, 0).map(drop)
    }

    /// The length of one datagram from the kernel.
    fn receive(&mut self) -> io::Result<usize> {
        for _ in 0..MAX_STRAY {
            let (length, sender) = self.socket.recv_from(&mut &mut self.buffer[..], 0)?;
            if sender.port_number() == 0 {
                return Ok(length.min(DATAGRAM));
            }
        }
        Err(io::ErrorKind::TimedOut.into())
    }
}

struct Message<'a> {
    kind: u16,
    sequence: u32,
    body: &'a [u8],
    rest: &'a [u8],
}

fn first(bytes: &[u8]) -> Option<Message<'_>> {
    let length = usize::try_from(u32::from_ne_bytes(*bytes.first_chunk()?)).ok()?;
    Some(Message {
        kind: u16::from_ne_bytes(*bytes.get(4..)?.first_chunk()?),
        sequence: u32::from_ne_bytes(*bytes.get(8..)?.first_chunk()?),
        body: bytes.get(HEADER..length)?,
        rest: bytes.get(length.next_multiple_of(4)..).unwrap_or_default(),
    })
}

fn error_of(body: &[u8]) -> io::Error {
    let code = body.first_chunk().map_or(0, |code| i32::from_ne_bytes(*code));
    io::Error::from_raw_os_error(code.wrapping_neg())
}

/// The attribute of type `wanted` in `bytes`.
pub(super) fn attribute(mut bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let length = usize::from(u16::from_ne_bytes(*bytes.first_chunk()?));
        let kind = u16::from_ne_bytes(*bytes.get(2..)?.first_chunk()?);
        let value = bytes.get(4..length)?;
        if kind & !NLA_FLAGS == wanted {
            return Some(value);
        }
        bytes = bytes.get(length.next_multiple_of(4)..)?;
    }
}

/// An attribute, as the kernel reads it.
pub(super) fn written(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = 4 + value.len();
    let mut bytes = Vec::with_capacity(length.next_multiple_of(4));
    bytes.extend(u16::try_from(length).unwrap_or_default().to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(length.next_multiple_of(4), 0);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_found_and_broken_ones_end_the_search() {
        let bytes = [written(3, b"abc"), written(21 | NLA_NESTED, b"cgroup")].concat();
        assert_eq!(attribute(&bytes, 3), Some(&b"abc"[..]));
        assert_eq!(attribute(&bytes, 21), Some(&b"cgroup"[..]));
        assert_eq!(attribute(&bytes, 4), None);
        assert_eq!(attribute(&bytes[..10], 21), None);
        // A length of zero must not loop for ever.
        assert_eq!(attribute(&[0; 64], 1), None);
        assert!(first(&[0; 8]).is_none() && first(&[255; 64]).is_none());
    }
}
