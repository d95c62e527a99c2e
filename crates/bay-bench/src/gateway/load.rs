//! The load generator: the same program on the host, in a bay and behind another proxy. `bay __load ORDER` runs it. The
//! executable is static, so copying it into a bay is enough.
//!
//! HTTP/1.1 is written and parsed by hand here and at the [`origin`](super::origin), so that little of a measured time
//! is spent at the two ends.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Bytes of a body that are read at a time.
const READ_BYTES: usize = 64 * 1024;
/// Longest head of an answer.
const MAX_HEAD_BYTES: usize = 16 * 1024;
/// Pause before a held client repeats a request, after a 503 or a broken connection.
const COME_AGAIN: Duration = Duration::from_millis(200);
/// Time limit of one lookup.
const RESOLVE_WITHIN: Duration = Duration::from_secs(5);

/// The task of the load generator.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(super) way: Way,
    /// The origin's name, for TLS and for the request.
    pub(super) name: String,
    pub(super) port: u16,
    /// Trusted certificates.
    pub(super) trust: PathBuf,
    pub(super) path: String,
    /// An additional header line.
    pub(super) header: Option<String>,
    pub(super) work: Work,
}

/// How to reach the origin.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) enum Way {
    /// At this address.
    Direct(IpAddr),
    /// At the address that this resolver returns for its name.
    Named(SocketAddr),
    /// Through a proxy that supports CONNECT, to this address.
    Proxy(SocketAddr, IpAddr),
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) enum Work {
    /// One request after another on one connection.
    Warm { requests: usize },
    /// Each request on a new connection.
    Fresh { requests: usize },
    /// One complete response.
    Download,
    /// This many concurrent responses for this time; counts the bytes of each.
    Share { streams: usize, seconds: f64 },
    /// As many requests as the time permits, but at most `per_second`.
    Rate { connections: usize, seconds: f64, per_second: Option<f64> },
    /// This many concurrent requests, each for its own path, repeated as long as the answer is to retry.
    Held { requests: usize },
    /// A connection that is kept open until standard input ends. Its addresses are reported.
    Hold,
}

/// The result.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Told {
    pub(super) seconds: f64,
    pub(super) bytes: u64,
    pub(super) statuses: BTreeMap<u16, u64>,
    /// Microseconds for each request.
    pub(super) p50: f64,
    pub(super) p99: f64,
    /// Bytes of each stream.
    pub(super) shares: Vec<u64>,
    /// The addresses of a held connection.
    pub(super) ends: Option<(SocketAddr, SocketAddr)>,
}

impl Told {
    pub(super) fn requests(&self) -> u64 {
        self.statuses.values().sum()
    }

    fn quantiles(&mut self, mut took: Vec<u64>) {
        took.sort_unstable();
        // Nearest rank.
        let at = |percent: usize| took.get((took.len() * percent).div_ceil(100).saturating_sub(1)).copied();
        #[allow(clippy::cast_precision_loss, reason = "nanoseconds of a request")]
        let micros = |nanos: Option<u64>| nanos.unwrap_or(0) as f64 / 1000.0;
        (self.p50, self.p99) = (micros(at(50)), micros(at(99)));
    }
}

