//! Resolves the names of origins, checks the addresses, and connects.
//!
//! The name of the host itself ([`is_host_itself`]) always leads to the host's loopback. Any other name is resolved
//! once for each new connection, and each address is checked against the decision. The gateway then connects to a
//! checked address, never to the name.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use async_trait::async_trait;
use bay_policy::{
    AddressRefusal, CanonicalRequest, Decision, HOST_LOOPBACK, Host, check_address, is_host_itself,
};
use tokio::net::TcpStream;
use tokio::time::timeout;
use zeroize::Zeroizing;

use crate::body::BodyError;
use crate::decider::Failure;
use crate::limits::{MAX_ADDRESSES, Timeouts};

/// Resolves names and opens connections. The daemon has an implementation with the operator's settings, and tests have
/// another. [`SystemUpstream`] is the plain one.
#[async_trait]
pub trait Upstream: Send + Sync + 'static {
    async fn resolve(&self, name: &str) -> io::Result<Vec<IpAddr>>;

    async fn connect(&self, address: SocketAddr) -> io::Result<TcpStream>;

    /// The SSH login for a host, or the reason why there is none.
    async fn ssh_login(&self, host: &str, _port: u16) -> Result<SshLogin, String> {
        Err(format!("the operator gave no SSH key for {host}"))
    }

    /// The addresses of this host, including public ones. If they are unknown, the gateway connects to nothing.
    fn own_addresses(&self) -> io::Result<Vec<IpAddr>>;
}

/// The user, key and known host keys with which the gateway logs in to an SSH server.
pub struct SshLogin {
    pub user: String,
    /// The private key in the format of its file, without a passphrase.
    pub key: Zeroizing<String>,
    /// In the format of OpenSSH's `known_hosts`.
    pub known_hosts: String,
}

impl std::fmt::Debug for SshLogin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SshLogin").field("user", &self.user).finish_non_exhaustive()
    }
}

/// The resolver and the network of the host, without SSH keys.
#[derive(Debug, Clone, Default)]
pub struct SystemUpstream {
    /// See [`Upstream::own_addresses`]. The caller reads them from the kernel.
    pub own: Vec<IpAddr>,
}

#[async_trait]
impl Upstream for SystemUpstream {
    async fn resolve(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        // The trailing dot excludes the host's search domains.
        let found = tokio::net::lookup_host((format!("{name}."), 0)).await?;
        Ok(found.map(|address| address.ip()).collect())
    }

    async fn connect(&self, address: SocketAddr) -> io::Result<TcpStream> {
        TcpStream::connect(address).await
    }

    fn own_addresses(&self) -> io::Result<Vec<IpAddr>> {
        Ok(self.own.clone())
    }
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    #[error("{0}")]
    Address(AddressRefusal),
    #[error("the policy changed while it was under way and no longer allows it")]
    Revoked,
    #[error("{why}")]
    Failed { failure: Failure, why: String },
}

impl DialError {
    pub(crate) fn failed(failure: Failure, why: impl Into<String>) -> Self {
        Self::Failed { failure, why: why.into() }
    }

    pub(crate) fn failure(&self) -> Failure {
        match self {
            Self::Address(_) => Failure::Address,
            // The end was already reported as revoked, and only the first report counts.
            Self::Revoked => Failure::Broken,
            Self::Failed { failure, .. } => *failure,
        }
    }
}

/// A connection, and its checked address.
#[derive(Debug)]
pub(crate) struct Dialled {
    pub(crate) stream: TcpStream,
    pub(crate) address: IpAddr,
}

/// The host's own addresses, which the check of an address needs.
pub(crate) fn own_addresses(upstream: &dyn Upstream) -> Result<Vec<IpAddr>, DialError> {
    upstream.own_addresses().map_err(|error| {
        let why = format!("the host's own addresses, which no name may lead to, cannot be read: {error}");
        DialError::failed(Failure::Connect, why)
    })
}

