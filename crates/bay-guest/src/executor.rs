//! The one thread on which the guest runs, and the threads beside it for blocking work.

use std::io;
use std::time::Duration;

/// Most threads for files, archives and bulk output.
const BLOCKING_THREADS: usize = 24;
/// How long such a thread waits for more work before it ends.
const BLOCKING_KEEP_ALIVE: Duration = Duration::from_secs(1);
const BLOCKING_STACK: usize = 1 << 20;

/// Runs `main` to its end.
///
/// # Errors
/// If the runtime cannot be made, or `main` fails.
pub(crate) fn run(main: impl Future<Output = io::Result<()>>) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_keep_alive(BLOCKING_KEEP_ALIVE)
        .thread_stack_size(BLOCKING_STACK)
        .build()?;
    let outcome = runtime.block_on(main);
    // A thread may hang in a copy; the end of the process ends it.
    runtime.shutdown_background();
    outcome
}
