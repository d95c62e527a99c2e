//! The `bay` executable: the CLI, the daemon, the runtime helper and PID 1 of every bay in one file.
//!
//! ```text
//!  bay __guest, bay __runtime ──► multicall: no arguments parsed, no threads, no runtime started
//!  bay __load ──────────────────► multicall: the load generator of `bay bench`
//!  bay-ctl, inside a bay ───────► bay_cli::bay_ctl: asks that bay's guest
//!  bay serve ───────────────────► serve: the daemon
//!  any other verb ──────────────► bay_cli: mostly a client of the daemon
//! ```
//!
//! It only joins the parts: the CLI does not link the daemon, so a change in one does not rebuild the other.
#![forbid(unsafe_code)]

mod multicall;
mod serve;

use std::process::ExitCode;

use bay_cli::DaemonInThisExecutable;

fn main() -> ExitCode {
    multicall::dispatch().unwrap_or_else(|| {
        bay_cli::run(&DaemonInThisExecutable { serve: serve::serve, look_at_keys: bay_daemon::look_at_keys })
    })
}
