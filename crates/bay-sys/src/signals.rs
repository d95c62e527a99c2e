//! Signals that PID 1 of a bay must live through.

use std::io;

/// Signals that end a process without a core dump unless it handles them, as far as the C library lets one handle them.
const ENDING: [libc::c_int; 11] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGALRM,
    libc::SIGTERM,
    libc::SIGSTKFLT,
    libc::SIGVTALRM,
    libc::SIGPROF,
    libc::SIGIO,
    libc::SIGPWR,
];

/// Gives every signal that could end this process a handler that does nothing.
///
/// The kernel protects PID 1 of a pid namespace from signals of its own namespace, but only when it looks at the main
/// thread with the signal unblocked. While that thread has it blocked (around a clone, inside `pthread_create`) and
/// another thread has not, the signal counts as fatal for the whole process, and the bay's root could end the guest by
/// trying often enough. A handled signal is never fatal. Handlers, unlike ignored signals, are not passed on to programs.
///
/// # Errors
/// What the kernel says; nothing is known to make it refuse.
pub fn withstand() -> io::Result<()> {
    extern "C" fn nothing(_: libc::c_int) {}
    let handler: extern "C" fn(libc::c_int) = nothing;
    for signal in ENDING.into_iter().chain(libc::SIGRTMIN()..=libc::SIGRTMAX()) {
        // SAFETY: an all-zero sigaction is a valid one (no flags, empty mask); the handler touches nothing, so it may run
        // at any point. Needed because the library offers no safe way to set a handler.
        let done = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as libc::sighandler_t;
            action.sa_flags = libc::SA_RESTART;
            libc::sigaction(signal, &raw const action, std::ptr::null_mut())
        };
        if done != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}
