//! Protects PID 1 of a bay from signals, and from a debugger that dies while it uses the main thread.

use std::io;

/// Signals that end a process without a core dump unless it handles them, and that the C library allows to handle.
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

/// Gives the signals in `ENDING`, and all real-time signals, a handler that does nothing.
///
/// The kernel protects PID 1 of a pid namespace from signals of its own namespace, but only if the main thread does not block
/// the signal. While the main thread blocks it (around a clone, inside `pthread_create`) and another thread does not, the
/// signal counts as fatal for the whole process, and the bay's root could end the guest by trying often enough. A handled
/// signal is never fatal. Unlike ignored signals, handlers are not inherited by programs.
///
/// # Errors
/// The error of the kernel; no reason for one is known.
pub fn handle_ending_signals() -> io::Result<()> {
    extern "C" fn nothing(_: libc::c_int) {}
    let handler: extern "C" fn(libc::c_int) = nothing;
    for signal in ENDING.into_iter().chain(libc::SIGRTMIN()..=libc::SIGRTMAX()) {
        // SAFETY: an all-zero sigaction is a valid one (no flags, empty mask); the handler accesses nothing, so it may
        // run at any point. Needed because the library offers no safe way to set a handler.
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

/// Does the work of a process in a thread of its own, so that the main thread has none.
///
/// A debugger such as CRIU makes the main thread of a process run code, and keeps the thread's own registers in its memory. If
/// the debugger is killed meanwhile, the registers are lost, and the thread runs into the breakpoint after that code. Here the
/// main thread then waits in the breakpoint's handler, so nothing is lost.
///
/// # Errors
/// If the handler cannot be set or the thread cannot be started. Otherwise this does not return: the process ends with the
/// work, with its exit code.
pub fn run_in_worker_thread(
    work: impl FnOnce() -> i32 + Send + 'static,
) -> io::Result<std::convert::Infallible> {
    extern "C" fn at_breakpoint(_: libc::c_int, about: *mut libc::siginfo_t, _: *mut libc::c_void) {
        // SAFETY: the kernel passes a valid siginfo to a handler that requests one; the calls are allowed in a handler.
        unsafe {
            // A signal that a process sent is no breakpoint.
            if (*about).si_code <= 0 {
                return;
            }
            // A thread other than the main one had work, which is lost.
            if libc::gettid() != libc::getpid() {
                libc::_exit(128 + libc::SIGTRAP);
            }
            // Another breakpoint signal may come while this waits.
            let mut breakpoint: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut breakpoint);
            libc::sigaddset(&raw mut breakpoint, libc::SIGTRAP);
            libc::sigprocmask(libc::SIG_UNBLOCK, &raw const breakpoint, std::ptr::null_mut());
            wait_for_ever()
        }
    }
    // SAFETY: an all-zero sigaction is a valid one; the handler makes only calls that are allowed in one. Needed
    // because the library offers no safe way to set a handler.
    let done = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = at_breakpoint as extern "C" fn(_, _, _) as libc::sighandler_t;
        // Blocked while the handler runs: otherwise many signals could overflow the stack.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
        libc::sigaction(libc::SIGTRAP, &raw const action, std::ptr::null_mut())
    };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    #[allow(clippy::disallowed_methods, reason = "the main thread may be in no state to be told of the end")]
    let whole = move || std::process::exit(work());
    let _detached = std::thread::Builder::new().name("work".to_owned()).spawn(whole)?;
    wait_for_ever()
}

fn wait_for_ever() -> ! {
    loop {
        // SAFETY: accesses no memory.
        unsafe { libc::pause() };
    }
}
