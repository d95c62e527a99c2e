//! The way from the gateway to origins: the host's network, with names that an operator gave by hand first.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bay_gateway::{SystemUpstream, Upstream};
use tokio::net::TcpStream;

/// How long the host's own addresses are taken for known. They change when a network is joined.
const ADDRESSES_FOR: Duration = Duration::from_secs(5);
/// Longest file of names that is read.
pub(super) const MAX_HOSTS_BYTES: usize = 1 << 20;

#[derive(Debug, Default)]
pub(super) struct HostNetwork {
    hosts: HashMap<String, Vec<IpAddr>>,
    own: Mutex<Option<(Instant, Vec<IpAddr>)>>,
}

impl HostNetwork {
    pub(super) fn new(hosts: HashMap<String, Vec<IpAddr>>) -> Self {
        Self { hosts, own: Mutex::default() }
    }
}

/// Reads what `/etc/hosts` looks like: an address and its names in each line.
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
impl Upstream for HostNetwork {
    async fn resolve(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        match self.hosts.get(name) {
            Some(given) => Ok(given.clone()),
            None => SystemUpstream::default().resolve(name).await,
        }
    }

    async fn connect(&self, address: SocketAddr) -> io::Result<TcpStream> {
        TcpStream::connect(address).await
    }

    fn own_addresses(&self) -> Vec<IpAddr> {
        let mut known = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, addresses)) = &*known
            && at.elapsed() < ADDRESSES_FOR
        {
            return addresses.clone();
        }
        match bay_backend::own_addresses() {
            Ok(found) => {
                *known = Some((Instant::now(), found.clone()));
                found
            }
            Err(error) => {
                tracing::warn!(%error, "the host's own addresses could not be read");
                known.as_ref().map(|(_, addresses)| addresses.clone()).unwrap_or_default()
            }
        }
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
        let own = HostNetwork::default().own_addresses();
        assert!(own.contains(&"127.0.0.1".parse().unwrap()), "{own:?}");
    }
}
