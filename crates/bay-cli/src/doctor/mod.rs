//! What this host supports. A probe tries a feature if that is harmless, and otherwise reads what the kernel reports.
//!
//! There is one small probe for each fact. A probe never fails: it reports what it could not find out. Nothing here
//! changes the host. Whatever a probe makes (a child in namespaces, an empty cgroup) it removes again.

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

use crate::daemon_in_this_executable::DaemonInThisExecutable;
use crate::daemon_start::DaemonLocation;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum State {
    Ok,
    /// It works, but not everything it offers.
    Limited,
    Missing,
    /// The probe could not find out, usually for lack of root.
    Unknown,
}

/// One fact about the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Check {
    /// Stable name, for programs.
    pub(crate) id: &'static str,
    pub(crate) title: &'static str,
    pub(crate) state: State,
    /// No bay runs without it.
    pub(crate) required: bool,
    pub(crate) found: String,
    /// The consequence of its absence. Empty if all is well.
    pub(crate) cost: &'static str,
    /// How to fix it. Empty if all is well.
    #[serde(rename = "mend")]
    pub(crate) fix: &'static str,
}

/// The subject of a probe, and its texts for a result that is not ok.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Subject {
    id: &'static str,
    title: &'static str,
    required: bool,
    cost: &'static str,
    fix: &'static str,
}

impl Subject {
    fn found(self, state: State, found: impl Into<String>) -> Check {
        let (cost, fix) = if state == State::Ok { ("", "") } else { (self.cost, self.fix) };
        Check {
            id: self.id,
            title: self.title,
            state,
            required: self.required,
            found: found.into(),
            cost,
            fix,
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
    /// Whether bays can run here, as far as the probes could see.
    pub(crate) fit: bool,
    pub(crate) version: &'static str,
    pub(crate) root: bool,
    pub(crate) checks: Vec<Check>,
}

pub(crate) async fn examine(daemon: &DaemonInThisExecutable, location: &DaemonLocation) -> Examined {
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
        gateway::key(root, daemon.look_at_keys),
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
