//! Copies the agent's work out of its bay.
//!
//! ```text
//!   in the bay                        here, as the caller                               the caller's
//!   pack.sh: one pack, one commit ──► a clean repository (fsck, nothing borrowed  ──►   bundle on standard output,
//!   (no index, HEAD or object of      that was not sent); a new bundle from it          branch of a repository,
//!   the agent's is touched)                                                             branch of a remote
//! ```
//!
//! Git runs on the agent's tree only inside the bay, and all of its output there is hostile. Only one line with a
//! commit's id and a pack of bounded size are accepted. The daemon examines none of it. The directories here and in the
//! bay are deleted at the end, also after a failure. If the daemon is down then, the one in the bay remains, and a run
//! more than two hours later deletes it.
//!
//! If a repository of the caller has the commit that the bay began from, it lends its objects, so that only newer
//! objects are sent. If there is none, or it lacks objects, the whole history is sent.

mod clean;
mod lender;
mod pack_directory;
pub(crate) mod report;
pub(crate) mod review;

use bay_client::{Client, local};
use bay_types::bay::BayView;
use bay_types::{ApiError, ErrorCode, ExecId};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::Failure;
use crate::output::progress::Meter;
use bay_git::{Lender, Taken, is_object_id};
use bay_text::escape::one_line;
pub(crate) use clean::Clean;
use pack_directory::{Answer, PackDirectory};

/// Largest pack that is accepted from a bay.
pub(crate) const MAX_PACK_BYTES: u64 = 16 << 30;

/// Which part of a bay's work to copy.
#[derive(Debug)]
pub(crate) struct Wanted<'a> {
    pub(crate) bay: &'a BayView,
    pub(crate) committed_only: bool,
    /// The message of the commit with the uncommitted changes.
    pub(crate) message: &'a str,
}

/// The state of the work in the bay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Committed,
    /// With one more commit for the uncommitted changes.
    Uncommitted,
    /// The workspace was no repository: its files became one commit.
    Whole,
}

/// Work whose objects passed git's checks, in a repository of its own. Its content is reviewed later ([`review`]).
#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) clean: Clean,
    pub(crate) tip: String,
    /// The commit that the bay began from, if the work's repository contains it.
    pub(crate) base: Option<String>,
    pub(crate) kind: Kind,
    /// The commands that ran in the bay to pack it.
    pub(crate) execs: Vec<ExecId>,
}

/// Ctrl-C and similar signals, caught so that temporary files are deleted before this program ends.
#[derive(Debug)]
pub(crate) struct Interrupts([(u8, Signal); 3]);

impl Interrupts {
    pub(crate) fn listen() -> Result<Self, ApiError> {
        let listen = |number: u8, kind| signal(kind).map(|signal| (number, signal));
        let all = || {
            Ok([
                listen(2, SignalKind::interrupt())?,
                listen(15, SignalKind::terminate())?,
                listen(1, SignalKind::hangup())?,
            ])
        };
        all().map(Self).map_err(|e| local("listening for signals", &e))
    }

