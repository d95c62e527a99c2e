//! The asynchronous runtime of every verb except `bay serve`.

use crate::failure::Outcome;

/// One thread is all a verb needs, and starting it is all the time it takes.
pub(crate) fn block_on(verb: impl Future<Output = Outcome>) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| bay_client::local("starting up", &error))?;
    let outcome = runtime.block_on(verb);
    // A thread may still wait for standard input; nobody needs what it would read.
    runtime.shutdown_background();
    outcome
}
