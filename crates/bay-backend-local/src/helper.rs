//! Runs the helper, `bay __runtime`: one request for each run, and its reply.

use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use bay_backend::BackendError;
use bay_types::runtime::{RuntimeHandle, RuntimeRecord, RuntimeReply, RuntimeRequest};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;

/// Longest answer the helper may give.
pub(crate) const MAX_REPLY_BYTES: u64 = 64 * 1024;
/// How long the helper may take for any request but a capture or restore. A start takes milliseconds. Ending processes
/// that wait for a slow disk may take as long as the helper's own deadlines.
const HELPER_DEADLINE: Duration = Duration::from_secs(90);

/// The program that makes, captures and clears runtimes.
#[derive(Debug)]
pub(crate) struct Helper {
    /// The `bay` executable.
    program: PathBuf,
}

impl Helper {
    pub(crate) fn new(program: PathBuf) -> Self {
        Self { program }
    }

    /// The helper leads its own process group, so that a signal to the daemon's group does not reach it.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command
            .arg("__runtime")
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .process_group(0);
        command
    }

    /// Runs the helper until it ends, or kills it after [`HELPER_DEADLINE`].
    pub(crate) async fn ask(&self, request: &RuntimeRequest) -> Result<RuntimeReply, BackendError> {
        self.ask_within(request, HELPER_DEADLINE).await
    }

    pub(crate) async fn ask_within(
        &self,
        request: &RuntimeRequest,
        deadline: Duration,
    ) -> Result<RuntimeReply, BackendError> {
        let mut helper = self.command().spawn().map_err(BackendError::Helper)?;
        let body = serde_json::to_vec(request).map_err(|error| BackendError::Helper(error.into()))?;
        let talk = async {
            if let Some(mut stdin) = helper.stdin.take() {
                stdin.write_all(&body).await?;
            }
            let mut answer = Vec::new();
            if let Some(stdout) = helper.stdout.take() {
                stdout.take(MAX_REPLY_BYTES).read_to_end(&mut answer).await?;
            }
            io::Result::Ok((answer, helper.wait().await?))
        };
        let (answer, status) = match tokio::time::timeout(deadline, talk).await {
            Ok(talked) => talked.map_err(BackendError::Helper)?,
            Err(_) => {
                // Do not wait for it: if it hangs in the kernel, it never ends. The async runtime reaps it.
                let _ = helper.start_kill();
                return Err(BackendError::HelperSlow);
            }
        };
        read_reply(&answer, &status.to_string())
    }
}

/// The helper's reply, or the failure that it reports. `ended` describes a helper that ended without a reply.
pub(crate) fn read_reply(answer: &[u8], ended: &str) -> Result<RuntimeReply, BackendError> {
    match serde_json::from_slice(answer) {
        Ok(RuntimeReply::Failed { step, message }) => Err(BackendError::Step { step, message }),
        Ok(RuntimeReply::Hangs { message }) => Err(BackendError::Hangs(message)),
        Ok(reply) => Ok(reply),
        Err(_) => Err(BackendError::HelperLost { status: ended.to_owned() }),
    }
}

/// The error for a reply that belongs to another request.
pub(crate) fn unexpected(reply: &RuntimeReply) -> BackendError {
    BackendError::HelperLost { status: format!("it answered {reply:?}") }
}

pub(crate) fn handle_of(record: &RuntimeRecord) -> Result<RuntimeHandle, BackendError> {
    RuntimeHandle::of(record).map_err(|error| BackendError::Helper(error.into()))
}
