//! Speaking to the daemon: HTTP/1.1 over its unix socket, one connection kept for the life of the process.
//!
//! Nothing is sent before the request itself: a missing daemon is noticed by the connection failing, and only then
//! started. What comes back passed through the daemon but may hold text from a bay, so every body is bounded.

mod body;
mod daemon;
mod frames;
mod news;
pub(crate) mod paused;

use std::path::PathBuf;

use bay_text::percent::segment;
use bay_types::frame::{INPUT, UPGRADE};
use bay_types::trace::{TRACEPARENT, Traceparent};
use bay_types::{ApiError, ErrorCode, InputId};
use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_TYPE, UPGRADE as UPGRADE_HEADER};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;

pub(crate) use body::{Body, empty, from_channel, from_reader, from_stdin};
pub(crate) use frames::FrameReader;
pub(crate) use news::lines;

/// The longest JSON answer that is read: thousands of bays and execs fit many times over.
const MAX_ANSWER: usize = 64 << 20;
/// The longest path of a unix socket the kernel takes.
const MAX_SOCKET_PATH: usize = 107;

/// Where a daemon lives.
#[derive(Debug, Clone)]
pub(crate) struct Home {
    pub(crate) data_dir: PathBuf,
    pub(crate) pool: PathBuf,
    pub(crate) socket: PathBuf,
    /// Start a daemon when none answers.
    pub(crate) autostart: bool,
    /// Say nothing while that happens.
    pub(crate) quiet: bool,
    /// The trace the caller is in; everything that is asked for belongs to it.
    pub(crate) traceparent: Option<Traceparent>,
}

/// Frames both ways with one exec.
#[derive(Debug)]
pub(crate) struct Attached {
    pub(crate) frames: FrameReader<UnixStream>,
    /// Bytes of the named input that the guest has received so far. Absent if the daemon or the guest is of an earlier
    /// release: input has no offsets then.
    pub(crate) received: Option<u64>,
}

#[derive(Debug)]
pub(crate) struct Client {
    home: Home,
    connection: Option<SendRequest<Body>>,
    connected: bool,
}

impl Client {
    pub(crate) fn new(home: Home) -> Self {
        Self { home, connection: None, connected: false }
    }

    /// Whether a daemon was reached at all: what failed afterwards can be worth repeating.
    pub(crate) fn connected(&self) -> bool {
        self.connected
    }

    /// Another client of the same daemon with a connection of its own.
    pub(crate) fn another(&self) -> Self {
        Self::new(self.home.clone())
    }

    /// The same, that never starts a daemon: for coming back to one that is restarting.
    pub(crate) fn another_without_starting(&self) -> Self {
        Self::new(Home { autostart: false, ..self.home.clone() })
    }

