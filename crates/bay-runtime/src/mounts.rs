//! Builds the bay's file tree, with the host's rights, in a mount namespace that no other process uses.
//!
//! The agent controls the root filesystem, so any name in it may be a link to anywhere. Every mount point is looked up
//! below the root's own descriptor without following links, and mounts are moved from descriptor to descriptor.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use bay_sys::namespace::{flags, leave_namespaces, mount_attr, restrict_mount};
use bay_sys::paths::open_below;
use bay_types::bay::Mount;
use bay_types::checkpoint;
use bay_types::guest;
use bay_types::inside;
use bay_types::runtime::RuntimeSpec;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, fstat, mkdirat, openat, statat};
use rustix::mount::{
    MountPropagationFlags, MoveMountFlags, OpenTreeFlags, mount_change, move_mount, open_tree,
};

use crate::failure::{Failure, Try};
use crate::run_directory;

const STEP: &str = "mounts";

/// Mount points for the kernel's own filesystems, which PID 1 mounts from inside.
pub(crate) const INNER_MOUNT_POINTS: [&str; 4] = ["proc", "sys", "dev", "run"];

/// Leaves the host's mount namespace and builds the tree at the staging directory of the new one.
pub(crate) fn build(spec: &RuntimeSpec, user_namespace: BorrowedFd<'_>) -> Result<(), Failure> {
    leave_namespaces(flags::MOUNT).at(STEP, || "could not leave the host's mount namespace".to_owned())?;
    // No later mount may appear on the host.
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .at(STEP, || "could not make the mounts private".to_owned())?;

    let outer = host_mounts(spec)?;
    let root = open_dir(&spec.root)?;
    for point in INNER_MOUNT_POINTS {
        make_mount_point(&root, Path::new(point), FileType::Directory)?;
    }
    for mount in &outer {
        make_mount_point(&root, &mount.point, source_kind(&mount.source)?)?;
    }

    let staging = run_directory::staging_dir(&spec.place.run_dir);
    std::fs::create_dir_all(&staging).at(STEP, || format!("could not make {}", staging.display()))?;
    let staging_dir = open_dir(&staging)?;
    attach(root_tree(spec, user_namespace)?, staging_dir.as_fd(), &spec.root)?;

    // Opened again: the descriptor above is of the directory below the mount.
    let top = open_dir(&staging)?;
    for mount in &outer {
        let target = look_up(&top, &mount.point)?;
        attach(mount.tree(user_namespace)?, target.as_fd(), &mount.source)?;
    }
    Ok(())
}

pub(crate) fn root_tree(spec: &RuntimeSpec, user_namespace: BorrowedFd<'_>) -> Result<OwnedFd, Failure> {
    tree(&spec.root, mount_attr::NO_DEV, user_namespace)
}

/// Something of the host or the pool that is mounted below the bay's root.
pub(crate) struct HostMount {
    pub(crate) source: PathBuf,
    /// Relative to the root, without a leading slash.
    pub(crate) point: PathBuf,
    attributes: u64,
    /// Whether the bay's ids own the content. Otherwise it belongs to ids that the bay does not have.
    shifted: bool,
}

impl HostMount {
    pub(crate) fn tree(&self, user_namespace: BorrowedFd<'_>) -> Result<OwnedFd, Failure> {
        if self.shifted {
            tree(&self.source, self.attributes, user_namespace)
        } else {
            own_program(&self.source)
        }
    }
}

/// All mounts of the host and the pool below the bay's root, in the order in which they are made.
pub(crate) fn host_mounts(spec: &RuntimeSpec) -> Result<Vec<HostMount>, Failure> {
    let inert = mount_attr::NO_DEV | mount_attr::NO_SUID;
    let shifted = |source: &Path, point: &Path, attributes| HostMount {
        source: source.to_owned(),
        point: point.to_owned(),
        attributes,
        shifted: true,
    };
    let mut all = vec![
        shifted(&spec.workspace, Path::new(relative(guest::WORKSPACE)), mount_attr::NO_DEV),
        shifted(&spec.state, Path::new(relative(guest::STATE_DIR)), inert),
        // The snapshots below it are read-only themselves.
        shifted(&spec.checkpoints, Path::new(relative(checkpoint::INSIDE)), inert | mount_attr::READ_ONLY),
    ];
    if let Some(program) = &spec.ctl {
        all.push(HostMount {
            source: program.clone(),
            point: PathBuf::from(relative(inside::CTL)),
            attributes: inert | mount_attr::READ_ONLY,
            shifted: false,
        });
    }
    for mount in &spec.mounts {
        all.push(shifted(&mount.source, target_below_root(mount)?, inert | mount_attr::READ_ONLY));
    }
    Ok(all)
}

