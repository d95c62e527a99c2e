//! The steps of `bay uninstall`. Each may be repeated, and finds what an interrupted one left. The files that identify the
//! daemon and the installation go last.
//!
//! ```text
//!  unit ── daemon ── bays ── groups ── pool ── data ── key ── data-record ── executable ── group ── record
//! ```

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use bay_client::local;
use bay_pool::Pool;
use bay_text::escape::visible;
use bay_types::runtime::{RuntimePlace, RuntimeReply, RuntimeRequest};
use bay_types::{ApiError, BayId, ErrorCode};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FlockOperation;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::found::{Found, LAST, is_below_keys};
use super::install::systemctl;
use super::place::{Place, remove_file};

/// How long the daemon may take to end after SIGTERM.
const END_WITHIN: Duration = Duration::from_secs(30);
/// How long the daemon may take to end after SIGKILL.
const DIE_WITHIN: Duration = Duration::from_secs(10);

/// The steps in their order. With `--keep-data` some are left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Unit,
    Daemon,
    Bays,
    Groups,
    Pool,
    Data,
    Key,
    DataRecord,
    Executable,
    Group,
    Record,
}

impl Step {
    pub(crate) const ALL: [Self; 11] = [
        Self::Unit,
        Self::Daemon,
        Self::Bays,
        Self::Groups,
        Self::Pool,
        Self::Data,
        Self::Key,
        Self::DataRecord,
        Self::Executable,
        Self::Group,
        Self::Record,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Unit => "unit",
            Self::Daemon => "daemon",
            Self::Bays => "bays",
            Self::Groups => "groups",
            Self::Pool => "pool",
            Self::Data => "data",
            Self::Key => "key",
            Self::DataRecord => "data-record",
            Self::Executable => "executable",
            Self::Group => "group",
            Self::Record => "record",
        }
    }

    fn keeps_data(self) -> bool {
        !matches!(self, Self::Pool | Self::Data | Self::Key | Self::DataRecord)
    }
}

/// A removal in progress.
pub(crate) struct Removal<'a> {
    pub(crate) place: &'a Place,
    pub(crate) found: &'a Found,
    pub(crate) keep_data: bool,
    /// For tests: the step before which this process dies.
    pub(crate) die_before: Option<&'a str>,
    lock: Option<File>,
}

impl<'a> Removal<'a> {
    pub(crate) fn new(
        place: &'a Place,
        found: &'a Found,
        keep_data: bool,
        die_before: Option<&'a str>,
    ) -> Self {
        Self { place, found, keep_data, die_before, lock: None }
    }

