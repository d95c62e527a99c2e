//! Memory of bays: the daemon's part of captures and restores.

use std::fs::File;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bay_backend::{BackendError, Captured, Restored, WhileStopped};
use bay_runtime::{PROGRAM, can_restore_here, find_criu};
use bay_types::backend::Support;
use bay_types::runtime::{
    CaptureSpec, Criu, GO_ON, Obstacle, RestoreSpec, RuntimeReply, RuntimeRequest, RuntimeSpec,
};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader};

use crate::helper::{Helper, MAX_REPLY_BYTES, handle_of, read_reply, unexpected};

/// How long a capture or a restore may take: the one writes the bay's memory, the other reads it.
const MEMORY_DEADLINE: Duration = Duration::from_secs(300);
/// The step in which the helper checks that the images come from this kind of machine.
const IDENTITY: &str = "identity";

/// A CRIU that does not report its version within this time counts as missing.
const CRIU_ANSWERS_WITHIN: Duration = Duration::from_secs(5);

/// The program that captures and restores memory, or why this host has none.
#[derive(Debug)]
pub(crate) struct Memory(Result<Criu, String>);

impl Memory {
    /// Uses the given CRIU, or the first one that is found.
    pub(crate) async fn open(given: Option<PathBuf>) -> Self {
        let found = tokio::task::spawn_blocking(move || find_criu(given.as_deref()));
        Self(match tokio::time::timeout(CRIU_ANSWERS_WITHIN, found).await {
            Ok(found) => found.unwrap_or_else(|error| Err(error.to_string())),
            Err(_) => Err("it did not report its version in time".to_owned()),
        })
    }

    pub(crate) fn support(&self) -> Support {
        match &self.0 {
            Ok(_) => Support::Yes,
            Err(why) => Support::no(needs_criu(why)),
        }
    }

    pub(crate) fn criu(&self) -> Result<Criu, BackendError> {
        self.0.clone().map_err(|why| BackendError::MemoryUnsupported(needs_criu(&why)))
    }

    pub(crate) async fn examine(
        &self,
        helper: &Helper,
        spec: Box<CaptureSpec>,
    ) -> Result<Vec<Obstacle>, BackendError> {
        match helper.ask(&RuntimeRequest::Examine(spec)).await? {
            RuntimeReply::Examined { obstacles } => Ok(obstacles),
            other => Err(unexpected(&other)),
        }
    }

    pub(crate) async fn capture(
        &self,
        helper: &Helper,
        spec: Box<CaptureSpec>,
        while_stopped: WhileStopped<'_>,
    ) -> Result<Captured, BackendError> {
        let (bay, request) = (spec.runtime.place.bay_id, RuntimeRequest::Capture(spec.clone()));
        let captured =
            match tokio::time::timeout(MEMORY_DEADLINE, talk(helper, &request, while_stopped)).await {
                Ok(captured) => captured,
                // The helper was killed when its handle was dropped, and CRIU notices that.
                Err(_) => Err(BackendError::HelperSlow),
            };
        if captured.as_ref().is_err_and(|error| !matches!(error, BackendError::Obstacles(_)))
            && let Err(error) = helper.ask_within(&RuntimeRequest::Mend(spec), MEMORY_DEADLINE).await
        {
            tracing::warn!(bay = %bay, %error, "could not remove what a failed capture left");
        }
        captured
    }

    /// Waits for an interrupted capture to end. A helper whose daemon died notices that when CRIU is done, and resumes
    /// the bay. It holds the bay's lock until then.
    pub(crate) async fn abandon(&self, helper: &Helper, spec: Box<CaptureSpec>) -> Result<(), BackendError> {
        let request = RuntimeRequest::Mend(spec);
        helper.ask_within(&request, MEMORY_DEADLINE).await.map(drop)
    }

    pub(crate) async fn can_restore(&self, images: &Path) -> Result<(), BackendError> {
        let (criu, images) = (self.criu()?, images.to_owned());
        let checked = tokio::task::spawn_blocking(move || can_restore_here(&images, &criu)).await;
        match checked {
            Ok(Ok(())) => Ok(()),
            Ok(Err(failure)) => {
                Err(BackendError::OtherMachine(format!("{}: {}", failure.what, failure.source)))
            }
            Err(error) => Err(BackendError::Helper(io::Error::other(error))),
        }
    }

