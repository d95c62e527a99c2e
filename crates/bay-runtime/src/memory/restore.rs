//! Restores a bay from captured memory.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use bay_sys::namespace::{flags, leave_namespaces};
use bay_sys::remote_calls::change_ids;
use bay_types::guest::Wake;
use bay_types::runtime::{ID_RANGE, RestoreSpec, RuntimeReply, RuntimeSpec};
use rustix::fs::{CWD, FileType, Mode, OFlags, fchmod, fcntl_getfl, fcntl_setfl, openat};
use rustix::mount::{
    MountPropagationFlags, MoveMountFlags, OpenTreeFlags, mount_bind, mount_change, move_mount, open_tree,
};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::capture::{become_owner, make_work_dir, with_reason};
use super::criu_process::{Complaints, Request, Worker, common_options, complaints, descriptor, option};
use super::host_cover::hide_host;
use super::image_check::{MUST_NOT, check};
use super::manifest::Manifest;
use super::namespace_view::tmpfs;
use super::private_run::PrivateRun;
use super::protobuf::Message;
use super::wake_guest::wake;
use super::{WORK_DIR, mount_name};
use crate::cgroup::Hierarchies;
use crate::clear::clear_locked;
use crate::failure::{Failure, Try};
use crate::mounts::{self, attach};
use crate::pid1_setup::DEVICES;
use crate::sockets::destroy_outside;
use crate::start::{gateway, guest_config, placing, user_namespace};
use crate::{network, run_directory};

const STEP: &str = "restore";
/// Where CRIU makes temporary files. It gets a tmpfs there, which ends with it.
const TEMPORARY: &str = "/tmp";
/// Where the helper's mounts are side by side.
const STAGED: &str = "/tmp/bay";
/// The name of the root among the staged mounts.
const ROOT: &str = "root";

pub(crate) fn restore(spec: &RestoreSpec) -> Result<RuntimeReply, Failure> {
    let place = &spec.runtime.place;
    let _lock = run_directory::lock(place)?;
    let restored = restore_locked(spec);
    if restored.is_err()
        && let Ok(Some(groups)) = Hierarchies::mounted()
    {
        // As after a failed start: a new helper clears the rest.
        let _ = groups.kill(&place.cgroup);
    }
    restored
}

