//! What every contest needs: a small image, two repositories, the peers, and a function that calls the CLI.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use bay_client::{Client, Silent, bay_path};
use bay_types::backend::BackendName;
use bay_types::bay::{BayCreate, BayView, Health, Limits, Mount, Origin, Source};
use bay_types::image::{ImageImport, ImageView};
use bay_types::{ApiError, ErrorCode};

use crate::peers::{Peer, Peers, timed};

const IMAGE: &str = "bench-small";
pub(crate) const BUSYBOX: &str = "/bin/busybox";
/// Files per directory of the large repository, so that it has as many directories as a real one.
const FILES_PER_DIRECTORY: usize = 50;

/// The daemon that is measured.
#[derive(Debug)]
pub struct Daemon {
    pub data_dir: PathBuf,
    pub socket: PathBuf,
    pub client: Client,
}

pub(crate) struct Setup {
    data_dir: PathBuf,
    socket: PathBuf,
    executable: PathBuf,
    pub(crate) client: Client,
    pub(crate) peers: Peers,
    pub(crate) pool: PathBuf,
    pub(crate) work: PathBuf,
    files: usize,
    bays: usize,
}

impl Setup {
    pub(crate) async fn prepare(daemon: Daemon, peers: &[Peer], files: usize) -> Result<Self, ApiError> {
        let work = std::env::temp_dir().join(format!("workbay-bench-{}", std::process::id()));
        let local = |error: std::io::Error| bay_client::local("preparing the bench", &error);
        std::fs::create_dir_all(&work).map_err(local)?;
        let Daemon { data_dir, socket, mut client } = daemon;
        let health: Health = client.get("/v1/health").await?;
        small_tree(&work.join("tree")).map_err(local)?;
        let import = ImageImport {
            source: format!("dir:{}", work.join("tree").display()),
            name: Some(IMAGE.to_owned()),
            add: vec![],
            force: false,
        };
        let image: ImageView = client.work("/v1/images", &import, &mut Silent).await?;
        repository(&work.join("repo"), 3)?;
        let pool = if health.pool.join("mnt").is_dir() { health.pool.join("mnt") } else { health.pool };
        let tree = pool.join("images").join(image.id.to_string()).join("root");
        let peers = Peers::prepare(peers, &tree, &work);
        let executable = std::env::current_exe().map_err(local)?;
        Ok(Self { data_dir, socket, executable, client, peers, pool, work, files, bays: 0 })
    }

    /// Removes everything that the setup made, and reports what cannot be removed.
    pub(crate) async fn remove(mut self) {
        self.peers.remove();
        for repo in ["repo", "large"] {
            let location = self.work.join(repo).display().to_string();
            let path = format!("/v1/repos/{}", bay_text::percent::segment(&location));
            let _: Result<serde_json::Value, _> = self.client.delete(&path).await;
        }
        let _: Result<serde_json::Value, _> = self.client.delete(&format!("/v1/images/{IMAGE}")).await;
        if let Err(error) = std::fs::remove_dir_all(&self.work) {
            crate::talk::talk(&format!("{} stays: {error}", self.work.display()));
        }
    }

