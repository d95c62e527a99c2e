//! Servers on loopback for tests of egress, under names that gateways resolve to loopback.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use http::{Request, Response};
use hyper::body::Incoming;
use tokio::runtime::Runtime;

use crate::origin::{self, Body, OriginAuthority, Seen};

/// Names that gateways resolve to loopback.
pub const NAMES: &[&str] = &["origin.test", "other.test", "blocked.test", "registry.test"];

/// Servers, the authority of their certificates, and the arguments that let a daemon use both.
#[derive(Debug)]
pub struct TestServers {
    authority: OriginAuthority,
    runtime: Runtime,
    hosts: PathBuf,
    roots: PathBuf,
}

/// One server.
#[derive(Debug)]
pub struct Origin {
    pub name: &'static str,
    pub address: SocketAddr,
    pub seen: Arc<Seen>,
}

impl Origin {
    #[must_use]
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// A URL of this server, by its name.
    #[must_use]
    pub fn url(&self, scheme: &str, path: &str) -> String {
        format!("{scheme}://{}:{}{path}", self.name, self.port())
    }

    /// A policy that allows requests to this server. `more` is added to the rule.
    #[must_use]
    pub fn allowed(&self, more: &str) -> String {
        format!(
            "[[rule]]\nid = \"origin\"\noutcome = \"allow\"\nhost = \"{}\"\nport = {}\naddress = \"127.0.0.1\"\n{more}\n",
            self.name,
            self.port()
        )
    }
}

impl TestServers {
    /// Servers whose files are in `dir`.
    #[must_use]
    pub fn new(dir: &Path) -> Self {
        Self::with_names(dir, &[])
    }

    /// Servers whose files are in `dir`, with further names, each after its address.
    ///
    /// # Panics
    /// If the files cannot be written.
    #[must_use]
    pub fn with_names(dir: &Path, more: &[(String, &str)]) -> Self {
        let authority = OriginAuthority::default();
        let (hosts, roots) = (dir.join("outside-hosts"), dir.join("outside-roots.pem"));
        fs::create_dir_all(dir).unwrap();
        let mut lines: BTreeSet<String> = NAMES.iter().map(|name| format!("127.0.0.1 {name}\n")).collect();
        lines.extend(more.iter().map(|(address, name)| format!("{address} {name}\n")));
        fs::write(&hosts, lines.into_iter().collect::<String>()).unwrap();
        fs::write(&roots, authority.pem()).unwrap();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        Self { authority, runtime, hosts, roots }
    }

    /// A certificate for a name and its key, for servers that read them from files.
    #[must_use]
    pub fn leaf_pem(&self, name: &str) -> (String, String) {
        self.authority.leaf_pem(name)
    }

    /// The arguments for `bay serve`.
    ///
    /// # Panics
    /// If a path is not UTF-8.
    #[must_use]
    pub fn arguments(&self) -> Vec<String> {
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        vec!["--gateway-hosts".to_owned(), text(&self.hosts), "--gateway-ca".to_owned(), text(&self.roots)]
    }

    /// A server of HTTP/1.1 and HTTP/2 over TLS.
    pub fn https<F, A>(&self, name: &'static str, answer: F) -> Origin
    where
        F: Fn(Request<Incoming>) -> A + Clone + Send + Sync + 'static,
        A: Future<Output = Response<Body>> + Send + 'static,
    {
        let tls = self.authority.server(name, |_| {});
        let (address, seen) = self.runtime.block_on(origin::serve(Some(tls), answer));
        Origin { name, address, seen }
    }

    /// A server of plain HTTP/1.1.
    pub fn http<F, A>(&self, name: &'static str, answer: F) -> Origin
    where
        F: Fn(Request<Incoming>) -> A + Clone + Send + Sync + 'static,
        A: Future<Output = Response<Body>> + Send + 'static,
    {
        let (address, seen) = self.runtime.block_on(origin::serve(None, answer));
        Origin { name, address, seen }
    }

    /// A server of anything else.
    pub fn tcp<F, A>(&self, name: &'static str, serve: F) -> Origin
    where
        F: Fn(tokio::net::TcpStream) -> A + Send + 'static,
        A: Future<Output = ()> + Send + 'static,
    {
        let address = self.runtime.block_on(origin::accept(serve));
        Origin { name, address, seen: Arc::default() }
    }
}
