//! The test setup: a decider with a real policy that keeps its records, a resolver to loopback, and origins.

pub(crate) mod client;
pub(crate) use bay_tests::origin;

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bay_gateway::secrets::Secrets;
use bay_gateway::{
    Authority, Beginning, Caller, Decider, Ended, Gateway, Known, LookUp, Names, Pools, RecordId, Refused,
    Ruling, Settings, Sight, SshLogin, Timeouts, Upstream, Waiting,
};
use bay_policy::{
    CanonicalRequest, CompiledPolicy, Decision, Host, Layer, Layers, Places, Route, decide, explain,
    is_host_itself, parse, route,
};
use jiff::Timestamp;
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use secrecy::SecretString;
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Notify;

/// How long a test waits for an expected event.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Allows everything under ok.test except one path, on every port.
pub(crate) const POLICY: &str = r#"
[[rule]]
id = "ok"
outcome = "allow"
host = ["ok.test", "*.ok.test"]
scheme = ["https", "http"]
port = "*"
method = "*"
path = "/open/**"

[[rule]]
id = "never"
outcome = "deny"
host = "ok.test"
path = "/open/secret/**"
"#;

/// One call of the decider.
#[derive(Debug, Clone)]
pub(crate) enum Entry {
    Decided { id: String, request: String, allowed: bool },
    Ended { id: String, ended: Ended },
    Refused(String),
    Attached { id: String, secrets: Vec<String> },
    LookedUp { name: String, answered: bool, new: bool },
}

pub(crate) struct Ledger {
    policy: Mutex<Arc<CompiledPolicy>>,
    entries: Mutex<Vec<Entry>>,
    pub(crate) secrets: Mutex<Arc<Secrets>>,
    next: AtomicU64,
    told: Notify,
    /// Two notifications: the next decision signals the first, and then waits for the second.
    pub(crate) hold: Mutex<Option<(Arc<Notify>, Arc<Notify>)>>,
    /// Whether the decider reads bodies before it decides, and what it read.
    pub(crate) looks: AtomicBool,
    pub(crate) seen: Mutex<Vec<Beginning>>,
    /// The open question that the decider returns instead of a person's answer.
    pub(crate) waiting: Mutex<Option<Waiting>>,
}

impl Ledger {
    fn tell(&self, entry: Entry) {
        self.entries.lock().unwrap().push(entry);
        self.told.notify_waiters();
    }

    pub(crate) fn entries(&self) -> Vec<Entry> {
        self.entries.lock().unwrap().clone()
    }

    /// Waits for an entry.
    pub(crate) async fn wait<T>(&self, find: impl Fn(&Entry) -> Option<T>) -> T {
        let waiting = async {
            loop {
                let told = self.told.notified();
                tokio::pin!(told);
                told.as_mut().enable();
                if let Some(found) = self.entries().iter().find_map(&find) {
                    return found;
                }
                told.await;
            }
        };
        let waited = tokio::time::timeout(PATIENCE, waiting).await;
        waited.unwrap_or_else(|_| panic!("no such entry among {:#?}", self.entries()))
    }

    pub(crate) async fn ended(&self) -> Ended {
        self.wait(|entry| match entry {
            Entry::Ended { ended, .. } => Some(ended.clone()),
            _ => None,
        })
        .await
    }

    /// Waits until every ruling has ended, and asserts that each ended once.
    pub(crate) async fn all_ended_once(&self) {
        let ids = |entries: &[Entry], ended: bool| {
            let mut ids: Vec<String> = Vec::new();
            for entry in entries {
                match entry {
                    Entry::Decided { id, .. } if !ended => ids.push(id.clone()),
                    Entry::Ended { id, .. } if ended => ids.push(id.clone()),
                    _ => {}
                }
            }
            ids.sort();
            ids
        };
        let waiting = async {
            loop {
                let told = self.told.notified();
                tokio::pin!(told);
                told.as_mut().enable();
                let entries = self.entries();
                let (decided, ended) = (ids(&entries, false), ids(&entries, true));
                assert!(ended.windows(2).all(|pair| pair[0] != pair[1]), "{entries:#?}");
                if decided == ended {
                    return;
                }
                told.await;
            }
        };
        tokio::time::timeout(PATIENCE, waiting).await.expect("every ruling has an end");
    }

