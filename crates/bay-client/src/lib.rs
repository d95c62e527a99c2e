//! The HTTP client of our own API: HTTP/1.1 over the daemon's unix socket, with one connection at a time. If it
//! ended or became a stream, the next request opens another.
//!
//! ```text
//!  Client::get, post, … ──► connect ──► request ──► bounded answer ──► a value, or the error that the daemon sent
//!                              │
//!                              └─ nobody answers ──► StartDaemon, if the endpoint has one; else daemon-unreachable
//! ```
//!
//! Nothing is sent before the request itself. If there is no socket, or nobody listens on it, the daemon is
//! missing, and only then is it started. An answer may contain text from a bay, so JSON answers and lines have a
//! longest length. A body that the caller reads as a stream has none.
//!
//! The crate uses no terminal and no environment, and standard input only in [`from_stdin`]. It reports progress
//! to a [`ShowProgress`], and the caller decides how a daemon is started ([`StartDaemon`]).
#![forbid(unsafe_code)]

mod answer_lines;
mod body;
mod error;
mod frames;
pub mod paused;
mod progress;
pub mod transfer;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use bay_text::percent::segment;
use bay_types::frame::INPUT;
use bay_types::trace::{TRACEPARENT, Traceparent};
use bay_types::{ApiError, ErrorCode, InputId};
use bay_types::{forward, frame};
use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_TYPE, UPGRADE as UPGRADE_HEADER};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;

pub use answer_lines::lines;
pub use body::{Body, empty, from_channel, from_reader, from_stdin};
use error::unreachable;
pub use error::{broken, invalid, local};
pub use frames::FrameReader;
pub use progress::{ShowProgress, Silent};

/// Longest JSON answer. It is enough for many thousands of bays and execs.
const MAX_ANSWER: usize = 64 << 20;
/// Longest path of a unix socket that the kernel accepts.
const MAX_SOCKET_PATH: usize = 107;

/// Starts a daemon if none answers.
#[async_trait]
pub trait StartDaemon: std::fmt::Debug + Send + Sync {
    /// Starts a daemon, and returns a connection to its socket.
    async fn start(&self, socket: &Path) -> Result<UnixStream, ApiError>;
}

/// The daemon that a client talks to.
#[derive(Debug, Clone)]
pub struct Endpoint {
    pub socket: PathBuf,
    /// The caller's trace. Every request belongs to it.
    pub traceparent: Option<Traceparent>,
    /// If it is absent, a daemon that does not answer is an error.
    pub starter: Option<Arc<dyn StartDaemon>>,
}

impl Endpoint {
    /// The daemon that listens at `socket`. None is started, and no request belongs to a trace.
    #[must_use]
    pub fn at(socket: impl Into<PathBuf>) -> Self {
        Self { socket: socket.into(), traceparent: None, starter: None }
    }
}

/// Frames in both directions with one exec.
#[derive(Debug)]
pub struct Attached {
    pub frames: FrameReader<UnixStream>,
    /// Bytes of the named input that the guest has received so far. Absent if the input has no id, or if the
    /// daemon or the guest is of an earlier release: input has no offsets then.
    pub received: Option<u64>,
}

/// A connection after an upgrade.
struct Switched {
    headers: HeaderMap,
    stream: UnixStream,
    /// What came with the answer.
    early: Bytes,
}

/// A client of one daemon.
#[derive(Debug)]
pub struct Client {
    endpoint: Endpoint,
    connection: Option<SendRequest<Body>>,
    connected: bool,
}

impl Client {
    #[must_use]
    pub fn new(endpoint: Endpoint) -> Self {
        Self { endpoint, connection: None, connected: false }
    }

    /// Whether the client ever reached a daemon. If so, a failed request may be worth repeating.
    #[must_use]
    pub fn connected(&self) -> bool {
        self.connected
    }

    /// Another client of the same daemon, with its own connection.
    #[must_use]
    pub fn another(&self) -> Self {
        Self::new(self.endpoint.clone())
    }

    /// Another client of the same daemon that never starts one, to reconnect to a daemon that is restarting.
    #[must_use]
    pub fn another_without_starting(&self) -> Self {
        Self::new(Endpoint { starter: None, ..self.endpoint.clone() })
    }

