//! The embedded driver, `local`: namespaces of this host's kernel, made by `bay __runtime`.
#![forbid(unsafe_code)]

use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bay_backend::{
    Attribution, Backend, BackendError, BayConnection, BayFiles, BoxedStream, CaptureOrder, Captured,
    Connections, Datagrams, EgressCounters, EgressPort, LimitSpec, Restored, RuntimeFacts, Seen, StartSpec,
    WhileStopped,
};
use bay_pool::{Pool, PoolError};
use bay_runtime::sockets::Callers;
use bay_runtime::{
    Counters, Failure, GUEST_SOCKET, GatewaySockets, Hierarchies, LimitContext, guest_socket, limit_events,
    network_use, process_start_ticks,
};
use bay_types::BayId;
use bay_types::backend::{
    AttributionGrain, Capabilities, EgressControl, FilesCheckpoint, IsolationGrade, Support,
};
use bay_types::bay::{Isolation, Limits};
use bay_types::checkpoint::Point;
use bay_types::egress::{Dropped, Process, Transport, Who};
use bay_types::runtime::{
    CaptureSpec, ID_RANGE, Moved, Obstacle, RuntimeHandle, RuntimePlace, RuntimeRecord, RuntimeReply,
    RuntimeRequest, RuntimeSpec,
};
use bay_types::stats::{BayStats, LimitEvents, NetworkUse};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::Interest;
use tokio::net::{TcpListener, UdpSocket, UnixStream};

mod helper;
mod memory;

use helper::{Helper, handle_of};
use memory::Memory;

/// A socket address holds 108 bytes, the last one zero.
const MAX_SOCKET_PATH: usize = 107;
/// How long a guest may have no room for a further connection …
const ROOM_WITHIN: Duration = Duration::from_secs(5);
/// … and how often it is tried again.
const ROOM_RETRY: Duration = Duration::from_millis(5);

/// The paths of the local driver.
#[derive(Debug, Clone)]
pub struct LocalConfig {
    /// Directory with one sub-directory for each bay; owned by root.
    pub run_dir: PathBuf,
    /// Path below each cgroup hierarchy, unique per daemon: `workbay/<daemon id>`.
    pub cgroup: PathBuf,
    /// The `bay` executable, run as `bay __runtime`.
    pub helper: PathBuf,
    /// The executable that becomes PID 1 in bays.
    pub guest: PathBuf,
    /// The pool with the files of bays.
    pub pool: Pool,
    /// The CRIU binary, instead of the first that is found.
    pub criu: Option<PathBuf>,
    /// For tests: the step before which the helper kills itself.
    pub die_before: Option<String>,
}

/// Namespaces of this host's kernel.
#[derive(Debug)]
pub struct Local {
    config: LocalConfig,
    helper: Helper,
    /// The mount points of the cgroup hierarchies. They are needed for every bay in every list, so they are cached once
    /// known. On some hosts the first bay's helper mounts what is missing.
    groups: OnceLock<Hierarchies>,
    memory: Memory,
}

impl Local {
    /// Determines what this host supports.
    pub async fn open(config: LocalConfig) -> Self {
        let memory = Memory::open(config.criu.clone()).await;
        let helper = Helper::new(config.helper.clone());
        Self { config, helper, groups: OnceLock::new(), memory }
    }

    fn groups(&self) -> Option<&Hierarchies> {
        if self.groups.get().is_none()
            && let Ok(Some(mounted)) = Hierarchies::mounted()
        {
            let _ = self.groups.set(mounted);
        }
        self.groups.get()
    }

    fn place(&self, bay: BayId) -> RuntimePlace {
        RuntimePlace {
            bay_id: bay,
            run_dir: self.config.run_dir.join(bay.to_string()),
            cgroup: self.config.cgroup.join(bay.to_string()),
        }
    }