    /// Runs the steps, with `keep_data` only those that keep data.
    pub(crate) fn run(&mut self) -> Result<(), ApiError> {
        for step in Step::ALL {
            if self.die_before == Some(step.name()) {
                let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::KILL);
            }
            if self.keep_data && !step.keeps_data() {
                if step == Step::Pool {
                    self.unmount()?;
                }
                continue;
            }
            self.step(step)?;
        }
        Ok(())
    }

    fn step(&mut self, step: Step) -> Result<(), ApiError> {
        match step {
            Step::Unit => self.unit(),
            Step::Daemon => self.daemon(),
            Step::Bays => self.found.bays.iter().try_for_each(|bay| self.clear(*bay)),
            Step::Groups => self.groups(),
            Step::Pool => self.pool(),
            Step::Data => self.data(),
            Step::Key => self.key(),
            Step::DataRecord => self.data_record(),
            Step::Executable => self.executable(),
            Step::Group => self.group(),
            Step::Record => self.record(),
        }
    }

    fn unit(&self) -> Result<(), ApiError> {
        if !self.found.installed.as_ref().is_some_and(|installed| installed.unit) {
            return Ok(());
        }
        if self.place.is_the_host() && self.place.has_systemd() {
            systemctl(&["disable", "--now", "workbay.service"])?;
        }
        let path = self.place.unit();
        remove_file(&path).map_err(|error| failed("removing", &path, &error))?;
        if self.place.is_the_host() && self.place.has_systemd() {
            systemctl(&["daemon-reload"])?;
        }
        Ok(())
    }

    /// Ends the daemon and takes its lock, so that no other one starts.
    fn daemon(&mut self) -> Result<(), ApiError> {
        let path = self.found.data_dir.join("daemon.lock");
        if let Some(process) = self.found.process {
            end(process, &[(Signal::TERM, END_WITHIN), (Signal::KILL, DIE_WITHIN)])
                .map_err(|error| local(&format!("ending the daemon (process {process})"), &error))?;
        }
        let file = match OpenOptions::new().write(true).open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(failed("opening", &path, &error)),
        };
        if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(ApiError::new(
                ErrorCode::DataDirBusy,
                format!("another daemon uses the data directory {}", self.found.data_dir.display()),
                "end it, then run `bay uninstall` again",
            ));
        }
        self.lock = Some(file);
        Ok(())
    }

    /// Ends what a bay runs, and removes its namespaces, mounts and groups, with the helper that also ends bays for the
    /// daemon.
    fn clear(&self, bay: BayId) -> Result<(), ApiError> {
        let Some(daemon) = &self.found.daemon else { return Ok(()) };
        let request = RuntimeRequest::Clear(RuntimePlace {
            bay_id: bay,
            run_dir: self.found.data_dir.join("run").join(bay.to_string()),
            cgroup: Path::new("workbay").join(daemon).join(bay.to_string()),
        });
        let reply = helper(&request).map_err(|error| local(&format!("ending the bay {bay}"), &error))?;
        match reply {
            RuntimeReply::Hangs { message } => {
                Err(not_ended(bay, &message, "release what its processes wait for"))
            }
            RuntimeReply::Failed { message, .. } => Err(not_ended(bay, &message, "remove this cause")),
            _ => Ok(()),
        }
    }

    fn groups(&self) -> Result<(), ApiError> {
        for group in &self.found.groups {
            // The kernel removes only empty groups, so nothing that runs can be lost.
            remove_group(group).map_err(|error| failed("removing", group, &error))?;
            if let Some(parent) = group.parent() {
                // Groups of other daemons may be in it.
                let _ = fs::remove_dir(parent);
            }
        }
        Ok(())
    }

    fn pool(&self) -> Result<(), ApiError> {
        let Some(daemon) = &self.found.daemon else { return Ok(()) };
        let done = match &self.found.pool {
            Ok(_) => Pool::uninstall(&self.found.pool_dir, daemon),
            Err(_) if self.found.pool_is_inside() => Pool::remove_file(&self.found.pool_dir),
            Err(_) => return Ok(()),
        };
        let stays = done.map_err(|error| bay_cli_words::Words::default().error(error.to_api()))?;
        if let Some((dir, why)) = stays {
            crate::output::talk(&visible(&format!("{} stays: {why}", dir.display())));
        }
        Ok(())
    }

    fn unmount(&self) -> Result<(), ApiError> {
        let shared = self
            .found
            .pool
            .as_ref()
            .ok()
            .and_then(Option::as_ref)
            .is_some_and(|pool| !pool.others.is_empty());
        if shared {
            return Ok(());
        }
        Pool::unmount(&self.found.pool_dir)
            .map_err(|error| bay_cli_words::Words::default().error(error.to_api()))
    }

    fn data(&self) -> Result<(), ApiError> {
        for path in &self.found.data {
            let last =
                path.file_name().and_then(|name| name.to_str()).is_some_and(|name| LAST.contains(&name));
            if !last {
                remove(path)?;
            }
        }
        Ok(())
    }

    fn key(&self) -> Result<(), ApiError> {
        for key in &self.found.keys {
            remove_file(key).map_err(|error| failed("removing", key, &error))?;
            if is_below_keys(self.place, key)
                && let Some(dir) = key.parent()
                && fs::remove_dir(dir).is_ok()
                && let Some(above) = dir.parent()
            {
                let _ = fs::remove_dir(above);
            }
        }
        Ok(())
    }

    fn data_record(&self) -> Result<(), ApiError> {
        if self.found.data.is_empty() {
            return Ok(());
        }
        for name in LAST {
            remove(&self.found.data_dir.join(name))?;
        }
        match fs::remove_dir(&self.found.data_dir) {
            // What a daemon did not make stays.
            Err(error)
                if !matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::ResourceBusy
                ) =>
            {
                Err(failed("removing", &self.found.data_dir, &error))
            }
            _ => Ok(()),
        }
    }

    fn executable(&self) -> Result<(), ApiError> {
        let path = self.place.executable();
        match &self.found.installed {
            Some(installed) if installed.executable => {
                remove_file(&path).map_err(|error| failed("removing", &path, &error))
            }
            _ => Ok(()),
        }
    }

    /// Removes the group. `groupdel` refuses if it is the first group of a user.
    fn group(&self) -> Result<(), ApiError> {
        let Some(group) = self.found.installed.as_ref().and_then(|installed| installed.group.as_ref()) else {
            return Ok(());
        };
        let mut command = Command::new("groupdel");
        if !self.place.is_the_host() {
            command.arg("--prefix").arg(self.place.root());
        }
        match command.arg(group).output() {
            Ok(output) if !output.status.success() => {
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                crate::output::talk(&format!(
                    "the group {group} stays: {}",
                    bay_text::escape::one_line(&said)
                ));
            }
            Ok(_) => {}
            Err(error) => crate::output::talk(&format!("the group {group} stays: {error}")),
        }
        Ok(())
    }

    fn record(&self) -> Result<(), ApiError> {
        if self.found.installed.is_none() {
            return Ok(());
        }
        self.place.forget().map_err(|error| failed("removing", &self.place.settings(), &error))
    }
}

fn failed(doing: &str, path: &Path, error: &io::Error) -> ApiError {
    local(&format!("{doing} {}", path.display()), error)
}

