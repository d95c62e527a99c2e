//! How far long work is, for a caller that may be slow or gone: progress is dropped rather than waited for.

use std::time::{Duration, Instant};

use bay_types::progress::Progress;
use tokio::sync::mpsc;

/// Values on their way to the caller.
pub(crate) const IN_FLIGHT: usize = 64;
/// The same stage is reported at most this often.
pub(crate) const TELL_EVERY: Duration = Duration::from_millis(50);

/// Tells a caller how far the work is.
#[derive(Debug)]
pub struct Teller {
    to: mpsc::Sender<Progress>,
    stage: String,
    told: Option<Instant>,
}

impl Teller {
    /// A teller, and where its caller reads.
    pub fn new() -> (Self, mpsc::Receiver<Progress>) {
        let (to, from) = mpsc::channel(IN_FLIGHT);
        (Self { to, stage: String::new(), told: None }, from)
    }

    /// Cheap enough to be called for every file.
    pub fn progress(&mut self, progress: Progress) {
        let new_stage = progress.stage != self.stage;
        if !new_stage && self.told.is_some_and(|at| at.elapsed() < TELL_EVERY) {
            return;
        }
        if new_stage {
            self.stage.clone_from(&progress.stage);
        }
        self.told = Some(Instant::now());
        let _ = self.to.try_send(progress);
    }

    /// Whether anybody still listens. Most work goes to its end all the same.
    pub fn is_heard(&self) -> bool {
        !self.to.is_closed()
    }

    pub fn stage(&mut self, stage: &str) {
        self.progress(Progress { stage: stage.to_owned(), ..Progress::default() });
    }
}
