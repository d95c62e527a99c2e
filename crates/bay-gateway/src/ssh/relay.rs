//! Relays one command of the bay: decision, connection to the origin, and both directions until it ends.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use bay_policy::{CanonicalRequest, Decision, Outcome};
use russh::server::Msg;
use russh::{Channel, ChannelMsg, ChannelReadHalf, ChannelWriteHalf, client as library};

use super::client;
use super::read_ahead::Ahead;
use crate::bay_connection::BayConnection;
use crate::decider::{Ending, Failure};
use crate::progress::{Direction, Progress};
use crate::sight::Sight;
use crate::tunnel;

/// The extended data stream that git shows to its user.
pub(super) const STANDARD_ERROR: u32 = 1;
/// The exit status of a command that the gateway refused or that failed: git's own status for fatal errors.
pub(super) const REFUSED_STATUS: u32 = 128;

/// Formats a line of the gateway for git's standard error.
pub(super) fn told(line: &str) -> Vec<u8> {
    let plain = line.chars().map(|char| if char.is_control() { '?' } else { char });
    format!("workbay: {}\r\n", plain.collect::<String>()).into_bytes()
}

/// The channel for the answer to the bay's command.
struct BayChannel {
    writer: ChannelWriteHalf<Msg>,
}

impl BayChannel {
    async fn end(&self, line: Option<&str>, status: u32) {
        // The bay may have disconnected, so errors are ignored.
        if let Some(line) = line {
            self.writer.extended_data_bytes(STANDARD_ERROR, told(line)).await.ok();
        }
        self.writer.exit_status(status).await.ok();
        self.writer.eof().await.ok();
        self.writer.close().await.ok();
    }
}

pub(super) async fn run(
    connection: &BayConnection,
    channel: Channel<Msg>,
    request: CanonicalRequest,
    user: &str,
    protocol: Option<&'static str>,
) {
    let (bay, writer) = channel.split();
    let answer = BayChannel { writer };
    // The refs of a push are known only after the server has listed its own.
    let first = if request.is_push() { request.clone().with_refs(Vec::new()) } else { request.clone() };
    let Some((decision, progress)) = let_out(connection, &answer, &first, &mut Sight::nothing()).await else {
        return;
    };
    match open(connection, &decision, &request, user, protocol).await {
        Ok(origin) => {
            let bay = Ahead::new(bay);
            pass(connection, &request, bay, &answer, origin, progress).await;
        }
        Err(error) => {
            let line = format!("failed: {error} (record {})", progress.id().0);
            answer.end(Some(&line), REFUSED_STATUS).await;
            progress.end_failed(error.failure());
        }
    }
}

/// Has the request decided on. If it is refused, the client gets the reason.
async fn let_out(
    connection: &BayConnection,
    answer: &BayChannel,
    request: &CanonicalRequest,
    sight: &mut Sight<'_>,
) -> Option<(Decision, Arc<Progress>)> {
    let gateway = &connection.gateway;
    let decided_in = gateway.policy.version();
    let ruling = gateway.decider().decide(&connection.caller, request, sight).await;
    let record = ruling.id.0.clone();
    let progress =
        Progress::new(&gateway.policy, ruling.id, request.clone(), decided_in, connection.busy.clone());
    if ruling.decision.outcome == Outcome::Allow {
        return Some((ruling.decision, progress));
    }
    let line = match &ruling.explanation {
        Some(explanation) => explanation.line(),
        None => format!("{}: {request}: no rule allows it", ruling.decision.outcome),
    };
    answer.end(Some(&format!("{line} (record {record})")), REFUSED_STATUS).await;
    progress.end(Ending::Refused);
    None
}

/// The ruling under which bytes currently move.
struct Meter {
    now: Mutex<Arc<Progress>>,
    /// While a push waits for its decision, the relay is idle on purpose.
    asking: AtomicBool,
}

