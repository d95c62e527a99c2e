//! Counts the work in the clean repository, and reviews its content before it becomes a branch.

use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::path::Path;

use bay_client::local;
use bay_diff::review::Reviewer;
use bay_diff::{DiffError, Options, Told, compare};
use bay_git::{Entry, LaidOut};
use bay_types::diff::{Finding, Findings, Severity};
use bay_types::{ApiError, ErrorCode};
use serde::Serialize;

use super::Work;

use crate::output::count;
use bay_text::escape::one_line;

/// Most places of secrets that an error lists.
const NAMED: usize = 3;

/// Counts of what leaves the bay.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Leaving {
    pub(crate) commits: u64,
    /// Files added, changed or deleted.
    pub(crate) files: u64,
    /// Entries that name a commit of another repository, whose files are not included.
    pub(crate) repositories: u64,
}

impl Leaving {
    /// The counts in words: `2 commits, 3 files changed`.
    pub(crate) fn told(&self) -> String {
        format!("{}, {} changed", count(self.commits, "commit"), count(self.files, "file"))
    }
}

/// Counts the commits and files between the bay's beginning and the work.
pub(crate) async fn review(work: &Work) -> Result<Leaving, ApiError> {
    let exclude = work.base.as_ref().map(|base| format!("^{base}"));
    let mut arguments = vec!["rev-list", "--count", &work.tip];
    arguments.extend(exclude.as_deref());
    let commits = work.clean.ask(&arguments).await?;
    let commits = std::str::from_utf8(&commits).ok().and_then(|text| text.trim().parse().ok());
    let commits = commits.ok_or_else(odd)?;
    let changes = work.clean.changes(&work.tip, work.base.as_deref()).await?;
    let repositories =
        changes.iter().filter(|change| change.after.as_ref().is_some_and(Entry::is_repository)).count();
    Ok(Leaving { commits, files: changes.len() as u64, repositories: repositories as u64 })
}

/// Checks the work with the rules of `bay review` before it becomes a branch, here or of a remote, and refuses what
/// looks like a secret unless that is allowed. It also looks for secrets in versions of files that only an
/// intermediate commit contains, because they leave with that commit.
pub(crate) async fn review_before_push(work: &Work, allow_secrets: bool) -> Result<Findings, ApiError> {
    let laid_out = work.clean.lay_out(&work.tip, work.base.as_deref()).await?;
    let read = tokio::task::spawn_blocking(move || found(&laid_out));
    let findings = read.await.map_err(|e| ApiError::internal(&e))??;
    if allow_secrets || !findings.stop() {
        return Ok(findings);
    }
    let secrets: Vec<&Finding> =
        findings.findings.iter().filter(|finding| finding.severity == Severity::Stop).collect();
    let places: Vec<String> = secrets.iter().take(NAMED).map(|finding| place(finding)).collect();
    let more = match secrets.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Err(ApiError::new(
        ErrorCode::SecretFound,
        format!("the work contains what looks like a secret: {}{more}", places.join("; ")),
        "remove it, also from the commits that contain it; or use --allow-secrets if it is not a secret, or may leave the bay",
    ))
}

/// `src/a.rs:12 (github-token: …)`
fn place(finding: &Finding) -> String {
    let line = finding.line.map(|line| format!(":{line}")).unwrap_or_default();
    let path = finding.path_escaped.as_deref().unwrap_or(&finding.path);
    format!("{}{line} ({})", one_line(path), one_line(&finding.why))
}

fn found(laid_out: &LaidOut) -> Result<Findings, ApiError> {
    let mut findings = reviewed(Some(&laid_out.before), &laid_out.after)?;
    // Of files in intermediate commits only secrets matter, because these versions of the files are not in the result.
    let passing = reviewed(None, &laid_out.on_the_way)?.findings.into_iter();
    findings.findings.extend(passing.filter(|finding| finding.severity == Severity::Stop).map(|finding| {
        // Each file lies below a numbered directory that `lay_out` made. This removes the directory from the path.
        let inner = |path: &str| path.split_once('/').map_or(path, |(_, path)| path).to_owned();
        Finding {
            path: inner(&finding.path),
            path_escaped: finding.path_escaped.as_deref().map(inner),
            why: format!("{}, in an earlier commit of this work", finding.why),
            ..finding
        }
    }));
    Ok(findings)
}

fn reviewed(before: Option<&Path>, after: &Path) -> Result<Findings, ApiError> {
    let failed = |error: &io::Error| local("reading the work", error);
    let before = before.map(File::open).transpose().map_err(|e| failed(&e))?;
    let after = File::open(after).map_err(|e| failed(&e))?;
    let mut reviewer = Reviewer::default();
    let compared =
        compare(before.as_ref().map(AsFd::as_fd), Some(after.as_fd()), &Options::reviewed(), &mut |told| {
            if let Told::Entry(entry) = told {
                reviewer.look(&entry);
            }
            ControlFlow::Continue(())
        });
    compared.map_err(|error: DiffError| ApiError::internal(&error))?;
    Ok(reviewer.finish())
}

fn odd() -> ApiError {
    ApiError::new(
        ErrorCode::WorkRefused,
        "git did not report the number of commits",
        "check that the git on this machine works: `git --version`",
    )
}
