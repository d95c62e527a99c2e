//! The daemon's side of the guest protocol.
//!
//! The daemon trusts nothing that a guest sends. A plain answer has a longest length and a deadline. A stream has
//! a deadline for its beginning only, and an upload has none. Error texts are clipped and made safe to display. So
//! a guest that lies makes its own bay look odd, and no other.
//!
//! Plain requests share a few warm connections. If a warm connection fails, the channel tries the next one, and
//! finally a fresh one: every plain request and upgrade of the protocol may be repeated. Streams open a connection
//! of their own. An upgrade keeps a warm or a fresh one.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bay_backend::Backend;
use bay_text::foreign;
use bay_types::frame::INPUT;
use bay_types::{Action, ApiError, BayId, CoreError, ErrorCode, Hint, HintBay, InputId};
use bay_types::{forward, frame};
use bytes::Bytes;
use futures_util::TryStreamExt;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use tokio::sync::{OwnedRwLockWriteGuard, RwLock, watch};

use crate::byte_stream::{self, ByteStream, StreamError};
use crate::guest_connection::GuestConnection;
use crate::guest_hints;

/// How long a guest may take to accept a connection.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// How long the making of a connection waits while none is allowed. A plain request may give up earlier.
const GATE_WITHIN: Duration = Duration::from_secs(60);
/// How long a guest may take to answer a plain request, unless the caller sets another deadline, and to begin a
/// stream.
pub(crate) const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// Longest answer to a plain request: the status of one exec, with its arguments escaped in the worst way.
const MAX_ANSWER: usize = 8 << 20;
/// Longest answer to an upload.
const MAX_WRITE_ANSWER: usize = 64 * 1024;
/// Longest error body.
const MAX_ERROR: usize = 64 * 1024;
/// Characters of a guest's error text that are passed on.
const MAX_ERROR_TEXT: usize = 1000;
/// Longest head (status line and headers) of an answer, and how much hyper reads at once.
const READ_BUFFER: usize = 256 * 1024;
/// Warm connections kept per bay.
const MAX_IDLE: usize = 4;

/// A body that is sent to a guest.
type Body = UnsyncBoxBody<Bytes, StreamError>;

type Sender = SendRequest<Body>;

fn body_of(bytes: Bytes) -> Body {
    Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
}

/// An answer of any length.
pub struct Answer {
    /// Its length, if the guest reported it.
    pub length: Option<u64>,
    pub bytes: ByteStream,
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer").field("length", &self.length).finish_non_exhaustive()
    }
}

/// The channel to one bay's guest.
pub(crate) struct GuestChannel {
    backend: Arc<dyn Backend>,
    bay: BayId,
    idle: Mutex<Vec<Sender>>,
    /// Locked for reading while a connection is made, and for writing while none is allowed.
    gate: Arc<RwLock<()>>,
    /// How many times all connections were cut.
    cuts: watch::Sender<u64>,
}

/// While this exists, nobody is connected to the guest.
pub(crate) type Closed = OwnedRwLockWriteGuard<()>;

impl fmt::Debug for GuestChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuestChannel").field("bay", &self.bay).finish_non_exhaustive()
    }
}

/// A request that may be repeated.
#[derive(Clone)]
struct Repeatable<'a> {
    method: Method,
    path: &'a str,
    body: Bytes,
    upgrade: Option<Upgrade>,
}

/// What the guest is asked to turn a connection into.
#[derive(Debug, Clone, Copy)]
enum Upgrade {
    /// Frames of an exec. `input` is the id that the client gave its input.
    Frames { input: Option<InputId> },
    /// A TCP connection in the bay.
    Tcp,
}

impl Upgrade {
    fn token(self) -> &'static str {
        match self {
            Self::Frames { .. } => frame::UPGRADE,
            Self::Tcp => forward::UPGRADE,
        }
    }
}

/// A bidirectional stream of frames to one exec.
#[derive(Debug)]
pub(crate) struct FrameStream {
    pub(crate) upgraded: Upgraded,
    /// Number of input bytes that the guest received on earlier connections. Absent if the client did not ask, or the
    /// guest is of an earlier release.
    pub(crate) received: Option<u64>,
}