fn restore_locked(spec: &RestoreSpec) -> Result<RuntimeReply, Failure> {
    let runtime = &spec.runtime;
    let (run_dir, group) = (&runtime.place.run_dir, &runtime.place.cgroup);
    let manifest = Manifest::for_here(&spec.images, &spec.criu)?;
    check(&spec.images, manifest.listener).at(STEP, || MUST_NOT.to_owned())?;
    clear_locked(&runtime.place)?;
    let groups = Hierarchies::ready()?;
    groups.make(group, &runtime.limits, placing(runtime), runtime.id_base)?;
    for leaf in &manifest.groups {
        groups.make_leaf(group, leaf, runtime.id_base)?;
    }
    let guest_group = groups.open(group, "guest")?;
    let bay_group = groups.open(group, "")?;
    let work_dir = run_dir.join(WORK_DIR);
    make_work_dir(&work_dir).at(STEP, || format!("could not make {}", work_dir.display()))?;

    let host_network = open_file(Path::new("/proc/self/ns/net"))?;
    let host_mounts = open_file(Path::new("/proc/self/ns/mnt"))?;
    gateway(run_dir)?;
    // It belongs to the gateway's namespace: usable to wake the guest, but it cannot be in another checkpoint.
    let first_socket =
        run_directory::listen(run_dir).at(STEP, || "could not listen for the daemon".to_owned())?;
    fcntl_getfl(&first_socket)
        .and_then(|now| fcntl_setfl(&first_socket, now | OFlags::NONBLOCK))
        .at(STEP, || "could not set up a socket".to_owned())?;
    let user_namespace = user_namespace(runtime, &bay_group)?;
    let program = program(runtime)?;
    may_be_read(&program, true)?;
    leave_namespaces(flags::MOUNT)
        .and_then(|()| Ok(mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?))
        .at(STEP, || "could not leave the host's mount namespace".to_owned())?;
    if manifest.id_base != runtime.id_base {
        shift_ids(&spec.images, &work_dir.join(ID_MAPS), runtime.id_base)?;
    }
    let (images, work) = (open_file(&spec.images)?, open_file(&work_dir)?);
    let mut private_run = PrivateRun::find(&runtime.place, &spec.images, &spec.criu, &groups)?;
    // From here on, paths of the host through the directory for temporary files, or through `/run`, lead nowhere.
    stage(runtime, user_namespace.as_fd())?;
    let staged = Path::new(STAGED);

    let mut options = common_options(images.as_fd(), work.as_fd());
    if let Some(private_run) = &mut private_run
        && let Some(yard) = private_run.enter(&groups)?
    {
        options.bytes(option::CGROUP_YARD, yard.as_bytes());
    }
    let program_dir = spec.criu.program.parent().unwrap_or(Path::new("/"));
    let mut needed = vec![program_dir, groups.v2.as_path()];
    needed.extend(groups.v1.iter().map(|(_, point)| point.as_path()));
    hide_host(&needed, private_run.is_some())?;
    options.bytes(option::ROOT, staged.join(ROOT).as_os_str().as_encoded_bytes());
    for (name, at) in staged_mounts(runtime, staged)? {
        options.bytes(option::EXTERNAL, format!("mnt[{name}]:{}", at.display()).as_bytes());
    }
    let root_of = |controller: &str| {
        let mut root = Message::default();
        if !controller.is_empty() {
            root.bytes(1, controller.as_bytes());
        }
        root.bytes(2, Path::new("/").join(group).as_os_str().as_encoded_bytes());
        root
    };
    for controller in groups.v1.iter().map(|(name, _)| name.as_str()).chain([""]) {
        options.message(option::CGROUP_ROOT, &root_of(controller));
    }
    let inherited = |key: String, fd: BorrowedFd<'_>| {
        let mut message = Message::default();
        message.bytes(1, key.as_bytes()).number(2, descriptor(fd));
        message
    };
    let socket = inherited(format!("socket:[{}]", manifest.listener), first_socket.as_fd());
    options.message(option::INHERIT, &socket).flag(option::ANY_FILE_MODE);

    // In the bay's group, so that ending the bay ends CRIU too.
    let passed = [first_socket.as_fd()];
    let worker = Worker::start(&spec.criu.program, STEP, Some(guest_group.as_fd()), &passed)?;
    let mut frozen = Vec::new();
    let ran = worker.run(Request::Restore, &options, |stage, pid| match stage {
        "pre-restore" => {
            become_owner(worker.pid, runtime.id_base);
            Ok(())
        }
        "setup-namespaces" => {
            become_root_again(&worker)?;
            wire_network(pid)
        }
        // Everything is restored, and nothing has run yet. PID 1 is released first, alone.
        "pre-resume" => {
            frozen = groups.freeze_leaves(group)?;
            end_outside_connections()?;
            may_be_read(&program, false)
        }
        _ => Ok(()),
    });
    drop((worker, first_socket, program));
    if let Some(private_run) = private_run {
        private_run.keep();
    }
    move_into_link_name_space(host_mounts.as_fd(), Some(LinkNameSpaceType::Mount))
        .at(STEP, || "could not return to the host's mount namespace".to_owned())?;
    let pid = match ran {
        Ok(Some(pid)) => pid,
        Ok(None) => return Err(Failure::new(STEP, "CRIU did not name PID 1", io::ErrorKind::InvalidData)),
        // The pids in CRIU's messages are of processes that do not exist, or of the host's.
        Err(failure) => {
            let said = Complaints { pid: None, ..complaints(&work_dir) };
            return Err(with_reason(failure, &said, 0));
        }
    };
    let record = run_directory::record_of(pid).at(STEP, || "PID 1 has ended".to_owned())?;
    groups.enable_for_leaves(group);

    let notes = wake_guest(spec, pid, &host_network)?;
    groups.thaw_leaves(&frozen)?;
    let _ = fs::remove_dir_all(&work_dir);
    Ok(RuntimeReply::Restored { record, notes })
}