    pub(crate) async fn refused(&self, with: &str) -> String {
        self.wait(|entry| match entry {
            Entry::Refused(what) if what.contains(with) => Some(what.clone()),
            _ => None,
        })
        .await
    }

    fn policy(&self) -> Arc<CompiledPolicy> {
        self.policy.lock().unwrap().clone()
    }

    fn id(&self) -> RecordId {
        RecordId(format!("r{}", self.next.fetch_add(1, Ordering::Relaxed)))
    }
}

#[async_trait]
impl Decider for Ledger {
    fn attribute(&self, _peer: SocketAddr, _local: SocketAddr) -> Known {
        Arc::new(())
    }

    fn look_up(&self, name: &Host) -> LookUp {
        let host_is_open = is_host_itself(name) && !self.policy().reach().is_empty();
        if host_is_open || name.name().is_some_and(|name| name.ends_with(".test")) {
            LookUp::Answer
        } else {
            LookUp::NoSuchName
        }
    }

    fn looked_up(&self, _peer: SocketAddr, name: &str, _kind: &str, answer: LookUp, new: bool) -> bool {
        self.tell(Entry::LookedUp { name: name.to_owned(), answered: answer == LookUp::Answer, new });
        !name.starts_with("unkept.")
    }

    fn route(&self, host: &Host, port: u16) -> Route {
        route(&self.policy(), host, port, Timestamp::now())
    }

    async fn decide(&self, _caller: &Caller, request: &CanonicalRequest, sight: &mut Sight<'_>) -> Ruling {
        let (policy, now) = (self.policy(), Timestamp::now());
        let decision = decide(&policy, request, now);
        let id = self.id();
        let allowed = decision.outcome == bay_policy::Outcome::Allow;
        self.tell(Entry::Decided { id: id.0.clone(), request: request.to_string(), allowed });
        let explanation = explain(&policy, request, &decision, now);
        let held = self.hold.lock().unwrap().take();
        if let Some((reached, go_on)) = held {
            reached.notify_one();
            go_on.notified().await;
        }
        if self.looks.load(Ordering::Relaxed) {
            let beginning = sight.beginning().await;
            self.seen.lock().unwrap().push(beginning);
        }
        let waiting = self.waiting.lock().unwrap().clone().filter(|_| !allowed);
        Ruling { id, decision, explanation: Some(Box::new(explanation)), waiting }
    }

    fn review(&self, _id: &RecordId, request: &CanonicalRequest) -> Decision {
        decide(&self.policy(), request, Timestamp::now())
    }

    fn secrets(&self) -> Arc<Secrets> {
        self.secrets.lock().unwrap().clone()
    }

    async fn attach(
        &self,
        id: &RecordId,
        wanted: &[(String, u64)],
    ) -> Result<Vec<Arc<SecretString>>, String> {
        self.tell(Entry::Attached {
            id: id.0.clone(),
            secrets: wanted.iter().map(|one| one.0.clone()).collect(),
        });
        let secrets = self.secrets();
        let value = |(name, incarnation): &(String, u64)| {
            let mut all = secrets.held().iter();
            let held = all.find(|held| held.name == *name && held.incarnation == *incarnation);
            held.and_then(|held| held.values.first().cloned())
                .ok_or_else(|| "there is no such secret".to_owned())
        };
        wanted.iter().map(value).collect()
    }

    async fn refused(&self, _caller: &Caller, what: &Refused<'_>) -> RecordId {
        self.tell(Entry::Refused(format!("{what:?}")));
        self.id()
    }

    fn ended(&self, id: &RecordId, ended: &Ended) {
        self.tell(Entry::Ended { id: id.0.clone(), ended: ended.clone() });
    }
}