/// Connects to the host of an allowed request.
pub(crate) async fn dial(
    upstream: &dyn Upstream,
    timeouts: &Timeouts,
    decision: &Decision,
    request: &CanonicalRequest,
) -> Result<Dialled, DialError> {
    let host = request.host();
    let found = match host {
        Host::Address(address) => vec![*address],
        // Never looked up: no resolver decides where it leads.
        host if is_host_itself(host) => vec![HOST_LOOPBACK],
        Host::Name(name) => match timeout(timeouts.resolve, upstream.resolve(name)).await {
            Ok(Ok(found)) => found,
            Ok(Err(error)) => {
                return Err(DialError::failed(Failure::Name, format!("{name} cannot be looked up: {error}")));
            }
            Err(_) => {
                let why = format!("looking up {name} took longer than {}", seconds(timeouts.resolve));
                return Err(DialError::failed(Failure::NameTimeout, why));
            }
        },
    };
    let own = own_addresses(upstream)?;
    let mut refused = None;
    let mut last = DialError::failed(Failure::Name, format!("{host} has no address"));
    for address in found.into_iter().take(MAX_ADDRESSES) {
        if let Err(refusal) = check_address(decision, request, address, &own) {
            refused = refused.or(Some(refusal));
            continue;
        }
        let to = SocketAddr::new(address, request.port());
        match timeout(timeouts.connect, upstream.connect(to)).await {
            Ok(Ok(stream)) => {
                // Small messages should not wait for full packets.
                stream.set_nodelay(true).ok();
                return Ok(Dialled { stream, address });
            }
            Ok(Err(error)) => {
                let why = format!("no connection to {host} at {to}: {error}");
                last = DialError::failed(Failure::Connect, why);
            }
            Err(_) => {
                let within = seconds(timeouts.connect);
                let why = format!("{host} at {to} took no connection within {within}");
                last = DialError::failed(Failure::ConnectTimeout, why);
            }
        }
    }
    // A forbidden address is reported even if another address failed later: it is the more serious finding.
    Err(refused.map_or(last, DialError::Address))
}

/// Describes why a connection to an origin failed, in texts of the gateway that do not quote the origin. Errors of
/// HTTP/2 and TLS contain text of the origin, which may include the value of a secret, and the gateway's own answers
/// are not scrubbed.
pub(crate) fn own_words(error: &(dyn std::error::Error + 'static)) -> String {
    let mut words: Vec<String> = Vec::new();
    let mut next = Some(error);
    while let Some(error) = next {
        let said = if let Some(error) = error.downcast_ref::<rustls::Error>() {
            Some(tls_words(error).to_owned())
        } else if let Some(error) = error.downcast_ref::<io::Error>() {
            Some(match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
                Some(error) => tls_words(error).to_owned(),
                None => error.kind().to_string(),
            })
        } else if error.is::<hyper::Error>() || error.is::<BodyError>() {
            // The message is constant without its source.
            Some(error.to_string())
        } else {
            None
        };
        if let Some(said) = said
            && !words.contains(&said)
        {
            words.push(said);
        }
        next = error.source();
    }
    if words.is_empty() { "the connection broke".to_owned() } else { words.join(": ") }
}

fn tls_words(error: &rustls::Error) -> &'static str {
    use rustls::CertificateError as Certificate;
    match error {
        rustls::Error::InvalidCertificate(why) => match why {
            Certificate::Expired | Certificate::ExpiredContext { .. } => "its certificate has expired",
            Certificate::NotValidYet | Certificate::NotValidYetContext { .. } => {
                "its certificate is not valid yet"
            }
            Certificate::NotValidForName | Certificate::NotValidForNameContext { .. } => {
                "its certificate is for other names"
            }
            Certificate::UnknownIssuer => "its certificate is by an authority that is not trusted here",
            Certificate::BadSignature => "its certificate has a wrong signature",
            Certificate::Revoked => "its certificate is revoked",
            _ => "its certificate cannot be used",
        },
        rustls::Error::NoCertificatesPresented => "it has no certificate",
        rustls::Error::PeerIncompatible(_) => "it offers no version or algorithm that the gateway has",
        rustls::Error::AlertReceived(_) => "it ended the handshake with an alert",
        rustls::Error::InvalidMessage(_) => "it does not speak TLS as it should",
        _ => "the TLS connection failed",
    }
}

pub(crate) fn seconds(time: Duration) -> String {
    format!("{} s", time.as_secs_f32())
}
