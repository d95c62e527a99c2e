//! `bay up --from`: a new bay begins with the root filesystem of another bay.
//!
//! Only the root filesystem is copied. Workspace, processes, services, kept output, secrets, policy and the gateway's
//! authority are those of a new bay: unlike a fork, the new bay need not be trusted with what the other one works on.

use std::sync::Arc;

use bay_types::bay::BayCreate;
use bay_types::checkpoint::CheckpointKind;
use bay_types::environment::{Environment, EnvironmentFrom};
use bay_types::principal::Principal;
use bay_types::{CoreError, ErrorCode};

use super::bays::not_deleting;
use super::checkpoints::{self, Wanted};
use crate::authorize::Verb;
use crate::backends::refusal;
use crate::daemon::Daemon;
use crate::registry::BayHandle;

/// The bay whose environment a new bay is to begin with.
#[derive(Debug)]
pub(super) struct Parent {
    handle: Arc<BayHandle>,
    from: EnvironmentFrom,
}

/// Finds the bay that a request names, if it names one. Nothing is done to it yet.
pub(super) fn parent(
    daemon: &Daemon,
    who: &Principal,
    create: &BayCreate,
) -> Result<Option<Parent>, CoreError> {
    let Some(from) = create.environment.clone() else { return Ok(None) };
    let handle = daemon.bay_for(who, Verb::BayFork, &from.bay)?;
    handle.require_driver()?;
    let row = handle.row();
    not_deleting(&row, "copied")?;
    handle.backend.can_keep(&create.limits).map_err(|e| refusal(&e))?;
    match create.backend.as_deref() {
        Some(wanted) if wanted != row.backend.as_str() => Err(CoreError::new(
            ErrorCode::InvalidInput,
            format!(
                "a bay of the backend {wanted} cannot begin with the environment of {}, which {} runs",
                row.name, row.backend
            ),
            format!(
                "leave the backend out, or name {}, or choose a bay of the backend {wanted}",
                row.backend
            ),
        )),
        _ => Ok(Some(Parent { handle, from })),
    }
}

impl Parent {
    /// Refuses a checkpoint that does not exist, before any work.
    pub(super) async fn check(&self, daemon: &Daemon) -> Result<(), CoreError> {
        match self.from.checkpoint {
            Some(name) => checkpoints::find(daemon, &self.handle, name).await.map(drop),
            None => Ok(()),
        }
    }

    /// The new bay gets the image and the backend of this one, so that `replace` and restores fit its files.
    pub(super) fn settle(&self, create: &mut BayCreate) -> bay_types::ImageId {
        let row = self.handle.row();
        create.environment = None;
        create.backend = Some(row.backend.to_string());
        create.image = row.spec.image;
        row.image_id
    }

    /// The checkpoint to begin from. Without a name it is made now.
    pub(super) async fn point(
        &self,
        daemon: &Arc<Daemon>,
        caller: Principal,
    ) -> Result<Environment, CoreError> {
        let checkpoint = match self.from.checkpoint {
            Some(name) => checkpoints::find(daemon, &self.handle, name).await?.name,
            None => {
                let wanted = Wanted {
                    kind: Some(CheckpointKind::Files),
                    ..Wanted::automatic("for the environment of a new bay".to_owned())
                };
                checkpoints::take(daemon, &self.handle, wanted, caller).await?.name
            }
        };
        Ok(Environment { bay: self.handle.id, name: self.handle.name.clone(), checkpoint })
    }
}