/// Resolves names to documentation addresses, which count as public, and connects these to loopback.
#[derive(Default)]
pub(crate) struct LabNet {
    names: Mutex<HashMap<String, Vec<IpAddr>>>,
    places: Mutex<HashMap<IpAddr, SocketAddr>>,
    pub(crate) resolved: Mutex<Vec<String>>,
    pub(crate) dialled: Mutex<Vec<SocketAddr>>,
    /// User, key and known hosts for every SSH server.
    pub(crate) login: Mutex<Option<(String, String, String)>>,
    /// The addresses of the lab's host. `None` if they cannot be read.
    pub(crate) own: Mutex<Option<Vec<IpAddr>>>,
}

#[async_trait]
impl Upstream for LabNet {
    async fn resolve(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        self.resolved.lock().unwrap().push(name.to_owned());
        let found = self.names.lock().unwrap().get(name).cloned();
        found.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no such name in the lab"))
    }

    async fn connect(&self, address: SocketAddr) -> io::Result<TcpStream> {
        self.dialled.lock().unwrap().push(address);
        let place = self.places.lock().unwrap().get(&address.ip()).copied();
        TcpStream::connect(place.ok_or(io::ErrorKind::ConnectionRefused)?).await
    }

    async fn ssh_login(&self, host: &str, _port: u16) -> Result<SshLogin, String> {
        let login = self.login.lock().unwrap().clone();
        let (user, key, known_hosts) = login.ok_or_else(|| format!("no key for {host} in the lab"))?;
        Ok(SshLogin { user, key: key.into(), known_hosts })
    }

    fn own_addresses(&self) -> io::Result<Vec<IpAddr>> {
        self.own.lock().unwrap().clone().ok_or_else(|| io::Error::other("not to be had in the lab"))
    }
}

impl LabNet {
    /// Resolves a name to an address, and connects that address to a place on loopback.
    pub(crate) fn lead(&self, name: &str, address: &str, place: SocketAddr) {
        let address: IpAddr = address.parse().unwrap();
        self.names.lock().unwrap().insert(name.to_owned(), vec![address]);
        self.places.lock().unwrap().insert(address, place);
    }
}

pub(crate) struct Lab {
    pub(crate) gateway: Gateway,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) net: Arc<LabNet>,
    /// The port of all transparent listeners.
    pub(crate) port: u16,
    pub(crate) bay_authority: CertificateDer<'static>,
    /// The host key of the gateway's SSH server.
    pub(crate) ssh_host_key: String,
    pub(crate) dns: SocketAddr,
    pub(crate) proxy: SocketAddr,
    pub(crate) origins: origin::OriginAuthority,
    names: HashMap<String, SocketAddr>,
}

/// Each lab has a network of loopback addresses of its own.
static NEXT: AtomicU16 = AtomicU16::new(0);

pub(crate) fn compiled(text: &str) -> CompiledPolicy {
    let bay = parse(Layer::Bay, "bay.toml", text, &Places::default()).unwrap();
    CompiledPolicy::new(Layers { bay: Some(bay), ..Layers::default() })
}

pub(crate) fn quick() -> Timeouts {
    Timeouts {
        first_byte: Duration::from_millis(800),
        refused_first_byte: Duration::from_millis(200),
        handshake: Duration::from_secs(2),
        head: Duration::from_secs(1),
        resolve: Duration::from_secs(1),
        connect: Duration::from_secs(1),
        answer: Duration::from_millis(700),
        body_idle: Duration::from_millis(700),
        tunnel_idle: Duration::from_secs(5),
        keep_idle: Duration::from_secs(5),
    }
}

/// How often a port is tried that must be free twice: parallel tests take ports from each other.
const PORT_TRIES: usize = 100;

/// Sockets for both transports on one port.
async fn dns_sockets() -> (UdpSocket, TcpListener) {
    for _ in 0..PORT_TRIES {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        if let Ok(listener) = TcpListener::bind(socket.local_addr().unwrap()).await {
            return (socket, listener);
        }
    }
    panic!("no port is free for both UDP and TCP");
}

/// A port that is free at every address. A port that is free at one address may be taken at others.
async fn transparent_listener(address: Ipv4Addr) -> TcpListener {
    for _ in 0..PORT_TRIES {
        let everywhere = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).await.unwrap();
        let port = everywhere.local_addr().unwrap().port();
        drop(everywhere);
        if let Ok(listener) = TcpListener::bind((address, port)).await {
            return listener;
        }
    }
    panic!("no port stays free");
}

