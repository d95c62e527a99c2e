//! What changed in a workspace, for a story. The only place that decides with which moment a story compares.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bay_diff::Told;
use bay_story::Changes;
use bay_types::CoreError;
use bay_types::diff::{DiffAsk, Moment, Part};
use bay_types::principal::Principal;

use super::super::diff::{self, Found};
use crate::background::blocking;
use crate::daemon::Daemon;

/// The differences between the beginning of a bay's workspace and now. If the caller stops waiting, the comparison ends
/// at the next path.
pub(super) async fn since_the_beginning(
    daemon: &Daemon,
    who: &Principal,
    bay: &str,
) -> Result<Changes, CoreError> {
    let ask =
        DiffAsk { from: Some(Moment::Base), to: Some(Moment::Now), part: Part::Workspace, patch: false };
    let comparison = diff::prepare(daemon, who, bay, &ask).await?;
    let waits = Waits::default();
    let still = Arc::clone(&waits.0);
    blocking(move || {
        let mut changes = Changes::default();
        let options = diff::shown(Part::Workspace, false);
        diff::run(&comparison, &options, &mut |found| {
            if let Found::Told(Told::Entry(entry)) = found {
                changes.push(&entry);
            }
            if still.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
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
