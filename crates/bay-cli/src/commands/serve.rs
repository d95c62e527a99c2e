use std::time::Duration;

use bay_types::bay::{BayView, State};
use bay_types::{ApiError, ErrorCode};
use rustix::process::Signal;
use serde::Serialize;

use crate::daemon_in_this_executable::DaemonInThisExecutable;
use crate::failure::Outcome;
use crate::global_options::GlobalOptions;
use crate::installation::{found, remove};
use crate::output::count;
use crate::serve_options::Serve;

/// How long a daemon may take to end in order: it answers open requests and flushes its database.
const END_WITHIN: Duration = Duration::from_secs(30);
/// How long the daemon may take to list its bays, which the report counts.
const LIST_WITHIN: Duration = Duration::from_secs(3);

/// What `bay serve --stop` did.
#[derive(Debug, Serialize)]
struct Stopped {
    /// The process that ended; absent if none ran.
    pid: Option<i32>,
    /// How many bays go on without it, if it said so.
    bays: Option<usize>,
}

impl Serve {
    pub(crate) fn run(self, daemon: &DaemonInThisExecutable, global: &GlobalOptions) -> Outcome {
        if !rustix::process::geteuid().is_root() {
            return Err(ApiError::new(
                ErrorCode::NotRoot,
                "the daemon makes namespaces, mounts and cgroups, which needs root",
                "run it with sudo",
            )
            .into());
        }
        if self.stop {
            return crate::one_thread::block_on(stop(global));
        }
        (daemon.serve)(self, global.location())?;
        Ok(0)
    }
}

async fn stop(global: &GlobalOptions) -> Outcome {
    let data_dir = global.location().data_dir;
    let Some(pid) = found::holder(&data_dir) else {
        return report(global, &Stopped { pid: None, bays: None }, &data_dir.display().to_string());
    };
    let mut client = global.client().another_without_starting();
    let listing = tokio::time::timeout(LIST_WITHIN, client.get::<Vec<BayView>>("/v1/bays"));
    let bays = listing.await.ok().and_then(Result::ok);
    let bays = bays
        .map(|bays| bays.iter().filter(|bay| matches!(bay.state, State::Running | State::Paused)).count());
    let ended = tokio::task::spawn_blocking(move || remove::end(pid, &[(Signal::TERM, END_WITHIN)]));
    let ended =
        ended.await.map_err(|error| bay_client::local("ending the daemon", &std::io::Error::other(error)))?;
    ended.map_err(|error| {
        let ApiError { code, message, .. } =
            bay_client::local(&format!("ending the daemon (process {pid})"), &error);
        ApiError::new(code, message, format!("its log is {}", data_dir.join("daemon.log").display()))
    })?;
    report(global, &Stopped { pid: Some(pid), bays }, &data_dir.display().to_string())
}

fn report(global: &GlobalOptions, stopped: &Stopped, data_dir: &str) -> Outcome {
    if global.json {
        crate::output::json(stopped)?;
        return Ok(0);
    }
    crate::output::data(&told(stopped, data_dir))?;
    Ok(0)
}

fn told(stopped: &Stopped, data_dir: &str) -> String {
    let Some(pid) = stopped.pid else {
        return format!("no daemon runs with the data directory {data_dir}");
    };
    let bays = match stopped.bays {
        Some(0) => "no bay runs".to_owned(),
        Some(1) => "1 bay keeps running, and nothing can leave it until a daemon runs again".to_owned(),
        Some(bays) => {
            format!(
                "{} keep running, and nothing can leave them until a daemon runs again",
                count(bays as u64, "bay")
            )
        }
        None => "its bays keep running, and nothing can leave them until a daemon runs again".to_owned(),
    };
    format!("the daemon (process {pid}) has ended; {bays}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_says_what_goes_on() {
        let told = |pid, bays| told(&Stopped { pid, bays }, "/d");
        assert_eq!(told(None, None), "no daemon runs with the data directory /d");
        assert_eq!(told(Some(7), Some(0)), "the daemon (process 7) has ended; no bay runs");
        assert!(told(Some(7), Some(2)).contains("2 bays keep running"));
        assert!(told(Some(7), None).contains("its bays keep running"));
    }
}