    /// Starts a bay with another request to the helper, for drivers whose start differs from this one's.
    ///
    /// # Errors
    /// Those of [`Backend::start`].
    pub async fn start_as(
        &self,
        spec: &StartSpec,
        isolation: Isolation,
        request: impl FnOnce(RuntimeSpec) -> RuntimeRequest + Send,
    ) -> Result<RuntimeHandle, BackendError> {
        let runtime = RuntimeSpec { isolation, ..self.runtime_spec(spec).await? };
        match self.helper.ask(&request(runtime)).await {
            Ok(RuntimeReply::Started { record }) => handle_of(&record),
            Ok(_) => Err(BackendError::HelperLost { status: "no record of PID 1".to_owned() }),
            Err(error) => {
                // Nothing may remain of a failed start. The first error is the one to report.
                if let Err(clearing) = self.clear(spec.bay).await {
                    tracing::warn!(bay = %spec.bay, error = %clearing, "could not clear a failed start");
                }
                Err(error)
            }
        }
    }

    /// The helper's parameters for the capture of a bay.
    async fn capture_spec(&self, order: &CaptureOrder) -> Result<Box<CaptureSpec>, BackendError> {
        Ok(Box::new(CaptureSpec {
            criu: self.memory.criu()?,
            runtime: self.runtime_spec(&order.bay).await?,
            record: order.runtime.read().map_err(|error| BackendError::Helper(error.into()))?,
            images: self.config.pool.checkpoint_new_memory(order.bay.bay),
            end: order.end,
        }))
    }

    /// The helper's parameters for a bay.
    async fn runtime_spec(&self, spec: &StartSpec) -> Result<RuntimeSpec, BackendError> {
        let (program, pool, bay) = (self.config.guest.clone(), self.config.pool.clone(), spec.bay);
        let bounded = spec.limits.io_read_mibps.is_some() || spec.limits.io_write_mibps.is_some();
        let disk = pool.bay_disk(bay);
        let programs = disk.programs.clone();
        let prepared = tokio::task::spawn_blocking(move || {
            // A bay of an earlier release has no such directory.
            pool.checkpoints_shown(bay)?;
            let io_devices = if bounded { pool.devices()? } else { Vec::new() };
            Ok((io_devices, program_on_pool(&program, &programs, bay)))
        });
        let prepared: Result<_, PoolError> =
            prepared.await.map_err(|error| BackendError::Helper(io::Error::other(error)))?;
        let (io_devices, ctl) = prepared.map_err(|error| BackendError::Disk(Box::new(error.to_api())))?;
        // A bay without `bay-ctl` is better than none.
        let ctl = ctl.inspect_err(|error| {
            tracing::warn!(bay = %spec.bay, %error, "the bay starts without bay-ctl");
        });
        Ok(RuntimeSpec {
            place: self.place(spec.bay),
            name: spec.name.clone(),
            machine_id: spec.machine_id.clone(),
            author: spec.author.clone(),
            user: spec.user.clone(),
            certificate: spec.certificate.clone(),
            ssh: spec.ssh.clone(),
            secrets: spec.secrets.clone(),
            root: disk.root,
            workspace: disk.workspace,
            state: disk.state,
            checkpoints: disk.checkpoints,
            mounts: spec.mounts.clone(),
            id_base: spec.id_base,
            fork_index: spec.fork_index,
            limits: spec.limits.clone(),
            durability: spec.durability,
            isolation: self.isolation(),
            io_devices,
            guest: self.config.guest.clone(),
            ctl: ctl.ok(),
            die_before: self.config.die_before.clone(),
        })
    }
}

