//! `GET /v1/bays/{bay}/diff` and `…/review`: lines while trees are compared.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use bay_diff::{Options, Told};
use bay_types::diff::{DiffAsk, DiffLine, Moment, Part};
use bytes::Bytes;
use http::header;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::{Failure, Shared};
use crate::daemon::blocking;
use crate::news::{self, IN_FLIGHT, TELL_EVERY};
use crate::service::diff::{Comparison, Found, prepare, run, shown};

/// How long a reader may leave lines unread, a person in a pager perhaps, before its place is given to others.
const READ_WITHIN: Duration = Duration::from_secs(15 * 60);

pub(super) async fn diff(
    State(daemon): Shared,
    Path(bay): Path<String>,
    Query(ask): Query<DiffAsk>,
) -> Result<Response, Failure> {
    let handle = daemon.bays.find(&bay)?;
    let comparison = prepare(&daemon, &handle, &ask, None).await?;
    let (to, from) = mpsc::channel(IN_FLIGHT);
    let options = shown(ask.part, ask.patch);
    tokio::spawn(async move {
        let lines = Lines { to: to.clone(), runtime: Handle::current(), told: None };
        let part = ask.part;
        let done = blocking(move || lines.send(&comparison, part, &options)).await;
        let last = match done {
            Ok(summary) => DiffLine::Done(summary),
            Err(error) => DiffLine::Failed { error },
        };
        let _ = to.send_timeout(line(&last), READ_WITHIN).await;
    });
    Ok(([(header::CONTENT_TYPE, "application/x-ndjson")], news::body(from)).into_response())
}

/// Where the lines go, at the pace of whoever reads them.
struct Lines {
    to: mpsc::Sender<Bytes>,
    runtime: Handle,
    told: Option<Instant>,
}

impl Lines {
    fn send(
        mut self,
        comparison: &Comparison,
        part: Part,
        options: &Options,
    ) -> Result<bay_types::diff::DiffSummary, bay_types::ApiError> {
        let (bay, from, to) = (comparison.bay.clone(), comparison.from, comparison.to);
        let _ = self.line(&DiffLine::Begin { bay, from, to, part });
        run(comparison, options, &mut |found| match found {
            Found::Package(change) => self.line(&DiffLine::Package(change)),
            Found::Ignored => ControlFlow::Continue(()),
            Found::Told(Told::Entry(entry)) => self.line(&DiffLine::Entry(entry)),
            Found::Told(Told::Progress(progress)) => {
                if self.told.is_some_and(|at| at.elapsed() < TELL_EVERY) {
                    return ControlFlow::Continue(());
                }
                self.told = Some(Instant::now());
                match self.to.try_send(line(&DiffLine::Progress(progress))) {
                    Err(mpsc::error::TrySendError::Closed(_)) => ControlFlow::Break(()),
                    // A full channel holds things of more weight.
                    Err(mpsc::error::TrySendError::Full(_)) | Ok(()) => ControlFlow::Continue(()),
                }
            }
        })
    }

    fn line(&self, told: &DiffLine) -> ControlFlow<()> {
        match self.runtime.block_on(self.to.send_timeout(line(told), READ_WITHIN)) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    }
}

fn line(told: &DiffLine) -> Bytes {
    let mut line = serde_json::to_vec(told).unwrap_or_default();
    line.push(b'\n');
    line.into()
}

/// Only the workspace leaves a bay, and all that was done in it: from its beginning unless said otherwise.
pub(super) async fn review(
    State(daemon): Shared,
    Path(bay): Path<String>,
    Query(ask): Query<DiffAsk>,
) -> Result<Response, Failure> {
    let handle = daemon.bays.find(&bay)?;
    let ask = DiffAsk { part: Part::Workspace, ..ask };
    let comparison = prepare(&daemon, &handle, &ask, Some(Moment::Base)).await?;
    Ok(news::answer(|teller| crate::service::diff::review(comparison, teller)))
}
