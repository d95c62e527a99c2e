//! Listening sockets of a running bay, with the commands and services that they belong to.

use std::collections::HashMap;

use bay_types::inside::Port;
use bay_types::principal::Principal;
use bay_types::service::ServiceName;
use bay_types::{CoreError, ExecId};
use bytes::Bytes;
use http::Method;

use super::{execs, services};
use crate::authorize::Verb;
use crate::channel::{ANSWER_WITHIN, plain_text};
use crate::daemon::Daemon;

/// The most listening sockets that are passed on. Workbay's guest reports no more. The list of a hostile one is
/// cut.
const MAX_PORTS: usize = 1024;

/// The guest's list, with the numbers and names of commands and services.
pub async fn list(daemon: &Daemon, who: &Principal, bay: &str) -> Result<Vec<Port>, CoreError> {
    let handle = daemon.bay_for(who, Verb::PortList, bay)?;
    execs::must_run(&handle)?;
    let mut ports: Vec<Port> =
        handle.guest.json(Method::GET, "/v1/ports", Bytes::new(), ANSWER_WITHIN).await?;
    ports.truncate(MAX_PORTS);
    let rows = daemon.store.exec_list(handle.id).await.map_err(|e| e.to_api())?;
    let numbers: HashMap<ExecId, u64> = rows.iter().map(|row| (row.id, row.number)).collect();
    for port in &mut ports {
        port.exec_number = port.exec.and_then(|id| numbers.get(&id).copied());
        port.process = port.process.as_deref().map(plain_text);
        port.service = None;
    }
    if ports.iter().any(|port| port.exec.is_some() && port.exec_number.is_none()) {
        // Runs of services are execs that only the guest knows. Without their names, the list is still useful.
        let services = services::views(daemon, &handle).await.unwrap_or_default();
        let runs: HashMap<ExecId, &ServiceName> =
            services.iter().flat_map(|one| one.runs.iter().map(|run| (run.exec, &one.name))).collect();
        for port in &mut ports {
            port.service = port.exec.and_then(|id| runs.get(&id)).map(|name| (*name).clone());
        }
    }
    Ok(ports)
}
