//! Work that must not run on the async threads, and work that continues when its caller is gone.

use bay_types::CoreError;

/// Runs blocking work. A panic in it becomes an error and does not end the daemon.
pub(crate) async fn blocking<T, F>(work: F) -> Result<T, CoreError>
where
    T: Send + 'static,
    F: FnOnce() -> Result<T, CoreError> + Send + 'static,
{
    tokio::task::spawn_blocking(work).await.map_err(|e| CoreError::internal(&e))?
}

/// Runs work to its end even if the caller hangs up.
pub(crate) async fn to_the_end<T, F>(work: F) -> Result<T, CoreError>
where
    T: Send + 'static,
    F: Future<Output = Result<T, CoreError>> + Send + 'static,
{
    tokio::spawn(work).await.map_err(|e| CoreError::internal(&e))?
}
