//! The DNS server of a bay. It makes its answers itself and forwards no question. A name is resolved only when the
//! gateway connects to it for an allowed request.
//!
//! For a name that the decider lets the bay look up, A and AAAA questions get the name's synthetic address. All other
//! types get an empty answer: a bay does not need them, and tunnels use types such as TXT and NULL. HTTPS records are
//! among them, so clients learn neither of HTTP/3 nor of encrypted server names. A malformed question gets an error if
//! its header is complete, and no answer otherwise. Floods are dropped before parsing. Questions beyond
//! [`MAX_NEW_NAMES`](crate::limits::MAX_NEW_NAMES) new names within a minute are refused.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bay_policy::Host;
use hickory_proto::op::{Edns, Message, MessageType, OpCode, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA};
use hickory_proto::rr::{DNSClass, RData, Record, RecordType};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::decider::{Decider, LookUp};
use crate::limits::{
    DNS_IDLE, DNS_QUERIES_PER_SECOND, DNS_TTL_SECONDS, MAX_DNS_CONNECTIONS, MAX_DNS_MESSAGE,
};
use crate::names::Names;
use crate::stream::Io;

/// The answer to a message, or `None` if it gets none. A new name that may be looked up gets its address in `names`.
pub fn answer(
    question: &[u8],
    peer: SocketAddr,
    decider: &dyn Decider,
    names: &Mutex<Names>,
) -> Option<Vec<u8>> {
    // A message without an id cannot be answered. A response must not be answered.
    let id = u16::from_be_bytes([*question.first()?, *question.get(1)?]);
    if question.len() < 12 || question[2] & 0x80 != 0 {
        return None;
    }
    let error = |op_code, code| Message::error_msg(id, op_code, code).to_vec().ok();
    if question.len() > MAX_DNS_MESSAGE {
        return error(OpCode::Query, ResponseCode::FormErr);
    }
    let Ok(asked) = Message::from_vec(question) else {
        return error(OpCode::Query, ResponseCode::FormErr);
    };
    if asked.metadata.op_code != OpCode::Query {
        return error(asked.metadata.op_code, ResponseCode::NotImp);
    }
    let [query] = &asked.queries[..] else { return error(OpCode::Query, ResponseCode::FormErr) };

    let mut answer = Message::new(id, MessageType::Response, OpCode::Query);
    answer.metadata.recursion_desired = asked.metadata.recursion_desired;
    answer.metadata.recursion_available = true;
    answer.add_query(query.clone());
    if asked.edns.is_some() {
        let mut edns = Edns::new();
        edns.set_max_payload(u16::try_from(MAX_DNS_MESSAGE).unwrap_or(u16::MAX));
        answer.set_edns(edns);
    }
    answer.metadata.response_code = if query.query_class() != DNSClass::IN {
        ResponseCode::Refused
    } else {
        let (code, record) = look_up(query, peer, decider, names);
        if let Some(record) = record {
            answer.add_answer(record);
        }
        code
    };
    answer.to_vec().ok()
}

fn look_up(
    query: &hickory_proto::op::Query,
    peer: SocketAddr,
    decider: &dyn Decider,
    names: &Mutex<Names>,
) -> (ResponseCode, Option<Record>) {
    let text = query.name().to_ascii();
    let kind = query.query_type();
    let host = Host::parse(&text).ok().filter(|host| host.name().is_some());
    let asked = host.as_ref().and_then(Host::name).unwrap_or(&text);
    let may = {
        let mut names = names.lock().unwrap_or_else(PoisonError::into_inner);
        names.may_ask(asked, Instant::now())
    };
    if !may {
        decider.looked_up(peer, asked, &kind.to_string(), LookUp::TooManyNames, false);
        return (ResponseCode::Refused, None);
    }
    let Some(host) = &host else {
        // An IP address is not a name, and neither is text without a canonical form.
        decider.looked_up(peer, &text, &kind.to_string(), LookUp::NoSuchName, false);
        return (ResponseCode::NXDomain, None);
    };
    let name = asked;
    let mut said = decider.look_up(host);
    let mut new = false;
    let (code, data) = match said {
        LookUp::NoSuchName => (ResponseCode::NXDomain, None),
        LookUp::Refused | LookUp::TooManyNames => (ResponseCode::Refused, None),
        LookUp::Answer if matches!(kind, RecordType::A | RecordType::AAAA) => {
            let mut names = names.lock().unwrap_or_else(PoisonError::into_inner);
            match names.number(name) {
                Some((number, is_new)) => {
                    new = is_new;
                    let data = match kind {
                        RecordType::A => RData::A(A(names.v4(number))),
                        _ => RData::AAAA(AAAA(names.v6(number))),
                    };
                    (ResponseCode::NoError, Some(data))
                }
                // All addresses are taken, so this bay can look up no further name.
                None => {
                    said = LookUp::Refused;
                    (ResponseCode::ServFail, None)
                }
            }
        }
        LookUp::Answer => (ResponseCode::NoError, None),
    };
    if !decider.looked_up(peer, name, &kind.to_string(), said, new) {
        return (ResponseCode::ServFail, None);
    }
    (code, data.map(|data| Record::from_rdata(query.name().clone(), DNS_TTL_SECONDS, data)))
}