#[async_trait]
impl Backend for Local {
    fn isolation(&self) -> Isolation {
        Isolation {
            backend: "local".to_owned(),
            grade: IsolationGrade::SharedKernel.as_str().to_owned(),
            detail: "own user, pid, mount, network, ipc, uts, cgroup and time namespaces, seccomp and cgroup limits; \
                     the host's kernel is shared"
                .to_owned(),
        }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            isolation: IsolationGrade::SharedKernel,
            memory_checkpoints: self.memory.support(),
            files_checkpoint: FilesCheckpoint::Snapshot,
            live_limits: Support::Yes,
            egress: EgressControl::Gateway,
            attribution: AttributionGrain::Exec,
            nested_containers: Support::Yes,
            quota: Support::Yes,
        }
    }

    fn files(&self) -> Arc<dyn BayFiles> {
        Arc::new(self.config.pool.clone())
    }

    fn facts(&self, runtime: &RuntimeHandle) -> RuntimeFacts {
        let Ok(record) = runtime.read::<RuntimeRecord>() else { return RuntimeFacts::default() };
        RuntimeFacts {
            // The format in which earlier releases recorded it with the costs.
            identity: format!("{} {} {}", record.pid, record.start_ticks, record.boot_id),
            host_pid: Some(record.pid),
            boot_id: Some(record.boot_id),
        }
    }

    async fn start(&self, spec: &StartSpec) -> Result<RuntimeHandle, BackendError> {
        self.start_as(spec, self.isolation(), |runtime| RuntimeRequest::Start(Box::new(runtime))).await
    }

    async fn inspect(&self, bay: BayId, runtime: &RuntimeHandle) -> Seen {
        if alive(runtime).is_none() {
            return Seen::Gone;
        }
        let frozen = self.groups().is_some_and(|groups| groups.is_frozen(&self.place(bay).cgroup));
        if frozen { Seen::Paused } else { Seen::Running }
    }

    async fn reclaim_guest(&self, bay: BayId, runtime: &RuntimeHandle) -> Option<Moved> {
        let record = alive(runtime)?;
        // If PID 1 ended meanwhile, the next inspection notices.
        self.groups()?.reclaim_first_process(&self.place(bay).cgroup, record.pid).ok().flatten()
    }

    async fn stats(&self, bay: BayId, runtime: &RuntimeHandle) -> BayStats {
        // The process id may belong to another process by now; then it is not used.
        let pid = alive(runtime).map(|record| record.pid);
        self.groups().map(|groups| groups.stats(&self.place(bay).cgroup, pid)).unwrap_or_default()
    }

    async fn memory_held(&self, bay: BayId) -> Option<u64> {
        self.groups()?.memory_held(&self.place(bay).cgroup)
    }

    async fn network(&self, runtime: &RuntimeHandle) -> NetworkUse {
        alive(runtime).map(|record| network_use(record.pid)).unwrap_or_default()
    }

    async fn clear(&self, bay: BayId) -> Result<(), BackendError> {
        self.helper.ask(&RuntimeRequest::Clear(self.place(bay))).await.map(drop)
    }

    async fn examine(&self, order: &CaptureOrder) -> Result<Vec<Obstacle>, BackendError> {
        self.memory.examine(&self.helper, self.capture_spec(order).await?).await
    }

    async fn capture(
        &self,
        order: &CaptureOrder,
        while_stopped: WhileStopped<'_>,
    ) -> Result<Captured, BackendError> {
        self.memory.capture(&self.helper, self.capture_spec(order).await?, while_stopped).await
    }

    async fn abandon(&self, order: &CaptureOrder) -> Result<(), BackendError> {
        self.memory.abandon(&self.helper, self.capture_spec(order).await?).await
    }

    async fn can_restore(&self, from: Point) -> Result<(), BackendError> {
        self.memory.can_restore(&self.config.pool.checkpoint_memory(from)).await
    }

    async fn restore(
        &self,
        spec: &StartSpec,
        from: Point,
        fork_index: Option<u32>,
    ) -> Result<Restored, BackendError> {
        let (runtime, images) = (self.runtime_spec(spec).await?, self.config.pool.checkpoint_memory(from));
        let restored = self.memory.restore(&self.helper, runtime, &images, fork_index).await;
        if restored.is_err()
            && let Err(clearing) = self.clear(spec.bay).await
        {
            tracing::warn!(bay = %spec.bay, error = %clearing, "could not clear a failed restore");
        }
        restored
    }

    async fn pause(&self, bay: BayId) -> Result<(), BackendError> {
        self.helper.ask(&RuntimeRequest::Freeze(self.place(bay))).await.map(drop)
    }

    async fn resume(&self, bay: BayId) -> Result<(), BackendError> {
        self.helper.ask(&RuntimeRequest::Thaw(self.place(bay))).await.map(drop)
    }

    fn can_keep(&self, limits: &Limits) -> Result<(), BackendError> {
        self.groups().map_or(Ok(()), |groups| groups.can_keep(limits)).map_err(limit_failure)
    }

    async fn set_limits(&self, spec: &LimitSpec) -> Result<(), BackendError> {
        let Some(groups) = self.groups().cloned() else {
            return Err(BackendError::LimitUnsupported("this host has no cgroups".to_owned()));
        };
        let (group, spec, pool) = (self.place(spec.bay).cgroup, spec.clone(), self.config.pool.clone());
        // To reclaim memory may take a while.
        let set = tokio::task::spawn_blocking(move || {
            let devices = pool.devices().map_err(|error| BackendError::Disk(Box::new(error.to_api())))?;
            let placing = LimitContext { turn: spec.id_base / ID_RANGE, devices: &devices };
            groups.set_limits(&group, &spec.limits, placing, false).map_err(limit_failure)
        });
        match set.await {
            Ok(set) => set,
            Err(error) => Err(BackendError::Helper(io::Error::other(error))),
        }
    }

    fn limit_events(&self, bay: BayId) -> LimitEvents {
        let group = self.place(bay).cgroup;
        self.groups().map(|groups| limit_events(groups, &group)).unwrap_or_default()
    }

    async fn egress(&self, bay: BayId) -> io::Result<EgressPort> {
        // A few system calls, made in a separate thread.
        let (tcp, dns, counters) = GatewaySockets::open(&self.place(bay).run_dir)?.into_parts();
        let mut questions: Vec<Box<dyn Datagrams>> = Vec::new();
        for socket in dns {
            questions.push(Box::new(LocalDatagrams(UdpSocket::from_std(socket)?)));
        }
        Ok(EgressPort {
            connections: Box::new(LocalConnections(TcpListener::from_std(tcp)?)),
            questions,
            counters: Box::new(LocalCounters(counters)),
        })
    }

    fn attribution(&self, bay: BayId, runtime: &RuntimeHandle) -> io::Result<Arc<dyn Attribution>> {
        let groups = self.groups().ok_or(io::ErrorKind::NotFound)?;
        let record = alive(runtime).ok_or(io::ErrorKind::NotFound)?;
        Ok(Arc::new(LocalAttribution(Callers::of(&record, groups.v2.join(self.place(bay).cgroup))?)))
    }

    async fn connect(&self, bay: BayId) -> io::Result<BoxedStream> {
        let socket = guest_socket(&self.place(bay).run_dir);
        if socket.as_os_str().len() <= MAX_SOCKET_PATH {
            return Ok(Box::new(connect_when_it_has_room(&socket).await?));
        }
        let dir = File::open(socket.parent().unwrap_or(Path::new("/")))?;
        let by_descriptor = format!("/proc/self/fd/{}/{GUEST_SOCKET}", dir.as_raw_fd());
        Ok(Box::new(connect_when_it_has_room(Path::new(&by_descriptor)).await?))
    }

    async fn wait_gone(&self, runtime: &RuntimeHandle) {
        let Ok(record) = runtime.read::<RuntimeRecord>() else { return };
        let Some(pid) = Pid::from_raw(record.pid) else { return };
        // The handle first, then the check: a pid that is reused in between fails the check.
        let Ok(handle) = pidfd_open(pid, PidfdFlags::NONBLOCK) else { return };
        if !is_alive(&record) {
            return;
        }
        match bay_sys::readiness::register(handle, Interest::READABLE) {
            Ok(handle) => drop(handle.readable().await),
            Err(error) => tracing::error!(pid = record.pid, %error, "cannot watch PID 1 of a bay"),
        }
    }

    async fn leftovers(&self) -> Result<Vec<BayId>, BackendError> {
        let mut names = match std::fs::read_dir(&self.config.run_dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(BackendError::Helper(error)),
            Ok(entries) => {
                entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect()
            }
        };
        if let Some(groups) = self.groups() {
            names.extend(groups.children(&self.config.cgroup));
        }
        let mut bays: Vec<BayId> = names.iter().filter_map(|name| name.parse().ok()).collect();
        bays.sort_unstable();
        bays.dedup();
        Ok(bays)
    }
}

