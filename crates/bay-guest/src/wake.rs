//! After a restore from memory: the guest gets a new socket, learns what it is now, and runs the fork hooks.
//!
//! ```text
//!  POST /v1/wake ──► 101 ──► one message with the new socket ──► listen there ──► (fork: names, hooks) ──► Woken
//! ```
//!
//! Nothing else in the bay runs meanwhile. A hook that fails or takes too long is told about and the bay goes on: better a
//! fork with a cache too many than none.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener as StdListener;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use bay_types::exec::ExecSpec;
use bay_types::guest::{FORK_HOOKS, FORK_HOOKS_TIME, FORK_INDEX, WAKE_UPGRADE, Wake, Woken};
use http::{HeaderValue, Request, StatusCode, header};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::{UnixListener, UnixStream};

use crate::boot;
use crate::http::{Answer, empty, invalid, require_json};
use crate::server::Guest;

/// Hooks that are run, the first by name.
const MAX_HOOKS: usize = 64;
/// Characters of what a failing hook said that are told.
const MAX_SAID: usize = 300;

pub(crate) async fn route(guest: &Arc<Guest>, mut request: Request<Incoming>) -> Answer {
    let asked = request.headers().get(header::UPGRADE).is_some_and(|v| v.as_bytes() == WAKE_UPGRADE.as_bytes());
    if !asked {
        return Err(invalid(format!("waking needs the header `Upgrade: {WAKE_UPGRADE}`")));
    }
    let upgrade = hyper::upgrade::on(&mut request);
    let wake: Wake = require_json(request.into_body()).await?;
    let guest = Arc::clone(guest);
    tokio::spawn(async move {
        if let Err(error) = woken(&guest, upgrade, wake).await {
            guest.execs.place.log.line("wake.failed", format_args!("error={error}"));
        }
    });
    let mut response = empty(StatusCode::SWITCHING_PROTOCOLS);
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    response.headers_mut().insert(header::UPGRADE, HeaderValue::from_static(WAKE_UPGRADE));
    Ok(response)
}

async fn woken(guest: &Arc<Guest>, upgrade: hyper::upgrade::OnUpgrade, wake: Wake) -> io::Result<()> {
    let parts = upgrade.await.map_err(io::Error::other)?.downcast::<TokioIo<UnixStream>>();
    let mut stream = parts.map_err(|_| io::ErrorKind::Unsupported)?.io.into_inner();
    let listener = StdListener::from(receive(&stream).await?);
    listener.set_nonblocking(true)?;
    let listener = UnixListener::from_std(listener)?;
    guest.listeners.send(listener).await.map_err(io::Error::other)?;
    let notes = match wake.fork_index {
        None => {
            guest.ctl.become_other(wake.config);
            Vec::new()
        }
        Some(index) => become_fork(guest, wake, index).await,
    };
    let mut said = serde_json::to_vec(&Woken { notes })?;
    said.push(b'\n');
    stream.write_all(&said).await?;
    stream.shutdown().await
}

/// One descriptor, sent with one byte.
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

async fn become_fork(guest: &Arc<Guest>, wake: Wake, index: u32) -> Vec<String> {
    let (config, place) = (wake.config, &guest.execs.place);
    place.log.line("guest.forked", format_args!("from={} index={index}", place.who.now().0));
    place.who.become_other(config.bay_id.clone(), config.hostname.clone());
    guest.ctl.become_other(config.clone());
    let (root, log) = (guest.root.clone(), Arc::clone(&place.log));
    let named = tokio::task::spawn_blocking(move || {
        let named = rustix::system::sethostname(config.hostname.as_bytes());
        boot::prepare_root(&config, &root, &log);
        (named, hooks(&root))
    });
    let (named, hooks) = match named.await {
        Ok(done) => done,
        Err(error) => return vec![error.to_string()],
    };
    let mut notes: Vec<String> =
        named.err().map(|error| format!("the host name could not be set: {error}")).into_iter().collect();
    let until = Instant::now() + FORK_HOOKS_TIME;
    for hook in hooks {
        let mut spec = ExecSpec::new([hook.as_str()]);
        spec.cwd = Some("/".to_owned());
        spec.env = vec![(FORK_INDEX.to_owned(), index.to_string())];
        let failed = match guest.execs.probe(&spec, until.saturating_duration_since(Instant::now())).await {
            Err(error) => Some(error.message),
            Ok(probed) => match probed.ended {
                Some(ended) if ended.code == Some(0) => None,
                Some(ended) => Some(match ended.code {
                    Some(code) => format!("it exited with code {code}{}", said(&probed.output)),
                    None => "it was ended by a signal".to_owned(),
                }),
                None => Some(format!("the fork hooks took longer than {} s", FORK_HOOKS_TIME.as_secs())),
            },
        };
        if let Some(why) = failed {
            notes.push(format!("{hook}: {}", why.chars().take(MAX_SAID).collect::<String>()));
        }
    }
    notes
}

fn said(output: &[u8]) -> String {
    let text = String::from_utf8_lossy(output);
    let last = text.lines().rev().map(str::trim).find(|line| !line.is_empty());
    last.map_or(String::new(), |line| format!(", saying {line:?}"))
}

/// The programs of the hook directory, by name. Whether they can be run is seen when they are.
fn hooks(root: &Path) -> Vec<String> {
    let dir = root.join(FORK_HOOKS.trim_start_matches('/'));
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).filter(|name| !name.starts_with('.')).collect();
    names.sort_unstable();
    names.truncate(MAX_HOOKS);
    names.into_iter().map(|name| format!("{FORK_HOOKS}/{name}")).collect()
}
