//! Progress of long work, for the caller that waits for it.

use bay_types::progress::Progress;

/// Shows the progress of long work to a person, or ignores it.
pub trait ShowProgress: Send {
    fn show(&mut self, progress: &Progress);

    /// The work is over: what is printed next must stand on a clean line.
    fn clear(&mut self);
}

/// Shows nothing: for programs and tests.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl ShowProgress for Silent {
    fn show(&mut self, _progress: &Progress) {}

    fn clear(&mut self) {}
}