impl Repeatable<'_> {
    fn request(&self) -> Result<Request<Body>, CoreError> {
        let mut builder = Request::builder()
            .method(self.method.clone())
            .uri(self.path)
            .header(header::HOST, "guest")
            .header(header::CONTENT_LENGTH, self.body.len());
        if let Some(upgrade) = self.upgrade {
            builder = builder.header(header::CONNECTION, "Upgrade").header(header::UPGRADE, upgrade.token());
            if let Upgrade::Frames { input: Some(input) } = upgrade {
                builder = builder.header(INPUT, input.to_string());
            }
        }
        builder.body(body_of(self.body.clone())).map_err(|e| CoreError::internal(&e))
    }
}

impl GuestChannel {
    pub(crate) fn new(backend: Arc<dyn Backend>, bay: BayId) -> Self {
        Self { backend, bay, idle: Mutex::default(), gate: Arc::default(), cuts: watch::Sender::new(0) }
    }

    /// Drops warm connections, because the guest behind them is gone.
    pub(crate) fn reset(&self) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Ends every connection, and delays new ones until the returned guard is dropped. Plain requests and upgrades
    /// that were under way are repeated then. Streams end, and their readers must connect again.
    pub(crate) async fn close(&self) -> Closed {
        let closed = Arc::clone(&self.gate).write_owned().await;
        self.cuts.send_modify(|count| *count += 1);
        self.reset();
        closed
    }

