//! How a bay is started, and what its files begin as.

use bay_backend::StartSpec;
use bay_backend::files::{RootFrom, WorkspaceFrom};
use bay_store::BayRow;
use bay_types::CoreError;
use bay_types::bay::{Limits, Source};
use bay_types::checkpoint::Point;

use crate::daemon::Daemon;

/// How a bay is started now: its row, with the present secrets, certificate and SSH settings. A capture of its
/// memory describes the bay in the same way.
pub(crate) async fn start_spec(daemon: &Daemon, row: &BayRow) -> Result<StartSpec, CoreError> {
    let limits = started_with(&row.spec.limits);
    let secrets = daemon.secrets.delivered(row).unwrap_or_else(|error| {
        tracing::error!(bay = %row.name, message = %error.message, "a bay starts without its secrets");
        Vec::new()
    });
    Ok(StartSpec {
        bay: row.id,
        name: row.name.clone(),
        machine_id: row.machine_id.clone(),
        author: row.spec.author.clone(),
        user: row.spec.user.clone(),
        certificate: daemon.egress.certificate(row).await,
        ssh: daemon.egress.ssh(row).await,
        secrets,
        mounts: row.spec.mounts.clone(),
        id_base: row.id_base,
        fork_index: row.forked_from.as_ref().map(|from| from.index),
        limits,
        durability: row.spec.durability,
    })
}

/// The limits in force: a bay without a limit of processes gets the default.
pub(crate) fn started_with(limits: &Limits) -> Limits {
    let mut limits = limits.clone();
    limits.pids.get_or_insert(Limits::DEFAULT_PIDS);
    limits
}

/// What the files of a bay begin as.
#[derive(Debug, Clone)]
pub(crate) struct Beginning {
    pub(crate) root: RootFrom,
    pub(crate) workspace: WorkspaceFrom,
}

/// What was installed when the work in the bay began.
pub(crate) fn environment_of(row: &BayRow) -> RootFrom {
    let copied = row.environment.as_ref().map(|of| Point { bay: of.bay, checkpoint: of.checkpoint });
    copied.map_or(RootFrom::Image(row.image_id), RootFrom::Checkpoint)
}

pub(crate) fn begins_from(row: &BayRow) -> Beginning {
    let forked = row.forked_from.as_ref().map(|from| Point { bay: from.bay, checkpoint: from.checkpoint });
    let copied = row.environment.as_ref().map(|of| Point { bay: of.bay, checkpoint: of.checkpoint });
    let root = forked.or(copied).map_or(RootFrom::Image(row.image_id), RootFrom::Checkpoint);
    let workspace = match (forked, &row.spec.source, &row.origin) {
        (Some(point), _, _) => WorkspaceFrom::Checkpoint { point, state: row.thaw_from.is_some() },
        (None, Source::Kept { workspace }, _) => WorkspaceFrom::Kept { workspace: workspace.clone() },
        (None, _, None) => WorkspaceFrom::Empty,
        (None, _, Some(origin)) => WorkspaceFrom::Checkout {
            repo: origin.repo,
            commit: origin.commit.clone(),
            branch: origin.branch.clone(),
        },
    };
    Beginning { root, workspace }
}