    /// If it fails, parts of the runtime may remain; the caller clears them.
    pub(crate) async fn restore(
        &self,
        helper: &Helper,
        mut runtime: RuntimeSpec,
        images: &Path,
        fork_index: Option<u32>,
    ) -> Result<Restored, BackendError> {
        let criu = self.criu()?;
        let (kept, own) = (images.join(PROGRAM), runtime.root.with_file_name(PROGRAM));
        let ctl = own.clone();
        let copied = tokio::task::spawn_blocking(move || copy_program(&kept, &own)).await;
        copied.map_err(io::Error::other).flatten().map_err(BackendError::Helper)?;
        // The program that ran at the capture: a later version would have other code at the same addresses.
        runtime.ctl = Some(ctl);
        let request = RuntimeRequest::Restore(Box::new(RestoreSpec {
            runtime,
            images: images.to_owned(),
            criu,
            fork_index,
        }));
        match helper.ask_within(&request, MEMORY_DEADLINE).await {
            Ok(RuntimeReply::Restored { record, notes }) => {
                Ok(Restored { runtime: handle_of(&record)?, notes })
            }
            Ok(other) => Err(unexpected(&other)),
            Err(BackendError::Step { step, message }) if step == IDENTITY => {
                Err(BackendError::OtherMachine(message))
            }
            Err(error) => Err(error),
        }
    }
}

/// The reason for no memory checkpoints on a host without a working CRIU.
fn needs_criu(why: &str) -> String {
    format!("CRIU 4.2 or newer is needed: {why}")
}

/// The protocol of one capture, line by line. The helper ends with it.
async fn talk(
    helper: &Helper,
    request: &RuntimeRequest,
    while_stopped: WhileStopped<'_>,
) -> Result<Captured, BackendError> {
    let mut helper = helper.command().kill_on_drop(true).spawn().map_err(BackendError::Helper)?;
    let (Some(mut stdin), Some(stdout)) = (helper.stdin.take(), helper.stdout.take()) else {
        return Err(BackendError::Helper(io::ErrorKind::BrokenPipe.into()));
    };
    let mut lines = BufReader::new(stdout.take(MAX_REPLY_BYTES));
    let mut body = serde_json::to_vec(request).map_err(|error| BackendError::Helper(error.into()))?;
    body.push(b'\n');
    stdin.write_all(&body).await.map_err(BackendError::Helper)?;
    let mut reply = next(&mut lines).await?;
    if reply == RuntimeReply::Stopped {
        let done = while_stopped.await;
        if done.is_ok() {
            // If the helper has ended, the missing answer shows it.
            let _ = stdin.write_all(format!("{GO_ON}\n").as_bytes()).await;
        }
        // If it was not told to continue, the end of its input makes the helper give up.
        drop(stdin);
        let said = next(&mut lines).await;
        done.map_err(BackendError::Snapshot)?;
        reply = said?;
    }
    match reply {
        RuntimeReply::Captured { pause_ms } => Ok(Captured { pause: Duration::from_millis(pause_ms) }),
        RuntimeReply::Examined { obstacles } => Err(BackendError::Obstacles(obstacles)),
        other => Err(unexpected(&other)),
    }
}

async fn next(lines: &mut BufReader<impl AsyncRead + Unpin>) -> Result<RuntimeReply, BackendError> {
    let mut line = Vec::new();
    lines.read_until(b'\n', &mut line).await.map_err(BackendError::Helper)?;
    read_reply(&line, "it was killed")
}

/// Gives a bay its own copy of the executable among the images. Within one pool the copy shares its blocks. It is a new
/// file each time, because the previous one may be mounted.
fn copy_program(kept: &Path, own: &Path) -> io::Result<()> {
    match std::fs::remove_file(own) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut copy = File::create_new(own)?;
    io::copy(&mut File::open(kept)?, &mut copy)?;
    copy.set_permissions(std::fs::Permissions::from_mode(0o711))
}
