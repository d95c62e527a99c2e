//! One task per bay that makes the wish true.
//!
//! It takes no input: it reads the row, asks the backend what is, asks [`next_step`] what to do, does it, and looks
//! again until there is nothing to do. It runs when a verb wakes it, when PID 1 of its bay is gone, and on a timer. It
//! may be killed at any line: every step may be repeated, and what a step began is found again by id. It never retries
//! inside; a step that fails leaves a state with a reason, and the next wish or the timer tries again.
//!
//! A guest that dies under a bay that is wanted running is replaced by itself, at most [`MAX_RESTARTS`] times in
//! [`RESTART_WINDOW`], then the bay is failed.

use std::sync::Arc;
use std::time::Duration;

use bay_backend::Seen;
use bay_store::{BayRow, Draft};
use bay_types::bay::{Desired, State};
use bay_types::event::bay::{
    BayCleared, BayDeleted, BayDeleting, BayFailed, BayGuestMoved, BayLost, BayPaused, BayReplaced,
    BayRestored, BayResumed, BayRunning, BayStart, BayStopped, BayStopping,
};
use bay_types::event::egress::EgressClosed;
use bay_types::exec::EndReason;
use bay_types::guest::{GuestInfo, Shutdown};
use bay_types::runtime::RuntimeHandle;
use bay_types::{Action, CoreError, ErrorCode, Hint};
use bytes::Bytes;
use http::Method;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::backends::{refusal, without_driver};
use crate::channel::plain_text;
use crate::daemon::{Daemon, paused_on};
use crate::egress::BayEgress;
use crate::fault::Point;
use crate::follow;
use crate::idle;
use crate::registry::{BayHandle, Settled};
use crate::restarts::{MAX_RESTARTS, RESTART_WINDOW, Restarts};
use crate::step::{Look, Step, next_step};
use crate::verbs::start_spec::begins_from;
use crate::verbs::{costs, execs, policy};

mod settings;
mod thaw;

/// How often a bay is looked at when nothing happens.
const RECHECK: Duration = Duration::from_secs(30);
/// How long a new guest has before it must answer.
const GUEST_READY_WITHIN: Duration = Duration::from_secs(10);
/// How long the guest may outlive its grace before everything is killed.
const STOP_SLACK: Duration = Duration::from_secs(3);
/// How long a guest that was killed may still be seen: it takes its memory down first.
const DYING_WITHIN: Duration = Duration::from_secs(2);
/// How much a guest may say of what went wrong while its bay was made ready.
const MAX_TROUBLES: usize = 4;
/// The wait before a reconciler that panicked starts anew.
const PANIC_PAUSE: Duration = Duration::from_secs(1);
/// More steps than any way through the state machine; a longer one is a defect and must not spin.
const MAX_STEPS: usize = 16;

/// How long a guest that is gone may have events on their way: they are in the buffer of a socket.
const READ_OUT_WITHIN: Duration = Duration::from_secs(2);
/// How long its last answer may take to be read.
const LAST_ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// A task that ends with its owner.
#[derive(Debug)]
struct Follower(tokio::task::JoinHandle<()>);

impl Drop for Follower {
    fn drop(&mut self) {
        self.0.abort();
    }
}

struct Reconciler {
    daemon: Arc<Daemon>,
    handle: Arc<BayHandle>,
    restarts: Restarts,
    /// Reads the running guest's events, until it is told that the guest is gone.
    follower: Option<(Follower, watch::Sender<bool>)>,
    /// Why the next start happens, for the reason shown with it.
    why: String,
    /// Why the newest wish failed, once that is in the ledger: trying the same again every now and then is not told again.
    told_failed: Option<String>,
    /// Why nothing leaves the bay, once that is in the ledger.
    told_closed: Option<String>,
    /// Watches a running bay that is to be stopped when idle, and for how many seconds.
    idler: Option<(u64, Follower)>,
    /// What runs is known to have the settings on record. Not so when the bay is found again: an earlier daemon may have
    /// died in the middle of setting them.
    settings_hold: bool,
}

/// What one pass came to.
enum Pass {
    /// With the reason when something that was asked for on the way was refused.
    Settled {
        refused: Option<CoreError>,
    },
    Deleted {
        kept_workspace: Option<std::path::PathBuf>,
    },
}

