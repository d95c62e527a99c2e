use std::path::PathBuf;

use super::Field;
use super::area::area;
use crate::backend::Capabilities;
use crate::bay::{BayUser, Limits, Lineage, Mount, Origin};
use crate::durability::Durability;
use crate::environment::Environment;
use crate::error::ErrorCode;
use crate::event::policy::PolicySummary;
use crate::id::{BayId, BayName, CheckpointName, ImageId};
use crate::settings::BaySet;
use crate::stats::BayCost;

area! {
    /// The life of a bay: requests and their results.
    Bay: BayEvent;

    /// A bay was created.
    Create(BayCreate) = "bay.create" {
        /// Its name.
        name: Field<BayName>,
        /// The image its root begins as.
        image: Field<ImageId>,
        /// The repository and commit its workspace begins from. Absent for a fork.
        #[serde(skip_serializing_if = "Option::is_none")]
        origin: Option<Option<Origin>>,
        /// The limits it was created with. Absent for a fork, which has those of its parent.
        #[serde(skip_serializing_if = "Option::is_none")]
        limits: Option<Limits>,
        /// What flushes in it wait for. Absent for `strict`.
        #[serde(skip_serializing_if = "Option::is_none")]
        durability: Option<Durability>,
        /// Directories and files of the host that it shows. Absent for a fork.
        #[serde(skip_serializing_if = "Option::is_none")]
        mounts: Option<Vec<Mount>>,
        /// The policy it was created with. Absent for a fork.
        #[serde(skip_serializing_if = "Option::is_none")]
        policy: Option<Option<PolicySummary>>,
        /// The bay and the checkpoint it was forked from. Absent unless it is a fork.
        #[serde(skip_serializing_if = "Option::is_none")]
        forked_from: Option<Lineage>,
        /// The bay and the checkpoint whose root filesystem it began with. Absent if it began with its image's.
        #[serde(skip_serializing_if = "Option::is_none")]
        environment: Option<Environment>,
        /// The backend that runs it. Absent in events of the first release.
        #[serde(skip_serializing_if = "Option::is_none")]
        backend: Option<String>,
        /// The user that its commands run as, unless they name another. Absent for root.
        #[serde(skip_serializing_if = "Option::is_none")]
        user: Option<BayUser>,
        /// Ports of the host's loopback that an operator opened to it. Absent if there are none.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        reach: Vec<u16>,
        /// Who asked.
        by: String,
    }

    /// Somebody asked to start the bay.
    StartAsked(BayStartAsked) = "bay.start-asked" {
        /// Who asked.
        by: String,
    }

    /// Somebody asked to stop the bay.
    StopAsked(BayStopAsked) = "bay.stop-asked" {
        /// Who asked.
        by: String,
    }

    /// Somebody asked to pause the bay.
    PauseAsked(BayPauseAsked) = "bay.pause-asked" {
        /// The checkpoint that holds what ran. Absent if the bay pauses in memory.
        #[serde(skip_serializing_if = "Option::is_none")]
        to_disk: Option<CheckpointName>,
        /// Who asked.
        by: String,
    }

    /// Somebody asked to resume the bay.
    ResumeAsked(BayResumeAsked) = "bay.resume-asked" {
        /// Who asked.
        by: String,
    }

    /// Somebody asked for a new root.
    ReplaceAsked(BayReplaceAsked) = "bay.replace-asked" {
        /// The image the new root begins as.
        image: Field<ImageId>,
        /// Who asked.
        by: String,
    }

    /// Somebody asked to delete the bay.
    DeleteAsked(BayDeleteAsked) = "bay.delete-asked" {
        /// Whether its workspace is to outlive it.
        keep_workspace: bool,
        /// Who asked.
        by: String,
    }

    /// Somebody asked for other settings.
    SetAsked(BaySetAsked) = "bay.set-asked" {
        /// The settings to change; those that stay are absent.
        change: Field<BaySet>,
        /// Who asked.
        by: String,
    }

    /// Somebody asked to restore the bay to a checkpoint.
    RestoreAsked(BayRestoreAsked) = "bay.restore-asked" {
        /// The checkpoint.
        checkpoint: Field<CheckpointName>,
        /// The bay that has the checkpoint, if it is another one.
        #[serde(skip_serializing_if = "Option::is_none")]
        bay: Option<BayId>,
        /// Who asked.
        by: String,
    }

    /// Somebody asked to replace the files of the bay by those of another bay.
    PromoteAsked(BayPromoteAsked) = "bay.promote-asked" {
        /// The name of the other bay.
        from: Field<BayName>,
        /// Its id.
        bay: Field<BayId>,
        /// The checkpoint of the other bay that was made for this.
        checkpoint: Field<CheckpointName>,
        /// Who asked.
        by: String,
    }

    /// The bay is about to start.
    Start(BayStart) = "bay.start" {
        /// Why. Absent at its first start.
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    }

    /// The bay runs.
    Running(BayRunning) = "bay.running" {
        /// The version of its guest.
        guest: String,
        /// Why it was started, and what is wrong with it.
        reason: String,
        /// The backend that runs it. Absent in events of the first release.
        #[serde(skip_serializing_if = "Option::is_none")]
        backend: Option<String>,
        /// What the backend can do on this host. Absent in events of the first release.
        #[serde(skip_serializing_if = "Option::is_none")]
        capabilities: Option<Capabilities>,
    }

    /// The bay is paused.
    Paused(BayPaused) = "bay.paused" {
        /// Whether what ran is on disk rather than in memory.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        on_disk: bool,
    }

    /// The bay continues after a pause in memory.
    Resumed(BayResumed) = "bay.resumed" {}

    /// The bay is about to stop.
    Stopping(BayStopping) = "bay.stopping" {
        /// Why.
        reason: String,
    }

    /// The bay is stopped.
    Stopped(BayStopped) = "bay.stopped" {
        /// Why, if nobody asked for it.
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    }

    /// The bay is about to be stopped because it was idle.
    IdleStop(BayIdleStop) = "bay.idle-stop" {
        /// For how many seconds it was idle.
        idle_s: u64,
    }

    /// The bay has a new root.
    Replaced(BayReplaced) = "bay.replaced" {
        /// The image the root began as.
        image: Field<ImageId>,
    }

    /// The bay's files are those of a checkpoint.
    Restored(BayRestored) = "bay.restored" {
        /// The checkpoint.
        checkpoint: Field<CheckpointName>,
        /// The bay that has the checkpoint.
        bay: Field<BayId>,
        /// The name of that bay, if it is another one.
        of: Option<BayName>,
    }

    /// The bay's state is another bay's. Not written any more: `bay.promote-asked` and `bay.restored` replace it.
    Promoted(BayPromoted) = "bay.promoted" {
        /// The other bay.
        from: Field<BayName>,
        /// The checkpoint of this bay that the state descends from, if there is one.
        #[serde(skip_serializing_if = "Option::is_none")]
        checkpoint: Option<CheckpointName>,
        /// Who asked.
        by: String,
    }

    /// Bays were made from a checkpoint of this one.
    Forked(BayForked) = "bay.forked" {
        /// The checkpoint.
        checkpoint: Field<CheckpointName>,
        /// The names of the new bays.
        children: Vec<BayName>,
        /// Who asked.
        by: String,
    }

    /// A step towards the desired state failed.
    Failed(BayFailed) = "bay.failed" {
        /// The step.
        step: String,
        /// The error's code.
        code: Field<ErrorCode>,
        /// The error's message.
        reason: String,
    }

    /// The bay's guest ended by itself.
    Lost(BayLost) = "bay.lost" {
        /// How.
        reason: String,
    }

    /// Root in the bay moved the guest into another control group. The daemon moved it back, or tried to.
    GuestMoved(BayGuestMoved) = "bay.guest-moved" {
        /// The group, below the bay's own. Its name is root's in the bay to choose.
        group: String,
        /// Whether the guest was frozen there.
        frozen: bool,
        /// Why it could not be moved back, if it could not.
        stays: Option<String>,
    }

    /// The guest speaks another protocol than the daemon.
    Protocol(BayProtocol) = "bay.protocol" {
        /// The guest's version.
        guest: u64,
        /// The daemon's version.
        daemon: u64,
    }

    /// The remains of an earlier runtime were removed.
    Cleared(BayCleared) = "bay.cleared" {}

    /// The bay has other settings.
    Set(BaySettingsSet) = "bay.set" {
        /// Its limits.
        limits: Field<Limits>,
        /// For how many seconds it may be idle before it is stopped, if it is.
        idle_stop_s: Option<u64>,
        /// What flushes in it wait for. Absent for `strict`.
        #[serde(skip_serializing_if = "Option::is_none")]
        durability: Option<Durability>,
    }

    /// Somebody opened ports of the host's loopback to the bay, or closed them. It is in force at once.
    ReachSet(BayReachSet) = "bay.reach" {
        /// All ports that are open now.
        ports: Vec<u16>,
        /// Who asked.
        by: String,
    }

    /// The bay keeps the settings it had.
    SetRefused(BaySetRefused) = "bay.set-refused" {
        /// The error's code.
        code: Field<ErrorCode>,
        /// The error's message.
        reason: String,
    }

    /// The bay is about to be deleted.
    Deleting(BayDeleting) = "bay.deleting" {}

    /// The bay is deleted.
    Deleted(BayDeleted) = "bay.deleted" {
        /// The name it had.
        name: Field<BayName>,
        /// Where its workspace is kept, if it is.
        kept_workspace: Option<PathBuf>,
        /// What it cost in its whole life.
        cost: Field<BayCost>,
    }

    /// The daemon found files of a bay that no record knows, and is about to remove them.
    DiskUnknown(BayDiskUnknown) = "bay.disk-unknown" {}
}
