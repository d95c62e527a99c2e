//! The asynchronous runtime of the verbs. A daemon in this process has one of its own.

use crate::failure::Outcome;

/// One thread is enough for a verb, and starts fastest.
pub(crate) fn block_on(verb: impl Future<Output = Outcome>) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| bay_client::local("starting up", &error))?;
    let outcome = runtime.block_on(verb);
    // A thread may still wait for standard input, whose content is no longer needed.
    runtime.shutdown_background();
    outcome
}
