use super::Field;
use super::area::area;
use crate::id::ExecId;
use crate::work::WorkRoute;

area! {
    /// Work that left a bay.
    Work: WorkEvent;

    /// A client took the work of a bay out of it. It is the client's account, given when the work had arrived.
    Left(WorkLeft) = "work.left" {
        /// How it left.
        route: Field<WorkRoute>,
        /// The branch that has it.
        branch: String,
        /// The directory or the remote that has it. Absent for a bundle.
        #[serde(skip_serializing_if = "Option::is_none")]
        place: Option<String>,
        /// Id of the newest commit.
        commit: String,
        /// The commit that the bay began from, if the work builds on it.
        base: Option<String>,
        /// How many commits there are since then.
        commits: u64,
        /// How many files were added, changed or deleted.
        files: u64,
        /// Whether the last commit has uncommitted changes.
        uncommitted: bool,
        /// The commands in the bay by which the client packed the work, and cleaned up.
        execs: Vec<Field<ExecId>>,
        /// Who took it.
        by: String,
    }
}
