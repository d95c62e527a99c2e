//! Settings that the gateways of all bays share: the daemon's key, the trusted authorities, the host's network, SSH
//! logins.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bay_gateway::{Authority, Upstream};
use bay_store::BayRow;
use bay_types::guest::GatewaySsh;
use bay_types::{BayId, CoreError};
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tokio::sync::OnceCell;

use crate::background::blocking;
use crate::gateway_files;
use crate::keyring::Keyring;
use crate::open_error::OpenError;

mod ssh;
mod upstream;

pub use ssh::SshKey;
use ssh::SshLogins;
use upstream::{BayNetwork, HostNetwork, MAX_HOSTS_BYTES, parse_hosts};

/// Settings of egress; the caller parses them from flags and environment.
#[derive(Debug, Clone, Default)]
pub struct EgressConfig {
    /// The daemon's key, instead of the default below `/etc/workbay/keys`.
    pub key_file: Option<PathBuf>,
    /// Names with fixed addresses, in the form of `/etc/hosts`.
    pub hosts: Option<PathBuf>,
    /// Certificates of authorities that origins may have, in addition to those that the host trusts.
    pub authorities: Vec<PathBuf>,
    /// Keys with which gateways log in over SSH.
    pub ssh_keys: Vec<SshKey>,
    /// The known SSH servers, in the form of OpenSSH's `known_hosts`.
    pub ssh_known_hosts: Option<PathBuf>,
}

/// Settings that the gateways of all bays share.
#[derive(Debug)]
pub(crate) struct GatewaySettings {
    keys: Arc<Keyring>,
    roots: RootCertStore,
    network: Arc<HostNetwork>,
    data_dir: PathBuf,
    authorities: Mutex<HashMap<BayId, Decrypted>>,
}

/// The authority of a bay, after it was read. A start needs it several times, and a capture needs it too.
type Decrypted = Arc<OnceCell<Arc<Authority>>>;

impl GatewaySettings {
    pub(crate) fn new(config: &EgressConfig, data_dir: &Path, keys: Arc<Keyring>) -> Result<Self, OpenError> {
        let ssh = SshLogins::new(&config.ssh_keys, config.ssh_known_hosts.as_deref());
        let hosts = match &config.hosts {
            None => HashMap::new(),
            Some(path) => {
                let bad = |why: String| OpenError::Gateway { path: path.clone(), why };
                let text = std::fs::read_to_string(path).map_err(|e| bad(e.to_string()))?;
                if text.len() > MAX_HOSTS_BYTES {
                    return Err(bad(format!("it is longer than {MAX_HOSTS_BYTES} bytes")));
                }
                parse_hosts(&text).map_err(bad)?
            }
        };
        let roots = roots(&config.authorities)?;
        Ok(Self {
            keys,
            roots,
            network: Arc::new(HostNetwork::new(hosts, ssh)),
            data_dir: data_dir.to_owned(),
            authorities: Mutex::default(),
        })
    }

    pub(crate) fn keyring(&self) -> &Keyring {
        &self.keys
    }

    /// The authorities whose certificates are trusted.
    pub(crate) fn roots(&self) -> &RootCertStore {
        &self.roots
    }

    /// The host's network, with a limit of look-ups of its own: for the gateway of one bay, or for requests of the
    /// daemon itself.
    pub(crate) fn network(&self) -> impl Upstream + use<> {
        BayNetwork::new(Arc::clone(&self.network))
    }

    /// The directory in which the daemon stores the files of gateways.
    pub(crate) fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    /// The certificate authority of a bay. If there is none, it is copied from the bay's parent or made.
    pub(crate) async fn authority(&self, row: &BayRow) -> Result<Arc<Authority>, CoreError> {
        let decrypted = Arc::clone(self.authorities().entry(row.id).or_default());
        let read = async || {
            let (bay, parent) = (row.id, row.forked_from.as_ref().map(|from| from.bay));
            let (data_dir, keys) = (self.data_dir.clone(), Arc::clone(&self.keys));
            blocking(move || gateway_files::authority(&data_dir, bay, parent, &keys)).await.map(Arc::new)
        };
        decrypted.get_or_try_init(read).await.cloned()
    }

    fn authorities(&self) -> MutexGuard<'_, HashMap<BayId, Decrypted>> {
        self.authorities.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes what the gateway of a bay stored, from memory and from the disk.
    pub(crate) fn remove(&self, bay: BayId) -> std::io::Result<()> {
        self.authorities().remove(&bay);
        gateway_files::remove(&self.data_dir, bay)
    }

    /// The certificate that everything in the bay trusts. `None` if the daemon cannot use its key.
    pub(crate) async fn certificate(&self, row: &BayRow) -> Option<String> {
        match self.authority(row).await {
            Ok(authority) => Some(authority.pem()),
            Err(error) => {
                tracing::error!(bay = %row.name, message = %error.message, "a bay starts without egress");
                None
            }
        }
    }

    /// What a bay's SSH clients need to connect to its gateway, if only to read why they are refused.
    pub(crate) async fn ssh(&self, row: &BayRow) -> Option<GatewaySsh> {
        // Without an authority there is no egress; `certificate` logged that.
        let host_key = self.authority(row).await.ok()?.ssh_host_key();
        Some(GatewaySsh { host_key, hosts: self.network.ssh_hosts() })
    }
}

/// The authorities that the host trusts, and those that an operator added.
fn roots(named: &[PathBuf]) -> Result<RootCertStore, OpenError> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        tracing::warn!(%error, "certificates that the host trusts could not be read");
    }
    roots.add_parsable_certificates(found.certs);
    for path in named {
        let bad = |why: String| OpenError::Gateway { path: path.clone(), why };
        let all = CertificateDer::pem_file_iter(path).map_err(|e| bad(e.to_string()))?;
        let mut any = false;
        for one in all {
            let one = one.map_err(|e| bad(e.to_string()))?;
            roots.add(one).map_err(|e| bad(e.to_string()))?;
            any = true;
        }
        if !any {
            return Err(bad("it has no certificate in it".to_owned()));
        }
    }
    Ok(roots)
}
