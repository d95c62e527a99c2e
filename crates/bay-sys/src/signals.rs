//! What PID 1 of a bay must live through: signals, and a debugger that dies while it uses the main thread.

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

/// Does the work of a process in a thread of its own, and keeps the main thread free of any.
///
/// Whoever looks into a process from outside makes its main thread run code, and keeps that thread's own registers to
/// himself. When he is killed in between they are lost, and the thread runs into the breakpoint behind that code. Here
/// the main thread takes that as its new place to wait, so nothing is lost with it.
///
/// # Errors
/// When the handler cannot be set or the thread not be started. Otherwise this does not return: the process ends with
/// the work, with its exit code.
pub fn work_apart(work: impl FnOnce() -> i32 + Send + 'static) -> io::Result<std::convert::Infallible> {
    extern "C" fn at_breakpoint(_: libc::c_int, about: *mut libc::siginfo_t, _: *mut libc::c_void) {
        // SAFETY: the kernel passes a valid siginfo to a handler that asks for one; the calls may be made in a handler.
        unsafe {
            // What a process has sent is no breakpoint.
            if (*about).si_code <= 0 {
                return;
            }
            // A thread that had work has lost it.
            if libc::gettid() != libc::getpid() {
                libc::_exit(128 + libc::SIGTRAP);
            }
            // It may come again while this waits.
            let mut breakpoint: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut breakpoint);
            libc::sigaddset(&raw mut breakpoint, libc::SIGTRAP);
            libc::sigprocmask(libc::SIG_UNBLOCK, &raw const breakpoint, std::ptr::null_mut());
            wait_for_ever()
        }
    }
    // SAFETY: an all-zero sigaction is a valid one; the handler makes only calls that are allowed in one. Needed because
    // the library offers no safe way to set a handler.
    let done = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = at_breakpoint as extern "C" fn(_, _, _) as libc::sighandler_t;
        // Blocked while the handler runs: the stack would not hold what a flood of them leaves on it.
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
        // SAFETY: touches no memory.
        unsafe { libc::pause() };
    }
}
