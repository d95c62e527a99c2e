//! Captures the memory of a running bay.

use std::collections::HashSet;
use std::fs::{self, DirBuilder, File};
use std::io::{self, BufRead, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bay_sys::namespace::{flags, leave_namespaces};
use bay_sys::remote_calls::change_ids;
use bay_types::runtime::{CaptureSpec, GO_ON, RuntimeReply};
use rustix::event::{Timespec, poll};
use rustix::mount::{MountPropagationFlags, mount_change};

use super::criu_process::{Complaints, Request, TOO_LARGE, Worker, common_options, complaints, option};
use super::image_check::check;
use super::manifest::{Machine, Manifest};
use super::namespace_view::cover_namespaces;
use super::obstacles::processes_in;
use super::private_run::PrivateRun;
use super::{PROGRAM, WORK_DIR, cgroup_sets, leftovers, mount_name, netfilter, obstacles};
use crate::cgroup::Hierarchies;
use crate::failure::{Failure, Try};
use crate::pid1_setup::DEVICES;
use crate::{mounts, run_directory};

const STEP: &str = "dump";
/// How long the guest may take to notice that connections to it were closed.
const IDLE_DEADLINE: Duration = Duration::from_secs(3);
const IDLE_ROUND: Timespec = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };

/// Captures a bay. In between, sends [`RuntimeReply::Stopped`] and waits for the daemon's answer.
pub(crate) fn capture(spec: &CaptureSpec) -> Result<RuntimeReply, Failure> {
    let lock = run_directory::lock(&spec.runtime.place)?;
    let pid = spec.record.pid;
    if run_directory::process_start_ticks(pid).ok() != Some(spec.record.start_ticks) {
        return Err(Failure::new(STEP, "the bay does not run", io::Error::from(io::ErrorKind::NotFound)));
    }
    if work_dir(spec).exists() {
        // An earlier capture may have been interrupted, and nothing has undone it.
        undo(spec)?;
    }
    let obstacles = obstacles::examine(spec)?;
    if !obstacles.is_empty() {
        return Ok(RuntimeReply::Examined { obstacles });
    }
    let listener = wait_until_idle(pid)?;

    let images = &spec.images;
    // Searchable but not readable: a restore opens the files in it with the rights of the bay.
    let made = DirBuilder::new().mode(0o711).create(images);
    made.at(STEP, || format!("could not make {}", images.display()))?;
    let captured = keep(spec, listener, &lock);
    if captured.is_err() {
        // Only a new helper can undo what CRIU left in the bay, because this one sees another `/proc`.
        let _ = fs::remove_dir_all(images);
    }
    captured
}

/// Undoes a failed capture, in a new helper.
pub(crate) fn undo_failed(spec: &CaptureSpec) -> Result<(), Failure> {
    // If the helper of the capture died, CRIU holds the lock until it has undone its work.
    let _lock = run_directory::lock(&spec.runtime.place)?;
    match fs::remove_dir_all(&spec.images) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(Failure::new(STEP, format!("could not remove {}", spec.images.display()), error));
        }
        _ => {}
    }
    undo(spec)
}

/// Removes what a killed CRIU left in the bay.
fn undo(spec: &CaptureSpec) -> Result<(), Failure> {
    let group = &spec.runtime.place.cgroup;
    leftovers::undo(&processes_in(&Hierarchies::ready()?.v2.join(group)), group);
    netfilter::end_lock(&spec.record)?;
    let _ = fs::remove_dir_all(work_dir(spec));
    Ok(())
}

/// The directory exists during a capture, and after one that failed.
fn work_dir(spec: &CaptureSpec) -> PathBuf {
    spec.runtime.place.run_dir.join(WORK_DIR)
}

