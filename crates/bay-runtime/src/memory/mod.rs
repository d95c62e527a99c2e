//! Memory checkpoints with CRIU: keeping everything that runs in a bay, and letting it go on in the same or another one.
//!
//! ```text
//!  capture                                            restore
//!  ───────                                            ───────
//!  examine   name what cannot be kept                 identity  same kernel, processor, CRIU? nothing hostile in it?
//!  idle      no connection to the guest is open       groups    the bay's, and those its processes were in
//!  program   the guest's executable, kept too         gateway, socket, user-ns, mounts: as for a start, but side by side
//!  dump      CRIU stops everything, keeps memory      criu      makes the namespaces …
//!  stopped   the daemon takes its snapshots           network    … we wire them …
//!  go on     everything runs again                    resume     … it fills them; only PID 1 runs
//!  facts     written last: now it is whole            wake      the guest gets its socket, its name, runs fork hooks
//!                                                     thaw      everything else runs
//! ```
//!
//! # What protects the host
//!
//! * What a restored bay has is made by CRIU in the bay's own user namespace. Its mounts are copies of ours across the
//!   border of that namespace, so the kernel has locked read-only and nodev on them as on those of a fresh start. (That
//!   they cannot be unmounted is lost; what they cover is the bay's own.)
//! * The user namespace belongs to the bay's first id, as for a start: CRIU is made to act as that id while it makes it
//!   ([`bay_sys::borrowed`]), and as root again afterwards. During a dump that is also what lets it read the limits of the
//!   bay's processes on hosts that keep `CAP_SYS_RESOURCE` to themselves.
//! * Images are looked through before they are restored, and before a capture counts: nothing that the bay had mounted may
//!   make CRIU follow a path that the bay has chosen ([`vetting`]). Where it follows one nevertheless, next to nothing of
//!   the host is there to be found ([`hidden`]).
//! * The guest's executable is unreadable inside, but CRIU opens it with the rights of the bay. So a restored bay has a
//!   copy of its own, which can be read until its first process runs.
//!
//! # Failure paths
//!
//! * The helper (or the daemon) is killed during a dump: CRIU sees that nobody listens, undoes everything and ends.
//! * CRIU itself is killed during a dump: the kernel lets go of what it had stopped, and CRIU's code in a process undoes
//!   itself when it is alone. What remains, that code, a lock on TCP and sockets in repair mode, [`mend`] takes away, or
//!   the next capture where nobody was left to mend. Only a process
//!   whose registers CRIU was using in that very moment is lost; no other process can give them back.
//! * During a restore: everything made is in the bay's groups and run directory, and `Clear` takes it away.
//! * Temporary mounts are in mount namespaces that end with their processes.

mod capture;
mod examine;
mod facts;
mod hidden;
mod leftovers;
mod netfilter;
mod restore;
mod room;
mod sets;
mod vetting;
mod view;
mod wake;
mod wire;
mod worker;

pub(crate) use capture::{capture, mend};
pub(crate) use examine::examine;
pub(crate) use restore::restore;

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use bay_types::runtime::Criu;

use crate::failure::{Failure, Try};

/// Where CRIU is looked for, in this order. The first is where `./quickstart` puts one.
pub const CRIU_PLACES: [&str; 4] =
    ["/usr/local/lib/workbay/criu/criu", "/usr/local/sbin/criu", "/usr/sbin/criu", "/usr/bin/criu"];
/// Major and minor number of the oldest CRIU that works on recent kernels.
pub const CRIU_FLOOR: (u32, u32) = (4, 2);
/// The guest's executable among the images.
pub const PROGRAM: &str = "program";
/// Directory for CRIU's log, in the run directory of the bay.
const WORK_DIR: &str = "criu";

/// The first CRIU that is new enough: the given one, or one of [`CRIU_PLACES`].
///
/// # Errors
/// What was found instead, for a person to read.
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

/// Whether what these images hold can go on on this machine; a restore looks again.
///
/// # Errors
/// What differs, what must not go on anywhere, or that the images are not whole.
pub fn goes_on_here(images: &Path, criu: &Criu) -> Result<(), Failure> {
    let facts = facts::Facts::for_here(images, criu)?;
    vetting::vet(images, facts.listener).at(facts::STEP, || vetting::MUST_NOT.to_owned())
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

/// How a mount that is ours, not the bay's, is called between dump and restore.
fn mount_name(point: &Path) -> String {
    point.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_criu_that_works_is_taken() {
        for (version, fit) in
            [("4.2", true), ("4.2.1", true), ("5.0", true), ("4.1.1", false), ("3.17", false)]
        {
            assert_eq!(is_new_enough(version), fit, "{version}");
        }
        assert!(find_criu(Some(Path::new("/nonexistent"))).is_err());
    }
}
