//! The services of a bay without a running guest, read from its state directory. The daemon reads it as root of the
//! host, but the bay controls it. So no link is followed, and everything that is read is bounded.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use bay_types::service::{ServiceName, ServiceState, ServiceView};
use jiff::Timestamp;

use super::store::{self, Record};
use super::{Service, health, supervisor};
use crate::spool;

/// Every service that is recorded, by name. Empty if nothing can be read.
#[must_use]
pub fn stored_services(state: BorrowedFd<'_>) -> Vec<ServiceView> {
    let Ok(dir) = spool::open_directory(state, store::DIRECTORY) else { return Vec::new() };
    let found = store::load(dir.as_fd()).into_iter();
    found.map(|(name, record)| view(dir.as_fd(), name, record)).collect()
}

/// The directory with the output of the services' runs. It has the form of the directory with the output of execs.
///
/// # Errors
/// If it does not exist, or is not a directory.
pub fn stored_runs(state: BorrowedFd<'_>) -> io::Result<OwnedFd> {
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
            (Some(supervisor::from_record(dir, record)), ServiceState::Stopped, reason.to_owned())
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