fn remove(path: &Path) -> Result<(), ApiError> {
    let removed = match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("removing", path, &error)),
        _ => Ok(()),
    }
}

fn remove_group(group: &Path) -> io::Result<()> {
    for entry in fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_group(&entry.path())?;
        }
    }
    match fs::remove_dir(group) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Ends a process by these signals, one after the other, each with the time that it may take, and waits until it is gone.
pub(crate) fn end(process: i32, signals: &[(Signal, Duration)]) -> io::Result<()> {
    let Some(pid) = Pid::from_raw(process) else { return Ok(()) };
    let handle = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(handle) => handle,
        Err(rustix::io::Errno::SRCH) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    for (signal, within) in signals.iter().copied() {
        match pidfd_send_signal(&handle, signal) {
            Ok(()) => {}
            Err(rustix::io::Errno::SRCH) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        let time = Timespec { tv_sec: i64::try_from(within.as_secs()).unwrap_or(0), tv_nsec: 0 };
        // The handle is readable when the process has ended.
        if poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&time))? > 0 {
            return Ok(());
        }
    }
    Err(io::Error::from(io::ErrorKind::TimedOut))
}

/// Runs the helper, which is this executable.
fn helper(request: &RuntimeRequest) -> io::Result<RuntimeReply> {
    let mut child = Command::new("/proc/self/exe")
        .arg("__runtime")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()?;
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(&line)?;
    }
    let mut reply = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout).read_line(&mut reply)?;
    }
    child.wait()?;
    Ok(serde_json::from_str(&reply)?)
}

/// What will be removed, a line for each: what it is, and where.
pub(crate) fn list(place: &Place, found: &Found, keep_data: bool) -> Vec<(&'static str, String)> {
    let mut lines: Vec<(&'static str, String)> = Vec::new();
    let shown = |path: &PathBuf| path.display().to_string();
    if let Some(installed) = &found.installed
        && installed.unit
    {
        lines.push(("unit", shown(&place.unit())));
    }
    if let Some(process) = found.process {
        lines.push(("daemon", format!("process {process} on {}", found.data_dir.display())));
    }
    if !found.bays.is_empty() {
        let ids: Vec<String> = found.bays.iter().map(BayId::to_string).collect();
        lines.push(("running parts of bays", ids.join(" ")));
    }
    lines.extend(found.groups.iter().map(|group| ("control group", shown(group))));
    if !keep_data {
        match &found.pool {
            Ok(Some(pool)) if pool.others.is_empty() => {
                let bays = crate::output::count(pool.bays, "bay");
                let what = match &pool.file {
                    Some(file) => format!(
                        "{} ({}, files of {bays}, images, repositories)",
                        file.display(),
                        crate::output::size(pool.file_bytes)
                    ),
                    None => format!("{} (files of {bays}, images, repositories)", found.pool_dir.display()),
                };
                lines.push(("pool", what));
            }
            Ok(Some(pool)) if pool.has_corner => {
                let bays = crate::output::count(pool.bays, "bay");
                let others = crate::output::count(pool.others.len() as u64, "other daemon");
                lines.push((
                    "corner of the pool",
                    format!("{} (files of {bays}; {others} keep the rest)", found.pool_dir.display()),
                ));
            }
            Ok(_) => {}
            Err(_) if found.pool_is_inside() => {
                lines.push(("pool", format!("{} (its content cannot be read)", found.pool_dir.display())));
            }
            Err(_) => {}
        }
        if !found.data.is_empty() {
            lines.push(("data directory", shown(&found.data_dir)));
        }
        lines.extend(found.keys.iter().map(|key| ("key", shown(key))));
    }
    if let Some(installed) = &found.installed {
        if installed.executable {
            lines.push(("executable", shown(&place.executable())));
        }
        lines.extend(installed.group.iter().map(|group| ("group", group.clone())));
    }
    lines
}

/// What stays although it belongs to Workbay or lies beside it, and why.
pub(crate) fn stays(found: &Found, keep_data: bool) -> Vec<String> {
    let mut lines: Vec<String> =
        found.stays.iter().map(|(path, why)| format!("{}: {why}", path.display())).collect();
    if keep_data {
        lines.push(format!("{}: --keep-data", found.data_dir.display()));
    } else if let Err(why) = &found.pool
        && !found.pool_is_inside()
    {
        lines.push(format!("{}: the content of the pool cannot be read ({why})", found.pool_dir.display()));
    }
    if !found.data.is_empty() && found.daemon.is_none() {
        lines.push(format!(
            "the daemon's corner of the pool {}, its control groups and its key: its id is not on record",
            found.pool_dir.display()
        ));
    }
    lines
}

fn not_ended(bay: BayId, why: &str, cure: &str) -> ApiError {
    ApiError::new(
        ErrorCode::BayFailed,
        format!("the bay {bay} could not be ended: {why}"),
        format!("{cure}, then run `bay uninstall` again"),
    )
}
