//! Makes one namespace of each kind but time, to find out whether this host allows it: `bay __runtime
//! --attempt-namespaces`.
//!
//! It is a process of its own because it must be single-threaded. It needs no tool of the host, which might behave
//! differently (several have the same name).

use std::io::{Read, Write};
use std::process::ExitCode;

use bay_sys::namespace::{flags, leave_namespaces};

/// The argument that requests it.
pub const ATTEMPT_NAMESPACES: &str = "--attempt-namespaces";
/// Printed when the namespaces are made. The process then stays in them until its standard input ends.
pub const ATTEMPT_MADE: &str = "made\n";

pub(crate) fn attempt_namespaces() -> ExitCode {
    let all = flags::USER | flags::PID | flags::NET | flags::MOUNT | flags::UTS | flags::IPC | flags::CGROUP;
    if let Err(error) = leave_namespaces(all) {
        eprintln!("{error}");
        return ExitCode::FAILURE;
    }
    let mut out = std::io::stdout();
    if out.write_all(ATTEMPT_MADE.as_bytes()).and_then(|()| out.flush()).is_ok() {
        // An error means that the parent is gone, which also ends the wait.
        let _ = std::io::stdin().read(&mut [0]);
    }
    ExitCode::SUCCESS
}
