//! HTTP requests that the daemon itself sends to a server outside: messages to webhooks, spans to a collector.
//!
//! The caller makes the connection, because the allowed addresses differ, and judges the status, because the answers
//! that are worth another attempt differ too. The caller also sets the deadlines.

use std::fmt::Display;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

/// The longest answer that is read. Its content changes nothing.
const MAX_ANSWER: usize = 64 * 1024;
/// How long the rest of an answer is read. A server that hangs after its status has accepted the request.
const READ_ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// Why a request counts as failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Trouble {
    /// Another attempt may succeed.
    #[error("{0}")]
    Passing(String),
    /// Another attempt is not worth it.
    #[error("{0}")]
    Lasting(String),
}

impl Trouble {
    pub(crate) fn passing(error: impl Display) -> Self {
        Self::Passing(error.to_string())
    }

    /// Whether another attempt is worth it.
    pub(crate) fn passes(&self) -> bool {
        matches!(self, Self::Passing(_))
    }
}

/// Posts JSON on a fresh connection to `authority`, and returns the status of the answer.
pub(crate) async fn post_json<S>(
    stream: S,
    authority: &str,
    target: &str,
    headers: HeaderMap,
    body: Bytes,
) -> Result<StatusCode, Trouble>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut request = Request::post(target)
        .header(header::HOST, authority)
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::USER_AGENT, concat!("workbay/", env!("CARGO_PKG_VERSION")))
        .body(Full::new(body))
        .map_err(|error| Trouble::Lasting(error.to_string()))?;
    request.headers_mut().extend(headers);
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(Trouble::passing)?;
    let connection = AbortOnDrop(tokio::spawn(connection));
    let response = sender.send_request(request).await.map_err(Trouble::passing)?;
    let status = response.status();
    // Read completely, so that the server does not see a broken connection.
    let answer = Limited::new(response.into_body(), MAX_ANSWER).collect();
    let _ = tokio::time::timeout(READ_ANSWER_WITHIN, answer).await;
    drop(connection);
    Ok(status)
}

/// Ends the task of a connection, also if the request is dropped at its deadline.
struct AbortOnDrop<T>(tokio::task::JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    async fn answered(answer: &'static [u8]) -> Result<StatusCode, Trouble> {
        let (ours, mut theirs) = tokio::io::duplex(4096);
        let server = tokio::spawn(async move {
            let mut request = Vec::new();
            while !request.ends_with(b"{}") && theirs.read_buf(&mut request).await.unwrap() > 0 {}
            theirs.write_all(answer).await.unwrap();
            // Returned, so that it stays open: the answer ends only by its length.
            (String::from_utf8(request).unwrap(), theirs)
        });
        let mut headers = HeaderMap::new();
        headers.insert("x-more", http::HeaderValue::from_static("1"));
        let status = post_json(ours, "example.test:80", "/in?a=b", headers, Bytes::from_static(b"{}")).await;
        let (request, _open) = server.await.unwrap();
        assert!(request.starts_with("POST /in?a=b HTTP/1.1\r\n"), "{request}");
        assert!(
            request.contains("host: example.test:80\r\n") && request.contains("x-more: 1\r\n"),
            "{request}"
        );
        status
    }

    #[tokio::test]
    async fn a_server_that_accepts_and_then_hangs_has_accepted() {
        let status = answered(b"HTTP/1.1 202 Accepted\r\ncontent-length: 100\r\n\r\nbegun").await;
        assert_eq!(status.unwrap(), StatusCode::ACCEPTED);
    }

    #[tokio::test]
    async fn an_answer_that_is_not_http_may_be_temporary() {
        let trouble = answered(b"SSH-2.0-x\r\n").await.unwrap_err();
        assert!(trouble.passes(), "{trouble:?}");
    }
}
