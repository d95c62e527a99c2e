//! The verbs on commands for fronts. The rules, and a person if they say so, decide on a command before it is
//! recorded and started. After that, it runs on if the client leaves.

use std::sync::Arc;

use bay_types::bay::State;
use bay_types::exec::{ExecSpec, ExecView, LimitHit, SignalRequest, Signalled};
use bay_types::frame::{Frame, Gap, GapReason};
use bay_types::output::OutputRequest;
use bay_types::principal::Principal;
use bay_types::trace::Traceparent;
use bay_types::{CoreError, ErrorCode, InputId};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;

use crate::authorize::Verb;
use crate::background::to_the_end;
use crate::byte_stream::{self, ByteStream};
use crate::channel::FrameStream;
use crate::daemon::Daemon;
use crate::registry::{Attached, BayHandle};
use crate::verbs::{command_approval, execs, removed_bays};
use crate::{checked_output, spool};

/// The frames of a command in both directions, while a client is attached.
#[derive(Debug)]
pub struct Frames {
    pub stream: TokioIo<Upgraded>,
    /// Bytes of the client's input that the guest has received on earlier connections. Absent if the client did not ask,
    /// or the guest is of an earlier release.
    pub received: Option<u64>,
    /// Counts as a use of the bay until the client leaves.
    _attached: Attached,
}

/// A bay's commands as they are now. For a removed bay, named by its id, the newest that the record has.
pub async fn list(daemon: &Daemon, who: &Principal, bay: &str) -> Result<Vec<ExecView>, CoreError> {
    match daemon.bay_for(who, Verb::ExecList, bay) {
        Ok(handle) => execs::list(daemon, &handle).await,
        Err(unknown) => removed_bays::execs(daemon, bay, unknown).await,
    }
}

/// One command as it is now, by its id, its number, or the end of its id. The bay may be removed, as in [`list`].
pub async fn show(daemon: &Daemon, who: &Principal, bay: &str, exec: &str) -> Result<ExecView, CoreError> {
    match daemon.bay_for(who, Verb::ExecShow, bay) {
        Ok(handle) => execs::show(daemon, &handle, exec).await,
        Err(unknown) => removed_bays::exec(daemon, bay, exec, unknown).await,
    }
}

/// The command with the bay's own user, unless it names one or the bay has none. A repeated request becomes the
/// same command, because a bay keeps its user.
fn as_user_of(handle: &BayHandle, mut spec: ExecSpec) -> ExecSpec {
    if spec.user.is_none() {
        spec.user = handle.row().spec.user.map(|user| user.name);
    }
    spec
}

/// Starts a command without a client attached. A repeated request with the same id is for the same command. If the
/// client leaves while the command waits for an approval, the command is not started.
pub async fn start(
    daemon: &Arc<Daemon>,
    who: &Principal,
    bay: &str,
    spec: ExecSpec,
    parent: Option<Traceparent>,
) -> Result<ExecView, CoreError> {
    let handle = daemon.bay_for(who, Verb::ExecStart, bay)?;
    let spec = as_user_of(&handle, spec);
    command_approval::pass(daemon, &handle, &spec, false, *who).await?;
    let (daemon, who) = (Arc::clone(daemon), *who);
    to_the_end(async move { execs::start(&daemon, &handle, &spec, parent, who).await }).await
}

/// Starts a command with the client attached from its first byte on.
pub async fn start_attached(
    daemon: &Arc<Daemon>,
    who: &Principal,
    bay: &str,
    spec: ExecSpec,
    input: Option<InputId>,
    parent: Option<Traceparent>,
) -> Result<Frames, CoreError> {
    let handle = daemon.bay_for(who, Verb::ExecStart, bay)?;
    let spec = as_user_of(&handle, spec);
    command_approval::pass(daemon, &handle, &spec, false, *who).await?;
    let attached = handle.client_attached();
    let (daemon, who) = (Arc::clone(daemon), *who);
    let guest =
        to_the_end(async move { execs::start_attached(&daemon, &handle, &spec, input, parent, who).await })
            .await?;
    Ok(frames(guest, attached))
}

