//! The other tools that are installed on this machine.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bay_types::{ApiError, ErrorCode};
use clap::ValueEnum;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Peer {
    Runc,
    Docker,
    Runsc,
    Bwrap,
    Podman,
}

/// The options that make Docker run a container inside gVisor.
pub(crate) const RUNSC_RUNTIME: [&str; 2] = ["--runtime", "runsc"];

/// The peers that work on this machine. Docker, runc and bwrap run on the bays' root filesystem; `runsc do` runs on the
/// host's.
#[derive(Debug)]
pub(crate) struct Peers {
    tree: PathBuf,
    bundle: Option<PathBuf>,
    docker: Option<Docker>,
    bwrap: bool,
    runsc: bool,
    podman: bool,
    runs: usize,
    /// The wanted peers that are missing, and why.
    pub(crate) absent: Vec<String>,
}

#[derive(Debug)]
struct Docker {
    image: String,
    container: String,
}

impl Peers {
    pub(crate) fn prepare(wanted: &[Peer], tree: &Path, work: &Path) -> Self {
        let mut peers = Self {
            tree: tree.to_owned(),
            bundle: None,
            docker: None,
            bwrap: false,
            runsc: false,
            podman: false,
            runs: 0,
            absent: Vec::new(),
        };
        for peer in wanted {
            let found = match peer {
                Peer::Runc => bundle(tree, &work.join("bundle")).map(|bundle| peers.bundle = Some(bundle)),
                Peer::Docker => docker(tree).map(|docker| peers.docker = Some(docker)),
                Peer::Runsc => timed(Command::new("runsc").arg("--version")).map(|_| peers.runsc = true),
                Peer::Bwrap => timed(Command::new("bwrap").arg("--version")).map(|_| peers.bwrap = true),
                Peer::Podman => timed(Command::new("podman").arg("--version")).map(|_| peers.podman = true),
            };
            if let Err(why) = found {
                let name = peer.to_possible_value().map(|v| v.get_name().to_owned()).unwrap_or_default();
                peers.absent.push(format!("{name} is left out: {}", why.message));
            }
        }
        peers
    }

    pub(crate) fn has_runc(&self) -> bool {
        self.bundle.is_some()
    }

    pub(crate) fn has_podman(&self) -> bool {
        self.podman
    }

    pub(crate) fn runc_run(&mut self) -> Option<Result<Duration, ApiError>> {
        let bundle = self.bundle.clone()?;
        self.runs += 1;
        let id = format!("workbay-bench-{}-{}", std::process::id(), self.runs);
        Some(timed(Command::new("runc").args(["run", "--bundle"]).arg(bundle).arg(id)))
    }

    pub(crate) fn docker_run(&self) -> Option<Result<Duration, ApiError>> {
        self.docker_run_with(&[])
    }

    /// Runs a container inside gVisor. If Docker is not among the peers, returns `None`; if Docker lacks the runtime,
    /// returns an error.
    pub(crate) fn docker_run_runsc(&self) -> Option<Result<Duration, ApiError>> {
        self.docker_run_with(&RUNSC_RUNTIME)
    }

    fn docker_run_with(&self, options: &[&str]) -> Option<Result<Duration, ApiError>> {
        let docker = self.docker.as_ref()?;
        let mut command = Command::new("docker");
        command.args(["run", "--rm", "--network", "none"]).args(options);
        Some(timed(command.args([&docker.image, "/bin/echo", "hi"])))
    }

    /// Runs a script in the waiting container, if there is one.
    pub(crate) fn docker_sh(&self, script: &str) -> Result<(), ApiError> {
        let Some(docker) = &self.docker else { return Ok(()) };
        timed(Command::new("docker").args(["exec", &docker.container, "/bin/sh", "-c", script])).map(drop)
    }

    /// Makes a new container from a running one: commits an image, and runs it.
    pub(crate) fn docker_commit_and_run(&self) -> Option<Result<Duration, ApiError>> {
        let docker = self.docker.as_ref()?;
        let image = format!("{}-fork", docker.image);
        let commit = timed(Command::new("docker").args(["commit", &docker.container, &image]));
        let run = ["run", "--rm", "--network", "none", &image, "/bin/echo", "hi"];
        let took = commit.and_then(|commit| timed(Command::new("docker").args(run)).map(|run| commit + run));
        let _ = timed(Command::new("docker").args(["rmi", "-f", &image]));
        Some(took)
    }

    pub(crate) fn docker_exec(&self) -> Option<Result<Duration, ApiError>> {
        let docker = self.docker.as_ref()?;
        Some(timed(Command::new("docker").args(["exec", &docker.container, "/bin/true"])))
    }

