//! Writes checked work to a branch of the caller's repository. It does not check out the branch. The branch loses no
//! commit unless the caller asks for that.

use std::path::Path;

use bay_client::{invalid, local};
use bay_types::{ApiError, ErrorCode};

use super::safe_command::git;
use super::sudo_user::SudoUser;
use super::{LocalRepo, not_run, refused};

/// The result for a branch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrived {
    Created,
    Updated,
    /// The branch already had this commit.
    Unchanged,
}

impl LocalRepo {
    /// Fetches the branch `from` of a bundle into `branch`. `place` is the directory of the bundle.
    pub(crate) async fn take_branch(
        &self,
        bundle: &Path,
        place: &Path,
        from: &str,
        branch: &str,
        force: bool,
    ) -> Result<Arrived, ApiError> {
        let reference = format!("refs/heads/{branch}");
        let at = ["rev-parse", "--verify", "--quiet", "--end-of-options", reference.as_str()];
        let before = self.line(&at).await?;
        let mut command = git(&self.top);
        // A bundle is a file. No other protocol is needed.
        command.env("GIT_ALLOW_PROTOCOL", "file");
        command.args(["-c", "gc.auto=0", "-c", "maintenance.auto=false", "-c", "fetch.prune=false"]);
        command.args(["-c", "fetch.unpackLimit=1", "-c", "transfer.fsckObjects=true"]);
        command.args(["fetch", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules"]);
        command.arg("--").arg(bundle);
        command.arg(format!("{}refs/heads/{from}:{reference}", if force { "+" } else { "" }));
        if let Some(user) = SudoUser::behind_sudo() {
            user.is_given(place).map_err(|e| local("passing the bundle to git", &e))?;
            user.runs(&mut command);
        }
        let output = command.output().await.map_err(|e| not_run(&e))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(if said.contains("[rejected]") || said.contains("non-fast-forward") {
                diverged(branch, &format!("of {}", self.top.display()))
            } else if said.contains("refusing to fetch into") {
                invalid(
                    format!("the branch {branch} is checked out in {}", self.top.display()),
                    "choose another branch name; `git merge` then merges the work",
                )
            } else {
                refused(&format!("writing the branch {branch}"), &output)
            });
        }
        let after = self.line(&at).await?;
        Ok(match before {
            None => Arrived::Created,
            Some(_) if before == after => Arrived::Unchanged,
            Some(_) => Arrived::Updated,
        })
    }
}

pub(super) fn diverged(branch: &str, place: &str) -> ApiError {
    ApiError::new(
        ErrorCode::BranchDiverged,
        format!("the branch {branch} {place} has commits that the work in the bay does not contain"),
        "choose another branch name, or --force to replace what the branch has",
    )
}
