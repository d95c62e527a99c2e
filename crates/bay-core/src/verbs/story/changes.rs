//! What changed in a workspace, for a story. A story compares as `diff` does without options.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bay_diff::Told;
use bay_story::Changes;
use bay_types::CoreError;
use bay_types::diff::{DiffAsk, Part};
use bay_types::principal::Principal;

use super::super::diff::{self, Found};
use crate::background::blocking;
use crate::daemon::Daemon;

/// The differences between where a bay's work began and now, without what the repository ignores. If the caller stops
/// waiting, the comparison ends at the next path.
pub(super) async fn since_the_beginning(
    daemon: &Daemon,
    who: &Principal,
    bay: &str,
) -> Result<Changes, CoreError> {
    // Without a moment, a comparison begins where the work began.
    let ask = DiffAsk { part: Part::Workspace, patch: false, ..DiffAsk::default() };
    let comparison = diff::prepare(daemon, who, bay, &ask).await?;
    let waits = Waits::default();
    let still = Arc::clone(&waits.0);
    blocking(move || {
        let mut changes = Changes::default();
        let options = diff::shown(Part::Workspace, false);
        let summary = diff::run(&comparison, &options, &mut |found| {
            if let Found::Told(Told::Entry(entry)) = found {
                changes.push(&entry);
            }
            if still.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        changes.left_out(summary.ignored);
        Ok(changes)
    })
    .await
}

/// Sets its mark when the caller stops waiting.
#[derive(Default)]
struct Waits(Arc<AtomicBool>);

impl Drop for Waits {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
