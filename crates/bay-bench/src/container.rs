//! The same processes in a container of runc or podman, captured and restored by the same CRIU.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use bay_runtime::CRIU_PLACES;
use bay_types::{ApiError, ImageId};
use serde_json::{Value, json};

use crate::durable::postgres_programs;
use crate::live_processes::{ASK_GAP, Scripts, number, scripts};
use crate::peers::{output_of, timed};
use crate::scoring::{Series, Unit};
use crate::setup::Setup;

/// The bit of the capability to read other users' limits, which CRIU needs for processes of other users.
const CAP_SYS_RESOURCE: u32 = 24;
/// Capabilities that PostgreSQL needs inside to start as nobody.
const CAPABILITIES: [&str; 7] = [
    "CAP_SETUID",
    "CAP_SETGID",
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_KILL",
    "CAP_NET_BIND_SERVICE",
];
/// How long everything inside may take until the first answer.
const READY_WITHIN: Duration = Duration::from_secs(60);
const LOOK_AGAIN: Duration = Duration::from_millis(200);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tool {
    Runc,
    Podman,
}

pub(crate) struct Container {
    tool: Tool,
    dir: PathBuf,
    /// The image of the bay, and a snapshot of it. It must be a snapshot, because CRIU does not restore mounted host
    /// directories.
    image: PathBuf,
    root: PathBuf,
    scripts: Scripts,
    id: String,
    seen: Series,
    kept: Series,
    back: Series,
    broken: bool,
    pub(crate) notes: Vec<String>,
}

impl Container {
    /// One container of each wanted and installed tool, with everything in it running.
    pub(crate) async fn all(setup: &Setup, image: ImageId) -> Vec<Self> {
        let mut all = Vec::new();
        for (tool, wanted) in [(Tool::Runc, setup.peers.has_runc()), (Tool::Podman, setup.peers.has_podman())]
        {
            if wanted {
                let mut container = Self::new(tool, setup, image);
                if let Err(why) = container.start().await {
                    container.give_up("could not be started", &why);
                }
                all.push(container);
            }
        }
        all
    }

    fn new(tool: Tool, setup: &Setup, image: ImageId) -> Self {
        let name = tool.name();
        let id = format!("workbay-bench-{}-{name}", std::process::id());
        let ms = |what: &str| Series::of(format!("{name}: {what}"), Unit::Milliseconds, &[]);
        let mut notes = Vec::new();
        let mut postgres = postgres_programs().ok();
        if !may_read_limits() {
            notes.push(format!(
                "{name}: without PostgreSQL, with that memory in redis: this host gives no right to processes of other users"
            ));
            postgres = None;
        }
        Self {
            tool,
            dir: setup.work.join(format!("live-{name}")),
            scripts: scripts(postgres.as_deref()),
            image: setup.pool.join("images").join(image.to_string()).join("root"),
            root: setup.pool.join(&id),
            id,
            seen: ms("pause seen by a process inside"),
            kept: ms("checkpoint, left running"),
            back: ms("checkpoint, restore → it has answered"),
            broken: false,
            notes,
        }
    }

    async fn start(&mut self) -> Result<(), ApiError> {
        let local = |error: std::io::Error| bay_client::local("preparing a container", &error);
        std::fs::create_dir_all(&self.dir).map_err(local)?;
        timed(Command::new("btrfs").args(["subvolume", "snapshot"]).arg(&self.image).arg(&self.root))?;
        for dir in ["workspace", "proc", "dev", "sys", "tmp"] {
            std::fs::create_dir_all(self.root.join(dir)).map_err(local)?;
        }
        // With the tools' own network, a restored container has no loopback.
        timed(Command::new("ip").args(["netns", "add", &self.id]))?;
        timed(Command::new("ip").args(["-n", &self.id, "link", "set", "lo", "up"]))?;
        let network = format!("/run/netns/{}", self.id);
        let waits = format!("{}\nexec sleep 86400", self.scripts.start);
        match self.tool {
            Tool::Runc => {
                timed(Command::new("runc").args(["spec", "--bundle"]).arg(&self.dir))?;
                let path = self.dir.join("config.json");
                let config = std::fs::read(&path).map_err(local)?;
                let config: Value = serde_json::from_slice(&config).map_err(|e| ApiError::internal(&e))?;
                std::fs::write(&path, for_runc(config, &self.root, &network, &waits).to_string())
                    .map_err(local)?;
                timed(self.command().args(["run", "-d", "--bundle"]).arg(&self.dir).arg(&self.id))?;
            }
            Tool::Podman => {
                let mut run = self.command();
                run.args(["run", "-d", "--network", &format!("ns:{network}"), "--name", &self.id]);
                // Higher limits than the host's would be refused.
                run.args(["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096"]);
                timed(run.arg("--rootfs").arg(&self.root).args(["/bin/sh", "-c", &waits]))?;
            }
        }
        let until = Instant::now() + READY_WITHIN;
        loop {
            match timed(&mut self.exec(&self.scripts.ask)) {
                Ok(_) => return Ok(()),
                Err(why) if Instant::now() > until => return Err(why),
                Err(_) => tokio::time::sleep(LOOK_AGAIN).await,
            }
        }
    }