/// Starts the reconciler of a bay; it ends when the bay is deleted. One that panics is started anew after a while: a
/// defect met once must not leave a bay that nobody can stop or remove.
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
                told_failed: None,
                told_closed: None,
                idler: None,
                settings_hold: false,
            };
            match tokio::spawn(async move { reconciler.run().await }).await {
                Err(error) if error.is_panic() => {
                    tracing::error!(bay = %handle.name, "the reconciler of a bay panicked; it starts anew");
                    tokio::time::sleep(PANIC_PAUSE).await;
                }
                _ => return,
            }
        }
    });
}

impl Reconciler {
    async fn run(&mut self) {
        // Whether the death of PID 1 is waited for. Not after it was told and nothing came of it: it would be told again
        // at once, for ever. A wish or the timer looks again.
        let mut watching = true;
        let mut last_asked = 0;
        loop {
            let record = self.handle.row().runtime;
            let backend = Arc::clone(&self.handle.backend);
            let until = self.restarts.not_before();
            let told_gone = tokio::select! {
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
                self.told_failed = None;
                last_asked = asked;
            }
            let pass = self.pass().await;
            watching = !(told_gone && self.handle.row().runtime == record);
            match pass {
                Ok(Pass::Settled { refused }) => {
                    self.handle.settle(Settled { asked, error: refused, ..Settled::default() });
                }
                Ok(Pass::Deleted { kept_workspace }) => {
                    self.daemon.bays.remove(self.handle.id);
                    self.daemon.policies.forget(self.handle.id);
                    let dropped = self.daemon.approvals.drop_all(self.handle.id, "the bay was removed").await;
                    self.daemon.approvals.forget_bay(self.handle.id);
                    if let Err(error) = dropped {
                        tracing::error!(bay = %self.handle.name, message = %error.message, "questions of a removed bay stay open");
                    }
                    self.handle.settle(Settled { asked, deleted: true, kept_workspace, error: None });
                    return;
                }
                Err(error) => {
                    self.daemon.telemetry.counters.reconcile_errors.add(1);
                    tracing::warn!(bay = %self.handle.name, code = %error.code, message = %error.message, "a bay could not be brought to its wanted state");
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
            // Whatever is wanted waits for a daemon that has the driver.
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
                    return Ok(Pass::Settled { refused });
                }
                Step::NoteLoss => self.note_loss(&row).await,
                Step::Clear => self.clear().await,
                // Whatever else is to be done for this bay is not held up by a refusal.
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
            format!("the bay {} does not come to rest", self.handle.name),
            "this is a defect of Workbay; the daemon's log has the details",
        ))
    }

