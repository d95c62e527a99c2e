//! Bodies, queries and answers over HTTP.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bay_text::percent;
use bay_types::{ApiError, ErrorCode};
use bytes::Bytes;
use http::{Request, Response, StatusCode, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Frame, Incoming, SizeHint};
use hyper_util::rt::TokioTimer;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;

/// Longest JSON body: a command with its arguments, where JSON may need six bytes for one.
const MAX_JSON_BODY: usize = 7 << 20;
/// Longest value in a query: as long as a path may be in the kernel.
const MAX_PATH: usize = 4096;

/// Pause after an `accept` that failed, for example for lack of descriptors or memory.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
const MAX_HEADERS: usize = 64;
/// Size of a connection's buffer; also the longest head of a request.
const CONNECTION_BUFFER: usize = 256 << 10;

/// The settings for connections to the guest's socket and to `standalone`. The bay's own processes have others, in
/// `ctl`.
pub(crate) fn connection(head_timeout: Option<Duration>) -> hyper::server::conn::http1::Builder {
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(head_timeout)
        .max_headers(MAX_HEADERS)
        .max_buf_size(CONNECTION_BUFFER)
        .auto_date_header(false);
    builder
}

/// The body of an answer: complete, or produced while it is sent.
#[derive(Debug)]
pub(crate) enum Body {
    Whole(Option<Bytes>),
    /// The body ends when the sender is dropped. An error closes the connection, so that the reader notices.
    Stream {
        from: mpsc::Receiver<io::Result<Bytes>>,
        /// Remaining length, if the whole length is known.
        left: Option<u64>,
    },
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        match self.get_mut() {
            Body::Whole(bytes) => {
                Poll::Ready(bytes.take().filter(|b| !b.is_empty()).map(|b| Ok(Frame::data(b))))
            }
            Body::Stream { from, left } => from.poll_recv(context).map(|next| match next {
                Some(Ok(bytes)) => {
                    if let Some(left) = left {
                        *left = left.saturating_sub(bytes.len() as u64);
                    }
                    Some(Ok(Frame::data(bytes)))
                }
                Some(Err(error)) => Some(Err(error)),
                None => None,
            }),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Body::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |b| b.len() as u64)),
            Body::Stream { left: Some(left), .. } => SizeHint::with_exact(*left),
            Body::Stream { left: None, .. } => SizeHint::default(),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Body::Whole(bytes) => bytes.as_ref().is_none_or(Bytes::is_empty),
            Body::Stream { left, .. } => *left == Some(0),
        }
    }
}

pub(crate) type Answer = Result<Response<Body>, ApiError>;

pub(crate) fn json<T: Serialize>(status: StatusCode, value: &T) -> Response<Body> {
    let text = serde_json::to_vec(value).unwrap_or_default();
    let mut response = Response::new(Body::Whole(Some(text.into())));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
    response
}

pub(crate) fn empty(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::Whole(None));
    *response.status_mut() = status;
    response
}

pub(crate) fn stream(from: mpsc::Receiver<io::Result<Bytes>>, left: Option<u64>) -> Response<Body> {
    let mut response = Response::new(Body::Stream { from, left });
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, http::HeaderValue::from_static("application/octet-stream"));
    response
}

