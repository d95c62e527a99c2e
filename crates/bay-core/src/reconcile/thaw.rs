//! Starting PID 1 of a bay: anew, or restored from a memory checkpoint.

use std::sync::Arc;

use bay_backend::StartSpec;
use bay_store::BayRow;
use bay_types::checkpoint::Point;
use bay_types::exec::EndReason;
use bay_types::runtime::RuntimeHandle;
use bay_types::{Action, CoreError, ErrorCode, Hint, HintBay};

use super::Reconciler;
use crate::admission::Admitted;
use crate::backends::refusal;
use crate::channel::plain_text;
use crate::daemon::Daemon;
use crate::verbs::start_spec::start_spec;
use crate::verbs::{execs, policy};

/// How many of the problems that a restored guest reports become part of the reason.
const MAX_NOTES: usize = 4;

impl Reconciler {
    /// Starts or restores PID 1.
    pub(super) async fn begin(&mut self, row: &BayRow) -> Result<RuntimeHandle, CoreError> {
        // Grants were made for the processes that ran before.
        policy::drop_grants(&self.daemon, &self.handle, "the bay begins anew").await?;
        let spec = start_spec(&self.daemon, row).await?;
        let Some(from) = row.thaw_from else {
            return self.handle.backend.start(&spec).await.map_err(|e| refusal(&e));
        };
        let daemon = Arc::clone(&self.daemon);
        let _room = self.room(&daemon, row, from).await?;
        // Restored processes change files at once. If this daemon dies before it has stored the runtime, the next one
        // restores the files of the checkpoint first.
        self.handle.update(&self.daemon.store, None, |row| row.restore_wanted = Some(from)).await?;
        match self.thaw(row, &spec, from).await {
            Ok(record) => Ok(record),
            Err(error) => {
                // The files are in place, so the next start is an ordinary one.
                self.handle
                    .update(&self.daemon.store, None, |row| {
                        row.thaw_from = None;
                        row.restore_wanted = None;
                    })
                    .await?;
                execs::close_all(&self.daemon, &self.handle, EndReason::Lost).await;
                let again = Action::Restore {
                    bay: (&row.name).into(),
                    checkpoint: from.checkpoint,
                    files_only: false,
                };
                let again = Hint::new("{} tries again", [again]);
                Err(CoreError::new(
                    if error.code == ErrorCode::BayFailed {
                        ErrorCode::MemoryUnavailable
                    } else {
                        error.code
                    },
                    format!("the processes of {} could not be restored: {}", from.checkpoint, error.message),
                    Hint::new(
                        "the files are restored: {} starts the bay from them",
                        [Action::StartBay((&row.name).into())],
                    )
                    .and(if from.bay == row.id { again } else { Hint::default() }),
                ))
            }
        }
    }

    /// Waits for memory while other restores are under way. An error if there is not enough.
    async fn room<'a>(
        &self,
        daemon: &'a Daemon,
        row: &BayRow,
        from: Point,
    ) -> Result<Admitted<'a>, CoreError> {
        let needed = self.handle.with_files(move |files| files.checkpoint_memory_bytes(from)).await?;
        if let Ok(room) = daemon.admission.enter(needed) {
            return Ok(room);
        }
        let reason =
            format!("waits until there are {} MiB of memory for its processes", needed.div_ceil(1 << 20));
        self.handle.update(&daemon.store, None, |row| row.reason = reason).await?;
        daemon.admission.enter_in_turn(needed).await.map_err(|shortage| {
            let what = format!("what ran in {} at {}", row.name, from.checkpoint);
            let bay = HintBay::from(&row.name);
            let hint = Hint::new(
                "it stays paused on disk: stop other bays, then {}; or {} and {} start it from its files alone",
                [Action::ResumeBay(bay.clone()), Action::StopBay(bay.clone()), Action::StartBay(bay)],
            );
            shortage.refusal(&what, hint)
        })
    }

    async fn thaw(
        &mut self,
        row: &BayRow,
        spec: &StartSpec,
        from: Point,
    ) -> Result<RuntimeHandle, CoreError> {
        // A bay that is restored to its own checkpoint keeps its identity.
        let index = (from.bay != row.id).then(|| row.forked_from.as_ref().map_or(0, |from| from.index));
        let restored = self.handle.backend.restore(spec, from, index).await.map_err(|e| refusal(&e))?;
        if self.why.is_empty() {
            self.why = format!("resumed from {}", from.checkpoint);
        }
        for note in restored.notes.iter().take(MAX_NOTES) {
            self.why.push_str("; ");
            self.why.push_str(&plain_text(note));
        }
        let revived = self.daemon.store.execs_revive(row.id, from).await.map_err(|e| e.to_api())?;
        for exec in revived {
            self.handle.exec_opened(exec);
            self.handle.exec_began(exec, self.handle.backend.limit_events(row.id));
        }
        Ok(restored.runtime)
    }
}
