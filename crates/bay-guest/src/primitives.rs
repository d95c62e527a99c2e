//! What every guest has, wherever it listens: execs, files and a log, over one state directory and one root.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::Arc;

use bay_types::VERSION;
use bay_types::guest::GuestConfig;
use jiff::Timestamp;
use rustix::process::{Resource, Rlimit};

use crate::execs::{BayIdentity, Bounds, ExecContext, Execs, Flushes, Reaper};
use crate::files::Files;
use crate::log::Log;
use crate::procfs;
use crate::sentinels::Sentinels;

/// What a guest works with. [`crate::run`] makes one for a bay; tests make their own.
#[derive(Debug)]
pub struct Config {
    pub guest: GuestConfig,
    /// Directory of the cgroup v2 group in which each exec gets a group of its own. If there is none, process trees are
    /// found through `/proc`.
    pub cgroup: Option<OwnedFd>,
    /// Where output is kept.
    pub state_dir: PathBuf,
    /// What the file routes call `/`, and where users are looked up.
    pub root: PathBuf,
    pub bounds: Bounds,
}

#[derive(Debug)]
pub(crate) struct Primitives {
    pub(crate) execs: Arc<Execs>,
    pub(crate) files: Arc<Files>,
    pub(crate) log: Arc<Log>,
}

impl Primitives {
    /// Opens what is needed. Starts reaping children and removing the cgroups of ended execs.
    pub(crate) fn start(config: Config) -> io::Result<Self> {
        procfs::keep_open();
        let child_signal = Reaper::listen()?;
        DirBuilder::new().recursive(true).mode(0o700).create(&config.state_dir)?;
        let root = File::open(&config.root)?;
        let log = Arc::new(Log::open(&config.state_dir));
        let reaper = Arc::new(Reaper::default());
        let context = ExecContext {
            services: false,
            state: File::open(&config.state_dir)?.into(),
            root: root.try_clone()?.into(),
            null: File::open("/dev/null")?.into(),
            cgroup: config.cgroup.map(Arc::new),
            identity: Arc::new(BayIdentity::new(config.guest.bay_id, config.guest.hostname)),
            sentinels: Arc::new(Sentinels::new(config.guest.secrets)),
            bounds: config.bounds,
            open_files: raise_open_files(),
            flushes: Arc::new(Flushes::new(config.guest.about.durability, &log)),
            started_at: Timestamp::now(),
            terminals: Arc::default(),
            log: Arc::clone(&log),
        };
        let execs = Arc::new(Execs::new(context, Arc::clone(&reaper)));
        log.line("guest.started", format_args!("version={VERSION}"));
        tokio::spawn(async move { reaper.run(child_signal).await });
        let cleaner = Arc::clone(&execs);
        tokio::spawn(async move { cleaner.remove_empty_leaves().await });
        let adopt = Arc::clone(&execs);
        tokio::task::spawn_blocking(move || adopt.adopt_from_disk());
        Ok(Self { execs, files: Arc::new(Files::new(root.into())), log })
    }
}

/// Each exec costs the guest some descriptors, so the guest raises its limit to the maximum. Commands get the limit that
/// the guest started with, which is returned.
fn raise_open_files() -> Option<(u64, u64)> {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let (soft, hard) = (limit.current?, limit.maximum?);
    rustix::process::setrlimit(Resource::Nofile, Rlimit { current: Some(hard), maximum: Some(hard) }).ok()?;
    Some((soft, hard))
}