    /// The outcome of work that writes only temporary files, unless a signal arrives first.
    pub(crate) async fn or<T, E: Into<Failure>>(
        &mut self,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, Failure> {
        let error = ApiError::new(
            ErrorCode::Interrupted,
            "interrupted by a signal before the work was copied out of the bay; no bundle or branch was written",
            "run the command again",
        );
        self.or_error(work, error).await
    }

    /// The outcome of work that writes to where the caller wants it, unless a signal arrives first. `next` says what
    /// to do with what may have been written.
    pub(crate) async fn or_incomplete<T, E: Into<Failure>>(
        &mut self,
        work: impl Future<Output = Result<T, E>>,
        next: &str,
    ) -> Result<T, Failure> {
        let error = ApiError::new(
            ErrorCode::Interrupted,
            "interrupted by a signal while the work was being written; it may be incomplete or complete",
            next,
        );
        self.or_error(work, error).await
    }

    async fn or_error<T, E: Into<Failure>>(
        &mut self,
        work: impl Future<Output = Result<T, E>>,
        error: ApiError,
    ) -> Result<T, Failure> {
        let [(int, on_int), (term, on_term), (hup, on_hup)] = &mut self.0;
        let number = tokio::select! {
            outcome = work => return outcome.map_err(Into::into),
            _ = on_int.recv() => int,
            _ = on_term.recv() => term,
            _ = on_hup.recv() => hup,
        };
        // The exit code that a shell reports for a program ended by this signal.
        Err(Failure::Api { error, exit: 128 + *number })
    }
}

/// Copies the work out of the bay and checks it.
pub(crate) async fn bring_out(
    client: &mut Client,
    wanted: &Wanted<'_>,
    meter: &mut Meter,
    interrupts: &mut Interrupts,
) -> Result<Work, Failure> {
    let origin = wanted.bay.origin.as_ref().filter(|origin| is_object_id(&origin.commit));
    let mut execs = Vec::new();
    if let Some(lender) = interrupts.or(lender::find(origin)).await? {
        match attempt(client, wanted, Some(lender), &mut execs, meter, interrupts).await {
            // The lender may lack objects. An attempt with the whole history shows whether the lender or the bay is at
            // fault.
            Err(Failure::Api { error, .. }) if error.code == ErrorCode::WorkRefused => {}
            other => return other,
        }
    }
    attempt(client, wanted, None, &mut execs, meter, interrupts).await
}

async fn attempt(
    client: &mut Client,
    wanted: &Wanted<'_>,
    lender: Option<Lender>,
    execs: &mut Vec<ExecId>,
    meter: &mut Meter,
    interrupts: &mut Interrupts,
) -> Result<Work, Failure> {
    let bay = wanted.bay;
    let base = bay.origin.as_ref().map(|origin| origin.commit.clone()).filter(|commit| is_object_id(commit));
    let mut directory = PackDirectory::new(client, bay.name.as_str());
    meter.stage(&format!("packing the work of {}", bay.name));
    let have = lender.as_ref().map(|lender| lender.commit.clone());
    let brought = interrupts
        .or(async {
            let answer = directory.pack(wanted, have.as_deref(), base.as_deref()).await?;
            let (tip, kind) = match answer {
                Answer::Tip { commit, kind } => (commit, kind),
                Answer::Refused { why, said } => return Err(refusal(bay, &why, &said)),
            };
            let clean = Clean::create(tip.len() == 64, lender).await?;
            directory.download(&clean.incoming(), meter).await?;
            Ok((clean, tip, kind))
        })
        .await;
    execs.extend(directory.clear().await);
    let (clean, tip, kind) = brought?;
    if interrupts.or(clean.take_in(&tip, base.as_deref(), meter)).await? == Taken::Nothing {
        return Err(nothing(bay).into());
    }
    let known = match &base {
        Some(base) => clean.has(base).await,
        None => false,
    };
    Ok(Work { clean, tip, base: base.filter(|_| known), kind, execs: std::mem::take(execs) })
}

fn nothing(bay: &BayView) -> ApiError {
    let since = match &bay.origin {
        Some(origin) => format!(" since it began at {}", short(&origin.commit)),
        None => String::new(),
    };
    ApiError::new(
        ErrorCode::NothingToTake,
        format!("the bay {} has no work to take{since}", bay.name),
        format!("`bay exec {} -- git status` shows its state", bay.name),
    )
}

/// The error that the script in the bay reported. A process of the bay may have replaced the script.
fn refusal(bay: &BayView, why: &str, said: &str) -> ApiError {
    let name = &bay.name;
    match why {
        "nothing" => nothing(bay),
        "no-repository" | "no-commit" => ApiError::new(
            ErrorCode::NothingToTake,
            format!("there are no commits in /workspace of the bay {name}"),
            "leave --committed-only out to take the files as one commit",
        ),
        "no-git" => ApiError::new(
            ErrorCode::CommandNotFound,
            format!("the bay {name} has no git (image {}), and its work leaves by git", one_line(&bay.image)),
            format!(
                "install git in the bay or use an image that has it; `bay cp {name}:. DIR` copies the plain files"
            ),
        ),
        "shallow" => ApiError::new(
            ErrorCode::WorkRefused,
            format!("the repository in the bay {name} is a shallow clone, whose history has no beginning"),
            format!(
                "make the bay from a full clone (`git fetch --unshallow`); `bay cp {name}:. DIR` copies the plain files"
            ),
        ),
        _ => {
            let said = match one_line(said) {
                said if said.is_empty() => "it gave no reason".to_owned(),
                said => format!("it said: {said}"),
            };
            ApiError::new(
                ErrorCode::WorkRefused,
                format!("git in the bay {name} could not pack the work; {said}"),
                format!(
                    "`bay exec {name} -- git status` and `git fsck` in it may show more; `bay cp {name}:. DIR` copies the plain files"
                ),
            )
        }
    }
}

/// An abbreviated commit id.
pub(crate) fn short(commit: &str) -> &str {
    commit.get(..8).unwrap_or(commit)
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    #[tokio::test]
    async fn an_interruption_says_whether_something_may_have_been_written() {
        let mut interrupts = Interrupts::listen().unwrap();
        let hang_up = || {
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::HUP).unwrap();
        };
        let reported = |outcome: Result<(), Failure>| match outcome {
            Err(Failure::Api { error, exit }) => (error, exit),
            other => panic!("{other:?}"),
        };
        hang_up();
        let (error, exit) = reported(interrupts.or(pending::<Result<(), ApiError>>()).await);
        assert_eq!((error.code, exit), (ErrorCode::Interrupted, 128 + 1));
        assert!(error.message.contains("no bundle or branch was written"), "{error:?}");
        hang_up();
        let writing = pending::<Result<(), ApiError>>();
        let (error, _) = reported(interrupts.or_incomplete(writing, "check the branch").await);
        assert!(error.message.contains("may be incomplete"), "{error:?}");
        assert_eq!(error.next, "check the branch");
    }
}