    async fn connect(&self) -> Result<UnixStream, ApiError> {
        let socket = &self.endpoint.socket;
        if socket.as_os_str().len() > MAX_SOCKET_PATH {
            return Err(invalid(
                format!("the daemon's socket {} is longer than {MAX_SOCKET_PATH} bytes", socket.display()),
                "choose a shorter --data-dir, or set BAY_SOCKET to a shorter path",
            ));
        }
        let error = match UnixStream::connect(socket).await {
            Ok(stream) => return Ok(stream),
            Err(error) => error,
        };
        let absent = matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused);
        match &self.endpoint.starter {
            Some(starter) if absent => starter.start(socket).await,
            _ => Err(no_daemon(socket, &error)),
        }
    }

    async fn sender(&mut self) -> Result<&mut SendRequest<Body>, ApiError> {
        let alive = match &mut self.connection {
            Some(connection) => connection.ready().await.is_ok(),
            None => false,
        };
        if !alive {
            let stream = self.connect().await?;
            let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(|e| unreachable(&e))?;
            tokio::spawn(connection.with_upgrades());
            self.connection = Some(sender);
            self.connected = true;
        }
        self.connection.as_mut().ok_or_else(|| broken("the connection was closed"))
    }

    /// Sends one request. A response that is no success becomes the error that it contains.
    pub async fn send(&mut self, mut request: Request<Body>) -> Result<Response<Incoming>, ApiError> {
        if let Some(Ok(value)) = self.endpoint.traceparent.map(|at| at.to_string().try_into()) {
            request.headers_mut().insert(TRACEPARENT, value);
        }
        let sender = self.sender().await?;
        let response = sender.send_request(request).await.map_err(|e| unreachable(&e))?;
        let status = response.status();
        if status.is_success() || status == StatusCode::SWITCHING_PROTOCOLS {
            return Ok(response);
        }
        Err(refusal(status, response).await)
    }

    /// `GET`, with a JSON answer.
    pub async fn get<T: DeserializeOwned>(&mut self, path: &str) -> Result<T, ApiError> {
        let response = self.send(request(Method::GET, path, empty())?).await?;
        answer(response).await
    }

    /// `DELETE`, with a JSON answer.
    pub async fn delete<T: DeserializeOwned>(&mut self, path: &str) -> Result<T, ApiError> {
        let response = self.send(request(Method::DELETE, path, empty())?).await?;
        answer(response).await
    }

    /// `POST`, with a JSON answer.
    pub async fn post<B: Serialize, T: DeserializeOwned>(
        &mut self,
        path: &str,
        body: &B,
    ) -> Result<T, ApiError> {
        let response = self.send(json_request(Method::POST, path, body)?).await?;
        answer(response).await
    }

    /// `PUT`, with a JSON answer.
    pub async fn put<B: Serialize, T: DeserializeOwned>(
        &mut self,
        path: &str,
        body: &B,
    ) -> Result<T, ApiError> {
        let response = self.send(json_request(Method::PUT, path, body)?).await?;
        answer(response).await
    }

    /// `PATCH`, with a JSON answer.
    pub async fn patch<B: Serialize, T: DeserializeOwned>(
        &mut self,
        path: &str,
        body: &B,
    ) -> Result<T, ApiError> {
        let response = self.send(json_request(Method::PATCH, path, body)?).await?;
        answer(response).await
    }

    /// Sends a stream and reads a JSON answer.
    pub async fn upload<T: DeserializeOwned>(
        &mut self,
        method: Method,
        path: &str,
        body: Body,
    ) -> Result<T, ApiError> {
        let response = self.send(request(method, path, body)?).await?;
        answer(response).await
    }

    /// Returns the body of a response as a stream.
    pub async fn download(&mut self, path: &str) -> Result<Incoming, ApiError> {
        Ok(self.send(request(Method::GET, path, empty())?).await?.into_body())
    }

    /// Sends JSON with a `POST` and returns the body of the response as a stream.
    pub async fn post_and_read<B: Serialize>(&mut self, path: &str, body: &B) -> Result<Incoming, ApiError> {
        Ok(self.send(json_request(Method::POST, path, body)?).await?.into_body())
    }

    /// Starts a long operation with a `POST` and shows its progress until the result.
    pub async fn work<B: Serialize, T: DeserializeOwned>(
        &mut self,
        path: &str,
        body: &B,
        meter: &mut dyn ShowProgress,
    ) -> Result<T, ApiError> {
        let response = self.send(json_request(Method::POST, path, body)?).await?;
        let result = answer_lines::result(response.into_body(), meter).await;
        meter.clear();
        result
    }

    /// Starts a long operation with a `GET` and shows its progress until the result.
    pub async fn ask<T: DeserializeOwned>(
        &mut self,
        path: &str,
        meter: &mut dyn ShowProgress,
    ) -> Result<T, ApiError> {
        let body = self.download(path).await?;
        let result = answer_lines::result(body, meter).await;
        meter.clear();
        result
    }

    /// Turns the connection into a stream of frames; the next request opens another connection. Input with an id
    /// continues where it was cut.
    pub async fn attach<B: Serialize>(
        &mut self,
        path: &str,
        body: Option<&B>,
        input: Option<InputId>,
    ) -> Result<Attached, ApiError> {
        let mut request = match body {
            Some(body) => json_request(Method::POST, path, body)?,
            None => request(Method::POST, path, empty())?,
        };
        if let Some(Ok(value)) = input.map(|id| id.to_string().try_into()) {
            request.headers_mut().insert(INPUT, value);
        }
        let switched = self.switch(request, frame::UPGRADE).await?;
        let received = switched.headers.get(INPUT).and_then(|value| value.to_str().ok()?.parse().ok());
        Ok(Attached { frames: FrameReader::new(switched.stream, &switched.early), received })
    }

    /// Turns the connection into one TCP connection to a port of a bay; the next request opens another connection.
    /// Returns the stream, and what was already read from it. The crate `bay-tunnel` describes the bytes.
    pub async fn tcp(&mut self, path: &str) -> Result<(UnixStream, Bytes), ApiError> {
        let switched = self.switch(request(Method::POST, path, empty())?, forward::UPGRADE).await?;
        Ok((switched.stream, switched.early))
    }

    /// Sends a request that turns the connection into another protocol.
    async fn switch(
        &mut self,
        mut request: Request<Body>,
        token: &'static str,
    ) -> Result<Switched, ApiError> {
        let headers = request.headers_mut();
        headers.insert(CONNECTION, http::HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE_HEADER, http::HeaderValue::from_static(token));
        let response = self.send(request).await?;
        self.connection = None;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Err(broken("the daemon did not open a stream"));
        }
        let headers = response.headers().clone();
        let upgraded = hyper::upgrade::on(response).await.map_err(|e| unreachable(&e))?;
        let parts = upgraded
            .downcast::<TokioIo<UnixStream>>()
            .map_err(|_| broken("the stream is of an unknown kind"))?;
        Ok(Switched { headers, stream: parts.io.into_inner(), early: parts.read_buf })
    }
}

