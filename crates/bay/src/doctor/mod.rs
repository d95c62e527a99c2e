//! What this host can do, found out by trying where trying is harmless and by reading where it is not.
//!
//! One small probe per fact. A probe never fails: what it could not find out it says. Nothing here changes the host;
//! what a probe makes (a child in namespaces, an empty cgroup) it takes away again.

mod cgroups;
mod disk;
mod gateway;
mod kernel;
mod namespaces;
mod privileges;
mod proc;
pub(crate) mod report;
mod tools;

use serde::Serialize;

use crate::daemon_start::DaemonLocation;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum State {
    Ok,
    /// Works, with less than there could be.
    Limited,
    Missing,
    /// Could not be found out, mostly for want of root.
    Unknown,
}

/// One fact about the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Check {
    /// Stable name for programs.
    pub(crate) id: &'static str,
    pub(crate) title: &'static str,
    pub(crate) state: State,
    /// Without it no bay runs.
    pub(crate) required: bool,
    pub(crate) found: String,
    /// What its lack costs; empty when all is well.
    pub(crate) cost: &'static str,
    /// How to mend it; empty when all is well.
    pub(crate) mend: &'static str,
}

/// What a probe looks at, and what it says when it has found something.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Subject {
    id: &'static str,
    title: &'static str,
    required: bool,
    cost: &'static str,
    mend: &'static str,
}

impl Subject {
    fn found(self, state: State, found: impl Into<String>) -> Check {
        let (cost, mend) = if state == State::Ok { ("", "") } else { (self.cost, self.mend) };
        Check {
            id: self.id,
            title: self.title,
            state,
            required: self.required,
            found: found.into(),
            cost,
            mend,
        }
    }

    fn ok(self, found: impl Into<String>) -> Check {
        self.found(State::Ok, found)
    }

    fn limited(self, found: impl Into<String>) -> Check {
        self.found(State::Limited, found)
    }

    fn missing(self, found: impl Into<String>) -> Check {
        self.found(State::Missing, found)
    }

    fn unknown(self, found: impl Into<String>) -> Check {
        self.found(State::Unknown, found)
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct Examined {
    /// Whether bays can run here, as far as could be seen.
    pub(crate) fit: bool,
    pub(crate) version: &'static str,
    pub(crate) root: bool,
    pub(crate) checks: Vec<Check>,
}

pub(crate) async fn examine(location: &DaemonLocation) -> Examined {
    let root = rustix::process::geteuid().is_root();
    let checks = vec![
        kernel::version(),
        privileges::root(root),
        privileges::capabilities(root),
        privileges::resource_limits(root),
        namespaces::user(),
        namespaces::all(root).await,
        namespaces::nested(),
        namespaces::time(),
        namespaces::idmapped_mounts(root, location).await,
        kernel::openat2(),
        kernel::mount_api(root),
        cgroups::layout(root),
        cgroups::controllers(),
        cgroups::kill_and_freeze(root),
        cgroups::clone_into(root),
        kernel::pressure(),
        gateway::steering(root),
        kernel::abort_connections(root),
        gateway::key(root),
        kernel::seccomp(),
        kernel::landlock(),
        kernel::security_modules(),
        disk::btrfs(),
        disk::mkfs().await,
        disk::loop_devices(root),
        disk::space(location),
        disk::memory(),
        tools::git().await,
        tools::criu(root).await,
        tools::kvm(),
        tools::daemon(location).await,
    ];
    let fit = checks.iter().all(|check| !check.required || check.state != State::Missing);
    Examined { fit, version: bay_types::VERSION, root, checks }
}