    async fn connect(&self) -> Result<UnixStream, ApiError> {
        let socket = &self.home.socket;
        if socket.as_os_str().len() > MAX_SOCKET_PATH {
            return Err(crate::failure::invalid(
                format!("the daemon's socket {} is longer than {MAX_SOCKET_PATH} bytes", socket.display()),
                "choose a shorter --data-dir, or set BAY_SOCKET to a shorter path",
            ));
        }
        match UnixStream::connect(socket).await {
            Ok(stream) => Ok(stream),
            Err(error) => daemon::start_after(&self.home, error).await,
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

    /// Sends one request; an answer that is no success becomes the error it carries.
    pub(crate) async fn send(&mut self, mut request: Request<Body>) -> Result<Response<Incoming>, ApiError> {
        if let Some(Ok(value)) = self.home.traceparent.map(|at| at.to_string().try_into()) {
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

    pub(crate) async fn get<T: DeserializeOwned>(&mut self, path: &str) -> Result<T, ApiError> {
        let response = self.send(request(Method::GET, path, empty())?).await?;
        answer(response).await
    }

    pub(crate) async fn delete<T: DeserializeOwned>(&mut self, path: &str) -> Result<T, ApiError> {
        let response = self.send(request(Method::DELETE, path, empty())?).await?;
        answer(response).await
    }

    pub(crate) async fn post<B: Serialize, T: DeserializeOwned>(
        &mut self,
        path: &str,
        body: &B,
    ) -> Result<T, ApiError> {
        let response = self.send(json_request(Method::POST, path, body)?).await?;
        answer(response).await
    }

    pub(crate) async fn put<B: Serialize, T: DeserializeOwned>(
        &mut self,
        path: &str,
        body: &B,
    ) -> Result<T, ApiError> {
        let response = self.send(json_request(Method::PUT, path, body)?).await?;
        answer(response).await
    }

    pub(crate) async fn patch<B: Serialize, T: DeserializeOwned>(
        &mut self,
        path: &str,
        body: &B,
    ) -> Result<T, ApiError> {
        let response = self.send(json_request(Method::PATCH, path, body)?).await?;
        answer(response).await
    }

    /// Sends a stream and reads a JSON answer.
    pub(crate) async fn upload<T: DeserializeOwned>(
        &mut self,
        method: Method,
        path: &str,
        body: Body,
    ) -> Result<T, ApiError> {
        let response = self.send(request(method, path, body)?).await?;
        answer(response).await
    }

    /// The body of an answer as it comes.
    pub(crate) async fn download(&mut self, path: &str) -> Result<Incoming, ApiError> {
        Ok(self.send(request(Method::GET, path, empty())?).await?.into_body())
    }

    /// Long work: progress as it comes, then the result.
    pub(crate) async fn work<B: Serialize, T: DeserializeOwned>(
        &mut self,
        path: &str,
        body: &B,
        meter: &mut crate::output::progress::Meter,
    ) -> Result<T, ApiError> {
        let response = self.send(json_request(Method::POST, path, body)?).await?;
        let result = news::result(response.into_body(), meter).await;
        meter.clear();
        result
    }

    /// The same for work that is only asked for.
    pub(crate) async fn ask<T: DeserializeOwned>(
        &mut self,
        path: &str,
        meter: &mut crate::output::progress::Meter,
    ) -> Result<T, ApiError> {
        let body = self.download(path).await?;
        let result = news::result(body, meter).await;
        meter.clear();
        result
    }

    /// Turns the connection into frames. It is used up afterwards. Input that has a name goes on where it was cut.
    pub(crate) async fn attach<B: Serialize>(
        &mut self,
        path: &str,
        body: Option<&B>,
        input: Option<InputId>,
    ) -> Result<Attached, ApiError> {
        let mut request = match body {
            Some(body) => json_request(Method::POST, path, body)?,
            None => request(Method::POST, path, empty())?,
        };
        let headers = request.headers_mut();
        headers.insert(CONNECTION, http::HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE_HEADER, http::HeaderValue::from_static(UPGRADE));
        if let Some(Ok(value)) = input.map(|id| id.to_string().try_into()) {
            headers.insert(INPUT, value);
        }
        let response = self.send(request).await?;
        self.connection = None;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Err(broken("the daemon did not open a stream"));
        }
        let received = response.headers().get(INPUT).and_then(|value| value.to_str().ok()?.parse().ok());
        let upgraded = hyper::upgrade::on(response).await.map_err(|e| unreachable(&e))?;
        let parts = upgraded
            .downcast::<TokioIo<UnixStream>>()
            .map_err(|_| broken("the stream is of an unknown kind"))?;
        Ok(Attached { frames: FrameReader::new(parts.io.into_inner(), &parts.read_buf), received })
    }
}

fn request(method: Method, path: &str, body: Body) -> Result<Request<Body>, ApiError> {
    Request::builder()
        .method(method)
        .uri(path)
        // HTTP/1.1 wants one; a unix socket has no name.
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
    // An empty answer reads as `null`, which is what `()` wants.
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

fn unreachable(error: &(dyn std::error::Error + 'static)) -> ApiError {
    broken(&format!("the connection broke: {}", bay_types::error::chain(error)))
}

pub(crate) fn broken(why: &str) -> ApiError {
    ApiError::new(
        ErrorCode::DaemonUnreachable,
        format!("talking to the daemon: {why}"),
        "run the command again; what was acknowledged is kept",
    )
}

/// `/v1/bays/{bay}` and what is below it.
pub(crate) fn bay_path(bay: &str, rest: &str) -> String {
    format!("/v1/bays/{}{rest}", segment(bay))
}
