//! What the guest does after a restore from memory: it gets a new socket, learns its configuration, and in a fork runs
//! the fork hooks.
//!
//! ```text
//!  POST /v1/wake ──► 101 ──► one message with the new socket ──► listen there ──► (fork: names, hooks) ──► Woken
//! ```
//!
//! Nothing else in the bay runs meanwhile. If a hook fails or takes too long, the daemon gets a note and the bay goes
//! on.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener as StdListener;
use std::path::PathBuf;
use std::sync::Arc;

use bay_types::guest::{WAKE_UPGRADE, Wake, Woken};
use http::{HeaderValue, Request, StatusCode, header};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;

use crate::ctl::Ctl;
use crate::execs::Execs;
use crate::http::{Answer, empty, invalid, require_json};
use crate::services::Services;
use crate::{fork_hooks, root_files};

/// The parts of the guest that a restore uses or changes.
#[derive(Debug)]
pub(crate) struct AfterRestore {
    /// The server listens on each socket that is sent here, instead of on the one before.
    pub(crate) listeners: mpsc::Sender<UnixListener>,
    pub(crate) execs: Arc<Execs>,
    /// None if the bay can keep no services.
    pub(crate) services: Option<Arc<Services>>,
    pub(crate) ctl: Arc<Ctl>,
    pub(crate) root: PathBuf,
    pub(crate) state_dir: PathBuf,
}

impl AfterRestore {
    pub(crate) async fn route(self: &Arc<Self>, mut request: Request<Incoming>) -> Answer {
        let asked =
            request.headers().get(header::UPGRADE).is_some_and(|v| v.as_bytes() == WAKE_UPGRADE.as_bytes());
        if !asked {
            return Err(invalid(format!("waking needs the header `Upgrade: {WAKE_UPGRADE}`")));
        }
        let upgrade = hyper::upgrade::on(&mut request);
        let wake: Wake = require_json(request.into_body()).await?;
        let restored = Arc::clone(self);
        tokio::spawn(async move {
            if let Err(error) = restored.resume(upgrade, wake).await {
                restored.execs.context.log.line("wake.failed", format_args!("error={error}"));
            }
        });
        let mut response = empty(StatusCode::SWITCHING_PROTOCOLS);
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        response.headers_mut().insert(header::UPGRADE, HeaderValue::from_static(WAKE_UPGRADE));
        Ok(response)
    }

    async fn resume(&self, upgrade: hyper::upgrade::OnUpgrade, wake: Wake) -> io::Result<()> {
        let parts = upgrade.await.map_err(io::Error::other)?.downcast::<TokioIo<UnixStream>>();
        let mut stream = parts.map_err(|_| io::ErrorKind::Unsupported)?.io.into_inner();
        let listener = StdListener::from(receive(&stream).await?);
        listener.set_nonblocking(true)?;
        let listener = UnixListener::from_std(listener)?;
        self.listeners.send(listener).await.map_err(io::Error::other)?;
        if let Some(services) = &self.services {
            services.mark_runs();
        }
        self.execs.context.flushes.set(wake.config.about.durability);
        let notes = match wake.fork_index {
            None => {
                self.ctl.set_config(wake.config.clone());
                let (root, execs) = (self.root.clone(), Arc::clone(&self.execs));
                let trusted = tokio::task::spawn_blocking(move || {
                    root_files::trust_gateway(&wake.config, &root, &execs.context.log);
                    execs.context.sentinels.replace(wake.config.secrets, &root, &execs.context.log);
                });
                let trusted = trusted.await;
                trusted.err().map(|error| error.to_string()).into_iter().collect()
            }
            Some(index) => self.become_fork(wake, index).await,
        };
        let mut said = serde_json::to_vec(&Woken { notes })?;
        said.push(b'\n');
        stream.write_all(&said).await?;
        stream.shutdown().await
    }

    async fn become_fork(&self, wake: Wake, index: u32) -> Vec<String> {
        let (config, context) = (wake.config, &self.execs.context);
        context.log.line("guest.forked", format_args!("from={} index={index}", context.identity.current().0));
        context.identity.replace(config.bay_id.clone(), config.hostname.clone());
        self.ctl.set_config(config.clone());
        let (root, state, execs) = (self.root.clone(), self.state_dir.clone(), Arc::clone(&self.execs));
        let named = tokio::task::spawn_blocking(move || {
            let named = rustix::system::sethostname(config.hostname.as_bytes());
            root_files::prepare(&config, &root, &state, &execs.context.log);
            execs.context.sentinels.replace(config.secrets, &root, &execs.context.log);
            named
        });
        let mut notes = match named.await {
            Ok(Ok(())) => Vec::new(),
            Ok(Err(error)) => vec![format!("the host name could not be set: {error}")],
            Err(error) => vec![error.to_string()],
        };
        notes.extend(fork_hooks::run(&self.execs, &self.state_dir, &self.root, index, &context.log).await);
        notes
    }
}

/// Receives one descriptor, which is sent with one byte.
async fn receive(stream: &UnixStream) -> io::Result<OwnedFd> {
    stream
        .async_io(Interest::READABLE, || {
            let mut byte = [0];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
            recvmsg(stream.as_fd(), &mut [IoSliceMut::new(&mut byte)], &mut ancillary, flags)?;
            let mut sent = ancillary.drain().filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
                _ => None,
            });
            sent.next().and_then(|mut descriptors| descriptors.next()).ok_or_else(|| {
                io::Error::new(io::ErrorKind::InvalidData, "a descriptor was announced and did not come")
            })
        })
        .await
}
