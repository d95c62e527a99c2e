//! The services of a bay without a guest, as its state directory has them. The daemon reads this as root of the host, and
//! the directory is the bay's: no link is followed, and no more is read than there may be.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use bay_types::service::{ServiceName, ServiceState, ServiceView};
use jiff::Timestamp;

use super::store::{self, Record};
use super::{Service, drive, health};
use crate::spool;

/// Every service that is written down, by name; none where nothing can be read.
#[must_use]
pub fn kept_services(state: BorrowedFd<'_>) -> Vec<ServiceView> {
    let Ok(dir) = spool::open_directory(state, store::DIRECTORY) else { return Vec::new() };
    let found = store::load(dir.as_fd()).into_iter();
    found.map(|(name, record)| view(dir.as_fd(), name, record)).collect()
}

/// The directory in which the output of services' runs is kept, to be read as that of execs is.
///
/// # Errors
/// When there is none, or something else has its name.
pub fn kept_runs(state: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    spool::open_directory(state, store::DIRECTORY)
}

fn view(dir: BorrowedFd<'_>, name: ServiceName, record: Result<Record, String>) -> ServiceView {
    let (service, state, reason) = match record {
        Ok(record) => {
            let reason = if record.wanted {
                "the bay does not run; it is started with the bay"
            } else {
                "it was stopped on request and stays so until it is started"
            };
            (Some(drive::revive(dir, record)), ServiceState::Stopped, reason.to_owned())
        }
        Err(why) => {
            (None, ServiceState::Failed, format!("its definition cannot be read: {}", health::clip(&why)))
        }
    };
    let runs: Vec<_> = service.iter().flat_map(|service| service.runs.iter().cloned()).collect();
    let last = runs.last().map(|run| run.ended_at.unwrap_or(run.started_at));
    ServiceView {
        name,
        state,
        reason,
        since: last.unwrap_or_else(Timestamp::now),
        wanted: service.as_ref().is_some_and(|service| service.wanted),
        pid: None,
        restarts: 0,
        attempt: 0,
        retry_at: None,
        log_start: service.as_ref().map_or(0, Service::log_start),
        log_end: service.as_ref().map_or(0, Service::log_end),
        runs,
        spec: service.map(|service| service.spec),
    }
}
