//! Work that a client took out of a bay.

use serde::{Deserialize, Serialize};

use crate::error::{ApiError, ErrorCode};
use crate::id::ExecId;
use crate::text_enum::text_enum;

/// How work leaves a bay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WorkRoute {
    /// A branch of a repository on the client's machine.
    Branch,
    /// A branch that the client pushed to a remote.
    Push,
    /// A file, or another program that reads the bundle.
    Bundle,
}

text_enum!(WorkRoute { Branch = "branch", Push = "push", Bundle = "bundle" });

/// `POST /v1/bays/{bay}/work`: a client reports that it took the work of a bay out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkReport {
    pub route: WorkRoute,
    pub branch: String,
    /// The directory or the remote that has it now. Absent for a bundle.
    #[serde(default)]
    pub place: Option<String>,
    /// Id of the newest commit.
    pub commit: String,
    /// The commit that the bay began from, if the work builds on it.
    #[serde(default)]
    pub base: Option<String>,
    pub commits: u64,
    /// Files added, changed or deleted.
    pub files: u64,
    /// Whether the last commit has uncommitted changes.
    pub uncommitted: bool,
    /// The commands in the bay by which the client packed the work, and cleaned up.
    #[serde(default)]
    pub execs: Vec<ExecId>,
}

impl WorkReport {
    /// Longest name of a branch or place, in bytes.
    pub const MAX_TEXT: usize = 4096;
    /// Longest id of a commit.
    pub const MAX_COMMIT: usize = 64;
    /// Most commands of one run: two attempts, each with its cleanup.
    pub const MAX_EXECS: usize = 8;

    /// Refuses a report that no client of this release sends.
    ///
    /// # Errors
    /// [`ErrorCode::InvalidInput`] with what is wrong.
    pub fn check(&self) -> Result<(), ApiError> {
        let is_id = |id: &String| {
            !id.is_empty() && id.len() <= Self::MAX_COMMIT && id.bytes().all(|b| b.is_ascii_hexdigit())
        };
        let fits = |text: &String| text.len() <= Self::MAX_TEXT;
        let good = is_id(&self.commit)
            && self.base.as_ref().is_none_or(is_id)
            && fits(&self.branch)
            && self.place.as_ref().is_none_or(fits)
            && self.execs.len() <= Self::MAX_EXECS;
        if good {
            return Ok(());
        }
        Err(ApiError::new(
            ErrorCode::InvalidInput,
            "the report of work that left has an odd commit, or is too long",
            "the client and the daemon may be of different releases; compare their versions",
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_has_ids_of_commits_and_bounded_texts() {
        let good = WorkReport {
            route: WorkRoute::Branch,
            branch: "fix".to_owned(),
            place: Some("/home/ann/web".to_owned()),
            commit: "ab12".repeat(10),
            base: None,
            commits: 1,
            files: 2,
            uncommitted: true,
            execs: vec![ExecId::generate()],
        };
        assert!(good.check().is_ok());
        for change in [
            |r: &mut WorkReport| r.commit = "HEAD".to_owned(),
            |r: &mut WorkReport| r.commit.clear(),
            |r: &mut WorkReport| r.base = Some("x".repeat(WorkReport::MAX_COMMIT)),
            |r: &mut WorkReport| r.branch = "b".repeat(WorkReport::MAX_TEXT + 1),
            |r: &mut WorkReport| r.place = Some("p".repeat(WorkReport::MAX_TEXT + 1)),
            |r: &mut WorkReport| r.execs = vec![ExecId::generate(); WorkReport::MAX_EXECS + 1],
        ] {
            let mut odd = good.clone();
            change(&mut odd);
            assert!(odd.check().is_err(), "{odd:?}");
        }
    }
}
