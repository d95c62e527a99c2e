//! Git over SSH. The gateway terminates the bay's connection and opens its own with the operator's key, which the bay
//! never gets.
//!
//! ```text
//!  bay ─ SSH ──► server: lets any user in, with any key or none; passes on only `exec` of git's two services
//!                  └─ command: parsed, canonical ── Decider::decide ──► client ─ SSH ─► origin
//!                                                                      │ known_hosts contains its host key
//!                                                                      └ the operator's key logs in
//!                relay: both directions, standard error, exit status
//! ```
//!
//! | step | if it fails |
//! |---|---|
//! | fewer than the maximum of SSH connections are open | closed, recorded |
//! | the command is `git-upload-pack` or `git-receive-pack` | reported on standard error, recorded |
//! | the repository has a canonical form | reported, recorded |
//! | [`Decider::decide`](crate::Decider::decide) allows it, and has recorded it | reported with the explanation |
//! | the operator gave a key for the host, and the bay logs in as the user of that key | reported |
//! | the dialled address is permitted ([`bay_policy::check_address`]) | reported |
//! | `known_hosts` contains the host key; the server accepts the operator's key | reported |
//! | bytes keep moving, and the policy still allows it | cut, reported, recorded |
//!
//! The decider is asked twice about a push: before the server is asked for its refs (`… pushing nothing yet`), and
//! with the refs that it changes, before any of it is sent. It is not asked again if the push changes nothing.
//!
//! The gateway refuses shells, terminals, subsystems, and forwarding of ports, agents and X11. It builds the command
//! for the origin from parsed values. Only this module uses russh.

mod client;
mod close_on_drop;
mod host_key;
mod known_hosts;
mod read_ahead;
mod relay;
mod server;

use std::borrow::Cow;
use std::sync::Arc;

use russh::{Preferred, compression};
use tokio::time::timeout;

use crate::bay_connection::BayConnection;
use crate::decider::Refused;
use crate::stream::Prefixed;

/// The first bytes of an SSH client.
const GREETING: &[u8] = b"SSH-";

/// The preferences for both sides, without compression: git has already compressed the data.
fn plain_preferences() -> Preferred {
    Preferred { compression: Cow::Borrowed(&[compression::NONE]), ..Preferred::DEFAULT }
}

/// Whether the client speaks SSH. No HTTP method begins like this.
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

/// Serves a client until it disconnects, or has no command for too long.
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
    let (stream, leash) = close_on_drop::leashed(stream);
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
            // This function and the connection hold one clone each; every running command holds another.
            Err(_) if Arc::strong_count(&under_way) > 2 => was_idle = false,
            Err(_) if was_idle => break,
            Err(_) => was_idle = true,
        }
    }
    drop((leash, room));
}
