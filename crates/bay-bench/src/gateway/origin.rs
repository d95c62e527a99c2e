//! The server outside: TLS, and as much HTTP/1.1 as the load generator and the gateway need.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::PrivatePkcs8KeyDer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

pub(super) const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// The host name, also in the certificate.
pub(super) const NAME: &str = "origin.test";
/// Another name of the same origin, for the measurements with a secret. Answers of its host are scrubbed also after the
/// secret is removed, which would slow the other measurements.
pub(super) const SECRET_NAME: &str = "secret.test";
/// The path of a short response; `/bytes/N` has N bytes.
pub(super) const SHORT: &str = "/open/short";
/// The body of the short response.
const SHORT_BODY: &str =
    "All that is asked for is this line of text, so that the way here and back is what is measured.\n";
/// Bytes of a long response that are written at a time.
const CHUNK: usize = 64 * 1024;
/// Longest head of a request.
const MAX_HEAD_BYTES: usize = 16 * 1024;

/// A server that runs until this is dropped.
pub(super) struct Origin {
    pub(super) port: u16,
    /// The certificate of its authority.
    pub(super) pem: String,
    runtime: Option<tokio::runtime::Runtime>,
    arrived: Arrived,
}

/// The time of the first request for each path that needs an approval.
type Arrived = Arc<Mutex<HashMap<String, Instant>>>;

impl Drop for Origin {
    fn drop(&mut self) {
        // A runtime that is dropped in async code must not block.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Origin {
    /// A single separate thread, so that the measuring code may block, and all connections get equal turns.
    pub(super) fn open() -> io::Result<Self> {
        let (config, pem) = identity().map_err(io::Error::other)?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let listener = std::net::TcpListener::bind(SocketAddr::new(ADDRESS, 0))?;
        let port = listener.local_addr()?.port();
        listener.set_nonblocking(true)?;
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let arrived = Arrived::default();
        let told = arrived.clone();
        runtime.spawn(async move {
            let Ok(listener) = TcpListener::from_std(listener) else { return };
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(acceptor.clone(), stream, told.clone()));
            }
        });
        Ok(Self { port, pem, runtime: Some(runtime), arrived })
    }

    /// The time when a path that needs an approval was first requested.
    pub(super) fn arrived(&self, path: &str) -> Option<Instant> {
        self.arrived.lock().unwrap_or_else(PoisonError::into_inner).get(path).copied()
    }
}

fn identity() -> Result<(ServerConfig, String), Box<dyn std::error::Error + Send + Sync>> {
    let authority_key = KeyPair::generate()?;
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    // If issuer and subject of a leaf were equal, clients would treat it as self-signed.
    params.distinguished_name.push(DnType::CommonName, "The bench's authority");
    let pem = params.self_signed(&authority_key)?.pem();
    let issuer = Issuer::new(params, authority_key);
    let key = KeyPair::generate()?;
    let leaf = CertificateParams::new(vec![NAME.to_owned(), SECRET_NAME.to_owned()])?
        .signed_by(&key, &issuer)?
        .der()
        .clone();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![leaf], PrivatePkcs8KeyDer::from(key.serialize_der()).into())?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok((config, pem))
}

/// Answers until the other end closes the connection.
async fn serve(acceptor: TlsAcceptor, stream: TcpStream, arrived: Arrived) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut stream = acceptor.accept(stream).await?;
    let mut buffer = vec![0; MAX_HEAD_BYTES];
    let chunk = noise();
    let head = |length: u64| format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
    let short = format!("{}{SHORT_BODY}", head(SHORT_BODY.len() as u64)).into_bytes();
    loop {
        let mut filled = 0;
        while !buffer[..filled].ends_with(b"\r\n\r\n") {
            match stream.read(&mut buffer[filled..]).await? {
                0 => return Ok(()),
                read => filled += read,
            }
        }
        let path = buffer[..filled].split(|byte| *byte == b' ').nth(1).unwrap_or_default();
        if path.starts_with(b"/ask/") {
            let path = String::from_utf8_lossy(path).into_owned();
            arrived.lock().unwrap_or_else(PoisonError::into_inner).entry(path).or_insert_with(Instant::now);
        }
        let Some(mut left) = wanted(path) else {
            stream.write_all(&short).await?;
            stream.flush().await?;
            continue;
        };
        stream.write_all(head(left).as_bytes()).await?;
        while left > 0 {
            let now = chunk.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            stream.write_all(&chunk[..now]).await?;
            left -= now as u64;
            tokio::task::yield_now().await;
        }
        stream.flush().await?;
    }
}

/// The same varied bytes every time. A response of one repeated letter would be too easy to scan.
fn noise() -> Vec<u8> {
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_be_bytes()[0]
    };
    (0..CHUNK).map(|_| next()).collect()
}

/// `/bytes/N`
fn wanted(path: &[u8]) -> Option<u64> {
    std::str::from_utf8(path).ok()?.strip_prefix("/bytes/")?.parse().ok()
}