/// Runs as a separate program.
pub(crate) fn run(order: &str) -> ExitCode {
    let done = serde_json::from_str(order).map_err(io::Error::other).and_then(|order| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let told = runtime.block_on(carry_out(order))?;
        serde_json::to_string(&told).map_err(io::Error::other)
    });
    match done {
        Ok(told) => {
            println!("{told}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("load: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn carry_out(order: Order) -> io::Result<Told> {
    let client = Arc::new(Client::new(&order).await?);
    let order = &order;
    match order.work {
        Work::Warm { requests } => one_by_one(&client, requests, false).await,
        Work::Fresh { requests } => one_by_one(&client, requests, true).await,
        Work::Download => {
            let mut connection = client.connect().await?;
            let begin = Instant::now();
            let (status, bytes) = connection.get(&client.head).await?;
            let statuses = BTreeMap::from([(status, 1)]);
            Ok(Told { seconds: begin.elapsed().as_secs_f64(), bytes, statuses, ..Told::default() })
        }
        Work::Share { streams, seconds } => share(&client, streams, seconds).await,
        Work::Rate { connections, seconds, per_second } => {
            rate(&client, connections, seconds, per_second).await
        }
        Work::Held { requests } => held(&client, order, requests).await,
        Work::Hold => {
            let stream = TcpStream::connect(client.at).await?;
            let ends = Some((stream.local_addr()?, stream.peer_addr()?));
            println!("{}", serde_json::to_string(&Told { ends, ..Told::default() })?);
            // This thread has nothing else to do.
            io::Read::read_to_end(&mut io::stdin(), &mut Vec::new())?;
            Ok(Told::default())
        }
    }
}

async fn one_by_one(client: &Client, requests: usize, fresh: bool) -> io::Result<Told> {
    let (mut took, mut told) = (Vec::with_capacity(requests), Told::default());
    let mut kept = client.connect().await?;
    // The first request of a connection may cause later setup.
    kept.get(&client.head).await?;
    let begin = Instant::now();
    for _ in 0..requests {
        let start = Instant::now();
        let (status, bytes) = if fresh {
            client.connect().await?.get(&client.head).await?
        } else {
            kept.get(&client.head).await?
        };
        took.push(nanos(start.elapsed()));
        *told.statuses.entry(status).or_default() += 1;
        told.bytes += bytes;
    }
    told.seconds = begin.elapsed().as_secs_f64();
    told.quantiles(took);
    Ok(told)
}

async fn share(client: &Arc<Client>, streams: usize, seconds: f64) -> io::Result<Told> {
    let ready = Arc::new(Barrier::new(streams));
    let mut running = JoinSet::new();
    for _ in 0..streams {
        let (client, ready) = (client.clone(), ready.clone());
        running.spawn(async move {
            let mut connection = client.connect().await?;
            // Yields after each read, so that all streams get equal turns here. An unfair share then has its cause
            // elsewhere.
            connection.takes_turns = true;
            ready.wait().await;
            let mut bytes = 0;
            let reading = connection.get_counted(&client.head, &mut bytes);
            match tokio::time::timeout(Duration::from_secs_f64(seconds), reading).await {
                Ok(Ok(_)) => Err(io::Error::other("the answer was over before the time was")),
                Ok(Err(error)) => Err(error),
                Err(_) => Ok(bytes),
            }
        });
    }
    let mut told = Told { seconds, ..Told::default() };
    while let Some(done) = running.join_next().await {
        let bytes = done.map_err(io::Error::other)??;
        told.bytes += bytes;
        told.shares.push(bytes);
    }
    Ok(told)
}

async fn rate(
    client: &Arc<Client>,
    connections: usize,
    seconds: f64,
    per_second: Option<f64>,
) -> io::Result<Told> {
    let ready = Arc::new(Barrier::new(connections + 1));
    let mut running = JoinSet::new();
    #[allow(clippy::cast_precision_loss, reason = "a few hundred")]
    let pace = per_second.map(|all| Duration::from_secs_f64(connections as f64 / all));
    for _ in 0..connections {
        let (client, ready) = (client.clone(), ready.clone());
        running.spawn(async move {
            let mut connection = client.connect().await?;
            connection.get(&client.head).await?;
            ready.wait().await;
            let (mut took, mut told) = (Vec::new(), Told::default());
            let (begin, mut next) = (Instant::now(), Instant::now());
            while begin.elapsed().as_secs_f64() < seconds {
                if let Some(pace) = pace {
                    // A late connection does not wait.
                    tokio::time::sleep_until(next.into()).await;
                    next += pace;
                }
                let start = Instant::now();
                let (status, bytes) = connection.get(&client.head).await?;
                took.push(nanos(start.elapsed()));
                *told.statuses.entry(status).or_default() += 1;
                told.bytes += bytes;
            }
            Ok::<_, io::Error>((took, told))
        });
    }
    ready.wait().await;
    let begin = Instant::now();
    let (mut all, mut told) = (Vec::new(), Told::default());
    while let Some(done) = running.join_next().await {
        let (mut took, one) = done.map_err(io::Error::other)??;
        all.append(&mut took);
        told.bytes += one.bytes;
        for (status, count) in one.statuses {
            *told.statuses.entry(status).or_default() += count;
        }
    }
    told.seconds = begin.elapsed().as_secs_f64();
    told.quantiles(all);
    Ok(told)
}

/// Clients that the gateway holds for minutes, because it takes them for curl, and that retry after a 503.
async fn held(client: &Arc<Client>, order: &Order, requests: usize) -> io::Result<Told> {
    let mut running = JoinSet::new();
    for number in 0..requests {
        let client = client.clone();
        let head = format!(
            "GET {}/{number} HTTP/1.1\r\nHost: {}:{}\r\nUser-Agent: curl/8\r\n\r\n",
            order.path, order.name, order.port
        );
        running.spawn(async move {
            loop {
                let sent = async { client.connect().await?.get(head.as_bytes()).await };
                match sent.await {
                    Ok((503, _)) | Err(_) => tokio::time::sleep(COME_AGAIN).await,
                    Ok((status, _)) => return status,
                }
            }
        });
    }
    let mut told = Told::default();
    while let Some(status) = running.join_next().await {
        *told.statuses.entry(status.map_err(io::Error::other)?).or_default() += 1;
    }
    Ok(told)
}

fn nanos(took: Duration) -> u64 {
    u64::try_from(took.as_nanos()).unwrap_or(u64::MAX)
}

struct Client {
    at: SocketAddr,
    proxied: Option<SocketAddr>,
    name: ServerName<'static>,
    tls: TlsConnector,
    head: Vec<u8>,
}

impl Client {
    async fn new(order: &Order) -> io::Result<Self> {
        let (at, proxied) = match order.way {
            Way::Direct(address) => (SocketAddr::new(address, order.port), None),
            Way::Named(resolver) => {
                let found = tokio::time::timeout(RESOLVE_WITHIN, resolve(&order.name, resolver)).await;
                (SocketAddr::new(found.map_err(io::Error::other)??.into(), order.port), None)
            }
            Way::Proxy(proxy, address) => (proxy, Some(SocketAddr::new(address, order.port))),
        };
        let name = ServerName::try_from(order.name.clone()).map_err(io::Error::other)?;
        let more = order.header.as_ref().map(|header| format!("{header}\r\n")).unwrap_or_default();
        let head =
            format!("GET {} HTTP/1.1\r\nHost: {}:{}\r\n{more}\r\n", order.path, order.name, order.port);
        Ok(Self { at, proxied, name, tls: connector(&order.trust)?, head: head.into_bytes() })
    }

    async fn connect(&self) -> io::Result<Connection> {
        let mut stream = TcpStream::connect(self.at).await?;
        stream.set_nodelay(true)?;
        if let Some(to) = self.proxied {
            stream.write_all(format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n").as_bytes()).await?;
            let mut said = Vec::new();
            while !said.ends_with(b"\r\n\r\n") {
                said.push(stream.read_u8().await?);
            }
        }
        let stream = self.tls.connect(self.name.clone(), stream).await?;
        Ok(Connection { stream, buffer: vec![0; READ_BYTES], takes_turns: false })
    }
}

fn connector(trust: &Path) -> io::Result<TlsConnector> {
    let mut roots = RootCertStore::empty();
    for one in CertificateDer::pem_file_iter(trust).map_err(io::Error::other)? {
        // A bundle may contain certificates that this library rejects.
        let _ = roots.add(one.map_err(io::Error::other)?);
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    // Every new connection makes a full handshake.
    config.resumption = rustls::client::Resumption::disabled();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

struct Connection {
    stream: TlsStream<TcpStream>,
    buffer: Vec<u8>,
    takes_turns: bool,
}

impl Connection {
    /// Status and length of one response, which is read to its end.
    async fn get(&mut self, head: &[u8]) -> io::Result<(u16, u64)> {
        let mut bytes = 0;
        let status = self.get_counted(head, &mut bytes).await?;
        Ok((status, bytes))
    }

    async fn get_counted(&mut self, head: &[u8], bytes: &mut u64) -> io::Result<u16> {
        self.stream.write_all(head).await?;
        self.stream.flush().await?;
        let mut filled = 0;
        let end = loop {
            let read = self.stream.read(&mut self.buffer[filled..]).await?;
            filled += read;
            if let Some(at) = self.buffer[..filled].windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
            if read == 0 || filled > MAX_HEAD_BYTES {
                return Err(io::Error::other("no whole head came"));
            }
        };
        let (status, length) = understood(&self.buffer[..end])
            .ok_or_else(|| io::Error::other("an answer without status or length"))?;
        *bytes = (filled - end) as u64;
        while *bytes < length {
            match self.stream.read(&mut self.buffer).await? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => *bytes += read as u64,
            }
            if self.takes_turns {
                tokio::task::yield_now().await;
            }
        }
        Ok(status)
    }
}

/// Status and length of a body.
fn understood(head: &[u8]) -> Option<(u16, u64)> {
    let text = std::str::from_utf8(head).ok()?;
    let mut lines = text.split("\r\n");
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let length = lines.find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
    })?;
    Some((status, length))
}

/// Looks up the IPv4 address of a name. A static program has no system resolver.
async fn resolve(name: &str, resolver: SocketAddr) -> io::Result<Ipv4Addr> {
    // One question with recursion; class and type are 1 each.
    let mut question = vec![0x42, 0x42, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        question.push(u8::try_from(label.len()).map_err(io::Error::other)?);
        question.extend_from_slice(label.as_bytes());
    }
    question.extend([0, 0, 1, 0, 1]);
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).await?;
    socket.connect(resolver).await?;
    socket.send(&question).await?;
    let mut answer = [0; 512];
    let length = socket.recv(&mut answer).await?;
    // The only record is at the end of the message, and its address is the last part of it.
    match answer[..length].last_chunk::<4>() {
        Some(address) if length >= question.len() + 16 => Ok(Ipv4Addr::from(*address)),
        _ => Err(io::Error::other(format!("{name} was not found"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_a_status_and_a_length() {
        let head = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\nContent-Length: 17\r\n\r\n";
        assert_eq!(understood(head), Some((200, 17)));
        assert_eq!(understood(b"HTTP/1.1 200 OK\r\n\r\n"), None);
    }

    #[test]
    fn quantiles_use_the_nearest_rank() {
        let mut told = Told::default();
        told.quantiles((1..=200).map(|n| n * 1000).collect());
        assert_eq!((told.p50, told.p99), (100.0, 198.0));
    }
}