    pub(crate) fn bay(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.executable);
        command.arg("--data-dir").arg(&self.data_dir).arg("--socket").arg(&self.socket).args(args);
        command
    }

    pub(crate) fn next_name(&mut self) -> String {
        self.bays += 1;
        format!("bench-{}-{}", std::process::id(), self.bays)
    }

    /// Makes a bay through the CLI, and measures until the output of its first command. The removal is not measured.
    pub(crate) fn up_and_echo(&mut self, repo: &str) -> Result<Duration, ApiError> {
        self.up_and_echo_on(repo, BackendName::LOCAL)
    }

    /// Makes a bay on this backend through the CLI, and measures until the output of its first command.
    pub(crate) fn up_and_echo_on(&mut self, repo: &str, backend: &str) -> Result<Duration, ApiError> {
        let name = self.next_name();
        let repo = self.work.join(repo).display().to_string();
        let up =
            ["up", &repo, "--image", IMAGE, "--backend", backend, "--name", &name, "--", "/bin/echo", "hi"];
        let took = timed(&mut self.bay(&up));
        timed(&mut self.bay(&["rm", "--yes", &name]))?;
        took
    }

    /// The commit that a bay of this repository begins from. Afterwards it is cached.
    pub(crate) async fn origin_of(&mut self, repo: &str) -> Result<Origin, ApiError> {
        let name = self.next_name();
        let url = format!("file://{}", self.work.join(repo).display());
        timed(&mut self.bay(&["up", &url, "--image", IMAGE, "--name", &name]))?;
        let view: BayView = self.client.get(&bay_path(&name, "")).await?;
        timed(&mut self.bay(&["rm", "--yes", &name]))?;
        view.origin.ok_or_else(|| bay_client::broken("a bay of a repository has no origin"))
    }

    /// Makes a running bay on a cached commit with one request. The removal is not measured.
    pub(crate) async fn create_over_api(&mut self, origin: &Origin) -> Result<Duration, ApiError> {
        let name = self.next_name();
        let create = on(&name, IMAGE, from_cache(origin));
        let begin = Instant::now();
        let made: Result<BayView, _> = self.client.work("/v1/bays", &create, &mut Silent).await;
        let took = begin.elapsed();
        timed(&mut self.bay(&["rm", "--yes", &name]))?;
        made.map(|_| took)
    }

    /// Makes a running bay on a cached commit, and keeps it.
    pub(crate) async fn create_and_keep(&mut self, origin: &Origin) -> Result<(String, Duration), ApiError> {
        let name = self.next_name();
        let create = on(&name, IMAGE, from_cache(origin));
        let begin = Instant::now();
        let _: BayView = self.client.work("/v1/bays", &create, &mut Silent).await?;
        Ok((name, begin.elapsed()))
    }

    /// A bay with the host's own programs and an empty workspace.
    pub(crate) async fn up_host(
        &mut self,
        mounts: Vec<Mount>,
        backend: Option<&str>,
    ) -> Result<String, ApiError> {
        let name = self.next_name();
        let backend = backend.map(ToOwned::to_owned);
        let create = BayCreate { mounts, backend, ..on(&name, "host", Source::Empty) };
        let _: BayView = self.client.work("/v1/bays", &create, &mut Silent).await?;
        Ok(name)
    }

    pub(crate) fn up(&mut self) -> Result<String, ApiError> {
        let name = self.next_name();
        let repo = self.work.join("repo").display().to_string();
        timed(&mut self.bay(&["up", &repo, "--image", IMAGE, "--name", &name]))?;
        Ok(name)
    }

    /// Makes a bay with limits that a bomb reaches.
    pub(crate) fn up_limited(&mut self) -> Result<String, ApiError> {
        let name = self.next_name();
        let repo = self.work.join("repo").display().to_string();
        let limits = ["--memory-mib", "256", "--pids", "512", "--disk-mib", "512"];
        timed(self.bay(&["up", &repo, "--image", IMAGE, "--name", &name]).args(limits))?;
        Ok(name)
    }

    /// The repository of many files, made on first use.
    pub(crate) fn large_repository(&self) -> Result<PathBuf, ApiError> {
        let path = self.work.join("large");
        if !path.exists() {
            repository(&path, self.files)?;
        }
        Ok(path)
    }
}

pub(crate) fn on(name: &str, image: &str, source: Source) -> BayCreate {
    BayCreate {
        name: Some(name.to_owned()),
        source,
        image: image.to_owned(),
        limits: Limits::default(),
        mounts: vec![],
        author: None,
        user: None,
        reach: vec![],
        backend: None,
        policy: None,
        environment: None,
        idle_stop_s: None,
        durability: bay_types::durability::Durability::Strict,
    }
}

fn from_cache(origin: &Origin) -> Source {
    Source::Cached { repo: origin.repo, commit: origin.commit.clone(), branch: origin.branch.clone() }
}

/// A root filesystem of one static program.
pub(crate) fn small_tree(tree: &Path) -> std::io::Result<()> {
    let bin = tree.join("bin");
    std::fs::create_dir_all(&bin)?;
    std::fs::create_dir_all(tree.join("etc"))?;
    std::fs::copy(BUSYBOX, bin.join("busybox"))?;
    for name in ["sh", "echo", "true", "sleep"] {
        std::os::unix::fs::symlink("busybox", bin.join(name))?;
    }
    std::fs::write(tree.join("etc/passwd"), "root:x:0:0:root:/:/bin/sh\n")
}

fn repository(path: &Path, files: usize) -> Result<(), ApiError> {
    let local = |error: std::io::Error| bay_client::local("preparing a repository", &error);
    for file in 0..files {
        let dir = path.join(format!("d{:04}", file / FILES_PER_DIRECTORY));
        if file % FILES_PER_DIRECTORY == 0 {
            std::fs::create_dir_all(&dir).map_err(local)?;
        }
        std::fs::write(dir.join(format!("f{file:06}")), format!("file {file}\n")).map_err(local)?;
    }
    for args in [
        &["init", "-q", "-b", "main"][..],
        &["add", "-A"],
        &["-c", "user.name=bench", "-c", "user.email=bench@example.com", "commit", "-qm", "files"],
    ] {
        timed(Command::new("git").arg("-C").arg(path).args(args)).map_err(|error| {
            ApiError::new(ErrorCode::HostUnfit, error.message, "git is needed for the bench")
        })?;
    }
    Ok(())
}
