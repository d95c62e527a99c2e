//! What to do next for a bay: a pure function of its desired state and its true state.
//!
//! ```text
//!  wanted    true now                          step
//!  deleted   anything                          Delete
//!  not       failed                            Clear a recorded PID 1, Apply settings, then Rest until somebody asks
//!  stopped                                     again
//!  any       a recorded PID 1 that is gone     NoteLoss      (unless we were stopping it: Stop; or it is on disk and
//!                                              wanted paused: LetGo)
//!  any       settings that do not hold yet     Apply         (what runs gets them at once, without a stop)
//!  any       to be as at a checkpoint          Stop, then Restore
//!  any       root to be replaced               Stop, then ReplaceRoot
//!  running   no disk                           MakeDisk      (Stop first, if there is a PID 1)
//!  or paused
//!  running   gone                              Start (Wait while backing off)
//!            paused                            Resume
//!            running, not yet known to answer  Confirm
//!  paused    anything, kept on disk            LetGo, then Rest
//!            running, or paused unrecorded     Pause
//!            gone                              Forsake: memory cannot come back, so it becomes "stopped"
//!  stopped   anything not recorded as stopped  Stop
//! ```
//! The first row that fits counts; in all other cases the step is [`Step::Rest`]. Every step brings the bay nearer
//! to its desired state or leaves a reason. So repeating this function and doing its steps ends in [`Step::Rest`],
//! in [`Step::Delete`], or in [`Step::Wait`] until a restart is due.

use bay_backend::Seen;
use bay_types::bay::{Desired, State};

/// The facts that one decision is made from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Look {
    pub(crate) desired: Desired,
    /// The state as last stored.
    pub(crate) state: State,
    /// The state that the backend reports now.
    pub(crate) seen: Seen,
    /// A PID 1 is on record.
    pub(crate) recorded: bool,
    pub(crate) disk_ready: bool,
    /// The files of a checkpoint are to be restored.
    pub(crate) restore: bool,
    /// The root filesystem is to be replaced.
    pub(crate) replace: bool,
    /// The processes are on disk, and the next start restores them.
    pub(crate) on_disk: bool,
    /// Settings were requested, or the runtime may not have those on record.
    pub(crate) settings_due: bool,
    /// A restart is due later.
    pub(crate) backing_off: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Rest,
    Wait,
    NoteLoss,
    Clear,
    Apply,
    MakeDisk,
    Restore,
    ReplaceRoot,
    Start,
    Confirm,
    Pause,
    Resume,
    Stop,
    Forsake,
    LetGo,
    Delete,
}

