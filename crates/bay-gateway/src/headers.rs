//! The headers of requests and answers on their way through the gateway, and the WebSocket handshake.

use aws_lc_rs::digest;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bay_policy::canonical::overrides::is_describing_header;
use http::header::{
    CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, HOST, HeaderName, HeaderValue, SEC_WEBSOCKET_EXTENSIONS, TE,
    TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, Method, Version};

/// Hop-by-hop headers, headers for proxies, and headers that lead past the gateway (`Alt-Svc`: HTTP/3 uses UDP).
const NOT_PASSED_ON: &[&str] = &[
    "connection",
    "keep-alive",
    "proxy-connection",
    "proxy-authorization",
    "proxy-authenticate",
    "proxy-authentication-info",
    "te",
    "transfer-encoding",
    "upgrade",
    "http2-settings",
    "alt-svc",
    "alt-used",
];

/// The items of a list header, in lower case.
fn words(headers: &HeaderMap, name: &HeaderName) -> Vec<String> {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    let words = values.flat_map(|value| value.split(','));
    words.map(|word| word.trim().to_ascii_lowercase()).filter(|word| !word.is_empty()).collect()
}

/// Removes the headers that are not passed on, including those that `Connection` names, except the length and the host.
fn strip(headers: &mut HeaderMap) {
    for word in words(headers, &CONNECTION) {
        if let Ok(name) = HeaderName::try_from(word)
            && name != CONTENT_LENGTH
            && name != HOST
        {
            headers.remove(name);
        }
    }
    for name in NOT_PASSED_ON {
        headers.remove(*name);
    }
}

/// The headers of a request for the origin, without `Host`, without headers that describe previous hops, and before
/// secrets are put in.
pub(crate) fn for_origin(mut headers: HeaderMap) -> HeaderMap {
    let trailers = words(&headers, &TE).iter().any(|word| word == "trailers");
    strip(&mut headers);
    let describing: Vec<HeaderName> =
        headers.keys().filter(|name| is_describing_header(name.as_str())).cloned().collect();
    for name in describing {
        headers.remove(name);
    }
    headers.remove(HOST);
    // The gateway sends `100 Continue` itself when it begins to read the body.
    headers.remove(EXPECT);
    // The trailers of a request are dropped, so they are not announced either.
    headers.remove(TRAILER);
    if trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    // HTTP/2 may split cookies into several lines, HTTP/1.1 must not.
    let cookies: Vec<&[u8]> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if cookies.len() > 1
        && let Ok(joined) = HeaderValue::from_bytes(&cookies.join(&b"; "[..]))
    {
        headers.insert(COOKIE, joined);
    }
    headers
}

/// The headers of an answer for the bay.
pub(crate) fn for_bay(mut headers: HeaderMap) -> HeaderMap {
    strip(&mut headers);
    headers
}

/// Whether two parsers could disagree about a request's length. hyper already refuses most such requests.
pub(crate) fn two_lengths(headers: &HeaderMap) -> bool {
    let lengths = headers.get_all(CONTENT_LENGTH).iter().count();
    lengths > 1 || (lengths == 1 && headers.contains_key(TRANSFER_ENCODING))
}

/// The protocol upgrade that a request asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Upgrade {
    None,
    /// `accept` is the answer that the server must give to the key.
    WebSocket {
        accept: String,
    },
    Refused(&'static str),
}

