//! The verbs on workspaces that outlived their bays.

use std::sync::Arc;

use bay_store::Draft;
use bay_types::bay::{Source, WorkspaceView};
use bay_types::event::pool::WorkspaceRemoved;
use bay_types::principal::Principal;
use bay_types::{Action, CoreError, ErrorCode, Hint};

use crate::authorize::Verb;
use crate::background::to_the_end;
use crate::daemon::Daemon;

pub async fn list(daemon: &Daemon, who: &Principal) -> Result<Vec<WorkspaceView>, CoreError> {
    daemon.permit(who, Verb::WorkspaceList)?;
    kept(daemon).await
}

pub async fn show(daemon: &Daemon, who: &Principal, given: &str) -> Result<WorkspaceView, CoreError> {
    daemon.permit(who, Verb::WorkspaceShow)?;
    find(daemon, given).await
}

/// Deletes a kept workspace.
pub async fn remove(daemon: &Arc<Daemon>, who: &Principal, given: &str) -> Result<(), CoreError> {
    daemon.permit(who, Verb::WorkspaceDelete)?;
    let (daemon, who, given) = (Arc::clone(daemon), *who, given.to_owned());
    to_the_end(async move { remove_kept(&daemon, given, who).await }).await
}

async fn kept(daemon: &Daemon) -> Result<Vec<WorkspaceView>, CoreError> {
    daemon.with_pool(bay_pool::Pool::kept_list).await
}

/// A workspace by its name, or by the name of its bay if only one of that bay is kept.
pub(super) async fn find(daemon: &Daemon, given: &str) -> Result<WorkspaceView, CoreError> {
    pick(kept(daemon).await?, given)
}

fn pick(kept: Vec<WorkspaceView>, given: &str) -> Result<WorkspaceView, CoreError> {
    if let Some(exact) = kept.iter().find(|kept| kept.name == given) {
        return Ok(exact.clone());
    }
    let shown: String = given.chars().take(100).collect();
    let missing = |message: String| {
        let hint = Hint::new("{} lists the kept workspaces", [Action::ListWorkspaces]);
        CoreError::new(ErrorCode::WorkspaceNotFound, message, hint)
    };
    let mut of_bay = kept.into_iter().filter(|kept| kept.bay == given);
    match (of_bay.next(), of_bay.next()) {
        (Some(only), None) => Ok(only),
        (Some(_), Some(_)) => Err(missing(format!("more than one workspace of the bay {shown:?} is kept"))),
        (None, _) => Err(missing(format!("no workspace {shown:?} is kept"))),
    }
}

async fn remove_kept(daemon: &Daemon, given: String, caller: Principal) -> Result<(), CoreError> {
    let _excluded = daemon.alone().await?;
    let kept = find(daemon, &given).await?;
    let waits = daemon.bays.list().into_iter().find(|handle| {
        let row = handle.row();
        !row.disk_ready && matches!(&row.spec.source, Source::Kept { workspace } if *workspace == kept.name)
    });
    if let Some(bay) = waits {
        return Err(CoreError::new(
            ErrorCode::BayState,
            format!("the bay {} is being made from the workspace {}", bay.name, kept.name),
            Hint::new(
                "repeat the command when the bay is made, or remove the bay first: {}",
                [Action::RemoveBays(vec![bay.name.to_string()])],
            ),
        ));
    }
    let event = Draft::of(WorkspaceRemoved { workspace: kept.name.clone(), by: caller.by() });
    daemon.store.event_append(None, &event).await.map_err(|e| e.to_api())?;
    daemon.with_pool(move |pool| pool.kept_remove(&kept.name)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kept_workspace_is_found_by_its_name_or_by_a_bay_that_left_only_one() {
        let kept = |bay: &str, stamp: &str| WorkspaceView {
            name: format!("{bay}-{stamp}"),
            bay: bay.to_owned(),
            kept_at: jiff::Timestamp::UNIX_EPOCH,
            path: "/p".into(),
            bytes: 0,
        };
        let all = vec![kept("web", "1"), kept("web", "2"), kept("api", "1")];
        let found = |given: &str| pick(all.clone(), given).map(|kept| kept.name).map_err(|e| e.code);
        assert_eq!(found("web-2"), Ok("web-2".to_owned()));
        assert_eq!(found("api"), Ok("api-1".to_owned()));
        for unclear in ["web", "we", ""] {
            assert_eq!(found(unclear), Err(ErrorCode::WorkspaceNotFound), "{unclear}");
        }
    }
}