/// Connections that the kernel steers to one listener in the gateway namespace. The local address of each is the
/// destination that the bay connected to.
#[derive(Debug)]
struct LocalConnections(TcpListener);

#[async_trait]
impl Connections for LocalConnections {
    async fn accept(&self) -> io::Result<BayConnection> {
        let (stream, bay_end) = self.0.accept().await?;
        stream.set_nodelay(true).ok();
        let wanted = stream.local_addr()?;
        Ok(BayConnection { stream: Box::new(stream), bay_end, wanted })
    }
}

#[derive(Debug)]
struct LocalDatagrams(UdpSocket);

#[async_trait]
impl Datagrams for LocalDatagrams {
    async fn receive(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.0.recv_from(buffer).await
    }

    fn send(&self, datagram: &[u8], bay_end: SocketAddr) -> io::Result<()> {
        self.0.try_send_to(datagram, bay_end).map(drop)
    }
}

#[derive(Debug)]
struct LocalCounters(Counters);

impl EgressCounters for LocalCounters {
    fn dropped(&self) -> io::Result<Dropped> {
        self.0.dropped()
    }
}

/// Asks the host's kernel, which the bay shares.
#[derive(Debug)]
struct LocalAttribution(Callers);

impl Attribution for LocalAttribution {
    fn who(&self, bay_end: SocketAddr, gateway_end: SocketAddr, transport: Transport) -> Who {
        self.0.who(bay_end, gateway_end, transport)
    }

