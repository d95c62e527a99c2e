use serde_json::Value;

use super::Field;
use super::area::area;
use crate::checkpoint::CheckpointKind;
use crate::id::CheckpointName;
use crate::id::ExecId;

area! {
    /// Checkpoints of a bay.
    Checkpoint: CheckpointEvent;

    /// A checkpoint is about to be made.
    Asked(CheckpointAsked) = "checkpoint.asked" {
        /// Its name.
        name: Field<CheckpointName>,
        /// Why it is made, if nobody asked for it.
        automatic: Option<String>,
        /// Who asked for it, or for what it is made for.
        by: String,
    }

    /// A checkpoint was made.
    Made(CheckpointMade) = "checkpoint.made" {
        /// Its name.
        name: Field<CheckpointName>,
        /// The checkpoint that the bay's state descends from, if there is one.
        parent: Option<CheckpointName>,
        /// What it holds.
        kind: Field<CheckpointKind>,
        /// What the person who asked for it wrote.
        message: Option<String>,
        /// Why it was made, if nobody asked for it.
        automatic: Field<Option<String>>,
        /// The last exec that began before it, if there is one.
        after_exec: Option<ExecId>,
        /// For how many microseconds the bay was paused.
        pause_us: u64,
        /// Who asked for it, or for what it was made for.
        by: String,
    }

    /// A checkpoint that was about to be made was not made.
    Failed(CheckpointFailed) = "checkpoint.failed" {
        /// Its name, which the next checkpoint gets.
        name: Field<CheckpointName>,
        /// What went wrong.
        why: String,
        /// Who asked for it, or for what it was to be made for.
        by: String,
    }

    /// A checkpoint is about to be removed.
    Removed(CheckpointRemoved) = "checkpoint.removed" {
        /// Its name.
        name: Field<CheckpointName>,
        /// Why.
        why: String,
        /// Who asked.
        by: String,
    }
}

impl CheckpointMade {
    /// Why the daemon made it. `None` if somebody requested it; `Some(None)` if the record has no reason.
    #[must_use]
    pub fn made_by_itself(&self) -> Option<Option<String>> {
        match &self.automatic {
            Field::Is(why) => why.clone().map(Some),
            Field::Odd(Value::Null | Value::Bool(false)) => None,
            Field::Odd(Value::Bool(true)) => Some(None),
            Field::Odd(other) => Some(Some(other.to_string())),
        }
    }
}