    /// Starts a waiting container of the small image with these options and an empty `/work`.
    pub(crate) fn docker_container(&self, options: &[String]) -> Result<String, ApiError> {
        let absent = || ApiError::new(ErrorCode::HostUnfit, "it is not among the peers", "");
        let docker = self.docker.as_ref().ok_or_else(absent)?;
        let name = format!("workbay-bench-work-{}", std::process::id());
        let mut command = Command::new("docker");
        command.args(["run", "-d", "--network", "none", "--name", &name, "-w", "/work"]);
        timed(command.args(options).args([&docker.image, "/bin/sleep", "86400"]))?;
        Ok(name)
    }

    pub(crate) fn runsc(&self) -> Option<Result<Duration, ApiError>> {
        self.runsc.then(|| timed(Command::new("runsc").args(["--network=none", "do", "/bin/echo", "hi"])))
    }

    pub(crate) fn bwrap(&self) -> Option<Result<Duration, ApiError>> {
        if !self.bwrap {
            return None;
        }
        let mut command = Command::new("bwrap");
        command.args(["--unshare-all", "--ro-bind"]).arg(&self.tree).args(["/", "--proc", "/proc"]);
        Some(timed(command.args(["--dev", "/dev", "/bin/echo", "hi"])))
    }

    pub(crate) fn remove(&mut self) {
        if let Some(docker) = self.docker.take() {
            let _ = timed(Command::new("docker").args(["rm", "-f", &docker.container]));
            let _ = timed(Command::new("docker").args(["rmi", "-f", &docker.image]));
        }
    }
}

/// Runs a command to its end and returns the duration. The output is read to its end and discarded.
pub(crate) fn timed(command: &mut Command) -> Result<Duration, ApiError> {
    run(command).map(|(took, _)| took)
}

/// Runs a command to its end and returns its output.
pub(crate) fn output_of(command: &mut Command) -> Result<String, ApiError> {
    run(command).map(|(_, output)| String::from_utf8_lossy(&output).into_owned())
}

pub(crate) fn installed(program: &str) -> bool {
    timed(Command::new("sh").args(["-c", "command -v \"$0\"", program])).is_ok()
}

fn run(command: &mut Command) -> Result<(Duration, Vec<u8>), ApiError> {
    let name = command.get_program().to_string_lossy().into_owned();
    let fail =
        |why: String| ApiError::new(ErrorCode::HostUnfit, format!("{name}: {why}"), "install or start it");
    let begin = Instant::now();
    let output = command.stdin(Stdio::null()).output().map_err(|error| fail(error.to_string()))?;
    let took = begin.elapsed();
    if output.status.success() {
        return Ok((took, output.stdout));
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(fail(said.lines().last().unwrap_or("it failed without an error message").to_owned()))
}

/// A bundle for runc with its defaults, a read-only root and one command.
fn bundle(tree: &Path, dir: &Path) -> Result<PathBuf, ApiError> {
    let local = |error: std::io::Error| bay_client::local("preparing runc", &error);
    std::fs::create_dir_all(dir).map_err(local)?;
    timed(Command::new("runc").args(["spec", "--bundle"]).arg(dir))?;
    let path = dir.join("config.json");
    let mut config: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).map_err(local)?)
        .map_err(|error| ApiError::internal(&error))?;
    config["process"]["terminal"] = false.into();
    config["process"]["args"] = serde_json::json!(["/bin/echo", "hi"]);
    config["root"] = serde_json::json!({ "path": tree, "readonly": true });
    std::fs::write(&path, config.to_string()).map_err(local)?;
    Ok(dir.to_owned())
}

/// Imports the tree as an image, and starts one waiting container of it.
fn docker(tree: &Path) -> Result<Docker, ApiError> {
    timed(Command::new("docker").args(["version"]))?;
    let image = format!("workbay-bench:{}", std::process::id());
    let container = format!("workbay-bench-{}", std::process::id());
    let local = |error: std::io::Error| bay_client::local("preparing docker", &error);
    let mut tar = Command::new("tar")
        .arg("-C")
        .arg(tree)
        .args(["-c", "."])
        .stdout(Stdio::piped())
        .spawn()
        .map_err(local)?;
    let stream = tar.stdout.take().map_or_else(Stdio::null, Stdio::from);
    let imported = Command::new("docker")
        .args(["import", "-", &image])
        .stdin(stream)
        .stdout(Stdio::null())
        .status()
        .map_err(local)?;
    let _ = tar.wait();
    if !imported.success() {
        return Err(ApiError::new(ErrorCode::HostUnfit, "docker: the tree could not be imported", ""));
    }
    let args = ["run", "-d", "--network", "none", "--name", &container, &image, "/bin/sleep", "86400"];
    timed(Command::new("docker").args(args))?;
    Ok(Docker { image, container })
}