    /// The tool, with our CRIU first on the path.
    fn command(&self) -> Command {
        let mut command = Command::new(self.tool.name());
        if let Some(criu) = CRIU_PLACES.iter().map(Path::new).find(|place| place.exists()) {
            let rest = std::env::var("PATH").unwrap_or_default();
            let dir = criu.parent().unwrap_or(criu);
            command.env("PATH", format!("{}:{rest}", dir.display()));
        }
        if self.tool == Tool::Podman {
            // Its default refuses hosts with both versions of control groups.
            command.args(["--runtime", "runc", "--cgroup-manager", "cgroupfs"]);
        }
        command
    }

    fn exec(&self, script: &str) -> Command {
        let mut command = self.command();
        command.args(["exec", &self.id, "/bin/sh", "-c", script]);
        command
    }

    /// One round: a capture that keeps the container running, a capture that ends it, and a restore.
    pub(crate) fn round(&mut self, counts: bool) {
        if self.broken {
            return;
        }
        match self.measure() {
            Ok([seen, kept, back]) if counts => {
                self.seen.was(seen);
                self.kept.was(kept);
                self.back.was(back);
            }
            Ok(_) => {}
            Err(why) => self.give_up("could not be kept and brought back", &why),
        }
    }

    fn measure(&self) -> Result<[f64; 3], ApiError> {
        let ms = |took: Duration| took.as_secs_f64() * 1000.0;
        output_of(&mut self.exec(ASK_GAP))?;
        let images = self.dir.join("images");
        let checkpoint = |leave: bool| {
            let mut command = self.command();
            match self.tool {
                Tool::Runc => {
                    command.args(["checkpoint", "--tcp-established", "--file-locks", "--image-path"]);
                    command.arg(&images).arg("--work-path").arg(&images);
                }
                Tool::Podman => {
                    command.args(["container", "checkpoint", "--tcp-established", "--file-locks"]);
                }
            }
            timed(command.args(leave.then_some("--leave-running")).arg(&self.id))
        };
        let kept = checkpoint(true)?;
        let seen = number(&output_of(&mut self.exec(ASK_GAP))?)?;
        let _ = std::fs::remove_dir_all(&images);
        let began = Instant::now();
        checkpoint(false)?;
        let mut restore = self.command();
        match self.tool {
            Tool::Runc => {
                restore.args(["restore", "-d", "--tcp-established", "--file-locks", "--image-path"]);
                restore.arg(&images).arg("--work-path").arg(&images).arg("--bundle").arg(&self.dir);
            }
            Tool::Podman => {
                restore.args(["container", "restore", "--tcp-established", "--file-locks"]);
            }
        }
        timed(restore.arg(&self.id))?;
        timed(&mut self.exec(&self.scripts.ask))?;
        let back = began.elapsed();
        let _ = std::fs::remove_dir_all(&images);
        Ok([seen, ms(kept), ms(back)])
    }

    fn give_up(&mut self, what: &str, why: &ApiError) {
        self.broken = true;
        self.notes.push(format!("{}: the container {what}: {}", self.tool.name(), why.message));
    }

    pub(crate) fn remove(&self) {
        let _ = match self.tool {
            Tool::Runc => timed(self.command().args(["delete", "--force", &self.id])),
            Tool::Podman => timed(self.command().args(["rm", "--force", "--time", "0", &self.id])),
        };
        let _ = timed(Command::new("ip").args(["netns", "del", &self.id]));
        let _ = timed(Command::new("btrfs").args(["subvolume", "delete"]).arg(&self.root));
    }

    pub(crate) fn into_series(self) -> [Series; 3] {
        [self.seen, self.kept, self.back]
    }
}

impl Tool {
    fn name(self) -> &'static str {
        match self {
            Self::Runc => "runc",
            Self::Podman => "podman",
        }
    }
}

/// The tool's own defaults, with an existing network and what PostgreSQL needs.
fn for_runc(mut config: Value, root: &Path, network: &str, script: &str) -> Value {
    config["process"]["terminal"] = false.into();
    config["process"]["args"] = json!(["/bin/sh", "-c", script]);
    for set in ["bounding", "effective", "permitted"] {
        config["process"]["capabilities"][set] = json!(CAPABILITIES);
    }
    config["root"] = json!({ "path": root, "readonly": false });
    for namespace in config["linux"]["namespaces"].as_array_mut().into_iter().flatten() {
        if namespace["type"] == "network" {
            namespace["path"] = network.into();
        }
    }
    config
}

/// Whether this process may read the limits of other users' processes.
fn may_read_limits() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = effective.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    bits.is_some_and(|bits| bits & (1 << CAP_SYS_RESOURCE) != 0)
}
