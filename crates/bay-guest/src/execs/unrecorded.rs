//! Runs a short command without a record, for health checks and fork hooks. Nothing of it is on disk, in a list or in
//! an event; the caller gets the beginning of its output.

use std::sync::Arc;
use std::time::Duration;

use bay_sys::spawn::Reaped;
use bay_types::ApiError;
use bay_types::exec::ExecSpec;

use super::exec::signal_tree;
use super::{Execs, SIGKILL, exec_task, lock, start};

/// Most bytes of output that are kept, for the line that says why it failed.
const MAX_OUTPUT: usize = 4096;

/// How an unrecorded command ended.
#[derive(Debug)]
pub(crate) struct UnrecordedRun {
    /// None if the time was over first.
    pub(crate) ended: Option<Reaped>,
    /// The beginning of its output, both streams together.
    pub(crate) output: Vec<u8>,
}

/// Characters of the last line of output that are quoted in a reason.
const MAX_SAID: usize = 200;

impl UnrecordedRun {
    /// Why it failed, with the last line that was kept: of more than [`MAX_OUTPUT`] bytes a line from the middle. None if
    /// it succeeded.
    pub(crate) fn failure(&self, within: Duration) -> Option<String> {
        let how = match self.ended {
            Some(ended) if ended.code == Some(0) => return None,
            Some(ended) => match (ended.code, ended.signal) {
                (Some(code), _) => format!("it exited with code {code}"),
                (None, Some(signal)) => format!("it was ended by signal {signal}"),
                (None, None) => "it ended, and how is not known".to_owned(),
            },
            None => format!("it did not end within {} s", within.as_secs_f32()),
        };
        let text = String::from_utf8_lossy(&self.output);
        let said = text.lines().rev().map(str::trim).find(|line| !line.is_empty());
        Some(said.map_or(how.clone(), |said| {
            let said: String = said.chars().take(MAX_SAID).collect();
            format!("{how}, saying {said:?}")
        }))
    }
}

impl Execs {
    /// Runs a command until it ends or `within` is over. Then kills everything that it started.
    pub(crate) async fn run_unrecorded(
        &self,
        spec: &ExecSpec,
        within: Duration,
    ) -> Result<UnrecordedRun, ApiError> {
        // No await between here and the registration: see `reaper`.
        let cloned = start::clone(&self.context, spec)?;
        let (leader, mut ended) = self.reaper.register(cloned.spawned.pid);
        let mut output = Vec::new();
        let outcome = tokio::time::timeout(within, async {
            if let Some(failure) = exec_task::read_report(cloned.spawned.report).await {
                return Err(start::explain(failure, spec, &cloned.directory));
            }
            exec_task::read_until(&mut ended, cloned.sources, &mut output, MAX_OUTPUT).await.map_err(|_| {
                ApiError::new(bay_types::ErrorCode::Interrupted, "its end could not be seen", "try again")
            })
        })
        .await;
        let alive = leader.is_alive().then_some(leader.pid);
        if alive.is_some() || cloned.leaf.as_ref().is_some_and(|leaf| !leaf.remove()) {
            signal_tree(cloned.leaf.as_deref(), alive, spec.id, SIGKILL);
            if let Some(leaf) = cloned.leaf.filter(|leaf| !leaf.remove()) {
                lock(&self.leftovers).push(Arc::clone(&leaf));
            }
        }
        match outcome {
            Ok(Ok(reaped)) => Ok(UnrecordedRun { ended: Some(reaped), output }),
            Ok(Err(error)) => Err(error),
            Err(_) => Ok(UnrecordedRun { ended: None, output }),
        }
    }
}
