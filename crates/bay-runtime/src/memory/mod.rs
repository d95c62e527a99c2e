//! Memory checkpoints with CRIU: captures the processes of a bay, and restores them in the same bay or another.
//!
//! ```text
//!  capture                                            restore
//!  ───────                                            ───────
//!  examine   name what cannot be captured             identity  same kernel and CRIU, able processor? nothing hostile?
//!  idle      no connection to the guest is open       groups    the bay's, and those in which its processes were
//!  program   the guest's executable, kept too         gateway, socket, user-ns, mounts: as for a start, but side by side
//!  dump      CRIU stops everything, writes memory     criu      makes the namespaces …
//!  stopped   the daemon takes its snapshots           network    … the helper connects them …
//!  go on     everything runs again                    resume     … CRIU fills them; only PID 1 runs
//!  manifest  written last: now it is complete         wake      the guest gets its socket, its name, runs fork hooks
//!                                                     thaw      everything else runs
//! ```
//!
//! # What protects the host
//!
//! * CRIU makes what a restored bay has in the bay's own user namespace. Its mounts are copies of the helper's mounts in
//!   another user namespace, so the kernel has locked read-only and nodev on them as after a fresh start. (They can be
//!   unmounted, unlike after a fresh start; below them is only what belongs to the bay.)
//! * The user namespace belongs to the bay's first id, as for a start: CRIU acts as that id while it makes the namespace
//!   ([`bay_sys::remote_calls`]), and as root afterwards. During a dump this also lets CRIU read the limits of the bay's
//!   processes on hosts that do not give away `CAP_SYS_RESOURCE`.
//! * Images are checked before they are restored, and before a capture counts: no mount of the bay may make CRIU follow a
//!   path that the bay has chosen ([`image_check`]). If CRIU follows one nevertheless, it finds almost nothing of the host
//!   ([`host_cover`]).
//! * The guest's executable is unreadable inside, but CRIU opens it with the rights of the bay. So a restored bay has its
//!   own copy, which is readable until its first process runs.
//!
//! # Failure paths
//!
//! * The helper (or the daemon) is killed during a dump: CRIU notices that its socket is closed, undoes everything and ends.
//! * CRIU itself is killed during a dump: the kernel releases what it had stopped, and CRIU's code in a process
//!   returns to where the process was. [`undo_failed`] removes the rest: that code, a lock on TCP, and sockets in
//!   repair mode. If no helper is left to do so, the next capture does. Only a process whose registers CRIU was using
//!   at that moment is lost; no other process can restore them.
//! * During a restore: everything that was made is in the bay's groups and run directory, and `Clear` removes it.
//! * Temporary mounts are in mount namespaces that end with their processes.

mod capture;
mod cgroup_sets;
mod criu_process;
mod host_cover;
mod image_check;
mod leftovers;
mod manifest;
mod namespace_view;
mod netfilter;
mod obstacles;
mod private_run;
mod protobuf;
mod restore;
mod wake_guest;

pub(crate) use capture::{capture, undo_failed};
pub(crate) use obstacles::examine;
pub(crate) use restore::restore;

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use bay_types::runtime::Criu;

use crate::failure::{Failure, Try};

/// Where CRIU is searched, in this order. `./quickstart` installs one in the first.
pub const CRIU_PLACES: [&str; 4] =
    ["/usr/local/lib/workbay/criu/criu", "/usr/local/sbin/criu", "/usr/sbin/criu", "/usr/bin/criu"];
/// Major and minor version of the oldest CRIU that works on recent kernels.
pub const CRIU_FLOOR: (u32, u32) = (4, 2);
/// The guest's executable among the images.
pub const PROGRAM: &str = "program";
/// Directory for CRIU's log, in the run directory of the bay.
const WORK_DIR: &str = "criu";

/// The first CRIU that is recent enough: the given one, or one of [`CRIU_PLACES`].
///
/// # Errors
/// What was found instead, as a message for people.
pub fn find_criu(given: Option<&Path>) -> Result<Criu, String> {
    let places: Vec<PathBuf> = match given {
        Some(given) => vec![given.to_owned()],
        None => CRIU_PLACES.iter().map(PathBuf::from).filter(|place| place.exists()).collect(),
    };
    let mut found = Vec::new();
    for program in places {
        match criu_version(&program) {
            Ok(version) if is_new_enough(&version) => return Ok(Criu { program, version }),
            Ok(version) => found.push(format!("{} is version {version}", program.display())),
            Err(error) => found.push(format!("{}: {error}", program.display())),
        }
    }
    Err(if found.is_empty() { "not installed".to_owned() } else { found.join(", ") })
}

/// Whether these images can be restored on this machine. A restore checks again.
///
/// # Errors
/// What differs, what must not be restored anywhere, or that the images are incomplete.
pub fn can_restore_here(images: &Path, criu: &Criu) -> Result<(), Failure> {
    let manifest = manifest::Manifest::for_here(images, criu)?;
    image_check::check(images, manifest.listener).at(manifest::STEP, || image_check::MUST_NOT.to_owned())
}

fn criu_version(criu: &Path) -> io::Result<String> {
    let said = Command::new(criu).arg("--version").output()?;
    let said = String::from_utf8_lossy(&said.stdout);
    let version = said.lines().find_map(|line| line.strip_prefix("Version: "));
    version
        .map(|version| version.trim().to_owned())
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "it does not tell its version"))
}

fn is_new_enough(version: &str) -> bool {
    let mut numbers = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= CRIU_FLOOR
}

/// The name of a mount of the helper's, not the bay's, between dump and restore.
fn mount_name(point: &Path) -> String {
    point.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_criu_that_works_is_used() {
        for (version, fit) in
            [("4.2", true), ("4.2.1", true), ("5.0", true), ("4.1.1", false), ("3.17", false)]
        {
            assert_eq!(is_new_enough(version), fit, "{version}");
        }
        assert!(find_criu(Some(Path::new("/nonexistent"))).is_err());
    }
}
