//! Work off the async threads, and work that does not end with its caller.

use bay_types::CoreError;

/// Runs blocking work; a panic in it becomes an error of ours, not the end of the daemon.
pub(crate) async fn blocking<T, F>(work: F) -> Result<T, CoreError>
where
    T: Send + 'static,
    F: FnOnce() -> Result<T, CoreError> + Send + 'static,
{
    tokio::task::spawn_blocking(work).await.map_err(|e| CoreError::internal(&e))?
}

/// Runs work to its end even when the caller hangs up in the middle.
pub(crate) async fn to_the_end<T, F>(work: F) -> Result<T, CoreError>
where
    T: Send + 'static,
    F: Future<Output = Result<T, CoreError>> + Send + 'static,
{
    tokio::spawn(work).await.map_err(|e| CoreError::internal(&e))?
}