pub(crate) fn upgrade(method: &Method, version: Version, headers: &HeaderMap) -> Upgrade {
    let wanted = words(headers, &UPGRADE);
    let named = words(headers, &CONNECTION).iter().any(|word| word == "upgrade");
    if wanted.is_empty() {
        return if headers.contains_key("http2-settings") {
            Upgrade::Refused("HTTP/2 without TLS does not go through the gateway")
        } else {
            Upgrade::None
        };
    }
    if wanted != ["websocket"] {
        return Upgrade::Refused(
            "the only change of protocol that goes through the gateway is that to a WebSocket",
        );
    }
    let one = |name: &str| {
        let mut values = headers.get_all(name).iter();
        match (values.next(), values.next()) {
            (Some(value), None) => value.to_str().ok(),
            _ => None,
        }
    };
    let empty = !headers.contains_key(TRANSFER_ENCODING) && one("content-length").unwrap_or("0") == "0";
    if *method != Method::GET || version != Version::HTTP_11 || !named || !empty {
        return Upgrade::Refused(
            "a WebSocket begins with a GET over HTTP/1.1 without a body, with `Connection: Upgrade`",
        );
    }
    if one("sec-websocket-version") != Some("13") {
        return Upgrade::Refused("a WebSocket needs `Sec-WebSocket-Version: 13`");
    }
    let key = one("sec-websocket-key").filter(|key| STANDARD.decode(key).is_ok_and(|key| key.len() == 16));
    match key {
        Some(key) => Upgrade::WebSocket { accept: accept_for(key) },
        None => Upgrade::Refused("a WebSocket needs one `Sec-WebSocket-Key` of 16 bytes in base64"),
    }
}

/// RFC 6455, 4.2.2.
fn accept_for(key: &str) -> String {
    let text = format!("{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    STANDARD.encode(digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, text.as_bytes()))
}

/// Whether an answer with status 101 completes the handshake.
pub(crate) fn is_websocket(headers: &HeaderMap, accept: &str) -> bool {
    let mut answers = headers.get_all("sec-websocket-accept").iter();
    words(headers, &UPGRADE) == ["websocket"]
        && words(headers, &CONNECTION).iter().any(|word| word == "upgrade")
        && answers.next().is_some_and(|answer| answer.as_bytes() == accept.as_bytes())
        && answers.next().is_none()
}

/// Whether the answer to a handshake enables an extension that was not offered. A compressing extension would hide
/// the value of a secret from the scrubber.
pub(crate) fn has_unoffered_extension(headers: &HeaderMap, offered: bool) -> bool {
    !offered && headers.contains_key(SEC_WEBSOCKET_EXTENSIONS)
}

/// Adds the headers of a WebSocket upgrade.
pub(crate) fn say_websocket(headers: &mut HeaderMap) {
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn headers_of_one_connection_are_not_passed_on() {
        let headers = for_origin(map(&[
            ("connection", "keep-alive, X-Private"),
            ("x-private", "1"),
            ("keep-alive", "timeout=5"),
            ("proxy-authorization", "Basic eA=="),
            ("te", "gzip, trailers"),
            ("cookie", "a=1"),
            ("cookie", "b=2"),
            ("range", "bytes=0-1"),
            ("x-forwarded-proto", "http"),
            ("x_forwarded_port", "80"),
        ]));
        assert_eq!(headers, map(&[("te", "trailers"), ("cookie", "a=1; b=2"), ("range", "bytes=0-1")]));
    }

    #[test]
    fn only_a_whole_websocket_handshake_is_one() {
        let whole = [
            ("connection", "Upgrade"),
            ("upgrade", "websocket"),
            ("sec-websocket-version", "13"),
            ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ];
        let upgrade = |headers: HeaderMap| upgrade(&Method::GET, Version::HTTP_11, &headers);
        // The example of RFC 6455.
        let accept = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=".to_owned();
        assert_eq!(upgrade(map(&whole)), Upgrade::WebSocket { accept: accept.clone() });
        for missing in 0..whole.len() {
            let mut lines = whole.to_vec();
            let gone = lines.remove(missing).0;
            let expected_none = gone == "upgrade";
            assert_eq!(upgrade(map(&lines)) == Upgrade::None, expected_none, "{gone}");
            assert!(expected_none || matches!(upgrade(map(&lines)), Upgrade::Refused(_)), "{gone}");
        }
        assert!(matches!(
            upgrade(map(&[("upgrade", "h2c"), ("connection", "upgrade")])),
            Upgrade::Refused(_)
        ));
        assert!(matches!(upgrade(map(&[("http2-settings", "AAA")])), Upgrade::Refused(_)));
        let answer =
            map(&[("connection", "upgrade"), ("upgrade", "websocket"), ("sec-websocket-accept", "x")]);
        assert!(!is_websocket(&answer, &accept));
    }
}
