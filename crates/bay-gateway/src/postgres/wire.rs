//! The messages of PostgreSQL's protocol version 3 that a login needs.

use std::io;

use bay_text::foreign;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use zeroize::Zeroizing;

/// Longest startup packet, as in PostgreSQL.
const MAX_STARTUP_BYTES: usize = 10_000;
/// Longest message during a login.
const MAX_MESSAGE_BYTES: usize = 64 * 1024;
/// Characters of an error's field that are passed on from the database.
const MAX_ERROR_TEXT: usize = 500;
/// Longest key in a request to cancel a query, as in PostgreSQL.
const MAX_CANCEL_KEY_BYTES: usize = 256;
const SSL_REQUEST: u32 = 80_877_103;
const GSS_REQUEST: u32 = 80_877_104;
const CANCEL_REQUEST: u32 = 80_877_102;
pub(super) const VERSION_MAJOR: u16 = 3;

/// The first packet of a connection.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Startup {
    /// A request for TLS.
    Ssl,
    /// A request for encryption by Kerberos.
    Gss,
    /// A request to cancel a query of another connection, as the complete packet.
    Cancel(Vec<u8>),
    Begin {
        minor: u16,
        parameters: Vec<(String, String)>,
    },
}

fn malformed(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// Reads the first packet, which has no type.
pub(super) async fn startup(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Startup> {
    let length = stream.read_u32().await? as usize;
    if !(8..=MAX_STARTUP_BYTES).contains(&length) {
        return Err(malformed("what came is not the beginning of a PostgreSQL connection"));
    }
    let mut body = vec![0; length - 4];
    stream.read_exact(&mut body).await?;
    parse_startup(&body)
}

/// Parses the first packet without its length.
pub(super) fn parse_startup(body: &[u8]) -> io::Result<Startup> {
    let Some((code, rest)) = body.split_first_chunk::<4>() else {
        return Err(malformed("the packet is too short"));
    };
    match u32::from_be_bytes(*code) {
        SSL_REQUEST if rest.is_empty() => Ok(Startup::Ssl),
        GSS_REQUEST if rest.is_empty() => Ok(Startup::Gss),
        CANCEL_REQUEST if !(8..=4 + MAX_CANCEL_KEY_BYTES).contains(&rest.len()) => {
            Err(malformed("its request to cancel a query has no key of a possible length"))
        }
        CANCEL_REQUEST => {
            // The packet is shorter than its limit.
            let length = u32::try_from(body.len() + 4).unwrap_or(u32::MAX);
            Ok(Startup::Cancel([&length.to_be_bytes(), body].concat()))
        }
        version if version >> 16 == u32::from(VERSION_MAJOR) => {
            let parameters =
                parameters(rest).ok_or_else(|| malformed("its parameters are not as they should be"))?;
            Ok(Startup::Begin { minor: (version & 0xffff) as u16, parameters })
        }
        _ => Err(malformed("it speaks another version of the protocol")),
    }
}

/// Parses names and values, each terminated by a zero, with one more zero at the end. A repeated name is malformed:
/// databases take its last value, and other parsers the first.
fn parameters(bytes: &[u8]) -> Option<Vec<(String, String)>> {
    let text = std::str::from_utf8(bytes.strip_suffix(&[0])?).ok()?;
    if text.is_empty() {
        return Some(Vec::new());
    }
    let texts: Vec<&str> = text.strip_suffix('\0')?.split('\0').collect();
    let pairs = texts.chunks(2).map(|pair| match pair {
        [name, value] if !name.is_empty() => Some(((*name).to_owned(), (*value).to_owned())),
        _ => None,
    });
    let pairs: Vec<(String, String)> = pairs.collect::<Option<_>>()?;
    let once =
        |(at, (name, _)): (usize, &(String, String))| pairs[..at].iter().all(|(other, _)| other != name);
    pairs.iter().enumerate().all(once).then_some(pairs)
}

/// The startup packet.
pub(super) fn begin(parameters: &[(String, String)]) -> Vec<u8> {
    let mut body = (u32::from(VERSION_MAJOR) << 16).to_be_bytes().to_vec();
    for (name, value) in parameters {
        for text in [name, value] {
            body.extend_from_slice(text.as_bytes());
            body.push(0);
        }
    }
    body.push(0);
    packet(&body)
}

/// The packet that requests TLS.
pub(super) fn ssl_request() -> Vec<u8> {
    packet(&SSL_REQUEST.to_be_bytes())
}

fn packet(body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 4).unwrap_or(u32::MAX);
    [&length.to_be_bytes(), body].concat()
}

/// A message of a type.
pub(super) fn message(kind: u8, body: &[u8]) -> Zeroizing<Vec<u8>> {
    let mut message = Zeroizing::new(Vec::with_capacity(body.len() + 5));
    message.push(kind);
    message.extend_from_slice(&u32::try_from(body.len() + 4).unwrap_or(u32::MAX).to_be_bytes());
    message.extend_from_slice(body);
    message
}

/// Reads the next message and not a byte more.
pub(super) async fn read(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<(u8, Zeroizing<Vec<u8>>)> {
    let kind = stream.read_u8().await?;
    let length = stream.read_u32().await? as usize;
    if !(4..=MAX_MESSAGE_BYTES).contains(&length) {
        return Err(malformed("a message of the login has an impossible length"));
    }
    let mut body = Zeroizing::new(vec![0; length - 4]);
    stream.read_exact(&mut body).await?;
    Ok((kind, body))
}

pub(super) async fn write(stream: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> io::Result<()> {
    stream.write_all(bytes).await?;
    stream.flush().await
}

/// A request for authentication, or its result.
pub(super) fn authentication(kind: u32, body: &[u8]) -> Zeroizing<Vec<u8>> {
    message(b'R', &[&kind.to_be_bytes(), body].concat())
}

/// An error for the client, from the database or from the gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failed {
    /// PostgreSQL's error code.
    pub(super) code: &'static str,
    pub(super) message: String,
    pub(super) hint: String,
}

impl Failed {
    pub(super) fn new(code: &'static str, message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { code, message: message.into(), hint: hint.into() }
    }

    pub(super) fn message(&self) -> Zeroizing<Vec<u8>> {
        let mut body = Vec::new();
        let fields =
            [(b'S', "FATAL"), (b'V', "FATAL"), (b'C', self.code), (b'M', &self.message), (b'H', &self.hint)];
        for (kind, text) in fields {
            body.push(kind);
            body.extend(text.bytes().filter(|byte| *byte != 0));
            body.push(0);
        }
        body.push(0);
        message(b'E', &body)
    }
}

/// The code and the text of an error from the database.
pub(super) fn error_text(body: &[u8]) -> (String, String) {
    let fields = body.split(|byte| *byte == 0).filter_map(|field| field.split_first());
    let (mut code, mut text) = (String::new(), String::new());
    for (kind, field) in fields {
        let field = foreign::one_line(&String::from_utf8_lossy(field), MAX_ERROR_TEXT);
        match kind {
            b'C' => code = field,
            b'M' => text = field,
            _ => {}
        }
    }
    (code, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_beginning_of_a_connection_is_read_in_all_its_kinds() {
        let parsed = |bytes: &[u8]| parse_startup(&bytes[4..]).unwrap();
        assert_eq!(parsed(&ssl_request()), Startup::Ssl);
        assert_eq!(parsed(&packet(&GSS_REQUEST.to_be_bytes())), Startup::Gss);
        let parameters = vec![("user".to_owned(), "me".to_owned()), ("options".to_owned(), String::new())];
        assert_eq!(parsed(&begin(&parameters)), Startup::Begin { minor: 0, parameters });
        let cancel = packet(&[&CANCEL_REQUEST.to_be_bytes()[..], b"12345678"].concat());
        assert_eq!(parsed(&cancel), Startup::Cancel(cancel.clone()));
        for wrong in [
            &b"\0\0"[..],
            b"\0\x02\0\0\0",
            b"\0\x03\0\0",
            b"\0\x03\0\0user\0",
            b"\0\x03\0\0user\0me\0",
            // Databases take the last value, other parsers the first.
            b"\0\x03\0\0user\0me\0database\0app\0database\0payroll\0\0",
            b"\0\x03\0\0user\0me\0user\0admin\0\0",
            b"GET / HT",
        ] {
            assert!(parse_startup(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn an_error_says_what_and_what_next() {
        let failed = Failed::new("28P01", "no", "try\0 again").message();
        assert_eq!(&failed[5..], b"SFATAL\0VFATAL\0C28P01\0Mno\0Htry again\0\0");
        assert_eq!(error_text(&failed[5..]), ("28P01".to_owned(), "no".to_owned()));
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes: Vec<u8>) {
            let _ = parse_startup(&bytes);
            let _ = error_text(&bytes);
            let _ = parse_startup(&[&[0, 3, 0, 0], &bytes[..]].concat());
        }
    }
}
