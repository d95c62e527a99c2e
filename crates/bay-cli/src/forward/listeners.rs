//! The listening sockets of a forward.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bay_client::invalid;
use bay_types::ApiError;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::{Change, PortPair, Shared};

/// Pause after an `accept` that failed because of too few descriptors or too little memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// Listeners by their address. They end when this is dropped; connections continue.
#[derive(Debug, Default)]
pub(super) struct Listeners(BTreeMap<SocketAddr, Listener>);

#[derive(Debug)]
struct Listener {
    /// The bay's port.
    inside: u16,
    task: JoinHandle<()>,
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Listeners {
    pub(super) fn has(&self, address: SocketAddr) -> bool {
        self.0.contains_key(&address)
    }

    /// Listens at an address for connections to a port of the bay.
    pub(super) fn add(&mut self, address: SocketAddr, inside: u16, shared: &Arc<Shared>) -> io::Result<()> {
        let listener = StdListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let listener = TcpListener::from_std(listener)?;
        let task = tokio::spawn(accept(listener, address, inside, Arc::clone(shared)));
        self.0.insert(address, Listener { inside, task });
        Ok(())
    }

    /// Ends the listeners to ports of the bay that match. Afterwards their sockets are closed.
    pub(super) async fn remove(&mut self, matches: impl Fn(u16) -> bool) -> Vec<Change> {
        let mut closed = Vec::new();
        for (address, mut listener) in self.0.extract_if(.., |_, listener| matches(listener.inside)) {
            listener.task.abort();
            // The socket is closed when the task is gone.
            let _ = (&mut listener.task).await;
            closed.push(Change::Closed(address, listener.inside));
        }
        closed
    }
}

async fn accept(listener: TcpListener, address: SocketAddr, inside: u16, shared: Arc<Shared>) {
    let mut failed = false;
    loop {
        match listener.accept().await {
            Ok((tcp, _)) => {
                failed = false;
                let (shared, came) = (Arc::clone(&shared), Instant::now());
                tokio::spawn(async move { shared.carry(tcp, inside, came).await });
            }
            Err(error) => {
                if !std::mem::replace(&mut failed, true) {
                    shared.note_accept(address, &error);
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// The error for an address of this host that cannot be listened at.
pub(super) fn taken(bay: &str, pair: PortPair, address: SocketAddr, error: &io::Error) -> ApiError {
    let inside = pair.inside;
    let other = pair.host.checked_add(10_000).unwrap_or(pair.host / 2);
    let next = match error.kind() {
        io::ErrorKind::AddrNotAvailable => "give --listen an address of this host".to_owned(),
        _ => format!("choose another port of this host: `bay forward {bay} {inside}:{other}`"),
    };
    let why = match error.kind() {
        io::ErrorKind::AddrInUse => "the port is in use on this host".to_owned(),
        _ => error.to_string(),
    };
    invalid(format!("port {inside} of {bay} cannot be forwarded to {address}: {why}"), next)
}