    /// Writes down why a step did not succeed. A freeze or thaw that failed leaves the bay as it is seen; anything else
    /// makes it failed.
    async fn fail(&mut self, step: Step, look: Look, error: &CoreError) -> Result<(), CoreError> {
        let reason = error.message.clone();
        let draft = Draft::of(BayFailed {
            step: format!("{step:?}"),
            code: error.code.into(),
            reason: reason.clone(),
        });
        let draft = (self.told_failed.as_ref() != Some(&reason)).then_some(draft);
        self.told_failed = Some(reason.clone());
        let change = |row: &mut BayRow| {
            match step {
                Step::Pause => row.desired = Desired::Running,
                Step::Resume if look.state == State::Paused => row.desired = Desired::Paused,
                // Nothing has changed: the bay goes on with the files it had.
                Step::Restore => {
                    row.restore_wanted = None;
                    row.thaw_from = None;
                    row.state = State::Stopped;
                }
                // There was no memory for what is kept on disk: there it stays until somebody asks again.
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

    /// Reads the guest's events for as long as it runs.
    fn follow(&mut self, row: &BayRow, seen: Seen) {
        if row.state != State::Running || seen != Seen::Running {
            self.idler = None;
            return;
        }
        if self.idler.as_ref().map(|(seconds, _)| *seconds) != row.spec.idle_stop_s {
            self.idler = row.spec.idle_stop_s.map(|seconds| {
                let task = idle::watch(self.daemon.store.clone(), Arc::clone(&self.handle), seconds);
                (seconds, Follower(tokio::spawn(task)))
            });
        }
        if self.follower.as_ref().is_none_or(|(follower, _)| follower.0.is_finished()) {
            let (gone, is_gone) = watch::channel(false);
            let task = follow::follow(Arc::clone(&self.daemon), Arc::clone(&self.handle), is_gone);
            self.follower = Some((Follower(tokio::spawn(task)), gone));
        }
    }

    /// Root in the bay can move PID 1 into a group of its own and freeze it there: then nothing in the bay can be reached.
    /// That is undone, and the record says that it happened.
    async fn reclaim_guest(&self, row: &BayRow) {
        let Some(record) = &row.runtime else { return };
        let Some(moved) = self.handle.backend.reclaim_guest(row.id, record).await else { return };
        tracing::warn!(bay = %row.name, ?moved, "root in a bay moved its guest; it was put back");
        let event = Draft::of(BayGuestMoved { group: moved.group, frozen: moved.frozen, stays: moved.stays });
        if let Err(error) = self.daemon.store.event_append(Some(row.id), &event).await {
            tracing::error!(bay = %row.name, %error, "that a bay moved its guest is not on record");
        }
    }

    /// The guest is gone: what it reported before that is still written down.
    async fn read_out(&mut self) {
        if let Some((mut follower, gone)) = self.follower.take() {
            gone.send_replace(true);
            let _ = tokio::time::timeout(READ_OUT_WITHIN, &mut follower.0).await;
        }
    }

    /// What was on record is gone: say so, and take away what it left.
    async fn note_loss(&mut self, row: &BayRow) -> Result<(), CoreError> {
        self.handle.close_egress().await;
        self.read_out().await;
        self.idler = None;
        self.handle.guest.reset();
        let died = if row.state == State::Paused { "the paused guest died" } else { "the guest died" };
        let restart = if row.desired == Desired::Running && row.replace_with.is_none() {
            self.restarts.count(Instant::now())
        } else {
            Some(Duration::ZERO)
        };
        let died = note_loss(&self.daemon, &self.handle, died).await?;
        self.why = format!("{died}; started again");
        if restart.is_none() {
            return Err(CoreError::new(
                ErrorCode::BayFailed,
                format!(
                    "the guest died {} times within {} minutes",
                    MAX_RESTARTS + 1,
                    RESTART_WINDOW.as_secs() / 60
                ),
                Hint::new(
                    "{} tries again; {} gives it a fresh root",
                    [Action::StartBay((&row.name).into()), Action::ReplaceBay((&row.name).into())],
                ),
            ));
        }
        Ok(())
    }

    /// Opens the way out of a bay that runs, unless it is open. Without one a bay runs all the same, closed.
    async fn open_egress(&mut self, row: &BayRow) {
        if self.handle.egress().is_some() {
            return;
        }
        match BayEgress::open(&self.daemon, &self.handle).await {
            Ok(open) => {
                self.handle.set_egress(open);
                self.told_closed = None;
            }
            Err(error) => {
                tracing::error!(bay = %row.name, message = %error.message, "nothing leaves this bay");
                if self.told_closed.as_ref() != Some(&error.message) {
                    let event = Draft::of(EgressClosed { why: error.message.clone() });
                    // Not on record is no reason to keep a bay from running.
                    let _ = self.daemon.store.event_append(Some(row.id), &event).await;
                    self.told_closed = Some(error.message);
                }
            }
        }
    }

    async fn clear_runtime(&mut self) -> Result<(), CoreError> {
        self.handle.close_egress().await;
        self.follower = None;
        self.idler = None;
        self.handle.guest.reset();
        costs::close(&self.daemon, &self.handle).await;
        self.handle.execs_outlive(self.handle.backend.limit_events(self.handle.id));
        self.handle.backend.clear(self.handle.id).await.map_err(|e| refusal(&e))
    }

    async fn clear(&mut self) -> Result<(), CoreError> {
        self.clear_runtime().await?;
        self.update(Draft::of(BayCleared {}), |row| row.runtime = None).await?;
        execs::close_all(&self.daemon, &self.handle, EndReason::Lost).await;
        Ok(())
    }

    async fn make_disk(&mut self, row: &BayRow) -> Result<(), CoreError> {
        let id = row.id;
        let image = row.image_id;
        let disk_mib = row.spec.limits.disk_mib;
        let from = begins_from(row);
        self.handle
            .with_files(move |files| {
                match files.create(id, image, &from, disk_mib) {
                    Ok(()) => Ok(()),
                    Err(error) => {
                        // Nothing ran on it yet, so a half-made disk holds nothing that could be lost.
                        let _ = files.remove(id, None);
                        Err(error)
                    }
                }
            })
            .await?;
        self.daemon.fault.at(Point::AfterDisk);
        self.update(Draft::of(BayStart { reason: None }), |row| {
            row.disk_ready = true;
            row.state = State::Starting;
            row.reason = "its files are in place; it is starting".to_owned();
        })
        .await?;
        Ok(())
    }

    /// Makes the files those of a checkpoint.
    async fn restore(&mut self, row: &BayRow) -> Result<(), CoreError> {
        let Some(point) = row.restore_wanted else { return Ok(()) };
        let (id, state) = (row.id, row.thaw_from.is_some());
        let restored = self.handle.with_files(move |files| files.restore(id, point, state)).await;
        if let Err(error) = restored {
            // What is wanted beside it is not held up by the refusal.
            self.handle.wake.notify_one();
            return Err(error);
        }
        self.daemon.fault.at(Point::AfterDisk);
        // Those of a bay that was paused on disk: what ran there does not come back.
        execs::close_all(&self.daemon, &self.handle, EndReason::Stopped).await;
        let whose = match self.daemon.bays.find(&point.bay.to_string()) {
            Ok(other) if other.id != id => Some(other.name.clone()),
            _ => None,
        };
        let of = whose.clone();
        let whose = whose.map_or_else(String::new, |name| format!(" of {name}"));
        let reason = format!("its files are those of {}{whose}", point.checkpoint);
        self.update(
            Draft::of(BayRestored { checkpoint: point.checkpoint.into(), bay: point.bay.into(), of }),
            |row| {
                row.restore_wanted = None;
                if point.bay == id {
                    row.checkpoint = Some(point.checkpoint);
                }
                row.reason.clone_from(&reason);
            },
        )
        .await?;
        self.why = match (&row.thaw_from, point.bay == id) {
            (Some(_), _) => format!("restored; resumed from {}", point.checkpoint),
            (None, true) => format!("restored: {reason}, with its processes started again"),
            (None, false) => format!("{reason}, with its processes started again"),
        };
        Ok(())
    }

    async fn replace_root(&mut self, row: &BayRow) -> Result<(), CoreError> {
        let Some(image) = row.replace_with else { return Ok(()) };
        if row.disk_ready {
            let id = row.id;
            self.handle.with_files(move |files| files.replace_root(id, image)).await?;
        }
        self.update(Draft::of(BayReplaced { image: image.into() }), |row| {
            row.image_id = image;
            row.replace_with = None;
            // What was paused on disk ran on the root that is gone.
            row.thaw_from = None;
            row.reason = "its root was made anew".to_owned();
        })
        .await?;
        execs::close_all(&self.daemon, &self.handle, EndReason::Stopped).await;
        self.why = "started with a fresh root".to_owned();
        Ok(())
    }

    async fn start(&mut self, row: &BayRow) -> Result<(), CoreError> {
        if row.state != State::Starting {
            // A start somebody asked for is already called one; this one follows from what was noted before.
            if self.why.is_empty() {
                self.why = match row.thaw_from {
                    Some(from) => format!("resumed from {}", from.checkpoint),
                    None => format!("{}; started again", row.reason),
                };
            }
            let reason = self.why.clone();
            self.update(Draft::of(BayStart { reason: Some(reason.clone()) }), |row| {
                row.state = State::Starting;
                row.reason = reason;
            })
            .await?;
        }
        self.handle.guest.reset();
        let record = self.begin(row).await?;
        self.settings_hold = true;
        self.daemon.fault.at(Point::AfterStart);
        // Not a change of state, so no event: only how to find it again.
        self.handle
            .update(&self.daemon.store, None, |row| {
                row.runtime = Some(record);
                row.thaw_from = None;
                row.restore_wanted = None;
            })
            .await?;
        self.open_egress(row).await;
        Ok(())
    }

    /// A guest runs: it must answer before the bay counts as running.
    async fn confirm(&mut self, row: &BayRow) -> Result<(), CoreError> {
        let Some(record) = &row.runtime else { return Ok(()) };
        let info = tokio::select! {
            biased;
            info = self.handle.guest.json::<GuestInfo>(Method::GET, "/v1/info", Bytes::new(), GUEST_READY_WITHIN) => info,
            () = self.handle.backend.wait_gone(record) => Err(CoreError::new(
                ErrorCode::BayFailed,
                "the guest ended before it answered",
                Hint::new("{} tells what this host lacks; the daemon's log has more", [Action::Doctor]),
            )),
        };
        let info = match info {
            Ok(info) => info,
            // One that was frozen is no start that failed: its end is noted as a loss by the next look.
            Err(_) if row.state == State::Paused && self.is_dying(record).await => return Ok(()),
            Err(error) => {
                // A start is whole or nothing.
                self.clear_runtime().await?;
                self.handle.update(&self.daemon.store, None, |row| row.runtime = None).await?;
                return Err(CoreError { code: ErrorCode::BayFailed, ..error });
            }
        };
        let why = std::mem::take(&mut self.why);
        let mut reason = if why.is_empty() { "ready".to_owned() } else { why };
        for trouble in info.troubles.iter().take(MAX_TROUBLES) {
            reason.push_str("; ");
            reason.push_str(&plain_text(trouble));
        }
        let version = plain_text(&info.version);
        // What the bay was isolated by while it ran is a part of what is proven of it later.
        let backend = &self.handle.backend;
        let event = Draft::of(BayRunning {
            guest: version,
            reason: reason.clone(),
            backend: Some(row.backend.to_string()),
            capabilities: Some(backend.capabilities()),
        });
        self.update(event, |row| {
            row.state = State::Running;
            row.reason = reason;
        })
        .await?;
        Ok(())
    }

    /// Whether PID 1 is gone or about to be: one that is killed stops answering some moments before it is gone.
    async fn is_dying(&self, record: &RuntimeHandle) -> bool {
        tokio::time::timeout(DYING_WITHIN, self.handle.backend.wait_gone(record)).await.is_ok()
    }

    async fn pause(&mut self, row: &BayRow) -> Result<(), CoreError> {
        self.handle.backend.pause(row.id).await.map_err(|e| refusal(&e))?;
        self.update(Draft::of(BayPaused { on_disk: false }), |row| {
            row.state = State::Paused;
            row.reason = "frozen in memory".to_owned();
        })
        .await?;
        Ok(())
    }

    async fn resume(&mut self, row: &BayRow) -> Result<(), CoreError> {
        self.handle.backend.resume(row.id).await.map_err(|e| refusal(&e))?;
        self.update(Draft::of(BayResumed {}), |row| {
            row.state = State::Running;
            row.reason = "resumed".to_owned();
        })
        .await?;
        // They may have been changed while it could not listen.
        self.tell_limits(&row.spec.limits, Seen::Running).await;
        Ok(())
    }

    async fn stop(&mut self, row: &BayRow, seen: Seen) -> Result<(), CoreError> {
        let replacing = row.replace_with.is_some();
        let restoring = row.restore_wanted.is_some();
        // One that failed and is tried again by itself stays what it was called, with the reason.
        if row.state != State::Stopping && self.told_failed.is_none() {
            let reason = match (restoring, replacing) {
                (true, _) => "it goes back to a checkpoint",
                (_, true) => "its root is to be replaced",
                _ => "its processes are asked to end",
            };
            self.update(Draft::of(BayStopping { reason: reason.to_owned() }), |row| {
                row.state = State::Stopping;
                row.reason = reason.to_owned();
            })
            .await?;
        }
        let grace = self.handle.take_grace();
        // What goes back to a checkpoint is not asked to end: nothing it could still write will be there.
        if seen != Seen::Gone
            && !restoring
            && let Some(record) = &row.runtime
        {
            if seen == Seen::Paused
                && let Err(error) = self.handle.backend.resume(row.id).await
            {
                tracing::warn!(bay = %row.name, %error, "a paused bay could not be thawed to be stopped; it is killed");
            }
            execs::refresh_open(&self.daemon, &self.handle).await;
            let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
            let body = serde_json::to_vec(&Shutdown { grace_ms }).unwrap_or_default();
            let within = grace + STOP_SLACK;
            let asked = Instant::now();
            let gone = self.handle.backend.wait_gone(record);
            let answer = self.handle.guest.bytes(Method::POST, "/v1/shutdown", body.into(), within);
            tokio::pin!(gone, answer);
            // It is not ending when it is gone already (it may be gone before its answer is read, and is not to be waited
            // for twice), or did not take the request: then it will not end by itself.
            let (ending, answer) = tokio::select! {
                biased;
                answer = &mut answer => (answer.is_ok(), answer.ok()),
                () = &mut gone => {
                    let answer = tokio::time::timeout(LAST_ANSWER_WITHIN, answer).await;
                    (false, answer.ok().and_then(Result::ok))
                }
            };
            if let Some(answer) = answer {
                execs::ended_with_bay(&self.daemon, &self.handle, &answer).await;
            }
            if ending && tokio::time::timeout_at(asked + within, gone).await.is_err() {
                tracing::warn!(bay = %row.name, "the guest did not end within its grace; it is killed");
            }
        }
        self.clear_runtime().await?;
        self.update(Draft::of(BayStopped { reason: None }), |row| {
            row.state = State::Stopped;
            row.reason = match row.stop_why.take() {
                _ if restoring => "stopped to go back to a checkpoint".to_owned(),
                _ if replacing => "stopped to replace its root".to_owned(),
                Some(why) => why,
                None => "stopped on request".to_owned(),
            };
            row.runtime = None;
            if row.restore_wanted.is_none() {
                // What was paused on disk is not what the next start goes on with.
                row.thaw_from = None;
            }
        })
        .await?;
        execs::close_all(&self.daemon, &self.handle, EndReason::Stopped).await;
        policy::drop_grants(&self.daemon, &self.handle, "the bay was stopped").await
    }

    /// Everything that runs is on disk: it goes without being asked. Its execs are not over: they stand still, and whoever
    /// follows one waits for them.
    async fn let_go(&mut self) -> Result<(), CoreError> {
        self.clear_runtime().await?;
        self.update(Draft::of(BayPaused { on_disk: true }), |row| {
            row.runtime = None;
            row.state = State::Paused;
            row.reason =
                row.thaw_from.map_or_else(|| "on disk".to_owned(), |from| paused_on(from.checkpoint));
        })
        .await?;
        Ok(())
    }

    async fn forsake(&self) -> Result<(), CoreError> {
        let reason = Some("a paused bay cannot come back".to_owned());
        self.update(Draft::of(BayStopped { reason }), |row| {
            row.desired = Desired::Stopped;
            row.state = State::Stopped;
            row.reason = format!("{}; what was paused in memory is lost, the workspace is whole", row.reason);
        })
        .await?;
        Ok(())
    }

    async fn delete(&mut self, row: &BayRow) -> Result<Pass, CoreError> {
        if row.state != State::Deleting {
            self.update(Draft::of(BayDeleting {}), |row| row.state = State::Deleting).await?;
        }
        let removed = match self.clear_runtime().await {
            Ok(()) => {
                let (id, keep) = (row.id, row.keep_workspace.then(|| row.name.to_string()));
                self.handle.with_files(move |files| files.remove(id, keep.as_deref())).await
            }
            Err(error) => Err(error),
        };
        let kept_workspace = match removed {
            Ok(kept) => kept,
            Err(error) => {
                let reason = format!("it could not be removed yet: {}", error.message);
                self.handle.update(&self.daemon.store, None, |row| row.reason = reason).await?;
                return Err(error);
            }
        };
        let cost = self.daemon.telemetry.costs.cost(row.id, row.created_at);
        let event = Draft::of(BayDeleted {
            name: row.name.clone().into(),
            kept_workspace: kept_workspace.clone(),
            cost: cost.into(),
        });
        self.daemon.store.bay_delete(row.id, &event).await.map_err(|e| e.to_api())?;
        self.daemon.telemetry.costs.forget(row.id);
        self.daemon.secrets.forget(row.id);
        if let Err(error) = self.daemon.egress.remove(row.id) {
            tracing::warn!(bay = %row.name, %error, "what the bay's gateway kept could not be removed");
        }
        Ok(Pass::Deleted { kept_workspace })
    }
}

/// A bay's PID 1 is gone without anybody asking: the record says so, what it left is cleared, its execs are closed.
/// Returns the reason as it was written down.
pub(crate) async fn note_loss(
    daemon: &Daemon,
    handle: &BayHandle,
    reason: &str,
) -> Result<String, CoreError> {
    // The counters go with the bay's groups. Memory that no process holds, as in /dev/shm, is freed by ending none: the
    // kernel takes one after the other, and PID 1 last.
    let counted = handle.backend.limit_events(handle.id);
    let reason = match counted.oom_kills {
        0 => reason.to_owned(),
        _ => format!("{reason} after the bay had used up its memory"),
    };
    handle.execs_outlive(counted);
    handle
        .update(&daemon.store, Some(Draft::of(BayLost { reason: reason.clone() })), |row| {
            row.state = State::Stopped;
            row.reason.clone_from(&reason);
        })
        .await?;
    costs::close(daemon, handle).await;
    handle.backend.clear(handle.id).await.map_err(|e| refusal(&e))?;
    // Only now is nothing left of it: a daemon that dies before this line clears again.
    handle.update(&daemon.store, None, |row| row.runtime = None).await?;
    execs::close_all(daemon, handle, EndReason::Lost).await;
    Ok(reason)
}
