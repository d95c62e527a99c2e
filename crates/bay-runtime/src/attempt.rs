//! Making one of each namespace, to see whether this host lets us: `bay __runtime --attempt-namespaces`.
//!
//! A process of its own, because it must be single-threaded, and the same calls that a bay's start makes, because a
//! tool of the host's (there are several of one name) would tell about itself.

use std::io::{Read, Write};
use std::process::ExitCode;

use bay_sys::namespace::{flags, leave_namespaces};

/// The argument that asks for it.
pub const ATTEMPT_NAMESPACES: &str = "--attempt-namespaces";
/// What is printed once they are made. The process then stays in them until its standard input ends.
pub const ATTEMPT_MADE: &str = "made\n";

pub(crate) fn attempt_namespaces() -> ExitCode {
    let all = flags::USER | flags::PID | flags::NET | flags::MOUNT | flags::UTS | flags::IPC | flags::CGROUP;
    if let Err(error) = leave_namespaces(all) {
        eprintln!("{error}");
        return ExitCode::FAILURE;
    }
    let mut out = std::io::stdout();
    if out.write_all(ATTEMPT_MADE.as_bytes()).and_then(|()| out.flush()).is_ok() {
        // Whoever asked may have gone; that ends it too.
        let _ = std::io::stdin().read(&mut [0]);
    }
    ExitCode::SUCCESS
}