fn keep(spec: &CaptureSpec, listener: u64, lock: &File) -> Result<RuntimeReply, Failure> {
    let (pid, runtime, images) = (spec.record.pid, &spec.runtime, &spec.images);
    keep_program(pid, images).at(STEP, || "could not keep the guest's executable".to_owned())?;
    let machine = Machine::this(&spec.criu)?;
    let groups = Hierarchies::ready()?;
    let work_dir = work_dir(spec);
    make_work_dir(&work_dir).at(STEP, || format!("could not make {}", work_dir.display()))?;
    let open = |path: &Path| -> Result<OwnedFd, Failure> {
        File::open(path).map(OwnedFd::from).at(STEP, || format!("could not open {}", path.display()))
    };
    let (images_dir, work) = (open(images)?, open(&work_dir)?);

    leave_namespaces(flags::MOUNT)
        .and_then(|()| Ok(mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?))
        .at(STEP, || "could not leave the host's mount namespace".to_owned())?;
    let namespaces = cover_namespaces(pid, STEP)?;
    let mut private_run = PrivateRun::find(&runtime.place, images, &spec.criu, &groups)?;

    let mut options = common_options(images_dir.as_fd(), work.as_fd());
    if let Some(private_run) = &mut private_run
        && let Some(yard) = private_run.enter(&groups)?
    {
        options.bytes(option::CGROUP_YARD, yard.as_bytes());
    }
    options.number(option::PID, pid.unsigned_abs().into());
    if !spec.end {
        options.flag(option::LEAVE_RUNNING);
    }
    for point in mounts::host_mounts(runtime)?.iter().map(|mount| mount.point.clone()).chain(device_points())
    {
        let external = format!("mnt[/{}]:{}", point.display(), mount_name(&point));
        options.bytes(option::EXTERNAL, external.as_bytes());
    }

    // CRIU gets the lock too, so that the next helper waits for CRIU even if this helper is killed.
    let passed: Vec<_> = namespaces.iter().map(AsFd::as_fd).chain([lock.as_fd()]).collect();
    let mut worker = Worker::start(&spec.criu.program, STEP, None, &passed)?.watching(pid);
    let (held, group) = (Hierarchies::ready()?, runtime.place.cgroup.clone());
    worker.bound(images, move || held.memory_held(&group).unwrap_or(u64::MAX));
    let mut stopped_at = None;
    let mut kept_groups = Vec::new();
    let dumped = worker.run(Request::Dump, &options, |stage, _| match stage {
        "pre-dump" => {
            become_owner(worker.pid, runtime.id_base);
            stopped_at = Some(Instant::now());
            Ok(())
        }
        "post-dump" => {
            check(images, listener)
                .at(VETTING_STEP, || "the processes of the bay cannot be captured".to_owned())?;
            kept_groups = groups_below(&groups.v2.join(&runtime.place.cgroup));
            wait_for_snapshots()
        }
        _ => Ok(()),
    });
    let pause = stopped_at.map(|at| at.elapsed()).unwrap_or_default();
    drop(worker);
    if let Some(private_run) = private_run {
        private_run.keep();
    }
    if let Err(failure) = dumped {
        let said = complaints(&work_dir);
        let ours = [GO_ON_STEP, VETTING_STEP].contains(&failure.step) || failure.what == TOO_LARGE;
        return Err(if ours { failure } else { with_reason(failure, &said, spec.record.pid) });
    }
    let written = cgroup_sets::merge(images)
        .and_then(|()| open_images(images))
        .and_then(|()| Manifest::new(machine, runtime.id_base, listener, kept_groups).write(images));
    written.at(STEP, || format!("could not finish {}", images.display()))?;
    let _ = fs::remove_dir_all(&work_dir);
    Ok(RuntimeReply::Captured { pause_ms: u64::try_from(pause.as_millis()).unwrap_or(u64::MAX) })
}

/// Adds the process and the reason from CRIU's log. `first` is the bay's PID 1 on the host.
pub(super) fn with_reason(failure: Failure, complaints: &Complaints, first: i32) -> Failure {
    let what = match complaints.pid.and_then(|pid| obstacles::name_inside(pid, first)) {
        Some(process) => format!("process {process} has something that cannot be kept"),
        None => failure.what,
    };
    Failure { what, source: io::Error::other(format!("CRIU says: {}", complaints.said)), ..failure }
}

/// Makes CRIU act as the owner of the bay's user namespace, who has every right in it even on hosts where root lacks
/// some. If this kind of processor is not supported, CRIU stays root, which is enough on most hosts.
pub(super) fn become_owner(criu: i32, id_base: u32) {
    if let Err(error) = change_ids(criu, id_base) {
        eprintln!("CRIU acts as the host's root: {error}");
    }
}

pub(super) fn device_points() -> impl Iterator<Item = PathBuf> {
    DEVICES.iter().map(|device| Path::new("dev").join(device))
}

pub(super) fn make_work_dir(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    DirBuilder::new().mode(0o700).create(path)
}

const GO_ON_STEP: &str = "stopped";
const VETTING_STEP: &str = "vet";

/// The daemon takes its snapshots between these two lines.
fn wait_for_snapshots() -> Result<(), Failure> {
    let what = || "the daemon does not want the capture any more".to_owned();
    let mut line = serde_json::to_vec(&RuntimeReply::Stopped).at(GO_ON_STEP, what)?;
    line.push(b'\n');
    let mut out = io::stdout();
    out.write_all(&line).and_then(|()| out.flush()).at(GO_ON_STEP, what)?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer).at(GO_ON_STEP, what)?;
    if answer.trim_end() == GO_ON {
        return Ok(());
    }
    Err(Failure::new(GO_ON_STEP, what(), io::Error::from(io::ErrorKind::Interrupted)))
}