fn request(method: Method, path: &str, body: Body) -> Result<Request<Body>, ApiError> {
    Request::builder()
        .method(method)
        .uri(path)
        // HTTP/1.1 requires a host; a unix socket has no name.
        .header(http::header::HOST, "bay")
        .body(body)
        .map_err(|error| ApiError::internal(&error))
}

fn json_request<B: Serialize>(method: Method, path: &str, body: &B) -> Result<Request<Body>, ApiError> {
    let bytes = serde_json::to_vec(body).map_err(|error| ApiError::internal(&error))?;
    let mut request = request(method, path, body::full(bytes))?;
    request.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
    Ok(request)
}

async fn collect(body: Incoming, limit: usize) -> Result<Bytes, ApiError> {
    match Limited::new(body, limit).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) => Err(unreachable(error.as_ref())),
    }
}

async fn answer<T: DeserializeOwned>(response: Response<Incoming>) -> Result<T, ApiError> {
    let bytes = collect(response.into_body(), MAX_ANSWER).await?;
    // An empty response is parsed as `null`, which `()` accepts.
    let text: &[u8] = if bytes.is_empty() { b"null" } else { &bytes };
    serde_json::from_slice(text).map_err(|error| {
        ApiError::new(
            ErrorCode::Internal,
            format!("the daemon's answer is not what this version expects: {error}"),
            "the daemon may be of another version: compare `bay --version` with the daemon's",
        )
    })
}

