//! The reconciler: one task per bay that brings the bay to its desired state.
//!
//! It takes no input. It reads the row, inspects the backend, asks [`next_step`] what to do and does it, until no
//! step is left. It runs when a verb wakes it, when PID 1 of its bay ends, and on a timer. The daemon may be
//! killed at any line: every step may be repeated, and the next daemon finds by id what a step began. A pass never
//! retries. A step that fails leaves a reason. The timer tries a stop, a clearing and a deletion again. Other
//! steps wait for the next request.
//!
//! | module | steps |
//! |---|---|
//! | [`files`] | make the disk, restore a checkpoint, replace the root |
//! | [`start`], [`thaw`] | start PID 1 or restore its memory, wait until the guest answers |
//! | [`running`] | none: what accompanies a bay that runs |
//! | [`settings`] | apply settings that a caller changed |
//! | [`pause`] | pause, resume, keep only what is on disk, give up a paused bay that is gone |
//! | [`stop`] | stop, delete |
//! | [`loss`] | record that a guest ended by itself, clear what a failed bay left |
//!
//! If the guest of a bay dies that should run, the reconciler starts it again, at most [`MAX_RESTARTS`] times in
//! [`RESTART_WINDOW`]. Then the bay is failed. A request counts from the start again, and so does another daemon.
//!
//! [`MAX_RESTARTS`]: crate::restarts::MAX_RESTARTS
//! [`RESTART_WINDOW`]: crate::restarts::RESTART_WINDOW

use std::sync::Arc;
use std::time::Duration;

use bay_backend::Seen;
use bay_store::{BayRow, Draft};
use bay_types::bay::{Desired, State};
use bay_types::event::bay::BayFailed;
use bay_types::{CoreError, ErrorCode};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::backends::without_driver;
use crate::daemon::Daemon;
use crate::registry::{BayHandle, Settled};
use crate::restarts::Restarts;
use crate::step::{Look, Step, next_step};
use crate::verbs::images;

mod files;
mod loss;
mod pause;
mod running;
mod settings;
mod start;
mod stop;
mod thaw;

pub(crate) use loss::note_loss;
use running::Follower;

/// How often the reconciler checks a bay to which nothing happens.
const RECHECK: Duration = Duration::from_secs(30);
/// The wait before a reconciler that panicked starts again.
const PANIC_PAUSE: Duration = Duration::from_secs(1);
/// More steps than any path through the state machine has. A longer path is a defect, and the task must not spin.
const MAX_STEPS: usize = 16;

struct Reconciler {
    daemon: Arc<Daemon>,
    handle: Arc<BayHandle>,
    restarts: Restarts,
    /// Reads the running guest's events. The sender signals that the guest is gone.
    follower: Option<(Follower, watch::Sender<bool>)>,
    /// Why the next start happens, for the reason shown with it.
    why: String,
    /// Why the newest request failed, once that is on record. Later attempts that fail for the same reason write no event.
    recorded_failure: Option<String>,
    /// Why the bay's egress is closed, once that is on record.
    recorded_closed: Option<String>,
    /// The idle timer of a running bay, with its seconds.
    idler: Option<(u64, Follower)>,
    /// Flushes the files of a running bay whose processes may skip their flushes.
    flusher: Option<Follower>,
    /// Whether they may, once that was looked up.
    skips_flushes: Option<bool>,
    /// The runtime has the settings on record. `false` for a bay that an earlier daemon started: that daemon may have
    /// died while it set them.
    settings_hold: bool,
}

/// The result of one pass.
enum Pass {
    Settled {
        /// Why requested settings were refused, if they were.
        refused: Option<CoreError>,
    },
    Deleted {
        kept_workspace: Option<std::path::PathBuf>,
    },
}

/// Starts the reconciler of a bay, which ends when the bay is deleted. A reconciler that panics starts again after
/// [`PANIC_PAUSE`]: one defect must not leave a bay that nobody can stop or remove.
pub fn spawn(daemon: Arc<Daemon>, handle: Arc<BayHandle>) {
    tokio::spawn(async move {
        loop {
            handle.wake.notify_one();
            let mut reconciler = Reconciler {
                daemon: Arc::clone(&daemon),
                handle: Arc::clone(&handle),
                restarts: Restarts::default(),
                follower: None,
                why: String::new(),
                recorded_failure: None,
                recorded_closed: None,
                idler: None,
                flusher: None,
                skips_flushes: None,
                settings_hold: false,
            };
            match tokio::spawn(async move { reconciler.run().await }).await {
                Err(error) if error.is_panic() => {
                    tracing::error!(bay = %handle.name, "the reconciler of a bay panicked; it starts again");
                    tokio::time::sleep(PANIC_PAUSE).await;
                }
                _ => return,
            }
        }
    });
}

