//! A small pool, the real backend, and bays whose guests are asked directly, without a daemon.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use bay_backend::files::RootFrom;
use bay_backend::{Backend, BackendError, CaptureOrder, Captured, StartSpec};
use bay_backend_local::{Local, LocalConfig};
use bay_pool::{BayDisk, Pool, PoolOptions, WorkspaceFrom};
use bay_tests::{image, suite, wait};
use bay_types::bay::Mount;
use bay_types::checkpoint::Point;
use bay_types::exec::{ExecSpec, ExecStatus};
use bay_types::image::ImageImport;
use bay_types::runtime::{ID_RANGE, RuntimeHandle, RuntimeRecord};
use bay_types::service::ServiceSpec;
use bay_types::{BayId, CheckpointName, ExecId, ImageId};
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

const POOL_MIB: u64 = 768;
/// Far from the ids that daemons use.
const FIRST_ID_BASE: u32 = 1_900_000_000 / ID_RANGE * ID_RANGE;

pub(crate) struct Rig {
    dir: PathBuf,
    pub(crate) pool: Pool,
    pub(crate) backend: Local,
    runtime: tokio::runtime::Runtime,
    image: ImageId,
    cgroup: PathBuf,
    made: std::sync::Mutex<Vec<BayId>>,
}

/// A running bay.
#[derive(Clone)]
pub(crate) struct Bay {
    pub(crate) spec: StartSpec,
    pub(crate) runtime: RuntimeHandle,
    pub(crate) disk: BayDisk,
    /// The content of the handle.
    pub(crate) record: RuntimeRecord,
    socket: PathBuf,
}

/// One captured moment.
pub(crate) struct Moment {
    pub(crate) point: Point,
    /// The checkpoint's workspace, as the bay may read it.
    pub(crate) workspace: PathBuf,
    pub(crate) captured: Captured,
}

impl Rig {
    /// None, with the reason printed, if memory cannot be captured here.
    pub(crate) fn new() -> Option<Self> {
        if let Err(why) = bay_runtime::find_criu(None) {
            suite::skip(suite::Lack::Installable, &format!("CRIU: {why}"));
            return None;
        }
        Self::without_memory()
    }

    /// None, with the reason printed, if no bays with Python can run here.
    pub(crate) fn without_memory() -> Option<Self> {
        if !suite::has_root("making bays") || !image::with_python() {
            return None;
        }
        let dir = suite::fresh("p");
        fs::create_dir_all(dir.join("bin")).unwrap();
        let options = PoolOptions {
            initial_mib: Some(POOL_MIB),
            reserve_mib: Some(suite::DISK_RESERVE_MIB),
            ..PoolOptions::default()
        };
        let pool = Pool::open(&dir.join("pool"), "memory", &options, &mut |_| {}).unwrap();
        let import = ImageImport {
            source: format!("dir:{}", image::small().display()),
            name: None,
            add: vec![],
            force: false,
        };
        let image = pool.image_import(&import, 0, &mut |_| {}).unwrap().id;
        let guest = dir.join("bin").join("0123456789abcdef");
        fs::copy(suite::binary(), &guest).unwrap();
        let cgroup = PathBuf::from("workbay").join(format!("memory{}", std::process::id()));
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let backend = runtime.block_on(Local::open(LocalConfig {
            run_dir: dir.join("run"),
            cgroup: cgroup.clone(),
            helper: guest.clone(),
            guest,
            pool: pool.clone(),
            criu: None,
            die_before: None,
        }));
        Some(Self { dir, pool, backend, runtime, image, cgroup, made: std::sync::Mutex::default() })
    }

    pub(crate) fn spec(&self, name: &str, bay: BayId, mounts: &[Mount]) -> StartSpec {
        let mut made = self.made.lock().unwrap();
        let turn = made.iter().position(|other| *other == bay).unwrap_or_else(|| {
            made.push(bay);
            made.len() - 1
        });
        StartSpec {
            bay,
            name: name.parse().unwrap(),
            machine_id: format!("{turn:032x}"),
            author: None,
            user: None,
            certificate: None,
            ssh: None,
            secrets: Vec::new(),
            mounts: mounts.to_vec(),
            fork_index: None,
            durability: bay_types::durability::Durability::Strict,
            id_base: FIRST_ID_BASE + u32::try_from(turn).unwrap() * ID_RANGE,
            limits: bay_types::bay::Limits { memory_mib: Some(512), pids: Some(500), ..Default::default() },
        }
    }

