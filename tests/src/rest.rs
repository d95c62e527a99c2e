//! Requests to the daemon's socket without the CLI: one request per connection, HTTP/1.1 by hand.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

/// Time limit of a response.
const PATIENCE: Duration = Duration::from_secs(60);

/// A response with its whole body.
#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u16,
    pub body: Vec<u8>,
}

impl Answer {
    /// # Panics
    /// If the body is not JSON.
    #[track_caller]
    #[must_use]
    pub fn json(&self) -> Value {
        match serde_json::from_slice(&self.body) {
            Ok(value) => value,
            Err(error) => panic!("{error}: status {} {}", self.status, String::from_utf8_lossy(&self.body)),
        }
    }
}

/// Sends one request and reads the whole response.
///
/// # Errors
/// If the daemon cannot be reached, or its response is not HTTP.
pub fn request(socket: &Path, method: &str, target: &str, body: &[u8]) -> io::Result<Answer> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    exchange(stream, method, target, &[("host", "bay")], body)
}

/// Sends one request over TCP, with these headers.
///
/// # Errors
/// As [`request`].
pub fn request_tcp(
    address: SocketAddr,
    method: &str,
    target: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> io::Result<Answer> {
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    exchange(stream, method, target, headers, body)
}

fn exchange(
    mut stream: impl Read + Write,
    method: &str,
    target: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> io::Result<Answer> {
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let head = format!(
        "{method} {target} HTTP/1.1\r\n{headers}connection: close\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    // A daemon may answer and close before it has read a body that it refuses.
    let sent = stream.write_all(body);
    let mut bytes = Vec::new();
    let read = stream.read_to_end(&mut bytes);
    if bytes.is_empty() {
        sent?;
        read?;
    }
    parse(&bytes).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "not an HTTP answer"))
}

fn parse(bytes: &[u8]) -> Option<Answer> {
    let split = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&bytes[..split]).ok()?.to_ascii_lowercase();
    let body = &bytes[split + 4..];
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let chunked = head.lines().any(|line| line.starts_with("transfer-encoding:") && line.contains("chunked"));
    let body = if chunked { dechunk(body)? } else { body.to_vec() };
    Some(Answer { status, body })
}

fn dechunk(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut whole = Vec::new();
    loop {
        let line = rest.windows(2).position(|window| window == b"\r\n")?;
        let size = std::str::from_utf8(&rest[..line]).ok()?.split(';').next()?.trim();
        let size = usize::from_str_radix(size, 16).ok()?;
        if size == 0 {
            return Some(whole);
        }
        whole.extend_from_slice(rest.get(line + 2..line + 2 + size)?);
        rest = rest.get(line + 2 + size + 2..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunked_answer_is_put_together() {
        let wire =
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n";
        let answer = parse(wire).unwrap();
        assert_eq!((answer.status, answer.body.as_slice()), (200, &b"abcde"[..]));
    }
}