pub(crate) fn next_step(look: Look) -> Step {
    let gone = look.seen == Seen::Gone;
    if look.desired == Desired::Deleted {
        return Step::Delete;
    }
    if look.state == State::Failed && look.desired != Desired::Stopped {
        return match (look.recorded, look.settings_due) {
            (true, _) => Step::Clear,
            (false, true) => Step::Apply,
            (false, false) => Step::Rest,
        };
    }
    if look.recorded && gone {
        // A stop that failed leaves the bay failed. If PID 1 ends later, that is no loss.
        let stopping =
            look.state == State::Stopping || (look.state, look.desired) == (State::Failed, Desired::Stopped);
        return match (stopping, look.desired == Desired::Paused && look.on_disk) {
            (true, _) => Step::Stop,
            (false, true) => Step::LetGo,
            (false, false) => Step::NoteLoss,
        };
    }
    if look.settings_due {
        return Step::Apply;
    }
    if look.restore {
        return if gone { Step::Restore } else { Step::Stop };
    }
    if look.replace {
        return if gone { Step::ReplaceRoot } else { Step::Stop };
    }
    match (look.desired, look.seen) {
        (Desired::Running | Desired::Paused, Seen::Gone) if !look.disk_ready => Step::MakeDisk,
        // A runtime without a disk on record is a contradiction. It is ended before a disk is made.
        (Desired::Running | Desired::Paused, _) if !look.disk_ready => Step::Stop,
        (Desired::Running, Seen::Gone) if look.backing_off => Step::Wait,
        (Desired::Running, Seen::Gone) => Step::Start,
        (Desired::Running, Seen::Paused) => Step::Resume,
        (Desired::Running, Seen::Running) if look.state == State::Running => Step::Rest,
        (Desired::Running, Seen::Running) => Step::Confirm,
        (Desired::Paused, Seen::Gone) if look.on_disk && look.state == State::Paused => Step::Rest,
        // The processes are on disk, so the runtime ends without a grace, and its death meanwhile is no loss.
        (Desired::Paused, _) if look.on_disk => Step::LetGo,
        (Desired::Paused, Seen::Gone) => Step::Forsake,
        (Desired::Paused, Seen::Running) => Step::Pause,
        (Desired::Paused, Seen::Paused) if look.state == State::Paused => Step::Rest,
        (Desired::Paused, Seen::Paused) => Step::Pause,
        (Desired::Stopped, Seen::Gone) if look.state == State::Stopped => Step::Rest,
        (Desired::Stopped, _) => Step::Stop,
        (Desired::Deleted, _) => Step::Delete,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn look() -> impl Strategy<Value = Look> {
        let desired =
            prop::sample::select(vec![Desired::Running, Desired::Paused, Desired::Stopped, Desired::Deleted]);
        let state = prop::sample::select(vec![
            State::Creating,
            State::Starting,
            State::Running,
            State::Paused,
            State::Stopping,
            State::Stopped,
            State::Failed,
            State::Deleting,
        ]);
        let seen = prop::sample::select(vec![Seen::Running, Seen::Paused, Seen::Gone]);
        let flags = (
            any::<bool>(),
            any::<bool>(),
            any::<bool>(),
            any::<bool>(),
            any::<bool>(),
            any::<bool>(),
            any::<bool>(),
        );
        (desired, state, seen, flags).prop_map(
            |(
                desired,
                state,
                seen,
                (recorded, disk_ready, restore, replace, on_disk, settings_due, backing_off),
            )| {
                Look {
                    desired,
                    state,
                    // Without a record, the reconciler does not inspect the backend.
                    seen: if recorded { seen } else { Seen::Gone },
                    recorded,
                    disk_ready,
                    restore,
                    replace,
                    on_disk,
                    settings_due,
                    backing_off,
                }
            },
        )
    }

    /// The facts after a step that succeeds.
    fn done(mut look: Look, step: Step) -> Option<Look> {
        match step {
            Step::Rest | Step::Wait | Step::Delete => return None,
            Step::NoteLoss => {
                look.recorded = false;
                look.state = State::Stopped;
            }
            Step::Clear => {
                look.recorded = false;
                look.seen = Seen::Gone;
            }
            Step::Apply => look.settings_due = false,
            Step::MakeDisk => {
                look.disk_ready = true;
                look.state = State::Starting;
            }
            Step::Restore => look.restore = false,
            Step::ReplaceRoot => {
                look.replace = false;
                look.on_disk = false;
            }
            Step::Start => {
                look.on_disk = false;
                look.recorded = true;
                look.seen = Seen::Running;
                look.state = State::Starting;
            }
            Step::Confirm => look.state = State::Running,
            Step::Pause => {
                look.seen = Seen::Paused;
                look.state = State::Paused;
            }
            Step::Resume => {
                look.seen = Seen::Running;
                look.state = State::Running;
            }
            Step::Stop => {
                look.on_disk &= look.restore;
                look.recorded = false;
                look.seen = Seen::Gone;
                look.state = State::Stopped;
            }
            Step::LetGo => {
                look.recorded = false;
                look.seen = Seen::Gone;
                look.state = State::Paused;
            }
            Step::Forsake => {
                look.desired = Desired::Stopped;
                look.state = State::Stopped;
            }
        }
        Some(look)
    }

    /// The facts after at most ten steps.
    fn walk(mut at: Look) -> Look {
        for _ in 0..10 {
            match done(at, next_step(at)) {
                Some(after) => at = after,
                None => break,
            }
        }
        at
    }

    proptest! {
        #[test]
        fn from_any_state_a_bay_reaches_its_desired_state_or_has_a_reason(start in look()) {
            let at = walk(start);
            match next_step(at) {
                Step::Rest => prop_assert!(
                    at.state == State::Failed
                        || (at.desired == Desired::Running && at.seen == Seen::Running)
                        || (at.desired == Desired::Paused && (at.seen == Seen::Paused || at.on_disk))
                        || (at.desired == Desired::Stopped && at.seen == Seen::Gone)
                ),
                Step::Wait => prop_assert!(at.backing_off),
                Step::Delete => prop_assert_eq!(start.desired, Desired::Deleted),
                step => prop_assert!(false, "no end: {:?} at {:?}", start, step),
            }
        }

        #[test]
        fn only_an_explicit_request_deletes(at in look()) {
            prop_assert_eq!(next_step(at) == Step::Delete, at.desired == Desired::Deleted);
        }

        #[test]
        fn a_disk_that_exists_is_never_made_again(at in look()) {
            prop_assert!(!(at.disk_ready && next_step(at) == Step::MakeDisk));
        }

        #[test]
        fn nothing_is_started_or_replaced_under_a_living_runtime(at in look()) {
            if at.seen != Seen::Gone {
                prop_assert!(!matches!(next_step(at), Step::Start | Step::Restore | Step::ReplaceRoot | Step::MakeDisk | Step::NoteLoss));
            }
        }

        #[test]
        fn a_failed_bay_is_not_tried_again_by_itself(at in look()) {
            if at.state == State::Failed && at.desired != Desired::Deleted && at.desired != Desired::Stopped {
                prop_assert!(matches!(next_step(at), Step::Rest | Step::Clear | Step::Apply));
            }
        }
    }

    proptest! {
        #[test]
        fn settings_are_applied_before_anything_is_started_with_them(at in look()) {
            if at.settings_due {
                prop_assert!(!matches!(next_step(at), Step::Start | Step::MakeDisk | Step::Resume));
            }
        }
    }

    #[test]
    fn the_end_of_a_bay_that_is_on_disk_is_no_loss() {
        let at = Look {
            desired: Desired::Paused,
            state: State::Running,
            seen: Seen::Gone,
            recorded: true,
            disk_ready: true,
            restore: false,
            replace: false,
            on_disk: true,
            settings_due: false,
            backing_off: false,
        };
        assert_eq!(next_step(at), Step::LetGo);
        assert_eq!(walk(at).state, State::Paused);
    }

    #[test]
    fn a_paused_bay_that_is_gone_becomes_stopped_unless_it_is_on_disk() {
        let at = Look {
            desired: Desired::Paused,
            state: State::Stopped,
            seen: Seen::Gone,
            recorded: false,
            disk_ready: true,
            restore: false,
            replace: false,
            on_disk: false,
            settings_due: false,
            backing_off: false,
        };
        assert_eq!(next_step(at), Step::Forsake);
        // After its processes were written to disk, the death of the runtime loses nothing.
        let kept = Look { on_disk: true, ..at };
        assert_eq!(next_step(kept), Step::LetGo);
        assert_eq!(next_step(Look { state: State::Paused, ..kept }), Step::Rest);
    }
}
