//! Removes a runtime, however far its start came.

use std::fs;
use std::io;

use bay_types::runtime::RuntimePlace;
use rustix::mount::{UnmountFlags, unmount};

use crate::cgroup::Hierarchies;
use crate::failure::{Failure, Try};
use crate::run_directory;

const STEP: &str = "clear";

/// Ends everything that the bay runs and removes what was made for it. Does nothing if there is nothing.
pub(crate) fn clear(at: &RuntimePlace) -> Result<(), Failure> {
    let _lock = run_directory::lock(at)?;
    clear_locked(at)?;
    fs::remove_dir_all(&at.run_dir).at(STEP, || format!("could not remove {}", at.run_dir.display()))
}

/// Clears the runtime but keeps its directory. The caller holds the lock.
pub(crate) fn clear_locked(at: &RuntimePlace) -> Result<(), Failure> {
    let groups = Hierarchies::ready()?;
    // On version 2, a frozen process does not act on a signal until it is thawed, but `cgroup.kill` ends it. If a
    // helper was killed between freeze and thaw, the next bay with this id must not be frozen.
    groups.kill(&at.cgroup)?;
    let handle = run_directory::gateway_handle(&at.run_dir);
    // There is more than one mount if a helper was killed right after mounting.
    while unmount(&handle, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW).is_ok() {}
    groups.remove(&at.cgroup)?;
    for entry in fs::read_dir(&at.run_dir).at(STEP, || format!("could not list {}", at.run_dir.display()))? {
        let path = entry.at(STEP, || format!("could not list {}", at.run_dir.display()))?.path();
        let removed = if path.is_dir() && !path.is_symlink() {
            // The staging directory is a mount point only in the helper's own mount namespace. Here it is empty.
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