/// A token bucket for questions, with one second's worth of tokens.
#[derive(Debug)]
struct Allowance {
    left: f64,
    at: Instant,
}

impl Allowance {
    fn new() -> Self {
        Self { left: f64::from(DNS_QUERIES_PER_SECOND), at: Instant::now() }
    }

    fn take(&mut self, now: Instant) -> bool {
        let full = f64::from(DNS_QUERIES_PER_SECOND);
        let gone = now.saturating_duration_since(self.at).as_secs_f64();
        self.left = (self.left + gone * full).min(full);
        self.at = now;
        let may = self.left >= 1.0;
        if may {
            self.left -= 1.0;
        }
        may
    }
}

/// Answers the DNS questions of one bay.
pub(crate) struct DnsServer {
    decider: Arc<dyn Decider>,
    names: Arc<Mutex<Names>>,
    allowance: Mutex<Allowance>,
    /// One permit for each TCP connection that may be open.
    connections: Arc<Semaphore>,
    dropped: AtomicU64,
}

impl std::fmt::Debug for DnsServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DnsServer").field("dropped", &self.dropped).finish_non_exhaustive()
    }
}

impl DnsServer {
    pub(crate) fn new(decider: Arc<dyn Decider>, names: Arc<Mutex<Names>>) -> Self {
        Self {
            decider,
            names,
            allowance: Mutex::new(Allowance::new()),
            connections: Arc::new(Semaphore::new(MAX_DNS_CONNECTIONS)),
            dropped: AtomicU64::new(0),
        }
    }

    /// Questions and TCP connections that were dropped because there were too many.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Relaxed)
    }

    fn answer(&self, question: &[u8], peer: SocketAddr) -> Option<Vec<u8>> {
        let may = {
            let mut allowance = self.allowance.lock().unwrap_or_else(PoisonError::into_inner);
            allowance.take(Instant::now())
        };
        if !may {
            self.dropped.fetch_add(1, Relaxed);
            return None;
        }
        answer(question, peer, &*self.decider, &self.names)
    }
}

/// The transport of a bay's DNS datagrams. Each backend has its own.
pub trait Datagrams: Send + Sync + 'static {
    /// Waits for the next datagram. Returns its length and the bay's address.
    fn receive(&self, buffer: &mut [u8]) -> impl Future<Output = io::Result<(usize, SocketAddr)>> + Send;

    /// Sends without waiting. If the datagram cannot be sent at once, it is lost.
    ///
    /// # Errors
    /// The datagram could not be sent.
    fn send(&self, datagram: &[u8], bay_end: SocketAddr) -> io::Result<()>;
}

impl Datagrams for UdpSocket {
    async fn receive(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.recv_from(buffer).await
    }

    fn send(&self, datagram: &[u8], bay_end: SocketAddr) -> io::Result<()> {
        self.try_send_to(datagram, bay_end).map(drop)
    }
}

pub(crate) async fn serve_udp(server: Arc<DnsServer>, socket: impl Datagrams) {
    let mut buffer = vec![0; MAX_DNS_MESSAGE + 1];
    loop {
        let (length, peer) = match socket.receive(&mut buffer).await {
            Ok(received) => received,
            // An ICMP error for an earlier answer. The socket stays usable.
            Err(error) => {
                tracing::debug!(%error, "DNS socket");
                tokio::time::sleep(Duration::from_millis(1)).await;
                continue;
            }
        };
        if let Some(answer) = server.answer(&buffer[..length], peer) {
            // If the queue is full, the answer is dropped and the bay asks again.
            socket.send(&answer, peer).ok();
        }
    }
}

pub(crate) async fn serve_tcp(server: Arc<DnsServer>, listener: TcpListener) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((stream, peer)) = accepted else {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                    continue;
                };
                if let Some(serving) = begin(&server, stream, peer) {
                    connections.spawn(serving);
                }
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Serves one connection over TCP. `None` if too many are open.
pub(crate) fn begin<S: Io>(
    server: &Arc<DnsServer>,
    stream: S,
    peer: SocketAddr,
) -> Option<impl Future<Output = ()> + Send + 'static + use<S>> {
    let Ok(permit) = server.connections.clone().try_acquire_owned() else {
        server.dropped.fetch_add(1, Relaxed);
        return None;
    };
    let server = server.clone();
    Some(async move {
        serve_stream(&server, stream, peer).await.ok();
        drop(permit);
    })
}

async fn serve_stream(server: &DnsServer, mut stream: impl Io, peer: SocketAddr) -> io::Result<()> {
    let mut question = vec![0; MAX_DNS_MESSAGE];
    loop {
        let length = usize::from(timeout(DNS_IDLE, stream.read_u16()).await??);
        if length > MAX_DNS_MESSAGE {
            return Ok(());
        }
        timeout(DNS_IDLE, stream.read_exact(&mut question[..length])).await??;
        let Some(answer) = server.answer(&question[..length], peer) else { return Ok(()) };
        let Ok(length) = u16::try_from(answer.len()) else { return Ok(()) };
        let mut message = length.to_be_bytes().to_vec();
        message.extend(answer);
        timeout(DNS_IDLE, stream.write_all(&message)).await??;
    }
}
