//! Which exec belongs to a process id or tag of the interface.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bay_types::ExecId;
use serde::{Deserialize, Serialize};

use super::connect::lenient;
use super::fault::{Fault, Kind, Result};
use crate::execs::Exec;

/// For how long after its end a process is still found.
const KEPT: Duration = Duration::from_secs(30);

/// What a client asked to run, as lists return it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ProcessConfig {
    #[serde(default, deserialize_with = "lenient")]
    pub(super) cmd: String,
    #[serde(default, deserialize_with = "lenient")]
    pub(super) args: Vec<String>,
    #[serde(default, deserialize_with = "lenient")]
    pub(super) envs: HashMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) cwd: Option<String>,
}

/// A process, by its id or by the tag with which it was started.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Selector {
    #[serde(default)]
    pid: Option<u32>,
    #[serde(default)]
    tag: Option<String>,
}

/// A process that was started through this interface.
#[derive(Debug, Clone)]
pub(super) struct Process {
    pub(super) id: ExecId,
    pub(super) pid: i32,
    pub(super) tag: Option<String>,
    pub(super) config: ProcessConfig,
    pub(super) pty: bool,
    pub(super) ended: bool,
}

#[derive(Debug, Serialize)]
pub(super) struct ProcessInfo {
    config: ProcessConfig,
    pid: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    tag: Option<String>,
}

/// All processes by process id. If the kernel reuses an id, it means the later process.
#[derive(Debug, Default)]
pub(super) struct Processes(Mutex<HashMap<i32, Process>>);

impl Processes {
    fn lock(&self) -> MutexGuard<'_, HashMap<i32, Process>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers a process until some time after its end.
    pub(super) fn add(self: &Arc<Self>, process: Process, exec: &Exec) {
        let (pid, id) = (process.pid, process.id);
        self.lock().insert(pid, process);
        let processes = Arc::clone(self);
        let mut life = exec.life.subscribe();
        tokio::spawn(async move {
            // An exec that is gone without an end has ended as well.
            let _ = life.wait_for(|life| life.ended.is_some()).await;
            if let Some(process) = processes.lock().get_mut(&pid).filter(|p| p.id == id) {
                process.ended = true;
            }
            tokio::time::sleep(KEPT).await;
            let mut all = processes.lock();
            if all.get(&pid).is_some_and(|p| p.id == id) {
                all.remove(&pid);
            }
        });
    }

    /// A process that runs, or that ended recently.
    pub(super) fn find(&self, selector: Option<&Selector>) -> Result<Process> {
        let all = self.lock();
        let (found, what) = match selector {
            Some(Selector { pid: Some(pid), .. }) => {
                let found = i32::try_from(*pid).ok().and_then(|pid| all.get(&pid));
                (found, format!("with the process id {pid}"))
            }
            Some(Selector { tag: Some(tag), .. }) => {
                let mut tagged = all.values().filter(|p| p.tag.as_ref() == Some(tag));
                // A running process takes precedence over one that ended.
                let found = tagged.clone().find(|p| !p.ended).or_else(|| tagged.next());
                (found, format!("with the tag {tag:?}"))
            }
            _ => return Err(Fault::invalid("no process is named: give its pid or its tag")),
        };
        found.cloned().ok_or_else(|| Fault::new(Kind::NotFound, format!("there is no process {what}")))
    }

    pub(super) fn find_running(&self, selector: Option<&Selector>) -> Result<Process> {
        let process = self.find(selector)?;
        if process.ended {
            return Err(Fault::new(Kind::NotFound, format!("the process {} has ended", process.pid)));
        }
        Ok(process)
    }

    pub(super) fn list(&self) -> Vec<ProcessInfo> {
        let mut all: Vec<ProcessInfo> = self
            .lock()
            .values()
            .filter(|p| !p.ended)
            .map(|p| ProcessInfo { config: p.config.clone(), pid: p.pid, tag: p.tag.clone() })
            .collect();
        all.sort_by_key(|p| p.pid);
        all
    }
}
