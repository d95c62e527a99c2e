//! The front for E2B's published clients: envd, the interface of a sandbox for processes, files and watching.
//!
//! ```text
//!   POST /process.Process/{method}        Connect, JSON ──► process ──► execs (every process is an exec)
//!   POST /filesystem.Filesystem/{method}  Connect, JSON ──► filesystem, watching ──► the bay's files
//!   GET  /files?path=&username=           download ──► one regular file: whole, a range, or gzip
//!   POST /files?path=&username=           upload ──► multipart or octet-stream, plain or gzip
//!   POST /files/compose                   upload ──► several files into one
//!   GET  /health · /metrics · /envs
//! ```
//!
//! The guest serves it beside `/v1` on its socket; [`crate::standalone`] serves it on a loopback port. Requests carry
//! no authority. On the socket the client is the daemon; it checks a sandbox's `X-Access-Token` and the signatures
//! of `/files` before it forwards a request. Inside the bay everything is done with root's authority for the user that
//! the request names (`Authorization: Basic`, `username=`): that user owns new files, and commands run as that user.
//!
//! Failure paths: a malformed request is refused with a Connect code, or an HTTP status and a JSON body; nothing else
//! ends. If a client goes away, its stream ends, and its process goes on up to the deadline with which it was started.

use std::sync::Arc;

use http::{HeaderMap, Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use serde::{Deserialize, Serialize};

use crate::execs::Execs;
use crate::files::Files;
use crate::http::{Body, Query, empty, json};

mod body;
mod caller;
mod connect;
mod download;
mod entry;
mod fault;
mod filesystem;
#[cfg(fuzzing)]
pub(crate) mod fuzz;
mod metrics;
mod multipart;
mod process;
mod processes;
mod upload;
mod watching;

use body::Arriving;
use fault::{Fault, Kind, Result};

const PROCESS: &str = "/process.Process/";
const FILESYSTEM: &str = "/filesystem.Filesystem/";

/// A message without content.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Empty {}

/// What the routes use.
#[derive(Debug)]
pub(crate) struct Envd {
    execs: Arc<Execs>,
    files: Arc<Files>,
    processes: Arc<processes::Processes>,
    watchers: watching::Watchers,
    meter: metrics::Meter,
}

/// Whether a path belongs to this interface.
pub(crate) fn serves(path: &str) -> bool {
    path.starts_with(PROCESS)
        || path.starts_with(FILESYSTEM)
        || matches!(path, "/files" | "/files/compose" | "/health" | "/metrics" | "/envs")
}

impl Envd {
    pub(crate) fn new(execs: Arc<Execs>, files: Arc<Files>) -> Self {
        Self {
            execs,
            files,
            processes: Arc::default(),
            watchers: watching::Watchers::default(),
            meter: metrics::Meter::default(),
        }
    }

    /// Variables that every process of the interface gets.
    fn variables(&self) -> Vec<(String, String)> {
        vec![
            ("E2B_SANDBOX".to_owned(), "true".to_owned()),
            ("E2B_SANDBOX_ID".to_owned(), self.execs.context.identity.current().0),
        ]
    }

    pub(crate) async fn answer(self: &Arc<Self>, request: Request<Incoming>) -> Response<Body> {
        let (parts, body) = request.into_parts();
        let body = Arriving::new(body);
        let path = parts.uri.path();
        let post = parts.method == Method::POST;
        if let Some(method) = path.strip_prefix(PROCESS).filter(|_| post) {
            return process::call(self, method, &parts.headers, body).await;
        }
        if let Some(method) = path.strip_prefix(FILESYSTEM).filter(|_| post) {
            return filesystem::call(self, method, &parts.headers, body).await;
        }
        let query = parts.uri.query().unwrap_or("");
        let outcome = self.plain(&parts.method, path, query, &parts.headers, body).await;
        outcome.unwrap_or_else(|fault| fault.to_http())
    }

    async fn plain(
        self: &Arc<Self>,
        method: &Method,
        path: &str,
        query: &str,
        headers: &HeaderMap,
        body: Arriving,
    ) -> Result<Response<Body>> {
        match (method, path) {
            (&Method::GET, "/health") => Ok(empty(StatusCode::NO_CONTENT)),
            (&Method::GET, "/metrics") => Ok(json(StatusCode::OK, &self.meter.read(self.files.root()))),
            (&Method::GET, "/envs") => {
                let all: std::collections::BTreeMap<_, _> = self.variables().into_iter().collect();
                Ok(json(StatusCode::OK, &all))
            }
            (&Method::GET, "/files") => download::get(self, headers, &Query::of_form(query)?).await,
            (&Method::POST, "/files") => upload::post(self, headers, &Query::of_form(query)?, body).await,
            (&Method::POST, "/files/compose") => upload::compose(self, body).await,
            (method, path) => Err(Fault::new(Kind::NotFound, format!("there is no {method} {path}"))),
        }
    }
}
