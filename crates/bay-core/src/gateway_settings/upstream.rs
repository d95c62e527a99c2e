//! The network between gateways and origins: the host's network, with names that an operator configured taking
//! precedence.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bay_gateway::{SshLogin, Upstream};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use super::ssh::SshLogins;

/// How long the host's own addresses are cached. They change when the host joins a network.
const ADDRESSES_FOR: Duration = Duration::from_secs(5);
/// The longest file of names that is read.
pub(super) const MAX_HOSTS_BYTES: usize = 1 << 20;

/// How many names the host's resolver looks up for one bay at the same time. Each takes a thread of the daemon until
/// the resolver gives up, which can be long after the bay did.
const LOOKING_UP: usize = 16;

/// The network that all bays and the daemon share.
#[derive(Debug, Default)]
pub(super) struct HostNetwork {
    hosts: HashMap<String, Vec<IpAddr>>,
    ssh: SshLogins,
    own: Mutex<Option<(Instant, Vec<IpAddr>)>>,
}

impl HostNetwork {
    pub(super) fn new(hosts: HashMap<String, Vec<IpAddr>>, ssh: SshLogins) -> Self {
        Self { hosts, ssh, own: Mutex::default() }
    }

    /// Hosts that git reaches over SSH.
    pub(super) fn ssh_hosts(&self) -> Vec<String> {
        self.ssh.hosts()
    }

    /// The host's own addresses, at most [`ADDRESSES_FOR`] old. If the kernel does not report them, the last known
    /// ones are used. If none are known, this is an error.
    fn own_addresses(&self) -> io::Result<Vec<IpAddr>> {
        let mut known = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, addresses)) = &*known
            && at.elapsed() < ADDRESSES_FOR
        {
            return Ok(addresses.clone());
        }
        match bay_runtime::own_addresses() {
            Ok(found) => {
                *known = Some((Instant::now(), found.clone()));
                Ok(found)
            }
            Err(error) => {
                tracing::warn!(%error, "the host's own addresses could not be read");
                known.as_ref().map(|(_, addresses)| addresses.clone()).ok_or(error)
            }
        }
    }
}

/// The network for one bay, or for requests of the daemon itself.
#[derive(Debug)]
pub(super) struct BayNetwork {
    host: Arc<HostNetwork>,
    looking_up: Arc<Semaphore>,
}

impl BayNetwork {
    pub(super) fn new(host: Arc<HostNetwork>) -> Self {
        Self { host, looking_up: Arc::new(Semaphore::new(LOOKING_UP)) }
    }
}

/// Parses the form of `/etc/hosts`: an address and its names in each line.
pub(super) fn parse_hosts(text: &str) -> Result<HashMap<String, Vec<IpAddr>>, String> {
    let mut hosts: HashMap<String, Vec<IpAddr>> = HashMap::new();
    for (number, line) in (1..).zip(text.lines()) {
        let mut words = line.split('#').next().unwrap_or_default().split_ascii_whitespace();
        let Some(address) = words.next() else { continue };
        let address: IpAddr =
            address.parse().map_err(|_| format!("line {number}: {address:?} is not an address"))?;
        for name in words {
            let name = bay_policy::Host::parse(name).ok().and_then(|host| host.name().map(str::to_owned));
            let name = name.ok_or_else(|| format!("line {number} has something that is not a name"))?;
            hosts.entry(name).or_default().push(address);
        }
    }
    Ok(hosts)
}

#[async_trait]
impl Upstream for BayNetwork {
    async fn resolve(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        if let Some(given) = self.host.hosts.get(name) {
            return Ok(given.clone());
        }
        let turn = Arc::clone(&self.looking_up).acquire_owned().await.map_err(io::Error::other)?;
        // With a dot at the end, the resolver does not try the host's search domains.
        let name = format!("{name}.");
        let found = tokio::task::spawn_blocking(move || {
            let found = (name.as_str(), 0).to_socket_addrs();
            drop(turn);
            found
        });
        Ok(found.await??.map(|address| address.ip()).collect())
    }

    async fn connect(&self, address: SocketAddr) -> io::Result<TcpStream> {
        TcpStream::connect(address).await
    }

    async fn ssh_login(&self, host: &str, port: u16) -> Result<SshLogin, String> {
        self.host.ssh.login(host, port).await
    }

    fn own_addresses(&self) -> io::Result<Vec<IpAddr>> {
        self.host.own_addresses()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_given_by_hand_are_read_like_etc_hosts() {
        let hosts = parse_hosts("# a word\n192.0.2.1 a.test B.test # more\n\n2001:db8::1 a.test\n").unwrap();
        assert_eq!(hosts["a.test"].len(), 2);
        assert_eq!(hosts["b.test"], ["192.0.2.1".parse::<IpAddr>().unwrap()]);
        assert!(parse_hosts("a.test 192.0.2.1").unwrap_err().contains("line 1"));
        assert!(parse_hosts("\n192.0.2.1 a..b").unwrap_err().contains("line 2"));
    }

    #[test]
    fn the_hosts_own_addresses_are_found() {
        let own = HostNetwork::default().own_addresses().unwrap();
        assert!(own.contains(&"127.0.0.1".parse().unwrap()), "{own:?}");
    }
}
