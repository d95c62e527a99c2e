//! Progress of long work, for a caller that may be slow or gone. Progress is dropped rather than waited for.

use std::time::{Duration, Instant};

use bay_types::progress::Progress;
use tokio::sync::mpsc;

/// Values on their way to the caller.
pub(crate) const IN_FLIGHT: usize = 64;
/// The shortest interval between two reports of the same stage.
pub(crate) const REPORT_EVERY: Duration = Duration::from_millis(50);

/// Reports the progress of work to its caller.
#[derive(Debug)]
pub struct ProgressReporter {
    to: mpsc::Sender<Progress>,
    stage: String,
    told: Option<Instant>,
}

impl ProgressReporter {
    /// A reporter, and the channel that its caller reads.
    pub fn new() -> (Self, mpsc::Receiver<Progress>) {
        let (to, from) = mpsc::channel(IN_FLIGHT);
        (Self { to, stage: String::new(), told: None }, from)
    }

    /// Reports progress. Cheap enough to be called for every file.
    pub fn progress(&mut self, progress: Progress) {
        let new_stage = progress.stage != self.stage;
        if !new_stage && self.told.is_some_and(|at| at.elapsed() < REPORT_EVERY) {
            return;
        }
        if new_stage {
            self.stage.clone_from(&progress.stage);
        }
        self.told = Some(Instant::now());
        let _ = self.to.try_send(progress);
    }

    /// Whether the caller still reads. Most work continues in any case.
    pub fn has_reader(&self) -> bool {
        !self.to.is_closed()
    }

    pub fn stage(&mut self, stage: &str) {
        self.progress(Progress { stage: stage.to_owned(), ..Progress::default() });
    }
}
