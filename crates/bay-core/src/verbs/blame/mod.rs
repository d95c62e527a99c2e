//! What may have made a command fail, found when it ended without success.
//!
//! ```text
//!  counters of the bay (memory, processes) ─┐
//!  a probe of its disk ─────────────────────┤
//!  decisions on record against the exec ────┼──► judge (pure) ──► a list of typed findings, kept with the exec
//!  states of its services, from the guest ──┤
//!  the end of its output, package lists ────┘
//! ```
//!
//! Nothing is looked for after a success, or if somebody ended the command or its guest is gone. A search that
//! takes too long is given up, with everything that it found: the record of an end does not wait for a bay that is
//! slow on purpose. Only the limits that were reached are then reported.

mod disk;
mod judge;
mod missing_command;
mod package_lists;

use std::time::Duration;

use bay_store::ExecRow;
use bay_types::blame::{Blame, MissingCommand, Reachable};
use bay_types::event::Event;
use bay_types::exec::{EndReason, Exit, LimitHit};
use bay_types::service::{MAX_SERVICES, ServiceView};
use bay_types::{ExecId, Hint};
use bytes::Bytes;
use http::Method;

use crate::daemon::Daemon;
use crate::registry::BayHandle;
use crate::spool;
use crate::verbs::policy;
use judge::Evidence;

/// How long the search may delay the record of an end.
const SEARCH_WITHIN: Duration = Duration::from_secs(1);
/// How many of the newest events of the bay are searched for refusals, at most.
const AMONG_EVENTS: u32 = 4096;
/// How many refusals of one exec are read.
const MAX_REFUSALS: u32 = 64;
/// How much of the end of the output is searched for the name of a missing program.
const OUTPUT_TAIL: u64 = 4096;
/// The exit code by which a shell reports that a program was not found.
const NOT_FOUND: i32 = 127;

/// Whether a command failed by itself. If somebody killed it or stopped the bay, or its guest is gone, findings
/// explain nothing.
fn is_failure(exit: Exit) -> bool {
    match exit.reason {
        EndReason::Exited => exit.code != Some(0),
        EndReason::Signaled | EndReason::TimedOut => true,
        EndReason::Killed | EndReason::Stopped | EndReason::Lost => false,
    }
}

/// The findings for an exec that ended.
pub(super) async fn of_exec(
    daemon: &Daemon,
    handle: &BayHandle,
    id: ExecId,
    exit: Exit,
    limits_hit: &[LimitHit],
) -> Vec<Blame> {
    if !is_failure(exit) {
        return Vec::new();
    }
    let search = tokio::time::timeout(SEARCH_WITHIN, evidence(daemon, handle, id, exit));
    let found = search.await.unwrap_or_else(|_| {
        tracing::debug!(bay = %handle.name, exec = %id, "the search for what made a command fail took too long");
        Evidence::default()
    });
    judge::judge(id, limits_hit, found)
}

async fn evidence(daemon: &Daemon, handle: &BayHandle, id: ExecId, exit: Exit) -> Evidence {
    let (refusals, no_policy, services, disk_full, missing) = tokio::join!(
        refusals(daemon, handle, id),
        policy::is_unset(daemon, handle),
        services(handle),
        disk_is_full(daemon, handle),
        missing(daemon, handle, id, exit),
    );
    Evidence { refusals, no_policy, services, disk_full, missing }
}

/// The refusals of an exec, newest first. Without a readable record there are none.
async fn refusals(daemon: &Daemon, handle: &BayHandle, id: ExecId) -> Vec<Event> {
    daemon.store.refusals_of_exec(handle.id, id, AMONG_EVENTS, MAX_REFUSALS).await.unwrap_or_default()
}

async fn services(handle: &BayHandle) -> Vec<ServiceView> {
    let answer: Result<Vec<ServiceView>, _> =
        handle.guest.json(Method::GET, "/v1/services", Bytes::new(), SEARCH_WITHIN).await;
    let mut all = answer.unwrap_or_default();
    all.truncate(MAX_SERVICES);
    all
}

async fn disk_is_full(daemon: &Daemon, handle: &BayHandle) -> bool {
    let Ok(pool) = daemon.pool() else { return false };
    let state = pool.bay_disk(handle.id).state;
    tokio::task::spawn_blocking(move || disk::is_full(&state)).await.unwrap_or(false)
}

/// Programs that end with the code for a missing program because of what they ran, or because a script says so.
const SHELLS: [&str; 6] = ["sh", "bash", "dash", "zsh", "ksh", "ash"];

/// The program that a shell, or the guest, probably did not find.
async fn missing(daemon: &Daemon, handle: &BayHandle, id: ExecId, exit: Exit) -> Option<MissingCommand> {
    if exit.code != Some(NOT_FOUND) {
        return None;
    }
    let row = daemon.store.exec_get(handle.id, id).await.ok()??;
    let name = match named_in_output(daemon, handle, &row).await {
        Some(name) => name,
        // Without a complaint in the output, the guest itself probably did not find the program.
        None => missing_command::plain_name(row.spec.argv.first()?)
            .filter(|name| !SHELLS.contains(name))?
            .to_owned(),
    };
    Some(about(daemon, handle, name).await)
}

async fn named_in_output(daemon: &Daemon, handle: &BayHandle, row: &ExecRow) -> Option<String> {
    let state = daemon.pool().ok()?.bay_disk(handle.id).state;
    let tail = spool::tail(state, row.id, OUTPUT_TAIL).await?;
    missing_command::named_in(&String::from_utf8_lossy(&tail))
}

/// How a missing program can be installed in this bay.
async fn about(daemon: &Daemon, handle: &BayHandle, command: String) -> MissingCommand {
    let row = handle.row();
    let mut missing = MissingCommand {
        command,
        packages: Vec::new(),
        manager: None,
        reachable: Reachable::NoPolicy,
        as_root: row.spec.user.is_some(),
    };
    // The image `host` has the host's programs. A program is installed on the host, and comes into bays with the
    // next import of that image.
    if row.spec.image == "host" {
        return missing;
    }
    let Ok(pool) = daemon.pool() else { return missing };
    let (root, command) = (pool.bay_disk(handle.id).root, missing.command.clone());
    let searched = tokio::task::spawn_blocking(move || package_lists::search(&root, &command)).await;
    let Ok(Some(found)) = searched else { return missing };
    missing.reachable = policy::reachable(daemon, handle, found.server).await;
    (missing.manager, missing.packages) = (Some(found.manager), found.packages);
    missing
}

/// The advice for a command that the guest could not start because the bay lacks the program.
pub(super) async fn advice(daemon: &Daemon, handle: &BayHandle, program: &str) -> Option<Hint> {
    let name = missing_command::plain_name(program)?.to_owned();
    let missing = tokio::time::timeout(SEARCH_WITHIN, about(daemon, handle, name)).await.ok()?;
    missing.manager.is_some().then(|| missing.hint())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_command_that_failed_by_itself_is_explained() {
        let exit = |reason, code| Exit { reason, code, signal: None };
        for (reason, code, explained) in [
            (EndReason::Exited, Some(0), false),
            (EndReason::Exited, Some(1), true),
            (EndReason::Signaled, None, true),
            (EndReason::TimedOut, None, true),
            (EndReason::Killed, None, false),
            (EndReason::Stopped, Some(1), false),
            (EndReason::Lost, None, false),
        ] {
            assert_eq!(is_failure(exit(reason, code)), explained, "{reason:?} {code:?}");
        }
    }
}
