//! The places in which the same work is measured: the bare host, a bay, the containers of other tools.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::setup::Setup;

/// Directories with the host's programs, which the peers' containers mount read-only.
const PROGRAMS: [&str; 6] = ["/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc"];

#[derive(Debug, Clone)]
pub(crate) enum Place {
    /// A directory of the host.
    Host(PathBuf),
    /// `/workspace` of a bay.
    Bay(String),
    /// `/work` of a container.
    Docker(String),
    /// A directory of the host, used through bubblewrap.
    Bwrap(PathBuf),
    /// A directory of the host, used through gVisor.
    Runsc(PathBuf),
}

impl Place {
    /// A command that runs `sh -c SCRIPT` in the place's directory: as nobody, or else as root in a bay or a
    /// container and as the caller on the host.
    pub(crate) fn sh(&self, setup: &Setup, script: &str, as_nobody: bool) -> Command {
        // The directories above the pool are closed to others, but nobody must be able to pass through them to its own.
        let nobody = [
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "--inh-caps=+dac_read_search",
            "--ambient-caps=+dac_read_search",
        ];
        let on_host = |dir: &Path, wrapper: &[&str]| {
            let mut words: Vec<&str> = wrapper.to_vec();
            if as_nobody {
                words.push("setpriv");
                words.extend(nobody);
            }
            words.extend(["sh", "-c", script]);
            let mut command = Command::new(words[0]);
            command.args(&words[1..]).current_dir(dir);
            command
        };
        match self {
            Self::Host(dir) => on_host(dir, &[]),
            Self::Bwrap(dir) => {
                on_host(dir, &["bwrap", "--dev-bind", "/", "/", "--unshare-pid", "--proc", "/proc"])
            }
            Self::Runsc(dir) => on_host(dir, &["runsc", "--network=none", "do", "-force-overlay=false"]),
            Self::Bay(name) => {
                let user = if as_nobody { "65534" } else { "0" };
                setup.bay(&["exec", name, "--user", user, "--", "sh", "-c", script])
            }
            Self::Docker(container) => {
                let user = if as_nobody { "65534" } else { "0" };
                let mut command = Command::new("docker");
                command.args(["exec", "-w", "/work", "-u", user, container, "sh", "-c", script]);
                command
            }
        }
    }
}

/// Arguments of `docker run` that mount the host's programs, and the directory `more`.
pub(crate) fn docker_mounts(more: Option<&Path>) -> Vec<String> {
    let own = PROGRAMS.iter().map(Path::new).filter(|dir| dir.exists());
    own.chain(more)
        .map(|dir| format!("{0}:{0}:ro", dir.display()))
        .flat_map(|volume| ["-v".to_owned(), volume])
        .collect()
}