impl Lab {
    pub(crate) async fn new(policy: &str) -> Self {
        Self::with(policy, Timeouts::default()).await
    }

    pub(crate) async fn with(policy: &str, timeouts: Timeouts) -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        // Tests may run as parallel processes. The process id separates their networks, and ports separate the rest.
        let second = 64 + (std::process::id() % 128) as u8;
        let third = (number % 250) as u8;
        let base = Ipv4Addr::new(127, second, third, 0);
        let pools = Pools { v4: ipnet::Ipv4Net::new(base, 24).unwrap(), ..Pools::default() };
        let authority = Authority::generate("lab bay").unwrap();
        let bay_authority = authority.certificate().clone();
        let ssh_host_key = authority.ssh_host_key();
        let ledger = Arc::new(Ledger {
            policy: Mutex::new(Arc::new(compiled(policy))),
            entries: Mutex::default(),
            secrets: Mutex::new(Arc::new(Secrets::none())),
            next: AtomicU64::new(1),
            told: Notify::new(),
            hold: Mutex::default(),
            looks: AtomicBool::new(false),
            seen: Mutex::default(),
            waiting: Mutex::default(),
        });
        let net = Arc::new(LabNet { own: Mutex::new(Some(Vec::new())), ..LabNet::default() });
        let origins = origin::OriginAuthority::default();
        let mut roots = RootCertStore::empty();
        roots.add(origins.certificate()).unwrap();
        let settings = Settings { authority: authority.into(), names: Names::new(pools), roots, timeouts };
        let gateway = Gateway::new(settings, ledger.clone(), net.clone()).unwrap();

        let (socket, listener) = dns_sockets().await;
        let dns = socket.local_addr().unwrap();
        tokio::spawn(gateway.serve_dns_udp(socket));
        tokio::spawn(gateway.serve_dns_tcp(listener));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = listener.local_addr().unwrap();
        tokio::spawn(gateway.serve_proxy(listener));
        let listener = transparent_listener(Ipv4Addr::new(127, second, third, 254)).await;
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(gateway.serve_tcp(listener));
        Self {
            gateway,
            ledger,
            net,
            port,
            bay_authority,
            ssh_host_key,
            dns,
            proxy,
            origins,
            names: HashMap::new(),
        }
    }

    /// Resolves a name and opens a listener at its synthetic address.
    pub(crate) async fn open(&mut self, name: &str) -> SocketAddr {
        if let Some(address) = self.names.get(name) {
            return *address;
        }
        let address = client::look_up(self.dns, name).await.expect("the name has an address");
        let address = SocketAddr::new(address, self.port);
        let listener = TcpListener::bind(address).await.unwrap();
        tokio::spawn(self.gateway.serve_tcp(listener));
        self.names.insert(name.to_owned(), address);
        address
    }

    /// The synthetic address of a name that was opened.
    pub(crate) fn address(&self, name: &str) -> SocketAddr {
        self.names[name]
    }

    /// Opens a listener at an address without a name.
    pub(crate) async fn open_address(&self, last: u8) -> SocketAddr {
        let [a, b, c, _] = match client::first_address(&self.gateway) {
            IpAddr::V4(address) => address.octets(),
            IpAddr::V6(_) => unreachable!(),
        };
        let address = SocketAddr::new(Ipv4Addr::new(a, b, c, last).into(), self.port);
        if let Ok(listener) = TcpListener::bind(address).await {
            tokio::spawn(self.gateway.serve_tcp(listener));
        }
        address
    }

    pub(crate) fn set_policy(&self, text: &str) {
        *self.ledger.policy.lock().unwrap() = Arc::new(compiled(text));
        self.gateway.policy_changed();
    }

    /// Opens ports of the host to the bay, beside a policy.
    pub(crate) fn set_reach(&self, ports: &[u16], text: &str) {
        *self.ledger.policy.lock().unwrap() = Arc::new(compiled(text).reaching(ports));
        self.gateway.policy_changed();
    }

    /// The `Host` of a name, with the lab's port.
    pub(crate) fn authority(&self, name: &str) -> String {
        format!("{name}:{}", self.port)
    }
}
