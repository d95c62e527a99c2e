//! The Connect protocol over HTTP/1.1 with its JSON codec: single calls, and streams of enveloped messages.
//!
//! An envelope is a byte of flags, a big-endian `u32` length and that many bytes. The last one of an answer has the
//! flag [`END`] and contains `{}` or the error. Only what the published clients send is supported: no compression and
//! no binary messages.

use std::io;

use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderMap, Response, StatusCode, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::{DeserializeOwned, Deserializer};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio::time::{Duration, Instant};

use super::body::Arriving;
use super::fault::{Fault, Kind, Result};
use crate::http::{Body, json, stream};

/// Longest message that is read. Input for a command arrives in such messages, in base64.
pub(super) const MAX_MESSAGE: usize = 8 << 20;
/// Messages that wait for a slow client. Then the sender waits.
const QUEUE: usize = 4;
/// Time between keepalive messages on a quiet stream if the client names none.
const KEEPALIVE: Duration = Duration::from_secs(90);
/// The shortest time between keepalive messages that a client may ask for.
const LEAST_KEEPALIVE: Duration = Duration::from_secs(1);
/// Most digits of a timeout in the Connect protocol.
const TIMEOUT_DIGITS: usize = 10;

const HEADER_LEN: usize = 5;
const COMPRESSED: u8 = 1;
const END: u8 = 2;
const STREAM_TYPE: &str = "application/connect+json";

/// Reads the message of a single call. An empty body is an empty message.
pub(super) async fn read_call<T: DeserializeOwned>(headers: &HeaderMap, body: Arriving) -> Result<T> {
    let kind = content_type(headers);
    if kind != "application/json" {
        return Err(Fault::new(
            Kind::UnsupportedMedia,
            format!("the content type of a call is application/json, not {kind:?}"),
        ));
    }
    let coded = |v: &http::HeaderValue| v.as_bytes() != b"identity";
    if headers.get(header::CONTENT_ENCODING).is_some_and(coded) {
        return Err(Fault::new(Kind::Unimplemented, "compressed messages are not understood"));
    }
    parse(&collect(body).await?)
}

/// A whole body, up to the bound on a message.
pub(super) async fn collect(body: Arriving) -> Result<Bytes> {
    match Limited::new(body, MAX_MESSAGE).collect().await {
        Ok(whole) => Ok(whole.to_bytes()),
        Err(e) if e.is::<LengthLimitError>() => Err(too_long()),
        Err(e) => Err(Fault::new(Kind::Canceled, format!("the request could not be read: {e}"))),
    }
}

pub(super) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    let bytes = if bytes.is_empty() { b"{}" } else { bytes };
    serde_json::from_slice(bytes).map_err(|e| Fault::invalid(format!("the message is not understood: {e}")))
}

fn too_long() -> Fault {
    Fault::new(Kind::TooMany, format!("a message is longer than {MAX_MESSAGE} bytes"))
}

pub(super) fn answer<T: Serialize>(outcome: Result<T>) -> Response<Body> {
    match outcome {
        Ok(message) => json(StatusCode::OK, &message),
        Err(fault) => fault.to_call(),
    }
}

fn content_type(headers: &HeaderMap) -> &str {
    let value = headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or("");
    value.split(';').next().unwrap_or("").trim()
}

/// Refuses a request whose body is not a stream of envelopes.
pub(super) fn require_stream(headers: &HeaderMap) -> Result<()> {
    let kind = content_type(headers);
    if kind == STREAM_TYPE {
        return Ok(());
    }
    Err(Fault::new(
        Kind::UnsupportedMedia,
        format!("the content type of a stream is {STREAM_TYPE}, not {kind:?}"),
    ))
}

/// Messages of a request, as they arrive.
pub(super) struct Messages {
    body: Arriving,
    buffer: BytesMut,
    over: bool,
}

impl Messages {
    pub(super) fn of(body: Arriving) -> Self {
        Self { body, buffer: BytesMut::new(), over: false }
    }