/// Asks a person about a command even if no rule asks, and returns when it may start. A rule that denies it still
/// does, and a command that has an allow or was started before is not asked about again. The command is not
/// started.
pub async fn ask(daemon: &Arc<Daemon>, who: &Principal, bay: &str, spec: &ExecSpec) -> Result<(), CoreError> {
    let handle = daemon.bay_for(who, Verb::ExecStart, bay)?;
    let spec = as_user_of(&handle, spec.clone());
    command_approval::pass(daemon, &handle, &spec, true, *who).await
}

/// Attaches to an existing command, from a byte of its output on.
pub async fn attach(
    daemon: &Daemon,
    who: &Principal,
    bay: &str,
    exec: &str,
    since: u64,
    input: Option<InputId>,
) -> Result<Frames, CoreError> {
    let handle = daemon.bay_for(who, Verb::ExecAttach, bay)?;
    let attached = handle.client_attached();
    let guest = execs::attach(daemon, &handle, exec, since, input).await?;
    Ok(frames(guest, attached))
}

fn frames(guest: FrameStream, attached: Attached) -> Frames {
    let FrameStream { upgraded, received } = guest;
    Frames { stream: TokioIo::new(upgraded), received, _attached: attached }
}

/// The output of a command from a byte on, as frames: from the guest if the bay runs and the guest has it,
/// otherwise from the disk. The output of a running command cannot be followed while its bay is paused.
pub async fn output(
    daemon: &Daemon,
    who: &Principal,
    bay: &str,
    exec: &str,
    request: OutputRequest,
) -> Result<ByteStream, CoreError> {
    let handle = daemon.bay_for(who, Verb::ExecOutput, bay)?;
    let row = execs::find(daemon, &handle, exec).await?;
    let OutputRequest { since, follow, .. } = request;
    let waits = follow && row.exit.is_none();
    let runs = execs::must_run(&handle);
    if waits && handle.row().state == State::Paused {
        // A frozen guest sends nothing.
        runs?;
    } else if runs.is_ok() {
        let path = format!("/v1/execs/{}/output?{}", row.id, request.query());
        match handle.guest.read(&path).await {
            // The output of an exec that is over is checked against the record. The guest knows more about other
            // execs.
            Ok(answer) if row.exit.is_some() => {
                return Ok(checked_output::checked(answer.bytes, &row, since));
            }
            Ok(answer) => return Ok(answer.bytes),
            // The exec may have ended before this guest began, or the guest may have ended just now.
            Err(error) if matches!(error.code, ErrorCode::ExecNotFound | ErrorCode::GuestUnreachable) => {}
            Err(error) => return Err(error),
        }
    }
    let state = daemon.pool()?.bay_disk(handle.id).state;
    let last = if waits {
        Some(execs::end_of(daemon, &handle, row.id).await)
    } else {
        row.exit.map(|exit| Ok(Frame::Exit(exit, None)))
    };
    match spool::output(state, row.id, request, last.clone()).await {
        Ok(frames) => {
            let row = daemon.store.exec_get(handle.id, row.id).await.map_err(|e| e.to_api())?.unwrap_or(row);
            Ok(checked_output::checked(byte_stream::received_until_error(frames), &row, since))
        }
        // The disk had no room even for the exec's own files.
        Err(_) if row.limits_hit.contains(&LimitHit::Disk) => {
            let dropped = row.output_bytes.saturating_sub(since);
            let gap = Frame::Gap(Gap { dropped, why: GapReason::DiskFull });
            let frames = std::iter::once(Ok(gap)).chain(last).map(|frame| Ok(frame?.to_bytes().into()));
            Ok(Box::pin(futures_util::stream::iter(frames)))
        }
        Err(error) => Err(error),
    }
}

/// Sends a signal to a command, or to all its processes.
pub async fn signal(
    daemon: &Arc<Daemon>,
    who: &Principal,
    bay: &str,
    exec: String,
    signal: SignalRequest,
) -> Result<Signalled, CoreError> {
    let handle = daemon.bay_for(who, Verb::ExecSignal, bay)?;
    let (daemon, who) = (Arc::clone(daemon), *who);
    to_the_end(async move { execs::signal(&daemon, &handle, &exec, signal, who).await }).await
}