    pub(crate) fn start(&self, name: &str, mounts: &[Mount], prepare: impl FnOnce(&BayDisk)) -> Bay {
        let bay = BayId::generate();
        let disk = self.pool.bay_create(bay, self.image, &WorkspaceFrom::Empty, None).unwrap();
        prepare(&disk);
        let spec = self.spec(name, bay, mounts);
        let runtime = self.runtime.block_on(self.backend.start(&spec)).unwrap();
        self.bay(spec, runtime)
    }

    fn bay(&self, spec: StartSpec, runtime: RuntimeHandle) -> Bay {
        let socket = self.dir.join("run").join(spec.bay.to_string()).join("guest.sock");
        let record = runtime.read().unwrap();
        let disk = self.pool.bay_disk(spec.bay);
        Bay { spec, runtime, disk, record, socket }
    }

    fn order(bay: &Bay) -> CaptureOrder {
        CaptureOrder { bay: bay.spec.clone(), runtime: bay.runtime.clone(), end: false }
    }

    /// Captures memory and files. `number` is the checkpoint's.
    pub(crate) fn try_capture(&self, bay: &Bay, number: u32) -> Result<Moment, BackendError> {
        let id = bay.spec.bay;
        let point = Point { bay: id, checkpoint: CheckpointName::new(number).unwrap() };
        self.pool.checkpoint_prepare(id).unwrap();
        let snapshots = async { self.pool.checkpoint_take(id).map_err(|error| error.to_string()) };
        let captured = self.runtime.block_on(self.backend.capture(&Self::order(bay), Box::pin(snapshots)))?;
        self.pool.checkpoint_keep(point).unwrap();
        let workspace = bay.disk.checkpoints.join(point.checkpoint.to_string()).join("workspace");
        Ok(Moment { point, workspace, captured })
    }

    pub(crate) fn capture(&self, bay: &Bay, number: u32) -> Moment {
        self.try_capture(bay, number).unwrap()
    }

    /// Whether there are images of a capture that is in progress or was interrupted.
    pub(crate) fn has_unnamed_images(&self, bay: &Bay) -> bool {
        self.pool.checkpoint_new_memory(bay.spec.bay).exists()
    }

    pub(crate) fn examine(&self, bay: &Bay) -> Vec<bay_backend::Obstacle> {
        self.runtime.block_on(self.backend.examine(&Self::order(bay))).unwrap()
    }

    /// Ends the bay and restores it from that moment.
    pub(crate) fn restore_in_place(&self, bay: &Bay, moment: &Moment) -> Bay {
        self.runtime.block_on(self.backend.clear(bay.spec.bay)).unwrap();
        self.pool.bay_restore(bay.spec.bay, moment.point, true).unwrap();
        let restored = self.runtime.block_on(self.backend.restore(&bay.spec, moment.point, None)).unwrap();
        assert_eq!(restored.notes, Vec::<String>::new());
        self.bay(bay.spec.clone(), restored.runtime)
    }

    pub(crate) fn fork(&self, parent: &Bay, moment: &Moment, name: &str, index: u32) -> (Bay, Vec<String>) {
        let spec = self.prepare_fork(parent, moment, name);
        let restored = self.runtime.block_on(self.backend.restore(&spec, moment.point, Some(index))).unwrap();
        (self.bay(spec, restored.runtime), restored.notes)
    }

    /// Makes the files of a fork that does not run yet.
    pub(crate) fn prepare_fork(&self, parent: &Bay, moment: &Moment, name: &str) -> StartSpec {
        let bay = BayId::generate();
        let from = WorkspaceFrom::Checkpoint { point: moment.point, state: true };
        self.pool.bay_create(bay, RootFrom::Checkpoint(moment.point), &from, None).unwrap();
        self.spec(name, bay, &parent.spec.mounts)
    }

    pub(crate) fn try_restore(
        &self,
        spec: &StartSpec,
        moment: &Moment,
        fork_index: Option<u32>,
    ) -> Result<Bay, BackendError> {
        let restored = self.runtime.block_on(self.backend.restore(spec, moment.point, fork_index))?;
        Ok(self.bay(spec.clone(), restored.runtime))
    }

    pub(crate) fn clear(&self, spec: &StartSpec) {
        self.runtime.block_on(self.backend.clear(spec.bay)).unwrap();
    }

    /// Whether the backend still has any part of a bay's runtime.
    pub(crate) fn holds(&self, spec: &StartSpec) -> bool {
        self.runtime.block_on(self.backend.leftovers()).unwrap().contains(&spec.bay)
    }

    pub(crate) fn kill(&self, victims: &[&str]) {
        // List all of them before the first dies: the children of a dead helper cannot be found.
        let all: Vec<Pid> = victims.iter().flat_map(|victim| self.processes(victim)).collect();
        for pid in all {
            let _ = kill_process(pid, Signal::KILL);
        }
    }

