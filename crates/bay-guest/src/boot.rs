//! How PID 1 begins: it takes over the descriptors or the directory that the runtime helper left, prepares the root
//! filesystem, and serves until the bay ends.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use bay_types::guest::boot as shared;
use bay_types::guest::{GuestConfig, STATE_DIR, fd};

use crate::execs::Bounds;
use crate::log::{self, Log};
use crate::primitives::Config;
use crate::{executor, root_files, server};

/// Longest configuration that is read. The files of many secrets are in it.
const MAX_CONFIG: u64 = 64 << 20;

/// How PID 1 finds its configuration and the socket it listens on.
type Configure = fn() -> io::Result<(Config, UnixListener)>;

/// PID 1 of a bay, from its beginning to its end.
pub(crate) fn run(configure: Configure) -> ExitCode {
    let begun = bay_sys::signals::handle_ending_signals()
        .and_then(|()| bay_sys::signals::run_in_worker_thread(move || as_first_process(configure)));
    let Err(error) = begun;
    log::log_failed_start(&error);
    ExitCode::FAILURE
}

fn as_first_process(configure: Configure) -> i32 {
    let outcome = configure().and_then(|(config, listener)| {
        prepare(&config);
        serve(config, listener)
    });
    match outcome {
        Ok(()) => 0,
        Err(error) => {
            // Nobody reads PID 1's standard error; the helper sees that the socket closes.
            log::log_failed_start(&error);
            1
        }
    }
}

/// Writes the files that a bay has whatever its image is. The guest's log names each file that cannot be written.
pub fn prepare(config: &Config) {
    let log = Log::open(&config.state_dir);
    root_files::prepare(&config.guest, &config.root, &config.state_dir, &log);
}

/// Serves until the daemon has asked for a shutdown and that is over.
///
/// # Errors
/// If the socket or the state directory cannot be used at all.
pub fn serve(config: Config, listener: UnixListener) -> io::Result<()> {
    executor::run(server::serve(config, listener))
}

/// The configuration of a bay's own guest, from the descriptors that the runtime helper left.
pub(crate) fn from_descriptors() -> io::Result<(Config, UnixListener)> {
    let listener = UnixListener::from(bay_sys::descriptors::inherited_fd(fd::LISTENER)?);
    let cgroup = bay_sys::descriptors::inherited_fd(fd::EXEC_CGROUP).ok().filter(is_cgroup);
    let mut text = Vec::new();
    File::from(bay_sys::descriptors::inherited_fd(fd::CONFIG)?).take(MAX_CONFIG).read_to_end(&mut text)?;
    // `inherited_fd` duplicates a descriptor. Left open, these numbers would keep the socket and the group in use.
    for number in [fd::LISTENER, fd::EXEC_CGROUP, fd::CONFIG] {
        let _ = bay_sys::descriptors::close_inherited(number);
    }
    Ok((config_of_bay(serde_json::from_slice(&text)?, cgroup), listener))
}

/// The configuration of a guest in a sandbox, from the directory that the runtime helper shares with it until it listens.
/// The kernel of the sandbox has no groups to make leaves in.
pub(crate) fn from_shared_directory() -> io::Result<(Config, UnixListener)> {
    // Root in the bay could trace PID 1 otherwise: its executable is not hidden from it here.
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)?;
    let directory = Path::new(shared::SHARED);
    let mut text = Vec::new();
    File::open(directory.join(shared::CONFIG))?.take(MAX_CONFIG).read_to_end(&mut text)?;
    let guest: GuestConfig = serde_json::from_slice(&text)?;
    let listener = UnixListener::bind(directory.join(shared::SOCKET))?;
    File::create_new(directory.join(shared::LISTENS))?;
    Ok((config_of_bay(guest, None), listener))
}

fn config_of_bay(guest: GuestConfig, cgroup: Option<OwnedFd>) -> Config {
    Config {
        guest,
        cgroup,
        state_dir: PathBuf::from(STATE_DIR),
        root: PathBuf::from("/"),
        bounds: Bounds::default(),
    }
}

fn is_cgroup(fd: &OwnedFd) -> bool {
    const CGROUP2_SUPER_MAGIC: i64 = 0x6367_7270;
    rustix::fs::fstatfs(fd).is_ok_and(|s| s.f_type == CGROUP2_SUPER_MAGIC)
}