    /// The next message. None when the client has ended the stream.
    pub(super) async fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>> {
        loop {
            if let Some(message) = take_envelope(&mut self.buffer)? {
                let Some(message) = message else {
                    self.over = true;
                    return Ok(None);
                };
                return parse(&message).map(Some);
            }
            if self.over {
                return match self.buffer.is_empty() {
                    true => Ok(None),
                    false => Err(Fault::invalid("the stream ends within a message")),
                };
            }
            match self.body.frame().await {
                None => self.over = true,
                Some(Ok(frame)) => {
                    if let Ok(bytes) = frame.into_data() {
                        self.buffer.extend_from_slice(&bytes);
                    }
                }
                Some(Err(e)) => {
                    return Err(Fault::new(Kind::Canceled, format!("the request could not be read: {e}")));
                }
            }
        }
    }

    /// The single message of a request whose answer is a stream.
    pub(super) async fn only<T: DeserializeOwned>(mut self) -> Result<T> {
        self.next().await?.ok_or_else(|| Fault::invalid("the request holds no message"))
    }
}

/// Takes one envelope from the front. None if more bytes are needed; `Some(None)` for the envelope that ends a stream.
pub(super) fn take_envelope(buffer: &mut BytesMut) -> Result<Option<Option<Bytes>>> {
    let Some(head) = buffer.first_chunk::<HEADER_LEN>() else {
        return Ok(None);
    };
    let flags = head[0];
    let len = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
    if flags & COMPRESSED != 0 {
        return Err(Fault::new(Kind::Unimplemented, "compressed messages are not understood"));
    }
    if flags & !END != 0 {
        return Err(Fault::invalid(format!("a message has unknown flags {flags:#04x}")));
    }
    if len > MAX_MESSAGE {
        return Err(too_long());
    }
    if buffer.len() < HEADER_LEN + len {
        return Ok(None);
    }
    buffer.advance(HEADER_LEN);
    let message = buffer.split_to(len).freeze();
    Ok(Some((flags & END == 0).then_some(message)))
}

/// Where the messages of an answer are sent.
#[derive(Debug, Clone)]
pub(super) struct Events(mpsc::Sender<io::Result<Bytes>>);

/// An answer that is a stream, and the sender for its messages.
pub(super) fn open_stream() -> (Events, Response<Body>) {
    let (sender, receiver) = mpsc::channel(QUEUE);
    let mut response = stream(receiver, None);
    response.headers_mut().insert(header::CONTENT_TYPE, http::HeaderValue::from_static(STREAM_TYPE));
    (Events(sender), response)
}

impl Events {
    /// Returns false if the client is gone.
    pub(super) async fn send<T: Serialize>(&self, message: &T) -> bool {
        self.0.send(Ok(envelope(0, message))).await.is_ok()
    }

    pub(super) async fn end(&self, outcome: Result<()>) {
        #[derive(Serialize)]
        struct End<'a> {
            #[serde(skip_serializing_if = "Option::is_none")]
            error: Option<super::fault::ConnectError<'a>>,
        }
        let end = End { error: outcome.as_ref().err().map(Fault::as_connect) };
        // If the client is gone, it needs no end.
        let _ = self.0.send(Ok(envelope(END, &end))).await;
    }

    pub(super) async fn closed(&self) {
        self.0.closed().await;
    }
}

/// A stream that contains only the error.
pub(super) fn refuse_stream(fault: &Fault) -> Response<Body> {
    if fault.kind == Kind::UnsupportedMedia {
        return fault.to_call();
    }
    let (events, response) = open_stream();
    let fault = fault.clone();
    tokio::spawn(async move { events.end(Err(fault)).await });
    response
}

fn envelope<T: Serialize>(flags: u8, message: &T) -> Bytes {
    let mut bytes = vec![flags, 0, 0, 0, 0];
    // Every message that is sent can be written as JSON.
    let _ = serde_json::to_writer(&mut bytes, message);
    let len = u32::try_from(bytes.len() - HEADER_LEN).unwrap_or(0).to_be_bytes();
    bytes[1..HEADER_LEN].copy_from_slice(&len);
    bytes.into()
}

/// When the call must be over, if the client says so.
pub(super) fn deadline(headers: &HeaderMap) -> Result<Option<Instant>> {
    let Some(value) = headers.get("connect-timeout-ms") else {
        return Ok(None);
    };
    let text = value.to_str().unwrap_or("");
    let number =
        (!text.is_empty() && text.len() <= TIMEOUT_DIGITS).then(|| text.parse::<u64>().ok()).flatten();
    let ms = number.ok_or_else(|| Fault::invalid(format!("Connect-Timeout-Ms is not a time: {text:?}")))?;
    Ok(Instant::now().checked_add(Duration::from_millis(ms)))
}

