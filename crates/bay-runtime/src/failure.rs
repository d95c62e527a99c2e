//! The one error of the helper: the step, what it tried, and what the kernel reported.

use std::io;

#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub struct Failure {
    pub step: &'static str,
    pub what: String,
    #[source]
    pub source: io::Error,
}

impl Failure {
    pub(crate) fn new(step: &'static str, what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self { step, what: what.into(), source: source.into() }
    }
}

/// Adds the step and what was tried to the error of a system call.
pub(crate) trait Try<T> {
    fn at(self, step: &'static str, what: impl FnOnce() -> String) -> Result<T, Failure>;
}

impl<T, E: Into<io::Error>> Try<T> for Result<T, E> {
    fn at(self, step: &'static str, what: impl FnOnce() -> String) -> Result<T, Failure> {
        self.map_err(|error| Failure::new(step, what(), error))
    }
}
