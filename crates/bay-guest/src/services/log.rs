//! The log of a service: the output of its kept runs, one after the other, as one stream of bytes with offsets.

use std::io;
use std::sync::Arc;

use bay_types::frame::{Frame, Gap, GapReason};
use bay_types::output::OutputRequest;
use bay_types::service::ServiceName;
use bay_types::{ApiError, ErrorCode, ExecId};
use bytes::Bytes;
use tokio::sync::{mpsc, watch};

use super::Services;
use crate::execs::Life;
use crate::execs::output::{Follow, Output};

/// Frames that wait for a slow reader.
const QUEUE: usize = 2;

/// The next part of a log.
enum Next {
    /// The service was removed.
    Gone,
    /// Nothing is kept before this offset.
    Gap {
        to: u64,
    },
    Run(Stretch),
    End,
}

/// A part of one run's output.
struct Stretch {
    exec: ExecId,
    /// Offset in the run's own output.
    from: u64,
    /// Where the next run begins, as an offset in this run's output. None for the last run.
    limit: Option<u64>,
    /// Changes when the last run prints more.
    life: Option<watch::Receiver<Life>>,
}

impl Services {
    /// Frames of the log from an offset on. With `follow`, the stream goes on from run to run until its reader leaves
    /// or the service is removed.
    pub(crate) async fn log(
        self: &Arc<Self>,
        name: &ServiceName,
        OutputRequest { since, follow, times }: OutputRequest,
    ) -> Result<mpsc::Receiver<io::Result<Bytes>>, ApiError> {
        let view = self.get(name).await?;
        if since > view.log_end {
            return Err(ApiError::new(
                ErrorCode::InvalidInput,
                format!("the log has no byte {since} yet: it ends at {}", view.log_end),
                "begin at an earlier byte",
            ));
        }
        let (sender, receiver) = mpsc::channel(QUEUE);
        let reader =
            Reader { services: Arc::clone(self), name: name.clone(), at: since, follow, times, to: sender };
        tokio::spawn(reader.run());
        Ok(receiver)
    }

    fn next_of_log(&self, name: &ServiceName, at: u64) -> Next {
        let all = self.all();
        let Some(service) = all.get(name) else { return Next::Gone };
        let Some(first) = service.runs.front() else { return Next::End };
        if at < first.log_offset {
            return Next::Gap { to: first.log_offset };
        }
        let index = service.runs.iter().rposition(|run| run.log_offset <= at).unwrap_or(0);
        let Some(run) = service.runs.get(index) else { return Next::End };
        let limit = service.runs.get(index + 1).map(|next| next.log_offset - run.log_offset);
        let life = service.exec.as_ref().filter(|exec| exec.id() == run.exec).map(|exec| {
            let mut life = exec.life.subscribe();
            life.mark_unchanged();
            life
        });
        Next::Run(Stretch { exec: run.exec, from: at - run.log_offset, limit, life })
    }
}

struct Reader {
    services: Arc<Services>,
    name: ServiceName,
    at: u64,
    follow: bool,
    times: bool,
    to: mpsc::Sender<io::Result<Bytes>>,
}

impl Reader {
    async fn run(mut self) {
        let mut changed = self.services.changed.subscribe();
        loop {
            changed.mark_unchanged();
            let (before, mut life) = (self.at, None);
            match self.services.next_of_log(&self.name, self.at) {
                Next::Gone => return,
                Next::Gap { to } => {
                    if !self.gap(to - self.at).await {
                        return;
                    }
                }
                Next::Run(stretch) => {
                    let limit = stretch.limit;
                    life.clone_from(&stretch.life);
                    let Some(left) = self.copy(stretch).await else { return };
                    // If this is not the last run, its missing bytes will not come any more.
                    if let (Some(_), true) = (limit, left > 0)
                        && !self.gap(left).await
                    {
                        return;
                    }
                }
                Next::End => {}
            }
            if self.at > before {
                continue;
            }
            if !self.follow {
                return;
            }
            let prints = async {
                let more = match &mut life {
                    Some(life) => life.changed().await.is_ok(),
                    None => false,
                };
                if !more {
                    std::future::pending::<()>().await;
                }
            };
            tokio::select! {
                _ = changed.changed() => {}
                () = prints => {}
                () = self.to.closed() => return,
            }
        }
    }

    async fn send(&mut self, frame: &Frame, bytes: u64) -> bool {
        self.at += bytes;
        self.to.send(Ok(frame.to_bytes().into())).await.is_ok()
    }

    async fn gap(&mut self, bytes: u64) -> bool {
        let gap = Gap { dropped: bytes, why: GapReason::Bound };
        bytes == 0 || self.send(&Frame::Gap(gap), bytes).await
    }

    /// Sends what is kept of a run. Returns how many bytes are missing before the next run, or None if the reader has
    /// gone or the output cannot be read.
    async fn copy(&mut self, stretch: Stretch) -> Option<u64> {
        let mut left = stretch.limit.map_or(u64::MAX, |limit| limit.saturating_sub(stretch.from));
        let execs = Arc::clone(&self.services.execs);
        let Ok(Some(found)) = execs.find(stretch.exec) else { return Some(left) };
        let follow =
            if self.follow && stretch.limit.is_none() { Follow::UntilExit } else { Follow::WhatIsThere };
        let Ok(output) = Output::of(&execs, &found, stretch.from, follow) else { return Some(left) };
        let mut output = output.with_times(self.times);
        drop(found);
        while left > 0 {
            let frame = tokio::select! {
                frame = output.next() => frame,
                () = self.to.closed() => return None,
            };
            // The guest encoded this frame itself, so decoding it succeeds.
            let Some(Ok(Some((frame, _)))) = frame.map(Frame::decode) else { break };
            let (frame, bytes) = match frame {
                Frame::Stdout(bytes) => cut(bytes, left, Frame::Stdout),
                Frame::Stderr(bytes) => cut(bytes, left, Frame::Stderr),
                Frame::Gap(gap) => {
                    let dropped = gap.dropped.min(left);
                    (Frame::Gap(Gap { dropped, ..gap }), dropped)
                }
                frame @ Frame::Time(_) => (frame, 0),
                frame @ Frame::Error(_) => {
                    self.send(&frame, 0).await;
                    return None;
                }
                _ => break,
            };
            left -= bytes;
            if !self.send(&frame, bytes).await {
                return None;
            }
        }
        Some(left)
    }
}

/// A run may print after the next one began. That output is in no log.
fn cut(mut bytes: Vec<u8>, left: u64, frame: impl Fn(Vec<u8>) -> Frame) -> (Frame, u64) {
    bytes.truncate(usize::try_from(left).unwrap_or(usize::MAX));
    let length = bytes.len() as u64;
    (frame(bytes), length)
}
