//! Other programs, and the daemon.

use std::fs::OpenOptions;
use std::io;
use std::path::PathBuf;

use bay_client::{Client, Endpoint};
use bay_types::bay::Health;
use tokio::process::Command;

use super::{Check, Subject};
use crate::daemon_start::DaemonLocation;

/// The first line of a program's version output.
async fn version_of(program: &str) -> io::Result<String> {
    let output = Command::new(program).arg("--version").kill_on_drop(true).output().await?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().next().unwrap_or_default().trim().to_owned())
}

pub(super) async fn git() -> Check {
    let subject = Subject {
        id: "git",
        title: "git",
        required: false,
        cost: "`bay up` cannot take repositories, neither local nor remote; directories without .git work",
        fix: "apt install git",
    };
    match version_of("git").await {
        Ok(version) => subject.ok(version),
        Err(_) => subject.missing("not installed"),
    }
}

pub(super) async fn criu(root: bool) -> Check {
    let subject = Subject {
        id: "criu",
        title: "CRIU",
        required: false,
        cost: "checkpoints hold files only; memory checkpoints and live forks need CRIU 4.2 or newer",
        fix: "./quickstart fetches one; BAY_CRIU names another (older ones fail on recent kernels)",
    };
    let given = std::env::var_os("BAY_CRIU").map(PathBuf::from);
    let found = match bay_runtime::find_criu(given.as_deref()) {
        Ok(found) => found,
        Err(what) if what == "not installed" => return subject.missing(what),
        Err(what) => return subject.limited(what),
    };
    let told = format!("{} ({})", found.version, found.program.display());
    if !root {
        return subject.unknown(told);
    }
    match Command::new(&found.program).arg("check").kill_on_drop(true).output().await {
        Ok(checked) if checked.status.success() => subject.ok(told),
        Ok(checked) => {
            let said = String::from_utf8_lossy(&checked.stderr);
            let error = said.lines().find(|line| line.contains("Error")).unwrap_or("it does not say why");
            subject.limited(format!("{told}, which does not work on this kernel: {}", error.trim()))
        }
        Err(error) => subject.limited(format!("{told}: {error}")),
    }
}

pub(super) fn kvm() -> Check {
    let subject = Subject {
        id: "kvm",
        title: "KVM",
        required: false,
        cost: "bays as virtual machines would run without hardware support, slowly",
        fix: "enable virtualisation in the firmware, or nested virtualisation for this machine",
    };
    match OpenOptions::new().read(true).write(true).open("/dev/kvm") {
        Ok(_) => subject.ok("/dev/kvm opens"),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            subject.unknown("/dev/kvm is there, but not open to this user")
        }
        Err(_) => subject.missing("no /dev/kvm"),
    }
}

/// The daemon of this data directory, if one runs. The probe starts none.
pub(super) async fn daemon(location: &DaemonLocation) -> Check {
    let subject = Subject {
        id: "daemon",
        title: "daemon",
        required: false,
        cost: "a daemon of another version may not understand this command",
        fix: "restart the daemon; running bays continue meanwhile",
    };
    let mut client = Client::new(Endpoint::at(&location.socket));
    match client.get::<Health>("/v1/health").await {
        Ok(health) if health.version == bay_types::VERSION => subject.ok(format!(
            "version {}, pid {}, pool {}",
            health.version,
            health.pid,
            health.pool.display()
        )),
        Ok(health) => {
            subject.limited(format!("version {}, but this is {}", health.version, bay_types::VERSION))
        }
        Err(_) if client.connected() => subject.limited("it does not answer as it should"),
        Err(_) => subject.ok("none runs; it is started when needed"),
    }
}