/// Waits until the guest's socket has no connections, because these cannot be captured. Returns the socket's inode.
fn wait_until_idle(pid: i32) -> Result<u64, Failure> {
    const STEP: &str = "idle";
    let until = Instant::now() + IDLE_DEADLINE;
    loop {
        let table = fs::read_to_string(format!("/proc/{pid}/net/unix"))
            .at(STEP, || "could not read the bay's sockets".to_owned())?;
        let open = open_sockets(pid);
        let (listener, connections) = guest_sockets(&table, &open);
        // The kernel lists an accepted connection in the network namespace of the process that connected. So the
        // daemon's connections are in no table of the bay.
        let connections = connections + connections_elsewhere(pid, &open);
        match listener {
            Some(listener) if connections == 0 => return Ok(listener),
            None => {
                let error = io::Error::from(io::ErrorKind::NotFound);
                return Err(Failure::new(
                    STEP,
                    "the guest does not listen in the bay's network namespace",
                    error,
                ));
            }
            Some(_) if Instant::now() > until => {
                let error = io::Error::from(io::ErrorKind::TimedOut);
                let what = format!("the guest still has {connections} connections to the daemon");
                return Err(Failure::new(STEP, what, error));
            }
            Some(_) => {
                let _ = poll(&mut [], Some(&IDLE_ROUND));
            }
        }
    }
}

/// How many of these sockets are in no table of the process's own network namespace.
fn connections_elsewhere(pid: i32, open: &HashSet<u64>) -> usize {
    const TABLES: [&str; 8] = ["unix", "tcp", "tcp6", "udp", "udp6", "netlink", "raw", "packet"];
    let mut unknown = open.clone();
    for table in TABLES {
        let text = fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default();
        for inode in text.split_ascii_whitespace().filter_map(|word| word.parse().ok()) {
            unknown.remove(&inode);
        }
    }
    unknown.len()
}

/// Inodes of the sockets that a process has open.
fn open_sockets(pid: i32) -> HashSet<u64> {
    let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    open.filter_map(|entry| fs::read_link(entry.path()).ok())
        .filter_map(|link| link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok())
        .collect()
}

/// The inode of the guest's listening socket, and the number of its other sockets with the same name. Other processes
/// of the bay may have sockets of any name.
fn guest_sockets(table: &str, open: &HashSet<u64>) -> (Option<u64>, usize) {
    const LISTENING: &str = "00010000";
    let mut listener = None;
    let mut connections = 0;
    for line in table.lines() {
        let parts: Vec<&str> = line.split_ascii_whitespace().collect();
        let [_, _, _, flags, _, _, inode, name] = parts.as_slice() else { continue };
        let inode = inode.parse().ok().filter(|inode| open.contains(inode));
        match inode {
            Some(inode) if name.contains(run_directory::GUEST_SOCKET) => {
                if *flags == LISTENING {
                    listener = Some(inode);
                } else {
                    connections += 1;
                }
            }
            _ => {}
        }
    }
    (listener, connections)
}

/// Copies PID 1's executable, for a restore after this version is gone. If the executable is in the pool, the copy
/// shares its blocks.
fn keep_program(pid: i32, images: &Path) -> io::Result<()> {
    io::copy(&mut File::open(format!("/proc/{pid}/exe"))?, &mut File::create(images.join(PROGRAM))?).map(drop)
}

/// The groups below the bay's own, parents first.
fn groups_below(bay: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut next = vec![PathBuf::new()];
    while let Some(at) = next.pop() {
        let children = fs::read_dir(bay.join(&at)).into_iter().flatten().flatten();
        for child in children.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
            let child = at.join(child.file_name());
            found.push(child.clone());
            next.push(child);
        }
    }
    found
}

/// Makes the images readable, because they are read with the rights of the bay in which they are restored. Nobody can
/// reach them by their path.
fn open_images(images: &Path) -> io::Result<()> {
    for entry in fs::read_dir(images)? {
        let entry = entry?;
        if entry.file_name() != PROGRAM {
            std::os::unix::fs::chown(entry.path(), Some(0), Some(0))?;
            fs::set_permissions(entry.path(), fs::Permissions::from_mode(0o644))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guests_socket_is_distinguished_from_its_connections_and_from_others() {
        let table = "\
Num       RefCount Protocol Flags    Type St Inode Path
0000000000000000: 00000002 00000000 00010000 0001 01 6901117 /proc/self/fd/11/guest.sock
0000000000000000: 00000003 00000000 00000000 0001 03 6901118 /proc/self/fd/11/guest.sock
0000000000000000: 00000002 00000000 00010000 0001 01 6901911 /.bay/ctl.sock
0000000000000000: 00000003 00000000 00000000 0001 03 6901120";
        let open = HashSet::from([6_901_117, 6_901_118, 6_901_911, 6_901_120]);
        assert_eq!(guest_sockets(table, &open), (Some(6_901_117), 1));
        assert_eq!(guest_sockets(table, &HashSet::new()), (None, 0));
    }
}