    fn process(&self, bay_end: SocketAddr, gateway_end: SocketAddr, transport: Transport) -> Option<Process> {
        self.0.process(bay_end, gateway_end, transport)
    }

    fn note(&self) {
        self.0.remember_present();
    }
}

/// Most earlier executables that are kept on the pool. A bay whose executable was removed continues to run, but its
/// memory cannot be captured.
const EARLIER_PROGRAMS: usize = 8;

/// The guest's executable on the pool; copies it if it is not there yet. A new copy makes the oldest ones go, beyond
/// [`EARLIER_PROGRAMS`]. A bay that has one mounted still has it.
fn program_on_pool(guest: &Path, programs: &Path, bay: BayId) -> io::Result<PathBuf> {
    let name = guest.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let (path, wanted) = (programs.join(name), std::fs::metadata(guest)?.len());
    if std::fs::symlink_metadata(&path).is_ok_and(|found| found.is_file() && found.len() == wanted) {
        return Ok(path);
    }
    // Bays may start concurrently. Each makes a copy, and the last one stays.
    let new = programs.join(format!(".{bay}"));
    let mut copy = File::create(&new)?;
    io::copy(&mut File::open(guest)?, &mut copy)?;
    // Executable in the bay, but readable by nobody there.
    copy.set_permissions(std::fs::Permissions::from_mode(0o711))?;
    std::fs::rename(&new, &path)?;
    let mut old: Vec<_> = std::fs::read_dir(programs)?
        .flatten()
        .filter(|old| is_old_program(&old.file_name(), name))
        .map(|old| (old.metadata().and_then(|about| about.modified()).ok(), old.path()))
        .collect();
    old.sort();
    for (_, path) in old.iter().rev().skip(EARLIER_PROGRAMS) {
        let _ = std::fs::remove_file(path);
    }
    Ok(path)
}

/// Whether a file is a copy of another release. Names of copies in progress begin with a dot.
fn is_old_program(found: &std::ffi::OsStr, current: &std::ffi::OsStr) -> bool {
    found != current && !found.as_encoded_bytes().starts_with(b".")
}

fn limit_failure(failure: Failure) -> BackendError {
    match failure.source.kind() {
        io::ErrorKind::ResourceBusy => BackendError::LimitInUse(failure.what),
        io::ErrorKind::Unsupported => BackendError::LimitUnsupported(failure.what),
        _ => BackendError::Step { step: failure.step.to_owned(), message: bay_types::error::chain(&failure) },
    }
}

/// Connects to a guest. If many connect at once, the kernel refuses further ones until the guest has accepted some.
async fn connect_when_it_has_room(socket: &Path) -> io::Result<UnixStream> {
    let began = Instant::now();
    loop {
        match UnixStream::connect(socket).await {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && began.elapsed() < ROOM_WITHIN => {
                tokio::time::sleep(ROOM_RETRY).await;
            }
            other => return other,
        }
    }
}

/// The record of a runtime whose PID 1 lives.
fn alive(runtime: &RuntimeHandle) -> Option<RuntimeRecord> {
    runtime.read().ok().filter(is_alive)
}

/// Whether the recorded process exists and is not a later one with its number.
fn is_alive(record: &RuntimeRecord) -> bool {
    let same_boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .is_ok_and(|boot_id| boot_id.trim() == record.boot_id);
    same_boot && process_start_ticks(record.pid).is_ok_and(|ticks| ticks == record.start_ticks)
}
