//! The options that every verb of `bay` takes: where the daemon is, and whether to print JSON.

use std::path::PathBuf;

use bay_client::Client;
use bay_types::trace::TRACEPARENT_VARIABLE;
use clap::builder::{FalseyValueParser, OsStringValueParser, TypedValueParser};
use clap::{ArgAction, Args};

use crate::daemon_start::DaemonLocation;

const DEFAULT_DATA_DIR: &str = "/var/lib/workbay";

#[derive(Debug, Args)]
#[command(next_help_heading = "Common options")]
pub(crate) struct GlobalOptions {
    /// Print JSON: results on standard output, errors on standard error.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// The daemon's data directory.
    #[arg(long, global = true, env = "BAY_DATA_DIR", hide_env_values = true, value_name = "DIR", default_value = DEFAULT_DATA_DIR, value_parser = path())]
    data_dir: PathBuf,
    /// The daemon's socket [default: bay.sock in the data directory].
    #[arg(long, global = true, env = "BAY_SOCKET", hide_env_values = true, value_name = "PATH", value_parser = path())]
    socket: Option<PathBuf>,
    /// The pool of a newly started daemon [default: pool in the data directory].
    #[arg(long, global = true, env = "BAY_POOL", hide_env_values = true, value_name = "DIR", value_parser = path())]
    pool: Option<PathBuf>,
    /// Do not start a daemon if none answers.
    #[arg(long, global = true, env = "BAY_NO_AUTOSTART", hide_env_values = true, action = ArgAction::SetTrue, value_parser = FalseyValueParser::new())]
    no_autostart: bool,
}

/// A path that may be empty: an empty environment variable counts as unset.
fn path() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

impl GlobalOptions {
    /// The daemon's paths, made absolute because the daemon has another working directory.
    pub(crate) fn location(&self) -> DaemonLocation {
        let absolute = |path: PathBuf| std::path::absolute(&path).unwrap_or(path);
        let given = |path: &Option<PathBuf>| path.clone().filter(|p| !p.as_os_str().is_empty()).map(absolute);
        let data_dir = absolute(
            Some(self.data_dir.clone())
                .filter(|p| !p.as_os_str().is_empty())
                .unwrap_or_else(|| DEFAULT_DATA_DIR.into()),
        );
        DaemonLocation {
            socket: given(&self.socket).unwrap_or_else(|| data_dir.join("bay.sock")),
            pool: given(&self.pool).unwrap_or_else(|| data_dir.join("pool")),
            data_dir,
            autostart: !self.no_autostart,
            quiet: self.json,
        }
    }

    pub(crate) fn client(&self) -> Client {
        let traceparent = std::env::var(TRACEPARENT_VARIABLE).ok().and_then(|given| given.parse().ok());
        self.location().client(traceparent)
    }
}