impl Reconciler {
    async fn run(&mut self) {
        // Whether to wait for the end of PID 1. If a pass after that end changed nothing, waiting again would return at
        // once, for ever. Then only a request or the timer starts a pass.
        let mut watching = true;
        let mut last_asked = 0;
        loop {
            let record = self.handle.row().runtime;
            let backend = Arc::clone(&self.handle.backend);
            let until = self.restarts.not_before();
            let is_gone = tokio::select! {
                () = self.handle.wake.notified() => false,
                () = tokio::time::sleep(RECHECK) => false,
                () = tokio::time::sleep_until(until.unwrap_or_else(Instant::now)), if until.is_some() => false,
                () = async { if let Some(record) = &record { backend.wait_gone(record).await } },
                    if record.is_some() && watching => true,
            };
            let asked = self.handle.asked();
            if asked != last_asked {
                self.restarts = Restarts::default();
                self.why.clear();
                self.recorded_failure = None;
                last_asked = asked;
            }
            let pass = self.pass().await;
            watching = !(is_gone && self.handle.row().runtime == record);
            match pass {
                Ok(Pass::Settled { refused }) => {
                    self.handle.settle(Settled { asked, error: refused, ..Settled::default() });
                }
                Ok(Pass::Deleted { kept_workspace }) => {
                    self.daemon.bays.remove(self.handle.id);
                    self.daemon.policies.forget(self.handle.id);
                    let dropped = self.daemon.approvals.drop_all(self.handle.id, "the bay was removed").await;
                    self.daemon.approvals.forget_bay(self.handle.id);
                    images::remove_superseded_soon(&self.daemon);
                    if let Err(error) = dropped {
                        tracing::error!(bay = %self.handle.name, message = %error.message, "approvals of a removed bay stay open");
                    }
                    self.handle.settle(Settled { asked, deleted: true, kept_workspace, error: None });
                    return;
                }
                Err(error) => {
                    self.daemon.telemetry.counters.reconcile_errors.add(1);
                    tracing::warn!(bay = %self.handle.name, code = %error.code, message = %error.message, "a bay did not reach its desired state");
                    self.handle.settle(Settled { asked, error: Some(error), ..Settled::default() });
                }
            }
        }
    }

    async fn look(&self, row: &BayRow) -> Look {
        let seen = match &row.runtime {
            Some(record) => self.handle.backend.inspect(row.id, record).await,
            None => Seen::Gone,
        };
        Look {
            desired: row.desired,
            state: row.state,
            seen,
            recorded: row.runtime.is_some(),
            disk_ready: row.disk_ready,
            restore: row.restore_wanted.is_some(),
            replace: row.replace_with.is_some(),
            on_disk: row.thaw_from.is_some(),
            settings_due: row.settings_wanted.is_some() || (seen != Seen::Gone && !self.settings_hold),
            backing_off: self.restarts.not_before().is_some(),
        }
    }

    /// Steps until there is nothing to do.
    async fn pass(&mut self) -> Result<Pass, CoreError> {
        let handle = Arc::clone(&self.handle);
        let _at_work = handle.at_work.lock().await;
        if let Some(why) = &handle.driver_missing {
            // A daemon that has the driver will do what is requested.
            return Ok(Pass::Settled { refused: Some(without_driver(&handle.name, why)) });
        }
        let mut refused = None;
        for _ in 0..MAX_STEPS {
            let row = self.handle.row();
            let look = self.look(&row).await;
            let step = next_step(look);
            if !matches!(step, Step::Rest | Step::Wait) {
                tracing::debug!(bay = %row.name, ?step, state = %row.state, desired = %row.desired, "step");
            }
            let done = match step {
                Step::Rest | Step::Wait => {
                    if look.seen != Seen::Gone {
                        self.open_egress(&row).await;
                    }
                    if (look.seen, row.state) == (Seen::Running, State::Running) {
                        self.reclaim_guest(&row).await;
                    }
                    self.follow(&row, look.seen);
                    self.flush_instead(&row, look.seen).await;
                    return Ok(Pass::Settled { refused });
                }
                Step::NoteLoss => self.note_loss(&row).await,
                Step::Clear => self.clear().await,
                // Refused settings must not block the other steps.
                Step::Apply => self.apply(&row, look.seen).await.map(|why| refused = why),
                Step::MakeDisk => self.make_disk(&row).await,
                Step::Restore => self.restore(&row).await,
                Step::ReplaceRoot => self.replace_root(&row).await,
                Step::Start => self.start(&row).await,
                Step::Confirm => self.confirm(&row).await,
                Step::Pause => self.pause(&row).await,
                Step::Resume => self.resume(&row).await,
                Step::Stop => self.stop(&row, look.seen).await,
                Step::Forsake => self.forsake().await,
                Step::LetGo => self.let_go().await,
                Step::Delete => return self.delete(&row).await,
            };
            if let Err(error) = done {
                self.fail(step, look, &error).await?;
                return Err(error);
            }
        }
        Err(CoreError::new(
            ErrorCode::Internal,
            format!("the bay {} does not reach a stable state", self.handle.name),
            "this is a defect of Workbay; the daemon's log has the details",
        ))
    }

    /// Records why a step failed. If a pause or resume failed, the bay keeps the state it is in; after any other step it
    /// is failed, with the exceptions below.
    async fn fail(&mut self, step: Step, look: Look, error: &CoreError) -> Result<(), CoreError> {
        let reason = error.message.clone();
        let draft = Draft::of(BayFailed {
            step: format!("{step:?}"),
            code: error.code.into(),
            reason: reason.clone(),
        });
        let draft = (self.recorded_failure.as_ref() != Some(&reason)).then_some(draft);
        self.recorded_failure = Some(reason.clone());
        let change = |row: &mut BayRow| {
            match step {
                Step::Pause => row.desired = Desired::Running,
                Step::Resume if look.state == State::Paused => row.desired = Desired::Paused,
                // The bay still has its earlier files.
                Step::Restore => {
                    row.restore_wanted = None;
                    row.thaw_from = None;
                    row.state = State::Stopped;
                }
                // The host lacked memory for the processes that are on disk. They stay there until the next request.
                Step::Start if error.code == ErrorCode::NotEnough && row.thaw_from.is_some() => {
                    row.desired = Desired::Paused;
                    row.state = State::Paused;
                }
                _ => row.state = State::Failed,
            }
            row.reason = reason;
        };
        self.handle.update(&self.daemon.store, draft, change).await.map(drop)
    }

    async fn update(&self, draft: Draft, change: impl FnOnce(&mut BayRow)) -> Result<BayRow, CoreError> {
        self.handle.update(&self.daemon.store, Some(draft), change).await
    }
}
