//! The TLS ClientHello of a connection that is passed through: the server name, and whether an extension hides
//! another one.

use std::io::Cursor;
use std::time::Duration;

use rustls::server::Acceptor;
use tokio::time::timeout;

use crate::limits::MAX_CLIENT_HELLO;
use crate::stream::Prefixed;

/// The first byte of a TLS record with a handshake in it.
pub(crate) const TLS_HANDSHAKE: u8 = 0x16;
/// Extensions that hide the server name: Encrypted ClientHello and its predecessor.
const HIDING: &[u16] = &[0xfe0d, 0xffce];

/// The contents of a ClientHello that the gateway needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    pub server_name: Option<String>,
    /// Whether an extension may contain another server name in encrypted form.
    pub hides_name: bool,
}

/// Parses a ClientHello, which may span several records. `None` if bytes are missing.
pub fn parse(bytes: &[u8]) -> Result<Option<Hello>, &'static str> {
    let mut acceptor = Acceptor::default();
    let mut rest = Cursor::new(bytes);
    let mut accepted = None;
    while accepted.is_none() {
        match acceptor.read_tls(&mut rest) {
            Ok(0) => return Ok(None),
            Ok(_) => {}
            Err(_) => return Err("it does not begin with a TLS ClientHello"),
        }
        accepted = acceptor.accept().map_err(|_| "it does not begin with a valid TLS ClientHello")?;
    }
    let server_name = accepted.and_then(|accepted| accepted.client_hello().server_name().map(str::to_owned));
    let hides_name = extensions(&handshake(bytes)).any(|extension| HIDING.contains(&extension));
    Ok(Some(Hello { server_name, hides_name }))
}

/// The handshake bytes without the record headers.
fn handshake(mut bytes: &[u8]) -> Vec<u8> {
    let mut whole = Vec::new();
    while let [TLS_HANDSHAKE, _, _, high, low, rest @ ..] = bytes {
        let length = usize::from(u16::from_be_bytes([*high, *low])).min(rest.len());
        whole.extend_from_slice(&rest[..length]);
        bytes = &rest[length..];
    }
    whole
}

/// The types of the extensions of a ClientHello. rustls has already checked that it is well-formed.
fn extensions(hello: &[u8]) -> impl Iterator<Item = u16> {
    // Message type and length, version, random.
    let rest = hello.get(4 + 2 + 32..).unwrap_or_default();
    let rest = after_vector(rest, 1);
    let rest = after_vector(rest, 2);
    let rest = after_vector(rest, 1);
    let mut rest = rest.get(2..).unwrap_or_default();
    std::iter::from_fn(move || {
        let kind = u16::from_be_bytes([*rest.first()?, *rest.get(1)?]);
        rest = after_vector(&rest[2..], 2);
        Some(kind)
    })
}

/// The bytes after a vector whose length takes `length_bytes` bytes.
fn after_vector(bytes: &[u8], length_bytes: usize) -> &[u8] {
    let Some(length) = bytes.get(..length_bytes) else { return &[] };
    let length = length.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
    bytes.get(length_bytes + length..).unwrap_or_default()
}

/// Waits for a complete ClientHello. The bytes stay in the stream.
pub(crate) async fn read(stream: &mut Prefixed, within: Duration) -> Result<Hello, &'static str> {
    let reading = async {
        loop {
            if let Some(hello) = parse(stream.seen())? {
                return Ok(hello);
            }
            if stream.seen().len() > MAX_CLIENT_HELLO {
                return Err("its TLS ClientHello is too long");
            }
            if !stream.more().await.unwrap_or(false) {
                return Err("it ended within the TLS ClientHello");
            }
        }
    };
    timeout(within, reading).await.unwrap_or(Err("its TLS ClientHello did not come in time"))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn hello(sni: bool) -> Vec<u8> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
        config.enable_sni = sni;
        let mut client =
            rustls::ClientConnection::new(Arc::new(config), "ok.test".try_into().unwrap()).unwrap();
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        bytes
    }

    /// Splits a handshake into records of `size` bytes.
    fn in_records(bytes: &[u8], size: usize) -> Vec<u8> {
        let records = bytes[5..].chunks(size).flat_map(|part| {
            let mut record = vec![0x16, 3, 1];
            record.extend(u16::try_from(part.len()).unwrap().to_be_bytes());
            record.extend(part);
            record
        });
        records.collect()
    }

    /// Adds an extension with the content of an encrypted ClientHello.
    fn with_extension(bytes: &[u8], kind: u16) -> Vec<u8> {
        let mut message = bytes[9..].to_vec();
        let at = message.len() - extensions_length(&message) - 2;
        message.extend(kind.to_be_bytes());
        message.extend([0, 11, 0, 0, 1, 0, 1, 5, 0, 0, 0, 1, 0xaa]);
        let length = u16::try_from(message.len() - at - 2).unwrap();
        message[at..at + 2].copy_from_slice(&length.to_be_bytes());
        let mut whole = vec![1];
        whole.extend(&u32::try_from(message.len()).unwrap().to_be_bytes()[1..]);
        whole.extend(message);
        let mut record = vec![0x16, 3, 1];
        record.extend(u16::try_from(whole.len()).unwrap().to_be_bytes());
        record.extend(whole);
        record
    }

    fn extensions_length(message: &[u8]) -> usize {
        after_vector(after_vector(after_vector(&message[34..], 1), 2), 1).len() - 2
    }

    #[test]
    fn the_name_is_found_in_whatever_pieces_it_comes() {
        let whole = hello(true);
        let found = Hello { server_name: Some("ok.test".to_owned()), hides_name: false };
        for size in [1, 7, 100, 16_000] {
            let bytes = in_records(&whole, size);
            assert_eq!(parse(&bytes).unwrap(), Some(found.clone()), "{size}");
            assert_eq!(parse(&bytes[..bytes.len() - 1]).unwrap(), None, "{size}");
        }
        assert_eq!(parse(&hello(false)).unwrap().unwrap().server_name, None);
        assert!(parse(b"GET / HTTP/1.1\r\n\r\n").is_err());
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_make_it_panic(at in 0usize..200, byte: u8, noise: Vec<u8>) {
            let mut bytes = hello(true);
            bytes[at] = byte;
            let _ = parse(&bytes);
            let _ = parse(&noise);
            let _: Vec<u16> = extensions(&noise).collect();
        }
    }

    #[test]
    fn a_hidden_name_is_noticed_also_across_records() {
        let whole = hello(true);
        for kind in HIDING {
            let bytes = with_extension(&whole, *kind);
            for size in [3, 16_000] {
                assert!(parse(&in_records(&bytes, size)).unwrap().unwrap().hides_name, "{kind:x} {size}");
            }
        }
        assert!(!parse(&with_extension(&whole, 0x1234)).unwrap().unwrap().hides_name);
    }
}