/// A detached mount of a directory or file.
fn tree(source: &Path, attributes: u64, user_namespace: BorrowedFd<'_>) -> Result<OwnedFd, Failure> {
    let mount = open_tree(CWD, source, OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC)
        .at(STEP, || format!("could not take {}", source.display()))?;
    restrict_mount(&mount, attributes, Some(user_namespace)).at(STEP, || {
        format!(
            "could not shift the owners of {} (its filesystem must support id-mapped mounts)",
            source.display()
        )
    })?;
    Ok(mount)
}

/// The guest's executable, which is also `bay-ctl`. Its owner is an id that the bay does not have, so inside it can be
/// executed, but not read, changed or traced.
fn own_program(program: &Path) -> Result<OwnedFd, Failure> {
    let mount = open_tree(CWD, program, OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC)
        .at(STEP, || format!("could not take {}", program.display()))?;
    let attributes = mount_attr::NO_DEV | mount_attr::NO_SUID | mount_attr::READ_ONLY;
    restrict_mount(&mount, attributes, None)
        .at(STEP, || format!("could not make {} read-only", program.display()))?;
    Ok(mount)
}

pub(crate) fn attach(mount: OwnedFd, target: BorrowedFd<'_>, what: &Path) -> Result<(), Failure> {
    let by_descriptor = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(mount, "", target, "", by_descriptor)
        .at(STEP, || format!("could not mount {}", what.display()))
}

pub(crate) fn open_dir(path: &Path) -> Result<OwnedFd, Failure> {
    openat(CWD, path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .at(STEP, || format!("could not open {}", path.display()))
}

/// Opens a mount point below `root` without following links.
pub(crate) fn look_up(root: impl AsFd, point: &Path) -> Result<OwnedFd, Failure> {
    let strict = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
    open_below(root, point, OFlags::PATH | OFlags::NOFOLLOW, strict).at(STEP, || {
        format!(
            "/{} of the bay's root filesystem cannot be mounted on (`bay replace` gives the bay a fresh one)",
            point.display()
        )
    })
}

/// Makes a mount point and the directories that lead to it, if they do not exist.
pub(crate) fn make_mount_point(root: &OwnedFd, point: &Path, kind: FileType) -> Result<(), Failure> {
    let mut at = rustix::io::dup(root).at(STEP, || "could not copy a descriptor".to_owned())?;
    let mut parts = point.components().peekable();
    while let Some(part) = parts.next() {
        let name = part.as_os_str();
        let last = parts.peek().is_none();
        let made = if last && kind != FileType::Directory {
            openat(
                &at,
                name,
                OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC,
                Mode::from(0o644),
            )
            .map(drop)
        } else {
            mkdirat(&at, name, Mode::from(0o755))
        };
        match made {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(error) => {
                return Err(Failure::new(
                    STEP,
                    format!("could not make /{} in the bay", point.display()),
                    error,
                ));
            }
        }
        let next = look_up(&at, Path::new(name))?;
        let found = fstat(&next).map(|stat| FileType::from_raw_mode(stat.st_mode));
        let wanted = if last { kind } else { FileType::Directory };
        if found.ok() != Some(wanted) {
            return Err(Failure::new(
                STEP,
                format!(
                    "/{} of the bay's root filesystem is not a plain directory or file (`bay replace` gives the bay a \
                     fresh one)",
                    point.display()
                ),
                io::Error::from(io::ErrorKind::NotADirectory),
            ));
        }
        at = next;
    }
    Ok(())
}

pub(crate) fn source_kind(source: &Path) -> Result<FileType, Failure> {
    let stat = statat(CWD, source, AtFlags::empty())
        .at(STEP, || format!("could not find {} to mount it", source.display()))?;
    match FileType::from_raw_mode(stat.st_mode) {
        kind @ (FileType::Directory | FileType::RegularFile) => Ok(kind),
        _ => Err(Failure::new(
            STEP,
            format!("{} is neither a directory nor a regular file", source.display()),
            io::Error::from(io::ErrorKind::InvalidInput),
        )),
    }
}

pub(crate) fn relative(absolute: &str) -> &str {
    absolute.trim_start_matches('/')
}

pub(crate) fn target_below_root(mount: &Mount) -> Result<&Path, Failure> {
    let below = mount.target.strip_prefix("/").ok().filter(|path| {
        path.components().next().is_some()
            && path.components().all(|part| matches!(part, Component::Normal(_)))
    });
    below.ok_or_else(|| {
        Failure::new(
            STEP,
            format!("{} cannot be a mount point: it must be absolute, without `..`", mount.target.display()),
            io::Error::from(io::ErrorKind::InvalidInput),
        )
    })
}
