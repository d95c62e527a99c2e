//! Memory of bays: the daemon's half of a capture, and restores.

use std::fs::File;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use bay_backend::{Backend, BackendError, CaptureOrder, Captured, Restored, StartSpec, WhileStopped};
use bay_runtime::{PROGRAM, goes_on_here};
use bay_types::runtime::{CaptureSpec, Criu, GO_ON, Obstacle, RestoreSpec, RuntimeReply, RuntimeRequest};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader};

use crate::{Local, MAX_REPLY_BYTES, handle_of, understood};

/// A capture writes as much as the bay has memory, and a restore reads it. Longer than any that is worth waiting for.
const MEMORY_DEADLINE: Duration = Duration::from_secs(300);
/// The step at which the helper looks whether images are of this kind of machine.
const IDENTITY: &str = "identity";

/// Why there are no memory checkpoints on a host without a CRIU that works.
pub(super) fn needs_criu(why: &str) -> String {
    format!("CRIU 4.2 or newer is needed: {why}")
}

impl Local {
    fn criu(&self) -> Result<Criu, BackendError> {
        self.criu.clone().map_err(|why| BackendError::MemoryUnsupported(needs_criu(&why)))
    }

    async fn capture_spec(&self, order: &CaptureOrder) -> Result<Box<CaptureSpec>, BackendError> {
        Ok(Box::new(CaptureSpec {
            criu: self.criu()?,
            runtime: self.runtime_spec(&order.bay).await,
            record: order.runtime.read().map_err(|error| BackendError::Helper(error.into()))?,
            images: order.images.clone(),
            end: order.end,
        }))
    }

    pub(super) async fn examine_memory(&self, order: &CaptureOrder) -> Result<Vec<Obstacle>, BackendError> {
        let spec = self.capture_spec(order).await?;
        match self.ask(&RuntimeRequest::Examine(spec)).await? {
            RuntimeReply::Examined { obstacles } => Ok(obstacles),
            other => Err(unexpected(&other)),
        }
    }

    pub(super) async fn capture_memory(
        &self,
        order: &CaptureOrder,
        while_stopped: WhileStopped<'_>,
    ) -> Result<Captured, BackendError> {
        let spec = self.capture_spec(order).await?;
        let request = RuntimeRequest::Capture(spec.clone());
        let captured = match tokio::time::timeout(MEMORY_DEADLINE, self.talk(&request, while_stopped)).await {
            Ok(captured) => captured,
            // The helper was killed with its handle, and CRIU sees that it is gone.
            Err(_) => Err(BackendError::HelperSlow),
        };
        if captured.as_ref().is_err_and(|error| !matches!(error, BackendError::Obstacles(_)))
            && let Err(error) = self.ask_within(&RuntimeRequest::Mend(spec), MEMORY_DEADLINE).await
        {
            tracing::warn!(bay = %order.bay.bay, %error, "what a failed capture left could not be taken away");
        }
        captured
    }

    /// A helper whose daemon is gone sees that when CRIU is done, and lets everything go on. It holds the bay's lock until
    /// then.
    pub(super) async fn abandon_capture(&self, order: &CaptureOrder) -> Result<(), BackendError> {
        let request = RuntimeRequest::Mend(self.capture_spec(order).await?);
        self.ask_within(&request, MEMORY_DEADLINE).await.map(drop)
    }

    /// One capture, line by line. The helper ends with this.
    async fn talk(
        &self,
        request: &RuntimeRequest,
        while_stopped: WhileStopped<'_>,
    ) -> Result<Captured, BackendError> {
        let mut helper = self.command().kill_on_drop(true).spawn().map_err(BackendError::Helper)?;
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
                // A helper that is gone is seen by the missing answer.
                let _ = stdin.write_all(format!("{GO_ON}\n").as_bytes()).await;
            }
            // Where that was not said, the end of its input makes the helper give up.
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

    pub(super) async fn can_restore_memory(&self, images: &Path) -> Result<(), BackendError> {
        let (criu, images) = (self.criu()?, images.to_owned());
        let looked = tokio::task::spawn_blocking(move || goes_on_here(&images, &criu)).await;
        match looked {
            Ok(Ok(())) => Ok(()),
            Ok(Err(failure)) => {
                Err(BackendError::OtherMachine(format!("{}: {}", failure.what, failure.source)))
            }
            Err(error) => Err(BackendError::Helper(io::Error::other(error))),
        }
    }

    pub(super) async fn restore_memory(
        &self,
        spec: &StartSpec,
        images: &Path,
        fork_index: Option<u32>,
    ) -> Result<Restored, BackendError> {
        let criu = self.criu()?;
        let (kept, own) = (images.join(PROGRAM), spec.disk.root.with_file_name(PROGRAM));
        let ctl = own.clone();
        let copied = tokio::task::spawn_blocking(move || copy_program(&kept, &own)).await;
        copied.map_err(io::Error::other).flatten().map_err(BackendError::Helper)?;
        // What it ran when it was captured; a later version would be other code at the same addresses.
        let mut runtime = self.runtime_spec(spec).await;
        runtime.ctl = Some(ctl);
        let request = RuntimeRequest::Restore(Box::new(RestoreSpec {
            runtime,
            images: images.to_owned(),
            criu,
            fork_index,
        }));
        let restored = match self.ask_within(&request, MEMORY_DEADLINE).await {
            Ok(RuntimeReply::Restored { record, notes }) => {
                return Ok(Restored { runtime: handle_of(&record)?, notes });
            }
            Ok(other) => unexpected(&other),
            Err(BackendError::Step { step, message }) if step == IDENTITY => {
                BackendError::OtherMachine(message)
            }
            Err(error) => error,
        };
        if let Err(clearing) = self.clear(spec.bay).await {
            tracing::warn!(bay = %spec.bay, error = %clearing, "could not clear a failed restore");
        }
        Err(restored)
    }
}

async fn next(lines: &mut BufReader<impl AsyncRead + Unpin>) -> Result<RuntimeReply, BackendError> {
    let mut line = Vec::new();
    lines.read_until(b'\n', &mut line).await.map_err(BackendError::Helper)?;
    understood(&line, "it was killed")
}

fn unexpected(reply: &RuntimeReply) -> BackendError {
    BackendError::HelperLost { status: format!("it answered {reply:?}") }
}

/// Gives a bay a copy of its own of the executable among the images. On one pool this copies nothing. A new file each
/// time: the one before may be mounted.
fn copy_program(kept: &Path, own: &Path) -> io::Result<()> {
    match std::fs::remove_file(own) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut copy = File::create_new(own)?;
    io::copy(&mut File::open(kept)?, &mut copy)?;
    copy.set_permissions(std::fs::Permissions::from_mode(0o711))
}
