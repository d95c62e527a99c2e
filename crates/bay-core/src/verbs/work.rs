//! Work that a client took out of a bay. The client packs, checks and delivers it; the daemon records what the client
//! reports.

use bay_store::Draft;
use bay_types::CoreError;
use bay_types::event::work::WorkLeft;
use bay_types::principal::Principal;
use bay_types::work::WorkReport;

use crate::authorize::Verb;
use crate::daemon::Daemon;

/// Records that work left a bay.
pub async fn report(
    daemon: &Daemon,
    who: &Principal,
    bay: &str,
    report: WorkReport,
) -> Result<(), CoreError> {
    let handle = daemon.bay_for(who, Verb::WorkReport, bay)?;
    report.check()?;
    let event = Draft::of(WorkLeft {
        route: report.route.into(),
        branch: report.branch,
        place: report.place,
        commit: report.commit,
        base: report.base,
        commits: report.commits,
        files: report.files,
        uncommitted: report.uncommitted,
        execs: report.execs.into_iter().map(Into::into).collect(),
        by: who.by(),
    });
    daemon.store.event_append(Some(handle.id), &event).await.map(drop).map_err(|e| e.to_api())
}
