//! Locates the daemon of a command, and starts one if none answers.
//!
//! ```text
//!  connect refused ─► not root ─────────────────► not-root
//!                  └► spawn `bay serve --detached` ─► poll the socket ─► connected
//!                            │ it ended                    │ deadline
//!                            ├─ another daemon holds the lock: continue polling; if that one ends: spawn again
//!                            └─ no daemon holds it ────────┴─► daemon-unreachable, with the log's last lines
//! ```
//! If two callers start daemons concurrently, one daemon loses the lock and ends, and both callers connect to the
//! other.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bay_client::{Client, Endpoint, StartDaemon, local};
use bay_types::trace::Traceparent;
use bay_types::{ApiError, ErrorCode};
use tokio::net::UnixStream;

use crate::output::progress::Meter;

/// How long a daemon may take until it answers. The first start makes the pool, which takes a while on a slow disk.
const START_DEADLINE: Duration = Duration::from_secs(120);
/// How long the lock of a data directory may stay free after our daemon ended. After that no other daemon is expected.
const LOCK_GRACE: Duration = Duration::from_millis(500);
/// How often a daemon is started again because another one, which then ended, still held the data directory.
const MORE_STARTS: u32 = 3;
const POLL: Duration = Duration::from_millis(2);
/// Time before a progress line appears, so that a fast start shows none.
const QUIET_FOR: Duration = Duration::from_millis(200);
/// Most bytes of the log that an error shows.
const LOG_TAIL: u64 = 4096;
const LOG_LINES: usize = 5;
/// If the log is longer than this when the CLI starts a daemon, it is renamed to `daemon.log.1`, which is replaced.
const MAX_LOG: u64 = 16 << 20;

/// Environment variables that a new daemon inherits from the caller that starts it, besides those that git needs to
/// reach remotes.
const KEPT_VARIABLES: [&str; 6] = ["PATH", "HOME", "USER", "LOGNAME", "LANG", "TZ"];
/// Prefixes of further variables that a new daemon inherits.
const KEPT_PREFIXES: [&str; 3] = ["BAY_", "RUST_", "LC_"];

/// Where a daemon has its data and socket, and whether to start it.
#[derive(Debug, Clone)]
pub struct DaemonLocation {
    pub data_dir: PathBuf,
    pub pool: PathBuf,
    pub socket: PathBuf,
    /// Start a daemon if none answers.
    pub autostart: bool,
    /// Print nothing while it starts.
    pub quiet: bool,
}

impl DaemonLocation {
    /// A client of this daemon. Its requests belong to the trace.
    pub(crate) fn client(self, traceparent: Option<Traceparent>) -> Client {
        let socket = self.socket.clone();
        let starter: Option<Arc<dyn StartDaemon>> = if self.autostart { Some(Arc::new(self)) } else { None };
        Client::new(Endpoint { socket, traceparent, starter })
    }
}

#[async_trait]
impl StartDaemon for DaemonLocation {
    async fn start(&self, socket: &Path) -> Result<UnixStream, ApiError> {
        if !rustix::process::geteuid().is_root() {
            return Err(ApiError::new(
                ErrorCode::NotRoot,
                format!("no daemon answers at {}, and starting one needs root", socket.display()),
                "run the same command with sudo once; or set BAY_SOCKET to a daemon you may use",
            ));
        }
        let (child, log_start) = spawn(self)?;
        wait(self, child, log_start).await
    }
}

/// The first descriptor after the standard streams.
const FIRST_OTHER_FD: u32 = 3;

/// Starts the daemon. Returns its process, and the length of the log before.
fn spawn(location: &DaemonLocation) -> Result<(Child, u64), ApiError> {
    let data_dir = &location.data_dir;
    make_private(data_dir).map_err(|e| local(&format!("making {}", data_dir.display()), &e))?;
    let log_path = data_dir.join("daemon.log");
    let log = open_log(&log_path).map_err(|e| local(&format!("opening {}", log_path.display()), &e))?;
    let log_start = log.metadata().map_or(0, |m| m.len());
    let again = log.try_clone().map_err(|e| local("starting the daemon", &e))?;
    let executable = std::env::current_exe().map_err(|e| local("finding the bay executable", &e))?;
    let kept = std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(is_kept));
    bay_sys::descriptors::close_on_exec_from(FIRST_OTHER_FD).map_err(|e| local("starting the daemon", &e))?;
    let child = Command::new(executable)
        .arg("serve")
        .arg("--detached")
        .arg("--data-dir")
        .arg(data_dir)
        .arg("--pool")
        .arg(&location.pool)
        .arg("--socket")
        .arg(&location.socket)
        .env_clear()
        .envs(kept)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(again)
        .spawn()
        .map_err(|e| local("starting the daemon", &e))?;
    Ok((child, log_start))
}

fn is_kept(variable: &str) -> bool {
    KEPT_VARIABLES.contains(&variable)
        || bay_pool::GIT_VARIABLES.contains(&variable)
        || KEPT_PREFIXES.iter().any(|prefix| variable.starts_with(prefix))
}

/// Makes the data directory with access for its owner only. An existing one stays unchanged: the daemon checks it.
fn make_private(data_dir: &Path) -> io::Result<()> {
    if let Some(parent) = data_dir.parent() {
        fs::create_dir_all(parent)?;
    }
    match DirBuilder::new().mode(0o700).create(data_dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && data_dir.is_dir() => Ok(()),
        made => made,
    }
}