async fn refusal(status: StatusCode, response: Response<Incoming>) -> ApiError {
    const MAX_REFUSAL: usize = 1 << 20;
    let bytes = match collect(response.into_body(), MAX_REFUSAL).await {
        Ok(bytes) => bytes,
        Err(error) => return error,
    };
    serde_json::from_slice(&bytes).unwrap_or_else(|_| {
        let code = match status {
            StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => ErrorCode::InvalidInput,
            StatusCode::SERVICE_UNAVAILABLE => ErrorCode::Interrupted,
            _ => ErrorCode::Internal,
        };
        ApiError::new(
            code,
            format!("the daemon answered {status} without saying why"),
            "the daemon may be of another version, or its log has the details",
        )
    })
}

fn no_daemon(socket: &Path, error: &io::Error) -> ApiError {
    let socket = socket.display();
    if error.kind() == io::ErrorKind::PermissionDenied && !rustix::process::geteuid().is_root() {
        return ApiError::new(
            ErrorCode::NotRoot,
            format!("the daemon's socket {socket} is not open to this user"),
            "run the same command with sudo, or join the group `workbay` if this host has it",
        );
    }
    ApiError::new(
        ErrorCode::DaemonUnreachable,
        format!("no daemon answers at {socket}: {error}"),
        "start one with `bay serve`, or check --data-dir and BAY_SOCKET",
    )
}

/// The path of a bay, or of a resource below it.
#[must_use]
pub fn bay_path(bay: &str, rest: &str) -> String {
    format!("/v1/bays/{}{rest}", segment(bay))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixListener;

    use super::*;

    /// Starts to listen, and answers every connection's first request with `true`.
    #[derive(Debug, Default)]
    struct Starter(AtomicUsize);

    #[async_trait]
    impl StartDaemon for Starter {
        async fn start(&self, socket: &Path) -> Result<UnixStream, ApiError> {
            self.0.fetch_add(1, Ordering::Relaxed);
            let failed = |error: io::Error| local("listening", &error);
            let listener = UnixListener::bind(socket).map_err(failed)?;
            tokio::spawn(async move {
                while let Ok((mut stream, _)) = listener.accept().await {
                    let mut head = [0; 1024];
                    let _ = stream.read(&mut head).await;
                    let _ = stream
                        .write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 4\r\n\r\ntrue")
                        .await;
                }
            });
            UnixStream::connect(socket).await.map_err(failed)
        }
    }

    #[tokio::test]
    async fn a_daemon_is_started_once_and_only_by_a_client_that_may() {
        let dir = tempfile::tempdir().unwrap();
        let starter = Arc::new(Starter::default());
        let started = || starter.0.load(Ordering::Relaxed);
        let starts: Arc<dyn StartDaemon> = starter.clone();
        let endpoint = Endpoint { starter: Some(starts), ..Endpoint::at(dir.path().join("bay.sock")) };
        let mut client = Client::new(endpoint);
        let error = client.another_without_starting().get::<bool>("/v1/health").await.unwrap_err();
        assert_eq!((error.code, started()), (ErrorCode::DaemonUnreachable, 0), "{error:?}");
        assert!(!client.connected());
        assert!(client.get::<bool>("/v1/health").await.unwrap());
        assert!(client.connected());
        assert!(client.another().get::<bool>("/v1/health").await.unwrap());
        assert!(client.another_without_starting().get::<bool>("/v1/health").await.unwrap());
        assert_eq!(started(), 1);
    }

    #[tokio::test]
    async fn a_socket_path_that_is_too_long_is_refused_with_a_remedy() {
        let socket = format!("/tmp/{}/bay.sock", "d".repeat(MAX_SOCKET_PATH));
        let error = Client::new(Endpoint::at(socket)).get::<bool>("/").await.unwrap_err();
        assert_eq!(error.code, ErrorCode::InvalidInput);
        assert!(error.next.contains("--data-dir"), "{error:?}");
    }
}
