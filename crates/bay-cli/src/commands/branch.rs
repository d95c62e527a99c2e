use bay_client::{Client, ShowProgress, bay_path, invalid, local};
use bay_types::bay::BayView;
use bay_types::diff::Severity;
use bay_types::work::WorkRoute;
use bay_types::{ApiError, ErrorCode};
use clap::Args;

use super::bundle::{What, notes};
use crate::failure::{Failure, Outcome};
use crate::git::bring_out::report::{Arrival, report};
use crate::git::bring_out::review::{review, review_before_push};
use crate::git::bring_out::{Interrupts, Kind, Wanted, Work, bring_out, short};
use crate::git::{Arrived, LocalRepo, discover, push};
use crate::global_options::GlobalOptions;
use crate::output::progress::Meter;
use bay_text::escape::visible;

/// Turn the work in a bay into a branch of the current repository, or of a remote.
///
/// The branch has the commits made since the bay began, and one more commit with all uncommitted changes. The work is
/// checked first as `bay review` does; if it contains what looks like a secret, the command fails unless
/// --allow-secrets is given. Nothing is checked out. An existing branch with other commits stays unchanged unless
/// --force is given. The push uses your own git, its settings and your credentials, from a repository that contains
/// only the checked work.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  bay branch web fix-login                        a branch in the repository you are in\n  bay branch web --push origin fix-login          push it to `origin`; no local branch is made\n  bay branch web --push git@example.org:me/project.git fix-login"
)]
pub(crate) struct Branch {
    /// Name or id of the bay.
    name: String,
    /// The branch, without refs/heads/.
    branch: String,
    /// Push the branch to this path, URL or remote of the repository you are in.
    #[arg(long, value_name = "REMOTE")]
    push: Option<String>,
    /// Replace a branch that has other commits.
    #[arg(short, long)]
    force: bool,
    /// Permit text that looks like a secret.
    #[arg(long)]
    allow_secrets: bool,
    #[command(flatten)]
    what: What,
}

impl Branch {
    pub(crate) async fn run(self, global: &GlobalOptions) -> Outcome {
        let bay = crate::naming::bay(&self.name)?;
        check_branch(&self.branch)?;
        // Check the target before asking the bay for anything.
        let target = match &self.push {
            Some(remote) => Target::Remote(push::address(remote).await?),
            None => Target::Here(here(bay).await?),
        };
        let mut client = global.client();
        let view: BayView = client.get(&bay_path(bay, "")).await?;
        let mut meter = Meter::new(global.json);
        let mut interrupts = Interrupts::listen()?;
        let message = self.what.message(&view)?;
        let wanted = Wanted { bay: &view, committed_only: self.what.committed_only, message: &message };
        let work = bring_out(&mut client, &wanted, &mut meter, &mut interrupts).await?;
        let delivered = self.deliver(&mut client, &view, &work, &target, &mut meter, global.json);
        interrupts.or_incomplete(delivered, "check the branch, and run the command again").await?;
        Ok(0)
    }

    async fn deliver(
        &self,
        client: &mut Client,
        view: &BayView,
        work: &Work,
        target: &Target,
        meter: &mut Meter,
        json: bool,
    ) -> Result<(), Failure> {
        let findings = review_before_push(work, self.allow_secrets).await?;
        let leaving = review(work).await?;
        let (place, what, said, route) = match target {
            Target::Here(repo) => {
                let exclude = match &work.base {
                    Some(base) if repo.has(base).await => Some(base.as_str()),
                    _ => None,
                };
                let bundle = work.clean.bundle(&work.tip, view.name.as_str(), exclude).await?;
                let from = view.name.as_str();
                let arrived =
                    repo.take_branch(&bundle, work.clean.place(), from, &self.branch, self.force).await?;
                (repo.top.display().to_string(), arrived.told(), Vec::new(), WorkRoute::Branch)
            }
            Target::Remote(remote) => {
                meter.stage(&format!("pushing {}", self.branch));
                let said = push::push(work, remote, &self.branch, self.force).await?;
                meter.clear();
                (push::without_password(remote), "pushed", said, WorkRoute::Push)
            }
        };
        let arrival = Arrival { route, branch: &self.branch, place: Some(&place) };
        report(client, view, work, &leaving, &arrival).await;
        if json {
            return crate::output::json(&serde_json::json!({
                "bay": view.name, "branch": self.branch, "place": place, "outcome": what, "commit": work.tip,
                "base": work.base, "commits": leaving.commits, "files": leaving.files,
                "uncommitted": work.kind != Kind::Committed, "findings": findings.findings,
            }));
        }
        for finding in findings.findings.iter().filter(|finding| finding.severity >= Severity::Warn) {
            crate::output::talk(&super::review::line(finding, crate::output::colours()));
        }
        for line in said {
            crate::output::talk(&format!("remote: {line}"));
        }
        for note in notes(work, &leaving) {
            crate::output::talk(&format!("note: {note}"));
        }
        crate::output::data(&format!(
            "{} {what} in {} at {}: {}",
            visible(&self.branch),
            visible(&place),
            short(&work.tip),
            leaving.told()
        ))
    }
}

#[derive(Debug)]
enum Target {
    Here(LocalRepo),
    Remote(String),
}

impl Arrived {
    fn told(self) -> &'static str {
        match self {
            Arrived::Created => "created",
            Arrived::Updated => "updated",
            Arrived::Unchanged => "unchanged",
        }
    }
}

async fn here(bay: &str) -> Result<LocalRepo, ApiError> {
    let dir = std::env::current_dir().map_err(|e| local("finding the current directory", &e))?;
    discover(&dir).await?.ok_or_else(|| {
        ApiError::new(
            ErrorCode::RepoNotFound,
            format!("{} is not in a git repository", dir.display()),
            format!(
                "run this in a repository, or give --push REMOTE; `bay bundle {bay} > FILE` works without a \
                 repository"
            ),
        )
    })
}

fn check_branch(branch: &str) -> Result<(), ApiError> {
    if bay_git::is_ref_name(branch) && branch != "HEAD" && !branch.starts_with("refs/") {
        return Ok(());
    }
    Err(invalid(
        format!("{branch:?} is not a valid branch name"),
        "write a plain name such as fix-login or agent/fix-login",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_branch_has_a_plain_name() {
        for good in ["main", "agent/fix-1", "über"] {
            assert!(check_branch(good).is_ok(), "{good}");
        }
        for bad in
            ["", "-x", "--force", "HEAD", "refs/heads/x", "a..b", "a b", "x.lock", "a\nb", "+x", "a:b", "@"]
        {
            assert_eq!(check_branch(bad).is_ok(), bad == "+x", "{bad}");
        }
    }
}