fn open_log(path: &Path) -> io::Result<File> {
    if fs::metadata(path).is_ok_and(|log| log.len() > MAX_LOG) {
        fs::rename(path, path.with_extension("log.1"))?;
    }
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

async fn wait(
    location: &DaemonLocation,
    mut child: Child,
    mut log_start: u64,
) -> Result<UnixStream, ApiError> {
    let began = Instant::now();
    let mut meter = Meter::new(location.quiet);
    let mut unlocked_since = None;
    let mut ended = None;
    let mut starts_left = MORE_STARTS;
    loop {
        if let Ok(stream) = UnixStream::connect(&location.socket).await {
            return Ok(stream);
        }
        if ended.is_none() {
            ended = child.try_wait().map_err(|e| local("waiting for the daemon", &e))?;
        }
        if let Some(status) = ended {
            if locked(&location.data_dir) {
                unlocked_since = None;
            } else if unlocked_since.get_or_insert_with(Instant::now).elapsed() > LOCK_GRACE {
                let error = failed(location, log_start, &format!("it ended at once ({status})"));
                if error.code != ErrorCode::DataDirBusy || starts_left == 0 {
                    return Err(error);
                }
                // Another daemon held the lock, and has ended since.
                starts_left -= 1;
                (child, log_start) = spawn(location)?;
                (ended, unlocked_since) = (None, None);
            }
        }
        if began.elapsed() > START_DEADLINE {
            return Err(failed(
                location,
                log_start,
                &format!("it did not answer within {} s", START_DEADLINE.as_secs()),
            ));
        }
        if began.elapsed() > QUIET_FOR {
            let waiting = ended.is_some() && unlocked_since.is_none();
            meter.stage(if waiting {
                "waiting for another daemon to answer or end"
            } else {
                "starting the daemon"
            });
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Whether some process holds the lock of a data directory. Reads the kernel's list of locks, because a test by taking
/// the lock would make a daemon that starts at that moment fail.
fn locked(data_dir: &Path) -> bool {
    let Ok(lock) = fs::metadata(data_dir.join("daemon.lock")) else {
        return false;
    };
    let inode = format!(":{} ", lock.ino());
    fs::read_to_string("/proc/locks").is_ok_and(|locks| locks.lines().any(|line| line.contains(&inode)))
}

fn failed(location: &DaemonLocation, log_start: u64, why: &str) -> ApiError {
    let log = location.data_dir.join("daemon.log");
    let said = last_lines(&log, log_start).unwrap_or_default();
    // If possible, the daemon ends with one of our errors, which is the one to show.
    if let Some(error) = said.iter().rev().find_map(|line| parse_error(line)) {
        let next = said.last().and_then(|line| line.strip_prefix("next: ")).unwrap_or_default();
        return ApiError::new(error.0, format!("the daemon could not start: {}", error.1), next);
    }
    let mut message = format!("the daemon could not be started: {why}");
    if !said.is_empty() {
        message.push_str("; the end of its log: ");
        message.push_str(&said.join(" | "));
    }
    let next = format!("see {}; `bay doctor` shows what this host lacks", log.display());
    ApiError::new(ErrorCode::DaemonUnreachable, message, next)
}

/// `error[code]: message` as [`crate::output::report`] prints it.
fn parse_error(line: &str) -> Option<(ErrorCode, String)> {
    let (code, message) = line.strip_prefix("error[")?.split_once("]: ")?;
    let code = ErrorCode::ALL.iter().find(|known| known.as_str() == code)?;
    Some((*code, message.to_owned()))
}

fn last_lines(path: &Path, start: u64) -> io::Result<Vec<String>> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(start.max(length.saturating_sub(LOG_TAIL))))?;
    let mut bytes = Vec::new();
    file.take(LOG_TAIL).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    Ok(lines[lines.len().saturating_sub(LOG_LINES)..].iter().map(|line| (*line).to_owned()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_daemons_own_error_is_recognised_in_its_log() {
        assert_eq!(
            parse_error("error[pool-damaged]: the pool is short"),
            Some((ErrorCode::PoolDamaged, "the pool is short".to_owned()))
        );
        assert_eq!(parse_error("error[nonsense]: x"), None);
        assert_eq!(parse_error("something else"), None);
    }

    #[test]
    fn only_the_end_of_a_long_log_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("daemon.log");
        let text: String = (0..10_000).map(|n| format!("line {n}\n")).collect();
        fs::write(&path, text).unwrap();
        let lines = last_lines(&path, 0).unwrap();
        assert_eq!(lines.len(), LOG_LINES);
        assert_eq!(lines.last().unwrap(), "line 9999");
        let length = fs::metadata(&path).unwrap().len();
        assert!(last_lines(&path, length).unwrap().is_empty());
    }

    #[test]
    fn a_new_data_directory_is_its_owners_alone() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let data_dir = dir.path().join("lib/workbay");
        for _ in 0..2 {
            make_private(&data_dir).unwrap();
            assert_eq!(fs::metadata(&data_dir).unwrap().permissions().mode() & 0o777, 0o700);
        }
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(make_private(&file).is_err());
    }

    #[test]
    fn a_long_log_is_renamed_when_a_daemon_starts() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("daemon.log");
        let aside = dir.path().join("daemon.log.1");
        open_log(&path).unwrap().set_len(MAX_LOG).unwrap();
        assert_eq!(open_log(&path).unwrap().metadata().unwrap().len(), MAX_LOG);
        assert!(!aside.exists());
        open_log(&path).unwrap().set_len(MAX_LOG + 1).unwrap();
        assert_eq!(open_log(&path).unwrap().metadata().unwrap().len(), 0);
        assert_eq!(fs::metadata(&aside).unwrap().len(), MAX_LOG + 1);
    }

    #[test]
    fn a_lock_is_seen_without_taking_it() {
        let dir = tempfile::tempdir().unwrap();
        let file = File::create(dir.path().join("daemon.lock")).unwrap();
        assert!(!locked(dir.path()));
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
        assert!(locked(dir.path()));
    }
}