impl Meter {
    fn now(&self) -> Arc<Progress> {
        Arc::clone(&self.now.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the current ruling by the next one.
    fn go_on_by(&self, next: Arc<Progress>) {
        let before = std::mem::replace(&mut *self.now.lock().unwrap_or_else(PoisonError::into_inner), next);
        before.end(Ending::Closed);
    }

    /// Waits until the relay is idle for too long. `None` if the policy revokes it or the gateway is dropped.
    async fn watch(&self, connection: &BayConnection) -> Option<Failure> {
        let gateway = &connection.gateway;
        loop {
            let progress = self.now();
            if !progress.still_allowed() {
                return None;
            }
            let stopped =
                tunnel::watch(&progress, gateway.timeouts.tunnel_idle, gateway.policy.changes()).await;
            let another = !Arc::ptr_eq(&progress, &self.now());
            let waits = stopped.is_some() && self.asking.load(Relaxed);
            if !another && !waits {
                return stopped;
            }
        }
    }
}

/// Has a push decided on as soon as its commands have arrived, and returns whether it may go on. Nothing of the bay's
/// input was sent before.
async fn decide_on_push(
    connection: &BayConnection,
    request: &CanonicalRequest,
    bay: &mut Ahead,
    answer: &BayChannel,
    meter: &Meter,
) -> bool {
    let request = match bay.commands().await {
        Some(commands) if commands.updates.is_empty() => return true,
        Some(commands) => request.clone().with_commands(commands),
        // The refs are unknown. Rules on branches then assume the worst case.
        None => request.clone(),
    };
    meter.asking.store(true, Relaxed);
    let let_out = let_out(connection, answer, &request, &mut Sight::of_push(bay)).await;
    if let Some((_, progress)) = &let_out {
        meter.go_on_by(Arc::clone(progress));
    }
    meter.asking.store(false, Relaxed);
    let_out.is_some()
}

async fn open(
    connection: &BayConnection,
    decision: &Decision,
    request: &CanonicalRequest,
    user: &str,
    protocol: Option<&'static str>,
) -> Result<client::Origin, crate::upstream::DialError> {
    let failed = |why: String| crate::upstream::DialError::failed(Failure::Login, why);
    let git = request.git().ok_or_else(|| failed("it is not git".to_owned()))?;
    let gateway = &connection.gateway;
    let login = gateway.origins.upstream().ssh_login(&request.host().to_string(), request.port()).await;
    let login = login.map_err(failed)?;
    if login.user != user {
        let why = format!(
            "the key for {} is for the user {}; use ssh://{}@{}{}",
            request.host(),
            login.user,
            login.user,
            request.authority(),
            git.path()
        );
        return Err(failed(why));
    }
    client::open(&gateway.origins, &gateway.timeouts, decision, request, git, protocol, &login).await
}

/// The end of a command.
enum End {
    /// The exit status, if the origin sent one.
    Status(Option<u32>),
    /// The origin rejected the command.
    NotRun,
    /// The bay's push was refused, and the bay got the reason.
    Refused,
    BayGone,
    Revoked,
}

async fn pass(
    connection: &BayConnection,
    request: &CanonicalRequest,
    mut bay: Ahead,
    answer: &BayChannel,
    origin: client::Origin,
    progress: Arc<Progress>,
) {
    let client::Origin { channel, connection: to_origin, leash } = origin;
    let (reader, writer) = channel.split();
    let meter = Meter { now: Mutex::new(progress), asking: AtomicBool::new(false) };
    let sending = async {
        if request.is_push() && !decide_on_push(connection, request, &mut bay, answer, &meter).await {
            return End::Refused;
        }
        outward(bay, writer, &meter).await
    };
    let ended = tokio::select! {
        ended = inward(reader, answer, &meter) => Ok(ended),
        ended = sending => Ok(ended),
        stopped = meter.watch(connection) => Err(stopped),
    };
    let progress = meter.now();
    drop((to_origin, leash));
    match ended {
        Ok(End::Status(Some(status))) => {
            progress.end(Ending::Closed);
            answer.end(None, status).await;
        }
        Ok(End::Status(None)) => {
            progress.end_failed(Failure::Broken);
            answer.end(Some("failed: the connection to the server broke"), REFUSED_STATUS).await;
        }
        Ok(End::NotRun) => {
            progress.end_failed(Failure::BadAnswer);
            answer.end(Some("failed: the server does not run git for this key"), REFUSED_STATUS).await;
        }
        Ok(End::Refused) => progress.end(Ending::Closed),
        Ok(End::BayGone) => progress.end(Ending::Abandoned),
        Err(Some(failure)) => {
            progress.end_failed(failure);
            answer.end(Some("failed: nothing moved for too long"), REFUSED_STATUS).await;
        }
        Ok(End::Revoked) | Err(None) => {
            progress.end(Ending::Revoked);
            let line = "refused: the policy changed while it was under way and no longer allows it";
            answer.end(Some(line), REFUSED_STATUS).await;
        }
    }
}

/// Passes bytes from the origin to the bay, until the origin closes.
async fn inward(mut origin: ChannelReadHalf, answer: &BayChannel, meter: &Meter) -> End {
    let mut status = None;
    while let Some(message) = origin.wait().await {
        let progress = meter.now();
        let written = match message {
            ChannelMsg::Data { data } => {
                if !progress.still_allowed() {
                    return End::Revoked;
                }
                let length = data.len();
                let written = answer.writer.data_bytes(data).await;
                progress.moved(Direction::In, length);
                written
            }
            ChannelMsg::ExtendedData { data, ext: STANDARD_ERROR } => {
                let length = data.len();
                let written = answer.writer.extended_data_bytes(STANDARD_ERROR, data).await;
                progress.moved(Direction::In, length);
                written
            }
            ChannelMsg::ExitStatus { exit_status } => {
                status = Some(exit_status);
                Ok(())
            }
            ChannelMsg::ExitSignal { .. } => {
                status = Some(REFUSED_STATUS);
                Ok(())
            }
            ChannelMsg::Failure => return End::NotRun,
            ChannelMsg::Close => break,
            _ => Ok(()),
        };
        if written.is_err() {
            return End::BayGone;
        }
    }
    End::Status(status)
}

/// Passes bytes from the bay to the origin. The command goes on after the bay's end of input.
async fn outward(mut bay: Ahead, origin: ChannelWriteHalf<library::Msg>, meter: &Meter) -> End {
    let mut eof_sent = false;
    loop {
        if !bay.seen.is_empty() {
            let progress = meter.now();
            if !progress.still_allowed() {
                return End::Revoked;
            }
            let data = bay.seen.split();
            let length = data.len();
            let written = origin.data_bytes(data).await;
            progress.moved(Direction::Out, length);
            if written.is_err() {
                // The origin's remaining output and its exit status arrive in the other direction.
                return std::future::pending().await;
            }
        }
        if bay.eof && !eof_sent {
            eof_sent = true;
            if origin.eof().await.is_err() {
                return std::future::pending().await;
            }
        }
        if !bay.more().await {
            return End::BayGone;
        }
    }
}
