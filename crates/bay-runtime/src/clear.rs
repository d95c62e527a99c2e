//! Taking a runtime away, however far it got.

use std::fs;
use std::io;

use bay_types::runtime::RuntimePlace;
use rustix::mount::{UnmountFlags, unmount};

use crate::cgroup::Hierarchies;
use crate::failure::{Failure, Try};
use crate::place;

const STEP: &str = "clear";

/// Ends everything the bay runs and removes what was made for it. Harmless when there is nothing.
pub(crate) fn clear(at: &RuntimePlace) -> Result<(), Failure> {
    let _lock = place::lock(at)?;
    clear_locked(at)?;
    fs::remove_dir_all(&at.run_dir).at(STEP, || format!("could not remove {}", at.run_dir.display()))
}

/// The same for a caller that holds the lock and wants to keep the directory.
pub(crate) fn clear_locked(at: &RuntimePlace) -> Result<(), Failure> {
    let groups = Hierarchies::ready()?;
    // A frozen process does not die of a signal until it is thawed on version 2; the kernel's kill handles that, but a
    // helper that was killed between freeze and thaw must not leave the next bay of this id frozen.
    groups.kill(&at.cgroup)?;
    let handle = place::gateway_handle(&at.run_dir);
    // More than once when a helper was killed between mounting and moving on.
    while unmount(&handle, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW).is_ok() {}
    groups.remove(&at.cgroup)?;
    for entry in fs::read_dir(&at.run_dir).at(STEP, || format!("could not list {}", at.run_dir.display()))? {
        let path = entry.at(STEP, || format!("could not list {}", at.run_dir.display()))?.path();
        let removed = if path.is_dir() && !path.is_symlink() {
            // The staging directory is a mount point in the helper's own namespace only: here it is empty.
            fs::remove_dir_all(&path)
        } else {
            fs::remove_file(&path)
        };
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(Failure::new(STEP, format!("could not remove {}", path.display()), error));
            }
            _ => {}
        }
    }
    Ok(())
}
