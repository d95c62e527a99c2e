//! The report to the daemon that work left a bay.

use bay_client::{Client, bay_path};
use bay_types::ApiError;
use bay_types::bay::BayView;
use bay_types::work::{WorkReport, WorkRoute};

use super::review::Leaving;
use super::{Kind, Work};

/// Where the work arrived.
#[derive(Debug)]
pub(crate) struct Arrival<'a> {
    pub(crate) route: WorkRoute,
    pub(crate) branch: &'a str,
    pub(crate) place: Option<&'a str>,
}

/// Reports that the work arrived. The work has left already, so a failure is a note and not an error.
pub(crate) async fn report(
    client: &mut Client,
    bay: &BayView,
    work: &Work,
    leaving: &Leaving,
    arrival: &Arrival<'_>,
) {
    let report = WorkReport {
        route: arrival.route,
        branch: arrival.branch.to_owned(),
        place: arrival.place.map(str::to_owned),
        commit: work.tip.clone(),
        base: work.base.clone(),
        commits: leaving.commits,
        files: leaving.files,
        uncommitted: work.kind != Kind::Committed,
        execs: work.execs.iter().copied().take(WorkReport::MAX_EXECS).collect(),
    };
    let sent: Result<(), ApiError> = client.post(&bay_path(&bay.id.to_string(), "/work"), &report).await;
    if let Err(error) = sent {
        crate::output::talk(&format!(
            "note: the timeline of {} does not have that its work left, because the daemon could not record it: {}",
            bay.name,
            bay_text::escape::one_line(&error.message)
        ));
    }
}
