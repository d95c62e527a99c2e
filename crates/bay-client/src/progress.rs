//! Progress of long operations, for the caller that waits for them.

use bay_types::progress::Progress;

/// Shows the progress of a long operation to a person, or ignores it.
pub trait ShowProgress: Send {
    fn show(&mut self, progress: &Progress);

    /// The operation has ended: removes the progress line, so that the next output begins on its own line.
    fn clear(&mut self);
}

/// Shows nothing: for programs and tests.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl ShowProgress for Silent {
    fn show(&mut self, _progress: &Progress) {}

    fn clear(&mut self) {}
}