pub(crate) fn error(error: &ApiError) -> Response<Body> {
    let status = StatusCode::from_u16(error.code.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    json(status, error)
}

pub(crate) fn invalid(message: impl Into<String>) -> ApiError {
    ApiError::new(
        ErrorCode::InvalidInput,
        message,
        "correct the request; the guest protocol is described in bay-types",
    )
}

/// Reads a JSON body. None if the body is empty.
pub(crate) async fn read_json<T: DeserializeOwned>(body: Incoming) -> Result<Option<T>, ApiError> {
    read_json_within(body, MAX_JSON_BODY).await
}

async fn read_json_within<T: DeserializeOwned>(body: Incoming, most: usize) -> Result<Option<T>, ApiError> {
    let bytes = match Limited::new(body, most).collect().await {
        Ok(whole) => whole.to_bytes(),
        Err(e) if e.is::<LengthLimitError>() => {
            return Err(invalid(format!("the request body is longer than {most} bytes")));
        }
        Err(e) => return Err(invalid(format!("the request body could not be read: {e}"))),
    };
    if bytes.is_empty() {
        return Ok(None);
    }
    serde_json::from_slice(&bytes)
        .map(Some)
        .map_err(|e| invalid(format!("the request body is not understood: {e}")))
}

pub(crate) async fn require_json<T: DeserializeOwned>(body: Incoming) -> Result<T, ApiError> {
    require_json_within(body, MAX_JSON_BODY).await
}

/// Reads a JSON body of at most `most` bytes. An empty body is an error.
pub(crate) async fn require_json_within<T: DeserializeOwned>(
    body: Incoming,
    most: usize,
) -> Result<T, ApiError> {
    read_json_within(body, most).await?.ok_or_else(|| invalid("the request has no body"))
}

/// The query of a request.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Query(Vec<(String, Vec<u8>)>);

impl Query {
    pub(crate) fn of<B>(request: &Request<B>) -> Result<Self, ApiError> {
        Self::parse(request.uri().query().unwrap_or(""))
    }

    /// Parses a query in the encoding of HTML forms, where `+` is a space.
    pub(crate) fn of_form(text: &str) -> Result<Self, ApiError> {
        Self::parse(&text.replace('+', "%20"))
    }

    fn parse(text: &str) -> Result<Self, ApiError> {
        let mut pairs = Vec::new();
        for part in text.split('&').filter(|p| !p.is_empty()) {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            let value = percent::decode(value)
                .ok_or_else(|| invalid(format!("the value of {key}= is not percent-encoded")))?;
            if value.len() > MAX_PATH {
                return Err(invalid(format!("the value of {key}= is longer than {MAX_PATH} bytes")));
            }
            if value.contains(&0) {
                return Err(invalid(format!("the value of {key}= contains a NUL")));
            }
            pairs.push((key.to_owned(), value));
        }
        Ok(Self(pairs))
    }

    fn get(&self, key: &str) -> Option<&[u8]> {
        self.0.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_slice())
    }

    pub(crate) fn path(&self) -> Result<&[u8], ApiError> {
        self.get("path").filter(|p| !p.is_empty()).ok_or_else(|| invalid("path= is missing"))
    }

    pub(crate) fn text(&self, key: &str) -> Result<Option<&str>, ApiError> {
        let text = |value| std::str::from_utf8(value).map_err(|_| invalid(format!("{key}= is not UTF-8")));
        self.get(key).map(text).transpose()
    }

    pub(crate) fn number(&self, key: &str, radix: u32) -> Result<Option<u64>, ApiError> {
        let parse = |text| {
            u64::from_str_radix(text, radix).map_err(|_| invalid(format!("{key}={text} is not a number")))
        };
        self.text(key)?.map(parse).transpose()
    }

    pub(crate) fn flag(&self, key: &str) -> Result<bool, ApiError> {
        match self.get(key) {
            None | Some(b"false" | b"0") => Ok(false),
            Some(b"true" | b"1" | b"") => Ok(true),
            Some(_) => Err(invalid(format!("{key}= must be true or false"))),
        }
    }
}

#[cfg(fuzzing)]
pub(crate) fn fuzz_query(text: &str, key: &str) -> Option<Option<Vec<u8>>> {
    let query = Query::parse(text).ok()?;
    let _ = (query.path(), query.text(key), query.number(key, 10), query.number(key, 8), query.flag(key));
    let _ = Query::of_form(text);
    Some(query.get(key).map(<[u8]>::to_vec))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_path_survives_a_query() {
        let every: Vec<u8> = (1..=255).collect();
        let query = Query::parse(&format!("a=1&path={}&b", percent::path_value(&every))).unwrap();
        assert_eq!(query.path().unwrap(), every);
        assert_eq!(query.number("a", 8).unwrap(), Some(1));
        assert!(query.flag("b").unwrap());
        assert_eq!(Query::parse("path=a+b").unwrap().path().unwrap(), b"a+b");
        assert_eq!(Query::of_form("path=a+b%2B").unwrap().path().unwrap(), b"a b+");
    }

    #[test]
    fn broken_queries_are_refused() {
        for text in ["path=%", "path=%g0", "path=%0", "path=a%00b"] {
            assert_eq!(Query::parse(text).unwrap_err().code, ErrorCode::InvalidInput, "{text}");
        }
        assert!(Query::parse("path=").unwrap().path().is_err());
        assert!(Query::parse("x=y").unwrap().flag("x").is_err());
    }
}
