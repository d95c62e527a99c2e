//! One command of the bay: decided on, opened at the origin, and passed on in both directions until it ends.

use std::sync::Arc;

use bay_policy::{CanonicalRequest, Outcome};
use russh::server::Msg;
use russh::{Channel, ChannelMsg, ChannelReadHalf, ChannelWriteHalf, client as library};

use super::client;
use crate::connection::Pinned;
use crate::decider::{Ending, Failure};
use crate::progress::{Direction, Progress};
use crate::sight::Sight;
use crate::tunnel;

/// The stream that git shows to whoever waits for it.
pub(super) const STANDARD_ERROR: u32 = 1;
/// What a command ends with that the gateway refused, and one that came to nothing: git's own word for fatal.
pub(super) const REFUSED_STATUS: u32 = 128;

/// A line of the gateway's, as it stands among those of git.
pub(super) fn told(line: &str) -> Vec<u8> {
    let plain = line.chars().map(|char| if char.is_control() { '?' } else { char });
    format!("workbay: {}\r\n", plain.collect::<String>()).into_bytes()
}

/// Where the bay's command is answered.
struct BayChannel {
    writer: ChannelWriteHalf<Msg>,
}

impl BayChannel {
    async fn end(&self, line: Option<&str>, status: u32) {
        // The bay may be gone: then there is nobody to tell.
        if let Some(line) = line {
            self.writer.extended_data_bytes(STANDARD_ERROR, told(line)).await.ok();
        }
        self.writer.exit_status(status).await.ok();
        self.writer.eof().await.ok();
        self.writer.close().await.ok();
    }
}

pub(super) async fn run(
    pinned: &Pinned,
    channel: Channel<Msg>,
    request: CanonicalRequest,
    user: &str,
    protocol: Option<&'static str>,
) {
    let shared = &pinned.shared;
    let (bay, writer) = channel.split();
    let answer = BayChannel { writer };
    let decided_in = shared.generation();
    let ruling = shared.decider.decide(&pinned.caller, &request, &mut Sight::nothing()).await;
    let record = ruling.id.0.clone();
    let progress = Progress::new(shared, ruling.id.clone(), request.clone(), decided_in, pinned.busy.clone());
    if ruling.decision.outcome != Outcome::Allow {
        let line = match &ruling.explanation {
            Some(explanation) => explanation.line(),
            None => format!("{}: {request}: no rule allows it", ruling.decision.outcome),
        };
        answer.end(Some(&format!("{line} (record {record})")), REFUSED_STATUS).await;
        return progress.end(Ending::Refused);
    }
    let opened = open(pinned, &ruling.decision, &request, user, protocol).await;
    let origin = match opened {
        Ok(origin) => origin,
        Err(error) => {
            answer.end(Some(&format!("failed: {error} (record {record})")), REFUSED_STATUS).await;
            return progress.end_failed(error.failure());
        }
    };
    pass(bay, &answer, origin, &progress, pinned).await;
}

async fn open(
    pinned: &Pinned,
    decision: &bay_policy::Decision,
    request: &CanonicalRequest,
    user: &str,
    protocol: Option<&'static str>,
) -> Result<client::Origin, crate::upstream::DialError> {
    let failed = |why: String| crate::upstream::DialError::failed(Failure::Login, why);
    let git = request.git().ok_or_else(|| failed("it is not git".to_owned()))?;
    let shared = &pinned.shared;
    let login = shared.upstream.ssh_login(&request.host().to_string(), request.port()).await;
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
    client::open(shared, decision, request, git, protocol, &login).await
}

/// How a command ended.
enum End {
    /// With this status, or with none that was told.
    Status(Option<u32>),
    /// The origin refused to run it.
    NotRun,
    BayGone,
    Revoked,
}

async fn pass(
    bay: ChannelReadHalf,
    answer: &BayChannel,
    origin: client::Origin,
    progress: &Arc<Progress>,
    pinned: &Pinned,
) {
    let client::Origin { channel, connection, leash } = origin;
    let (reader, writer) = channel.split();
    let shared = &pinned.shared;
    let watching = tunnel::watch(progress, shared.timeouts.tunnel_idle, shared.changes.clone());
    let ended = tokio::select! {
        ended = inward(reader, answer, progress) => Ok(ended),
        ended = outward(bay, writer, progress) => Ok(ended),
        stopped = watching => Err(stopped),
    };
    drop((connection, leash));
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

/// From the origin to the bay, until the origin is done.
async fn inward(mut origin: ChannelReadHalf, answer: &BayChannel, progress: &Progress) -> End {
    let mut status = None;
    while let Some(message) = origin.wait().await {
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

/// From the bay to the origin; the end of it is not the end of the command.
async fn outward(
    mut bay: ChannelReadHalf,
    origin: ChannelWriteHalf<library::Msg>,
    progress: &Progress,
) -> End {
    while let Some(message) = bay.wait().await {
        let written = match message {
            ChannelMsg::Data { data } => {
                if !progress.still_allowed() {
                    return End::Revoked;
                }
                let length = data.len();
                let written = origin.data_bytes(data).await;
                progress.moved(Direction::Out, length);
                written
            }
            ChannelMsg::Eof => origin.eof().await,
            ChannelMsg::Close => return End::BayGone,
            _ => Ok(()),
        };
        if written.is_err() {
            // What the origin still has to say, its status above all, comes the other way.
            return std::future::pending().await;
        }
    }
    End::BayGone
}