/// How often a keepalive message is sent on a quiet stream.
pub(super) fn keepalive(headers: &HeaderMap) -> Duration {
    let seconds = headers.get("keepalive-ping-interval").and_then(|v| v.to_str().ok()?.parse::<u32>().ok());
    seconds.map_or(KEEPALIVE, |s| Duration::from_secs(u64::from(s)).max(LEAST_KEEPALIVE))
}

/// In protobuf's JSON, an absent field, `null` and the default mean the same.
pub(super) fn lenient<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    from: D,
) -> std::result::Result<T, D::Error> {
    Ok(Option::<T>::deserialize(from)?.unwrap_or_default())
}

/// Bytes in protobuf's JSON: base64 of either alphabet, with or without padding.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Base64(pub(super) Vec<u8>);

impl<'de> Deserialize<'de> for Base64 {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        use base64::alphabet::{STANDARD, URL_SAFE};
        use base64::engine::{DecodePaddingMode, Engine, GeneralPurpose, GeneralPurposeConfig};
        let text = std::borrow::Cow::<'de, str>::deserialize(from)?;
        let alphabet = if text.contains(['-', '_']) { &URL_SAFE } else { &STANDARD };
        let config = GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
        GeneralPurpose::new(alphabet, config)
            .decode(text.as_bytes())
            .map(Self)
            .map_err(|e| serde::de::Error::custom(format!("bytes are not base64: {e}")))
    }
}

pub(super) fn to_base64(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_of_envelopes_panic_or_grow(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let mut buffer = BytesMut::from(&bytes[..]);
            while let Ok(Some(taken)) = take_envelope(&mut buffer) {
                prop_assert!(taken.is_none_or(|t| t.len() <= bytes.len()));
            }
            prop_assert!(buffer.len() <= bytes.len());
        }
    }

    fn taken(bytes: &[u8]) -> Result<Option<Option<Bytes>>> {
        take_envelope(&mut BytesMut::from(bytes))
    }

    #[test]
    fn an_envelope_is_taken_only_when_it_is_whole() {
        assert_eq!(taken(b""), Ok(None));
        assert_eq!(taken(b"\0\0\0\0"), Ok(None));
        assert_eq!(taken(b"\0\0\0\0\x02{"), Ok(None));
        assert_eq!(taken(b"\0\0\0\0\x02{}x"), Ok(Some(Some(Bytes::from_static(b"{}")))));
        assert_eq!(taken(b"\x02\0\0\0\x02{}"), Ok(Some(None)));
    }

    #[test]
    fn an_envelope_that_can_never_be_read_is_refused_at_its_header() {
        assert_eq!(taken(b"\0\xff\xff\xff\xff").unwrap_err().kind, Kind::TooMany);
        assert_eq!(taken(b"\x01\0\0\0\x02{}").unwrap_err().kind, Kind::Unimplemented);
        assert_eq!(taken(b"\x80\0\0\0\x02{}").unwrap_err().kind, Kind::Invalid);
    }

    #[test]
    fn bytes_are_read_from_every_base64_that_protobuf_allows() {
        for text in ["\"+/+/\"", "\"-_-_\""] {
            assert_eq!(serde_json::from_str::<Base64>(text).unwrap().0, [0xfb, 0xff, 0xbf]);
        }
        assert_eq!(serde_json::from_str::<Base64>("\"YQ\"").unwrap().0, b"a");
        assert_eq!(serde_json::from_str::<Base64>("\"YQ==\"").unwrap().0, b"a");
        assert!(serde_json::from_str::<Base64>("\"!\"").is_err());
        assert!(serde_json::from_str::<Base64>("1").is_err());
    }

    #[test]
    fn a_timeout_is_a_number_of_at_most_ten_digits() {
        let with = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert("connect-timeout-ms", http::HeaderValue::from_static(value));
            deadline(&headers)
        };
        assert!(with("9999999999").unwrap().is_some());
        for odd in ["", "99999999999", "-1", "1.5", "soon"] {
            assert!(with(odd).is_err(), "{odd}");
        }
        assert_eq!(deadline(&HeaderMap::new()), Ok(None));
    }
}
