//! Who is behind a connection: the exec at once, the process as soon as it is found.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bay_backend::Attribution;
use bay_types::egress::{Transport, Who};
use tokio::sync::{Semaphore, watch};

/// How long a decision waits for the process to be found. It is looked for while the handshake goes on.
const FOUND_WITHIN: Duration = Duration::from_millis(5);
/// Connections of one bay whose processes are looked for at a time. In a flood those of the others stay unknown.
const LOOKING: usize = 2;

/// Finds out who opened the connections of one bay.
#[derive(Debug, Clone)]
pub(super) struct Callers {
    attribution: Option<Arc<dyn Attribution>>,
    looking: Arc<Semaphore>,
}

/// Who opened one connection.
#[derive(Debug)]
pub(super) struct Opener {
    who: watch::Receiver<Who>,
}

impl Callers {
    pub(super) fn new(attribution: Option<Arc<dyn Attribution>>) -> Self {
        Self { attribution, looking: Arc::new(Semaphore::new(LOOKING)) }
    }

    /// Called on the path of packets.
    pub(super) fn opener(&self, bay_end: SocketAddr, gateway_end: SocketAddr) -> Opener {
        let known = self
            .attribution
            .as_ref()
            .map(|attribution| (attribution, attribution.who(bay_end, gateway_end, Transport::Tcp)));
        let (tell, who) = watch::channel(Who::default());
        if let Some((attribution, found)) = known {
            tell.send_replace(found);
            if let Ok(turn) = Arc::clone(&self.looking).try_acquire_owned() {
                let attribution = Arc::clone(attribution);
                tokio::task::spawn_blocking(move || {
                    let process = attribution.process(bay_end, gateway_end, Transport::Tcp);
                    tell.send_modify(|who| who.process = process);
                    drop(turn);
                });
            }
        }
        Opener { who }
    }

    /// Who asks for a name.
    pub(super) fn asker(&self, bay_end: SocketAddr, gateway_end: SocketAddr) -> Option<Who> {
        let who = self.attribution.as_ref()?.who(bay_end, gateway_end, Transport::Udp);
        (!who.is_unknown()).then_some(who)
    }
}

impl Opener {
    /// All that is known of it, after a short wait for what is still looked for.
    pub(super) async fn who(&self) -> Option<Who> {
        // Nobody is left to tell more where the search is over, or never began: all requests but the first of a connection.
        if self.who.has_changed().is_ok() {
            let mut told = self.who.clone();
            told.mark_unchanged();
            let _ = tokio::time::timeout(FOUND_WITHIN, told.changed()).await;
        }
        let who = self.who.borrow().clone();
        (!who.is_unknown()).then_some(who)
    }
}
