//! What is wrong with a policy file, and at which line.

use std::fmt;

use serde::Serialize;

/// One mistake in a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
    pub what: String,
    pub why: String,
    pub next: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, column, what, why, next } = self;
        write!(f, "{file}:{line}:{column}: {what}: {why}; {next}")
    }
}

/// The mistakes that were found in a file, up to [`MAX_PROBLEMS`](crate::parse::MAX_PROBLEMS). A file with a mistake
/// has no effect at all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Problems(pub Vec<Problem>);

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, problem) in self.0.iter().enumerate() {
            write!(f, "{}{problem}", if at == 0 { "" } else { "\n" })?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}