    /// Helpers of this rig (`__runtime`), or the CRIU processes that they started (`criu`).
    pub(crate) fn processes(&self, what: &str) -> Vec<Pid> {
        let own = self.dir.to_string_lossy().into_owned();
        let all =
            fs::read_dir("/proc").unwrap().flatten().filter_map(|e| e.file_name().to_str()?.parse().ok());
        let words = |pid: i32| fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let helpers: Vec<i32> = all
            .filter(|pid| {
                let words = String::from_utf8_lossy(&words(*pid)).into_owned();
                words.starts_with(&own) && words.contains("__runtime")
            })
            .collect();
        let found = if what == "__runtime" {
            helpers
        } else {
            let of = |pid: &i32| fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
            let children = helpers.iter().filter_map(|pid| of(pid).ok()).collect::<String>();
            children.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect()
        };
        found.into_iter().filter_map(Pid::from_raw).collect()
    }

    /// The result of `look` in the gateway namespace of a bay, which contains everything that the bay connects to.
    pub(crate) fn in_gateway<T: Send>(&self, bay: &Bay, look: impl FnOnce() -> T + Send) -> T {
        let handle = self.dir.join("run").join(bay.spec.bay.to_string()).join("gateway.netns");
        let there = || {
            let namespace = File::open(handle).unwrap();
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            look()
        };
        std::thread::scope(|scope| scope.spawn(there).join().unwrap())
    }

    /// The path of the bay's groups in version 2.
    pub(crate) fn group(&self, bay: &Bay) -> PathBuf {
        let groups = bay_runtime::Hierarchies::mounted().unwrap().unwrap();
        groups.v2.join(&self.cgroup).join(bay.spec.bay.to_string())
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        for bay in self.made.lock().unwrap().iter() {
            if let Err(error) = self.runtime.block_on(self.backend.clear(*bay)) {
                eprintln!("{bay} was not cleared: {error}");
            }
        }
        if let Ok(left) = self.runtime.block_on(self.backend.leftovers())
            && !std::thread::panicking()
        {
            assert_eq!(left, [], "bays left something behind");
        }
        Pool::unmount(&self.dir.join("pool")).unwrap();
        fs::remove_dir_all(&self.dir).unwrap();
    }
}

impl Bay {
    fn ask(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let mut stream = UnixStream::connect(&self.socket).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: guest\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        (status, answer.split_once("\r\n\r\n").unwrap_or_default().1.to_owned())
    }

    pub(crate) fn begin(&self, spec: &ExecSpec) -> ExecId {
        let body = serde_json::to_string(spec).unwrap();
        let (status, said) = self.ask("PUT", &format!("/v1/execs/{}", spec.id), &body);
        assert_eq!(status, 201, "{said}");
        spec.id
    }

    pub(crate) fn keep_running(&self, name: &str, spec: &ServiceSpec) {
        let (status, said) =
            self.ask("PUT", &format!("/v1/services/{name}"), &serde_json::to_string(spec).unwrap());
        assert_eq!(status, 201, "{said}");
    }

    pub(crate) fn status(&self, exec: ExecId) -> ExecStatus {
        let (status, said) = self.ask("GET", &format!("/v1/execs/{exec}"), "");
        assert_eq!(status, 200, "{said}");
        serde_json::from_str(&said).unwrap()
    }

    /// The output of a shell command, both streams together.
    pub(crate) fn run(&self, command: &str) -> String {
        let out = format!("/workspace/.out-{}", ExecId::generate());
        let exec = self.begin(&ExecSpec::new(["sh", "-c", &format!("{{ {command}\n}} > {out} 2>&1")]));
        wait::until("a command to end", || self.status(exec).exit);
        let path = self.disk.workspace.join(out.strip_prefix("/workspace/").unwrap());
        let text = fs::read_to_string(&path).unwrap();
        fs::remove_file(path).unwrap();
        text.trim_end().to_owned()
    }

    pub(crate) fn file(&self, name: &str) -> String {
        fs::read_to_string(self.disk.workspace.join(name)).unwrap_or_default()
    }

    /// The last whole number of a file of lines.
    pub(crate) fn last(&self, name: &str) -> u64 {
        let text = self.file(name);
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        whole.lines().last().and_then(|line| line.parse().ok()).unwrap_or(0)
    }

    /// Waits until the numbers in a file have grown by some.
    pub(crate) fn grows(&self, name: &str) {
        let from = self.last(name);
        wait::until(&format!("{name} of {} to grow", self.spec.name), || {
            (self.last(name) > from + 3).then_some(())
        });
    }
}