    /// Sends a plain request and parses the JSON answer.
    pub(crate) async fn json<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        within: Duration,
    ) -> Result<T, CoreError> {
        let bytes = self.bytes(method, path, body, within).await?;
        serde_json::from_slice(&bytes)
            .map_err(|e| self.odd(&format!("its answer to {path} cannot be parsed: {e}")))
    }

    /// Sends a plain request and reads the whole answer.
    pub(crate) async fn bytes(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        within: Duration,
    ) -> Result<Bytes, CoreError> {
        let plain = Repeatable { method, path, body, upgrade: None };
        let cuts = *self.cuts.borrow();
        let exchanged = tokio::time::timeout(within, self.exchange(&plain)).await;
        if !matches!(exchanged, Ok(Ok(_))) && *self.cuts.borrow() != cuts {
            // Connections were cut by the daemon, not by the guest. Every plain request may be repeated.
            drop(self.gate.read().await);
            let again = tokio::time::timeout(within, self.exchange(&plain)).await;
            return again.map_err(|_| self.silent(path, within))?;
        }
        exchanged.map_err(|_| self.silent(path, within))?
    }

    async fn exchange(&self, plain: &Repeatable<'_>) -> Result<Bytes, CoreError> {
        let (response, sender) = self.send(plain).await?;
        let (parts, body) = response.into_parts();
        if !parts.status.is_success() {
            return Err(self.refusal(parts.status, body).await);
        }
        let bytes = Limited::new(body, MAX_ANSWER)
            .collect()
            .await
            .map_err(|e| self.odd(&format!("its answer to {} broke off: {e}", plain.path)))?
            .to_bytes();
        self.keep(sender);
        Ok(bytes)
    }

    /// Sends over a warm connection. If all of them fail, sends over a fresh one.
    async fn send(&self, plain: &Repeatable<'_>) -> Result<(Response<Incoming>, Sender), CoreError> {
        while let Some(mut sender) = self.warm() {
            if let Ok(response) = sender.send_request(plain.request()?).await {
                return Ok((response, sender));
            }
        }
        let mut sender = self.connect().await?;
        let response = sender
            .send_request(plain.request()?)
            .await
            .map_err(|e| self.unreachable(&bay_types::error::chain(&e)))?;
        Ok((response, sender))
    }

    fn warm(&self) -> Option<Sender> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(sender) = idle.pop() {
            if sender.is_ready() {
                return Some(sender);
            }
        }
        None
    }

    fn keep(&self, sender: Sender) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if !sender.is_closed() && idle.len() < MAX_IDLE {
            idle.push(sender);
        }
    }

    async fn connect(&self) -> Result<Sender, CoreError> {
        let _open = tokio::time::timeout(GATE_WITHIN, self.gate.read()).await.map_err(|_| {
            let within = GATE_WITHIN.as_secs();
            self.unreachable(&format!("the bay's memory was still being captured after {within} s"))
        })?;
        let stream = tokio::time::timeout(CONNECT_WITHIN, self.backend.connect(self.bay))
            .await
            .map_err(|_| {
                let within = CONNECT_WITHIN.as_secs();
                self.unreachable(&format!("it accepted no connection within {within} s"))
            })?
            .map_err(|e| self.unreachable(&e.to_string()))?;
        let (sender, connection) = http1::Builder::new()
            .max_buf_size(READ_BUFFER)
            .handshake(TokioIo::new(GuestConnection::new(stream, self.cuts.subscribe())))
            .await
            .map_err(|e| self.unreachable(&bay_types::error::chain(&e)))?;
        // The task ends with the connection: when the guest ends, or when the sender is dropped.
        tokio::spawn(async move {
            let _ = connection.with_upgrades().await;
        });
        Ok(sender)
    }

    /// Requests an answer of any length, on a connection of its own. The deadline is for the answer's head. The bytes
    /// come at the guest's pace, and end when the reader is dropped.
    pub(crate) async fn read(&self, path: &str) -> Result<Answer, CoreError> {
        let request = Request::get(path).body(body_of(Bytes::new())).map_err(|e| CoreError::internal(&e))?;
        let response = self.stream(request, Some(ANSWER_WITHIN)).await?;
        let length = response.headers().get(header::CONTENT_LENGTH);
        let length = length.and_then(|value| value.to_str().ok()?.parse().ok());
        Ok(Answer { length, bytes: byte_stream::body(response.into_body()) })
    }

    /// Sends bytes of any length, on a connection of its own, and returns the answer. There is no deadline for the
    /// answer's head: it comes after the last byte, and the sender sets the pace. If the answer is incomplete, it is
    /// returned empty.
    pub(crate) async fn write(
        &self,
        path: &str,
        length: Option<u64>,
        bytes: ByteStream,
    ) -> Result<Bytes, CoreError> {
        let body = StreamBody::new(bytes.map_ok(Frame::data)).boxed_unsync();
        let mut request = Request::put(path).body(body).map_err(|e| CoreError::internal(&e))?;
        if let Some(length) = length {
            request.headers_mut().insert(header::CONTENT_LENGTH, length.into());
        }
        let response = self.stream(request, None).await?;
        let rest = Limited::new(response.into_body(), MAX_WRITE_ANSWER).collect();
        let rest = tokio::time::timeout(ANSWER_WITHIN, rest).await;
        Ok(rest.ok().and_then(Result::ok).map(|body| body.to_bytes()).unwrap_or_default())
    }

    async fn stream(
        &self,
        mut request: Request<Body>,
        head_within: Option<Duration>,
    ) -> Result<Response<Incoming>, CoreError> {
        request.headers_mut().insert(header::HOST, http::HeaderValue::from_static("guest"));
        let path = request.uri().path().to_owned();
        let mut sender = self.connect().await?;
        let sent = sender.send_request(request);
        let response = match head_within {
            Some(within) => {
                tokio::time::timeout(within, sent).await.map_err(|_| self.silent(&path, within))?
            }
            None => sent.await,
        };
        let response = response.map_err(|e| self.unreachable(&bay_types::error::chain(&e)))?;
        if response.status().is_success() {
            return Ok(response);
        }
        let (parts, body) = response.into_parts();
        Err(self.refusal(parts.status, body).await)
    }

    /// Turns a connection into one TCP connection to a port of the bay.
    pub(crate) async fn tcp(&self, port: u16) -> Result<Upgraded, CoreError> {
        let path = format!("/v1/tcp/{port}");
        let plain =
            Repeatable { method: Method::POST, path: &path, body: Bytes::new(), upgrade: Some(Upgrade::Tcp) };
        Ok(self.upgraded(&plain).await?.upgraded)
    }

    /// Turns a connection into a stream of frames. `input` is the id that the client gave its input.
    pub(crate) async fn upgrade(
        &self,
        path: &str,
        body: Bytes,
        input: Option<InputId>,
    ) -> Result<FrameStream, CoreError> {
        // If the exec has already started, the guest finds it by its id, so the request may be repeated.
        let upgrade = Some(Upgrade::Frames { input });
        self.upgraded(&Repeatable { method: Method::POST, path, body, upgrade }).await
    }

    async fn upgraded(&self, plain: &Repeatable<'_>) -> Result<FrameStream, CoreError> {
        let cuts = *self.cuts.borrow();
        let upgraded = self.upgrade_once(plain).await;
        if upgraded.is_err() && *self.cuts.borrow() != cuts {
            drop(self.gate.read().await);
            return self.upgrade_once(plain).await;
        }
        upgraded
    }

    async fn upgrade_once(&self, plain: &Repeatable<'_>) -> Result<FrameStream, CoreError> {
        let path = plain.path;
        let sent = tokio::time::timeout(ANSWER_WITHIN, self.send(plain));
        let (response, _sender) = sent.await.map_err(|_| self.silent(path, ANSWER_WITHIN))??;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            let (parts, body) = response.into_parts();
            return Err(self.refusal(parts.status, body).await);
        }
        let received = response.headers().get(INPUT).and_then(|value| value.to_str().ok()?.parse().ok());
        let upgraded = tokio::time::timeout(ANSWER_WITHIN, hyper::upgrade::on(response))
            .await
            .map_err(|_| self.silent(path, ANSWER_WITHIN))?
            .map_err(|e| self.unreachable(&bay_types::error::chain(&e)))?;
        Ok(FrameStream { upgraded, received })
    }

    /// The guest's error, made safe to show.
    async fn refusal(&self, status: StatusCode, body: Incoming) -> CoreError {
        let read = tokio::time::timeout(ANSWER_WITHIN, Limited::new(body, MAX_ERROR).collect()).await;
        let said = match read {
            Ok(Ok(collected)) => serde_json::from_slice::<ApiError>(&collected.to_bytes()).ok(),
            _ => None,
        };
        match said {
            Some(error) => CoreError::new(
                error.code,
                plain_text(&error.message),
                guest_hints::hint(error.code, &plain_text(&error.next)),
            ),
            None => self.odd(&format!("it answered {status} without saying why")),
        }
    }

    fn unreachable(&self, why: &str) -> CoreError {
        CoreError::new(
            ErrorCode::GuestUnreachable,
            format!("the guest of this bay cannot be reached: {why}"),
            Hint::new("{} shows its state", [Action::ShowBay(HintBay::OfRequest)]).and(new_guest()),
        )
    }

    fn silent(&self, path: &str, within: Duration) -> CoreError {
        self.unreachable(&format!("no answer to {path} within {} s", within.as_secs()))
    }

    fn odd(&self, why: &str) -> CoreError {
        // Parsers quote what they did not understand, and megabytes of it would fill the log.
        let why = plain_text(why);
        tracing::warn!(bay = %self.bay, why, "a guest broke the protocol");
        CoreError::new(
            ErrorCode::GuestUnreachable,
            format!("the guest of this bay violated the protocol: {why}"),
            new_guest(),
        )
    }
}

/// What to do about a guest that cannot be talked with.
pub(crate) fn new_guest() -> Hint {
    let bay = HintBay::OfRequest;
    Hint::new("{} and {} give it a new guest", [Action::StopBay(bay.clone()), Action::StartBay(bay)])
}

/// Text of unknown origin as a message quotes it: at most [`MAX_ERROR_TEXT`] characters and an ellipsis, safe to
/// display.
pub fn plain_text(text: &str) -> String {
    foreign::marked(text, MAX_ERROR_TEXT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_a_guest_cannot_move_the_cursor_or_fill_the_screen() {
        let text = plain_text(&format!("\x1b]52;c;x\x07\r{}", "y".repeat(5000)));
        assert!(!text.chars().any(char::is_control));
        assert_eq!(text.chars().count(), MAX_ERROR_TEXT + 1);
        assert_eq!(plain_text("a\u{2060}\u{e0041}\u{202e}b"), "a\\u{2060}\\u{e0041}\\u{202e}b");
    }
}
