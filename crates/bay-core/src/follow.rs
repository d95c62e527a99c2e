//! Follows the events of a running guest: the ends of execs arrive here.
//!
//! The daemon first asks a guest which protocol it speaks. A guest that another release started may speak another
//! one. Then the bay's reason says so, and the daemon does not read its events. At the start of each stream, the
//! daemon asks for the open execs one by one, so that ends which nobody read are recorded too. The daemon reads a
//! guest that sends nonsense slowly, and disconnects one that sends endless lines, so that neither costs other
//! bays much.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bay_store::Draft;
use bay_text::lines::LineBuffer;
use bay_types::bay::State;
use bay_types::event::bay::BayProtocol;
use bay_types::event::service::ServiceReached;
use bay_types::guest::{GuestEvent, GuestInfo, PROTOCOL};
use bay_types::service::ServiceSpec;
use bytes::Bytes;
use futures_util::StreamExt;
use http::Method;
use tokio::sync::watch;

use crate::channel::{ANSWER_WITHIN, plain_text};
use crate::daemon::Daemon;
use crate::registry::BayHandle;
use crate::verbs::{execs, inside, services};

/// Longest line of the event stream: the longest definition of a service and its envelope.
const MAX_LINE: usize = ServiceSpec::MAX_BYTES + 64 * 1024;
/// After each so many meaningless lines, the daemon pauses for [`NOISE_PAUSE`].
const NOISE: u32 = 256;
const NOISE_PAUSE: Duration = Duration::from_millis(200);
/// The wait before connecting again after a stream that lasted longer than [`RETRY_MOST`]. It doubles after each
/// other stream or failed attempt.
const RETRY_FIRST: Duration = Duration::from_millis(100);
/// The longest wait before connecting again.
const RETRY_MOST: Duration = Duration::from_secs(10);

/// Returns when `gone` says that the guest is gone. If a stream is open then, it is first read to its end.
pub async fn follow(daemon: Arc<Daemon>, handle: Arc<BayHandle>, mut gone: watch::Receiver<bool>) {
    let mut wait = RETRY_FIRST;
    let mut understood = false;
    loop {
        let began = Instant::now();
        let ended = async {
            if !understood {
                same_protocol(&daemon, &handle).await?;
                understood = true;
            }
            listen(&daemon, &handle).await
        }
        .await;
        tracing::debug!(bay = %handle.name, why = ended.err().as_deref(), "the event stream of a guest ended");
        // If a stream lasted, the daemon reconnects soon. If streams break off each time, it waits longer.
        wait = if began.elapsed() > RETRY_MOST { RETRY_FIRST } else { (wait * 2).min(RETRY_MOST) };
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            // Also if the sender was dropped.
            _ = gone.wait_for(|gone| *gone) => return,
        }
    }
}

/// Checks that the guest speaks this daemon's protocol. If not, this is an error, the bay keeps running, and its
/// reason says what to do.
async fn same_protocol(daemon: &Daemon, handle: &BayHandle) -> Result<(), String> {
    let info = handle.guest.json::<GuestInfo>(Method::GET, "/v1/info", Bytes::new(), ANSWER_WITHIN);
    let found = info.await.map_err(|e| e.message)?.protocol;
    if found == PROTOCOL {
        return Ok(());
    }
    let reason = format!(
        "its guest speaks protocol {found}, this daemon {PROTOCOL}: stop and start the bay to give it a new one"
    );
    if handle.row().reason != reason {
        let event = Draft::of(BayProtocol { guest: found.into(), daemon: PROTOCOL.into() });
        let change = |row: &mut bay_store::BayRow| {
            if row.state == State::Running {
                row.reason.clone_from(&reason);
            }
        };
        handle.update(&daemon.store, Some(event), change).await.map_err(|e| e.message)?;
    }
    Err(reason)
}

async fn listen(daemon: &Arc<Daemon>, handle: &Arc<BayHandle>) -> Result<(), String> {
    let mut events = handle.guest.read("/v1/events").await.map_err(|e| e.message)?.bytes;
    let mut lines = LineBuffer::default();
    let mut noise = 0;
    let mut greeted = false;
    while let Some(data) = events.next().await {
        lines.push(&data.map_err(|e| e.to_string())?);
        while let Some(line) = lines.next_line() {
            if !handle_line(daemon, handle, &line, &mut greeted).await {
                noise += 1;
                if noise % NOISE == 0 {
                    tokio::time::sleep(NOISE_PAUSE).await;
                }
            }
            // After each line, and not only after an end: a caller may have asked for that end first.
            execs::prune(daemon, handle).await;
        }
        if lines.unfinished() > MAX_LINE {
            return Err("a line has no end".to_owned());
        }
    }
    Ok(())
}

/// Handles one line. Returns whether it had a meaning.
async fn handle_line(daemon: &Arc<Daemon>, handle: &Arc<BayHandle>, line: &[u8], greeted: &mut bool) -> bool {
    match serde_json::from_slice(line) {
        Ok(GuestEvent::Hello) if !*greeted => {
            *greeted = true;
            execs::refresh_all(daemon, handle).await;
            true
        }
        Ok(GuestEvent::ExecEnded { id, exit, end }) if handle.exec_is_open(id) => {
            execs::ended(daemon, handle, id, exit, end.map(|end| *end)).await;
            true
        }
        Ok(GuestEvent::Asked { id, ask }) => inside::enqueue(daemon, handle, id, ask),
        Ok(GuestEvent::Changed { change }) => inside::changed(daemon, handle, change).await,
        Ok(GuestEvent::ServiceReached { service, state, reason, restarts }) => {
            let reached = ServiceReached {
                service: service.into(),
                state: state.into(),
                reason: plain_text(&reason),
                restarts,
            };
            services::reached(daemon, handle, reached).await
        }
        Ok(GuestEvent::Hello | GuestEvent::ExecEnded { .. }) | Err(_) => false,
    }
}