fn open_file(path: &Path) -> Result<OwnedFd, Failure> {
    File::open(path).map(OwnedFd::from).at(STEP, || format!("could not open {}", path.display()))
}

/// Sets whether the bay may read its guest's executable. It must not while the guest runs: the kernel lets nobody trace
/// a process whose executable they cannot read, not even the bay's root.
fn may_be_read(program: &OwnedFd, readable: bool) -> Result<(), Failure> {
    let mode = if readable { 0o755 } else { 0o711 };
    fchmod(program, Mode::from(mode))
        .at(STEP, || "could not change who may read the guest's executable".to_owned())
}

/// The guest's executable: a copy for this bay alone.
fn program(runtime: &RuntimeSpec) -> Result<OwnedFd, Failure> {
    let missing = || io::Error::new(io::ErrorKind::NotFound, "the bay has no program of its own");
    let path = runtime.ctl.as_deref().ok_or_else(missing).at(STEP, || "no guest to go on".to_owned())?;
    open_file(path)
}

/// Mounts the helper's trees side by side, in the mount namespace in which CRIU will run.
fn stage(runtime: &RuntimeSpec, user_namespace: BorrowedFd<'_>) -> Result<(), Failure> {
    let mut trees = vec![(ROOT.to_owned(), mounts::root_tree(runtime, user_namespace)?, FileType::Directory)];
    for mount in mounts::host_mounts(runtime)? {
        let kind = mounts::source_kind(&mount.source)?;
        trees.push((mount_name(&mount.point), mount.tree(user_namespace)?, kind));
    }
    for device in DEVICES {
        let clone = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        let node = open_tree(CWD, format!("/dev/{device}"), clone)
            .at(STEP, || "could not take a device of the host".to_owned())?;
        trees.push((mount_name(&Path::new("dev").join(device)), node, FileType::RegularFile));
    }
    let what = || format!("could not use {TEMPORARY} of our own");
    let memory = tmpfs().at(STEP, what)?;
    move_mount(memory, "", CWD, TEMPORARY, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH).at(STEP, what)?;
    fs::create_dir(STAGED).at(STEP, what)?;
    for (name, mount, kind) in trees {
        let point = Path::new(STAGED).join(staged_name(&name));
        let made =
            if kind == FileType::Directory { fs::create_dir(&point) } else { File::create(&point).map(drop) };
        made.at(STEP, what)?;
        let target = openat(CWD, &point, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).at(STEP, what)?;
        attach(mount, target.as_fd(), &point)?;
    }
    Ok(())
}

/// Names of mounts are paths, but the staged mounts are side by side in one directory.
fn staged_name(name: &str) -> String {
    name.replace('%', "%25").replace('/', "%2f")
}

fn staged_mounts(runtime: &RuntimeSpec, staged: &Path) -> Result<Vec<(String, PathBuf)>, Failure> {
    let outer = mounts::host_mounts(runtime)?;
    let devices = DEVICES.iter().map(|device| Path::new("dev").join(device));
    let names = outer.iter().map(|mount| mount.point.clone()).chain(devices).map(|point| mount_name(&point));
    Ok(names.map(|name| (name.clone(), staged.join(staged_name(&name)))).collect())
}

/// Name of the rewritten image in the work directory.
const ID_MAPS: &str = "id-maps";
/// How the name of CRIU's image of a user namespace begins.
const USER_IMAGE: &str = "userns-";
/// Two numbers that identify the kind of image.
const MAGIC_LENGTH: usize = 8;

