//! Git over SSH, ended here and begun anew with the operator's key, which the bay never has.
//!
//! ```text
//!  bay ─ SSH ──► server: any client, no password, no key asked for; only `exec` of git's two services
//!                  └─ command: read, canonical ── Decider::decide ──► client ─ SSH ─► origin
//!                                                                      │ its host key is one the operator knows
//!                                                                      └ the operator's key logs in
//!                relay: both directions, standard error, exit status
//! ```
//!
//! | step | if it fails |
//! |---|---|
//! | there is room for one more SSH connection | closed, recorded |
//! | it asks for `git-upload-pack` or `git-receive-pack` and nothing else | told on standard error, recorded |
//! | the repository has a canonical form | told, recorded |
//! | [`Decider::decide`](crate::Decider::decide) says allow, and has it on record | told with the explanation |
//! | the operator gave a key for the host, and the bay logs in as the user it is for | told |
//! | the address that is dialled is permitted ([`bay_policy::check_address`]) | told |
//! | the host key is known to the operator; the key is taken | told |
//! | bytes go on moving, and the policy still allows it | cut, recorded |
//!
//! A push is decided on twice: before the server is asked what there is (`… pushing nothing yet`), and by the refs that it changes, before
//! anything of it is sent on.
//!
//! A shell, a terminal, subsystems, forwarding of ports, of an agent or of X11 are refused. What is sent to the origin is
//! written anew from what was read of the bay. russh is used here and nowhere else.

mod ahead;
mod client;
mod host_key;
mod known_hosts;
mod leash;
mod relay;
mod server;

use std::borrow::Cow;
use std::sync::Arc;

use russh::{Preferred, compression};
use tokio::time::timeout;

use crate::bay_connection::BayConnection;
use crate::decider::Refused;
use crate::stream::Prefixed;

/// How an SSH client begins.
const GREETING: &[u8] = b"SSH-";

/// What is offered to either side: nothing is compressed, git has done that.
fn plain_preferences() -> Preferred {
    Preferred { compression: Cow::Borrowed(&[compression::NONE]), ..Preferred::DEFAULT }
}

/// Whether what came first is SSH. No method of HTTP begins so.
pub(crate) async fn is_spoken(stream: &mut Prefixed) -> bool {
    loop {
        let seen = stream.seen();
        let length = seen.len().min(GREETING.len());
        if seen[..length] != GREETING[..length] {
            return false;
        }
        if length == GREETING.len() {
            return true;
        }
        if !matches!(stream.more().await, Ok(true)) {
            return false;
        }
    }
}

/// Serves a client of the bay until it goes away, or has nothing to do for too long.
pub(crate) async fn serve(connection: BayConnection, stream: Prefixed) {
    let gateway = connection.gateway.clone();
    let Ok(room) = gateway.ssh_connections.clone().try_acquire_owned() else {
        drop(stream);
        let what = Refused::TooMany { destination: connection.caller.local };
        gateway.decider().refused(&connection.caller, &what).await;
        return;
    };
    let under_way = Arc::new(());
    let connection = Arc::new(connection);
    let (stream, leash) = leash::leashed(stream);
    let (within, idle) = (gateway.timeouts.handshake, gateway.timeouts.head);
    let began = timeout(within, server::run(connection.clone(), stream, under_way.clone())).await;
    let mut running = match began {
        Ok(Ok(running)) => running,
        Ok(Err(_)) | Err(_) => {
            return connection.refuse_protocol("it is not SSH as it should be").await;
        }
    };
    let mut was_idle = false;
    loop {
        match timeout(idle, &mut running).await {
            Ok(_) => break,
            // Held here and by the connection; every command under way holds it once more.
            Err(_) if Arc::strong_count(&under_way) > 2 => was_idle = false,
            Err(_) if was_idle => break,
            Err(_) => was_idle = true,
        }
    }
    drop((leash, room));
}
