//! A small request on a new connection, which shows whether the guest is at its other end.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// A request to the guest that changes nothing and has a short answer.
const REQUEST: &[u8] = b"GET /v1/info HTTP/1.1\r\nhost: guest\r\n\r\n";
/// Longest head and longest body of the answer.
const MAX_HEAD: usize = 4096;
const MAX_BODY: usize = 64 << 10;

/// Returns when the guest has answered. The whole answer was read from the stream.
///
/// # Errors
/// The error of the connection, or that the answer was invalid.
pub(crate) async fn answered(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> io::Result<()> {
    stream.write_all(REQUEST).await?;
    stream.flush().await?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() >= MAX_HEAD {
            return Err(io::ErrorKind::InvalidData.into());
        }
        // The guest sends nothing after its answer, and byte by byte none of it can be missed.
        head.push(stream.read_u8().await?);
    }
    let mut body = vec![0; length(&head).ok_or(io::ErrorKind::InvalidData)?];
    stream.read_exact(&mut body).await?;
    Ok(())
}

/// The length of the body according to the head.
fn length(head: &[u8]) -> Option<usize> {
    let text = std::str::from_utf8(head).ok()?;
    let mut lines = text.split("\r\n");
    lines.next().filter(|status| status.starts_with("HTTP/1.1 "))?;
    let value = lines.filter_map(|line| line.split_once(':'));
    let mut lengths = value.filter(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    let length: usize = lengths.next()?.1.trim().parse().ok()?;
    (length <= MAX_BODY).then_some(length)
}

/// Whether the other end closed the connection without an answer.
pub(crate) fn is_reset(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe | io::ErrorKind::UnexpectedEof
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn exactly_one_answer_is_read() {
        let (mut near, mut far) = tokio::io::duplex(1024);
        far.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhellonext").await.unwrap();
        answered(&mut near).await.unwrap();
        let mut rest = [0; 4];
        near.read_exact(&mut rest).await.unwrap();
        assert_eq!(&rest, b"next");
        let mut asked = vec![0; REQUEST.len()];
        far.read_exact(&mut asked).await.unwrap();
        assert_eq!(asked, REQUEST);
    }

    #[tokio::test]
    async fn a_connection_that_ends_without_an_answer_counts_as_reset() {
        for said in
            [&b""[..], b"HTTP/1.1 200 OK\r\ncontent-le", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhell"]
        {
            let (mut near, mut far) = tokio::io::duplex(1024);
            far.write_all(said).await.unwrap();
            far.shutdown().await.unwrap();
            assert!(is_reset(&answered(&mut near).await.unwrap_err()));
        }
    }

    #[tokio::test]
    async fn an_invalid_answer_is_an_error_and_no_reset() {
        for said in [&b"SSH-2.0-x\r\n\r\n"[..], b"HTTP/1.1 200 OK\r\ncontent-length: 99999999\r\n\r\n"] {
            let (mut near, mut far) = tokio::io::duplex(1024);
            far.write_all(said).await.unwrap();
            assert!(!is_reset(&answered(&mut near).await.unwrap_err()));
        }
    }
}