/// Covers the image of the user namespace, in the helper's own mount namespace, by one with other ids. All children of
/// a capture share the images.
fn shift_ids(images: &Path, rewritten: &Path, id_base: u32) -> Result<(), Failure> {
    let what = || "could not give the bay ids of its own".to_owned();
    let found = fs::read_dir(images).at(STEP, what)?.flatten().map(|entry| entry.path()).find(|path| {
        path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(USER_IMAGE.as_bytes()))
    });
    let path = found.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound)).at(STEP, what)?;
    let old = fs::read(&path).at(STEP, what)?;
    let magic =
        old.get(..MAGIC_LENGTH).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData)).at(STEP, what)?;
    let mut extent = Message::default();
    extent.number(1, 0).number(2, id_base.into()).number(3, ID_RANGE.into());
    let mut maps = Message::default();
    maps.message(1, &extent).message(2, &extent);
    let length = u32::try_from(maps.as_bytes().len()).unwrap_or_default().to_le_bytes();
    let mut file = File::create(rewritten).at(STEP, what)?;
    file.write_all(&[magic, &length, maps.as_bytes()].concat()).at(STEP, what)?;
    mount_bind(rewritten, &path).at(STEP, what)
}

/// CRIU has made the namespaces, which now belong to the bay's first id. For the rest it must be the host's root.
fn become_root_again(worker: &Worker) -> Result<(), Failure> {
    let what = || "could not give CRIU its rights back".to_owned();
    for pid in worker.privileged().at(STEP, what)? {
        match change_ids(pid, 0) {
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {}
            other => other.at(STEP, what)?,
        }
    }
    Ok(())
}

fn enter_network(pid: i32) -> Result<(), Failure> {
    let what = || "could not enter the bay's network namespace".to_owned();
    let namespace = File::open(format!("/proc/{pid}/ns/net")).at(STEP, what)?;
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).at(STEP, what)
}

/// The same links and addresses as after a start.
fn wire_network(pid: i32) -> Result<(), Failure> {
    network::join(pid.unsigned_abs())
        .at(STEP, || "could not join the bay to its gateway namespace".to_owned())?;
    enter_network(pid)?;
    network::configure_bay().at(STEP, || "could not configure the bay's network".to_owned())
}

/// Runs in the bay's network namespace, before anything in it runs.
fn end_outside_connections() -> Result<(), Failure> {
    match destroy_outside() {
        // This kernel cannot abort them. The gateway's namespace, which is new, resets each with its first packet.
        Err(error) if error.kind() == io::ErrorKind::Unsupported => Ok(()),
        other => other.map(drop).at(STEP, || "could not end connections to the outside".to_owned()),
    }
}

/// Gives the guest a socket of the bay's own network namespace, with the name of the one with which it was restored.
fn wake_guest(spec: &RestoreSpec, pid: i32, host_network: &OwnedFd) -> Result<Vec<String>, Failure> {
    const STEP: &str = "wake";
    let run_dir = &spec.runtime.place.run_dir;
    let what = || "the guest did not wake up".to_owned();
    let first = run_dir.join(FIRST_SOCKET);
    fs::rename(run_directory::guest_socket(run_dir), &first).at(STEP, what)?;
    enter_network(pid)?;
    let listener = run_directory::listen(run_dir).at(STEP, what)?;
    move_into_link_name_space(host_network.as_fd(), Some(LinkNameSpaceType::Network)).at(STEP, what)?;
    let message = Wake { config: guest_config(&spec.runtime), fork_index: spec.fork_index };
    let woken = wake(&first, &message, listener).at(STEP, what)?;
    fs::remove_file(&first).at(STEP, what)?;
    Ok(woken.notes)
}

/// The temporary name of the socket through which the guest is woken.
const FIRST_SOCKET: &str = "first.sock";
