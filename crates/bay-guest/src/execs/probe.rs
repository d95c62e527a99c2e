//! A short command that leaves no trace: a health check. Nothing of it is on disk, in a list or in an event; the little
//! that it prints is told to whoever asked.

use std::sync::Arc;
use std::time::Duration;

use bay_sys::spawn::Reaped;
use bay_types::ApiError;
use bay_types::exec::ExecSpec;

use super::exec::signal_tree;
use super::{Execs, SIGKILL, lock, pump, start};

/// Output of a probe that is looked at: enough for the line that says why.
const MAX_OUTPUT: usize = 4096;

/// How a probe went.
#[derive(Debug)]
pub(crate) struct Probed {
    /// Absent when its time was up.
    pub(crate) ended: Option<Reaped>,
    /// The beginning of what it printed, both streams together.
    pub(crate) output: Vec<u8>,
}

impl Execs {
    /// Runs a command to its end, or for so long; then everything it started is killed.
    pub(crate) async fn probe(&self, spec: &ExecSpec, within: Duration) -> Result<Probed, ApiError> {
        // From here to the registration nothing awaits: see `reaper`.
        let cloned = start::clone(&self.place, spec)?;
        let (leader, mut ended) = self.reaper.register(cloned.spawned.pid);
        let mut output = Vec::new();
        let outcome = tokio::time::timeout(within, async {
            if let Some(failure) = pump::read_report(cloned.spawned.report).await {
                return Err(start::explain(failure, spec, &cloned.directory));
            }
            pump::read_until(&mut ended, cloned.sources, &mut output, MAX_OUTPUT).await.map_err(|_| {
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
            Ok(Ok(reaped)) => Ok(Probed { ended: Some(reaped), output }),
            Ok(Err(error)) => Err(error),
            Err(_) => Ok(Probed { ended: None, output }),
        }
    }
}
