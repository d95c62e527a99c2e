//! The services of the host that a bay may use. Only an operator opens them: no rule and no bay does.
//!
//! The ports are part of the bay and of its policy in force, so a change applies at once, also to open connections.

use std::sync::Arc;

use bay_store::Draft;
use bay_types::CoreError;
use bay_types::bay::BayView;
use bay_types::event::bay::BayReachSet;
use bay_types::principal::Principal;
use bay_types::reach::ReachSet;

use super::bays::not_deleting;
use crate::authorize::Verb;
use crate::background::to_the_end;
use crate::daemon::Daemon;
use crate::registry::BayHandle;
use crate::validate;

/// Opens exactly these ports of the host's loopback to the bay.
pub async fn set(
    daemon: &Arc<Daemon>,
    who: &Principal,
    bay: &str,
    wanted: ReachSet,
) -> Result<BayView, CoreError> {
    let handle = daemon.bay_for(who, Verb::ReachSet, bay)?;
    let ports = validate::reach(&wanted.ports)?;
    to_the_end(change(Arc::clone(daemon), handle, ports, *who)).await
}

async fn change(
    daemon: Arc<Daemon>,
    handle: Arc<BayHandle>,
    ports: Vec<u16>,
    caller: Principal,
) -> Result<BayView, CoreError> {
    not_deleting(&handle.row(), "given services of the host")?;
    let event = Draft::of(BayReachSet { ports: ports.clone(), by: caller.by() });
    handle.update(&daemon.store, Some(event), |row| row.spec.reach = ports).await?;
    daemon.policies.touch(handle.id);
    Ok(daemon.view(&handle))
}
