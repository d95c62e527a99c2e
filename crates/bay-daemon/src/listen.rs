//! The doors: the daemon's unix socket, and loopback TCP for callers with the token.
//!
//! On the socket the kernel identifies the caller. Every user who may open it is an operator: root, and members of
//! the configured group, if the host has it ([`crate::group`]). TCP has no such identity, and browsers can reach
//! loopback too. A TCP caller must present the token, must name the daemon by a loopback name (so a rebound DNS
//! name fails), and must not send the headers of a web page.

use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use bay_core::Daemon;
use bay_types::principal::Principal;
use bay_types::{ApiError, ErrorCode};
use http::{HeaderMap, Request, header};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use sha2::{Digest, Sha256};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use crate::serve_error::ServeError;

/// Most concurrent connections. Further ones wait.
const MAX_CONNECTIONS: usize = 4096;
/// How long a TCP caller may take to send a request's head.
const HEAD_WITHIN: Duration = Duration::from_secs(30);
/// How long requests in progress may take when the daemon shuts down. Then they are cut off.
const FINISH_WITHIN: Duration = Duration::from_secs(5);
/// The pause after a failed accept. If file descriptors have run out, an immediate retry would fail too.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Longest head of a request, and the size of hyper's read buffer.
const READ_BUFFER: usize = 256 * 1024;

/// Becomes true when the daemon must end.
pub(crate) type Ending = watch::Receiver<bool>;

/// Longest path of a socket that a caller can connect to.
const MAX_SOCKET_PATH: usize = 107;

/// The path of a socket that this daemon made, and its identity, to recognise whether the path still names that socket.
#[derive(Debug)]
pub(crate) struct OwnSocket {
    path: PathBuf,
    identity: (u64, u64),
}

impl OwnSocket {
    /// Removes the socket, unless the path names another daemon's socket by now.
    pub(crate) fn remove(self) {
        let found = std::fs::symlink_metadata(&self.path).map(|found| (found.dev(), found.ino()));
        if found.is_ok_and(|found| found == self.identity) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// The daemon's socket, open to root and, if given, to members of a group. It is made in a directory that only we
/// can enter, and then renamed to its path. So it never has wider permissions than intended, whatever the umask,
/// and it atomically replaces a socket that is there, even one in use.
pub(crate) fn unix(path: &Path, group: Option<u32>) -> Result<(UnixListener, OwnSocket), ServeError> {
    let failed = |source| ServeError::Listen { place: path.display().to_string(), source };
    match std::fs::symlink_metadata(path) {
        Ok(meta) if !meta.file_type().is_socket() => {
            return Err(failed(std::io::Error::new(
                std::io::ErrorKind::AlreadyExists,
                "something that is not a socket is in its place",
            )));
        }
        _ => {}
    }
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(failed)?;
    }
    if path.as_os_str().len() > MAX_SOCKET_PATH {
        return Err(failed(std::io::Error::new(
            std::io::ErrorKind::InvalidFilename,
            "its path is longer than a socket's can be",
        )));
    }
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let new = PathBuf::from(new);
    // A leftover of a daemon that died here. A directory of another owner stays, and then ours cannot be made.
    match std::fs::symlink_metadata(&new) {
        Ok(found) if found.is_dir() && found.uid() == rustix::process::geteuid().as_raw() => {
            let _ = std::fs::remove_file(new.join("socket"));
            let _ = std::fs::remove_dir(&new);
        }
        _ => drop(std::fs::remove_file(&new)),
    }
    std::fs::DirBuilder::new().mode(0o700).create(&new).map_err(failed)?;
    let dir = std::fs::File::open(&new).map_err(failed)?;
    // Through the descriptor, so that the longer name does not exceed the length limit.
    let short = PathBuf::from(format!("/proc/self/fd/{}/socket", dir.as_raw_fd()));
    let listener = UnixListener::bind(short).map_err(failed)?;
    let bound = new.join("socket");
    if group.is_some() {
        std::os::unix::fs::lchown(&bound, None, group).map_err(failed)?;
    }
    let mode = if group.is_some() { 0o660 } else { 0o600 };
    std::fs::set_permissions(&bound, std::fs::Permissions::from_mode(mode)).map_err(failed)?;
    let made = std::fs::symlink_metadata(&bound).map_err(failed)?;
    std::fs::rename(&bound, path).map_err(failed)?;
    std::fs::remove_dir(&new).map_err(failed)?;
    Ok((listener, OwnSocket { path: path.to_owned(), identity: (made.dev(), made.ino()) }))
}

pub(crate) async fn tcp(address: SocketAddr) -> Result<TcpListener, ServeError> {
    if !address.ip().is_loopback() {
        return Err(ServeError::NotLoopback { address });
    }
    TcpListener::bind(address)
        .await
        .map_err(|source| ServeError::Listen { place: address.to_string(), source })
}

/// The checks of a TCP caller.
#[derive(Debug, Clone)]
pub(crate) struct Gate {
    token_hash: [u8; 32],
    port: u16,
}

impl Gate {
    pub(crate) fn new(token: &str, port: u16) -> Self {
        Self { token_hash: Sha256::digest(token.as_bytes()).into(), port }
    }

    fn check(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        let refuse = |why: &str| {
            Err(ApiError::new(
                ErrorCode::Unauthorized,
                format!("the request was refused: {why}"),
                "send `Authorization: Bearer TOKEN` with the token from the file `token` in the data directory",
            ))
        };
        let one = |name| {
            let mut values = headers.get_all(name).iter();
            match (values.next(), values.next()) {
                (Some(value), None) => value.to_str().ok(),
                _ => None,
            }
        };
        let port = self.port;
        let names = [format!("127.0.0.1:{port}"), format!("localhost:{port}"), format!("[::1]:{port}")];
        if !one(header::HOST).is_some_and(|host| names.iter().any(|name| name.eq_ignore_ascii_case(host))) {
            return refuse("its Host is not a loopback name of this daemon");
        }
        if headers.contains_key(header::ORIGIN) || headers.contains_key("sec-fetch-site") {
            return refuse("it comes from a web page");
        }
        let shown = one(header::AUTHORIZATION).and_then(|value| value.strip_prefix("Bearer "));
        // Compare hashes, so that the time reveals nothing about how much of a guess was right.
        let fits = shown.is_some_and(|token| {
            let hash: [u8; 32] = Sha256::digest(token.trim().as_bytes()).into();
            hash == self.token_hash
        });
        if fits { Ok(()) } else { refuse("the token is missing or wrong") }
    }
}

/// The REST front. The executable brings it, so that fronts and daemon are built beside each other.
#[derive(Debug, Clone, Copy)]
pub struct RestFront {
    /// All routes of the API.
    pub router: fn(Arc<Daemon>) -> Router,
    /// The response to a caller that the listener refuses before the router sees the request.
    pub refusal: fn(ApiError) -> Response,
}

/// The router for the requests of one connection.
#[derive(Debug, Clone)]
struct Door {
    router: TowerToHyperService<Router>,
    refusal: fn(ApiError) -> Response,
    caller: Principal,
    gate: Option<Arc<Gate>>,
}

impl Service<Request<Incoming>> for Door {
    type Response = Response;
    type Error = std::convert::Infallible;
    type Future = std::pin::Pin<Box<dyn Future<Output = Result<Response, Self::Error>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        if let Some(gate) = &self.gate
            && let Err(error) = gate.check(request.headers())
        {
            return Box::pin(std::future::ready(Ok((self.refusal)(error))));
        }
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(self.caller);
        Box::pin(self.router.call(request))
    }
}

/// Accepts connections until the daemon must end, then lets requests in progress finish within [`FINISH_WITHIN`].
pub(crate) async fn serve(
    rest: RestFront,
    daemon: Arc<Daemon>,
    unix: UnixListener,
    tcp: Option<(TcpListener, Gate)>,
    mut ending: Ending,
) {
    let (router, refusal) = (TowerToHyperService::new((rest.router)(daemon)), rest.refusal);
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    let (tcp, gate) = tcp.unzip();
    let gate = gate.map(Arc::new);
    loop {
        let place = tokio::select! {
            () = told(&mut ending) => break,
            place = Arc::clone(&places).acquire_owned() => match place {
                Ok(place) => place,
                Err(_) => break,
            },
        };
        tokio::select! {
            biased;
            () = told(&mut ending) => break,
            Some(_) = connections.join_next() => {}
            accepted = unix.accept() => match accepted {
                Ok((stream, _)) => match stream.peer_cred() {
                    Ok(peer) => {
                        let caller = Principal::operator(peer.uid());
                        let door = Door { router: router.clone(), refusal, caller, gate: None };
                        connections.spawn(connection(stream, door, None, ending.clone(), place));
                    }
                    Err(error) => tracing::warn!(%error, "a caller without a name was turned away"),
                },
                Err(error) => pause(&error).await,
            },
            accepted = async { match &tcp { Some(tcp) => tcp.accept().await, None => std::future::pending().await } } => match accepted {
                Ok((stream, _)) => {
                    let _ = stream.set_nodelay(true);
                    // Only the daemon's own user can read the token.
                    let caller = Principal::token(rustix::process::geteuid().as_raw());
                    let door = Door { router: router.clone(), refusal, caller, gate: gate.clone() };
                    connections.spawn(connection(stream, door, Some(HEAD_WITHIN), ending.clone(), place));
                }
                Err(error) => pause(&error).await,
            },
        }
    }
    drop((unix, tcp));
    let finished =
        tokio::time::timeout(FINISH_WITHIN, async { while connections.join_next().await.is_some() {} });
    if finished.await.is_err() {
        tracing::info!("requests still in flight are cut off");
    }
}

/// Returns when the daemon must end.
async fn told(ending: &mut Ending) {
    let _ = ending.wait_for(|end| *end).await;
}

async fn pause(error: &std::io::Error) {
    tracing::warn!(%error, "a caller could not be let in");
    tokio::time::sleep(ACCEPT_PAUSE).await;
}

async fn connection<S>(
    stream: S,
    door: Door,
    head_within: Option<Duration>,
    mut ending: Ending,
    place: tokio::sync::OwnedSemaphorePermit,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut builder = http1::Builder::new();
    builder.max_buf_size(READ_BUFFER);
    if let Some(within) = head_within {
        builder.timer(TokioTimer::new()).header_read_timeout(within);
    }
    let serving = builder.serve_connection(TokioIo::new(stream), door).with_upgrades();
    tokio::pin!(serving);
    let ended = tokio::select! {
        ended = serving.as_mut() => ended,
        () = told(&mut ending) => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a caller's connection broke off");
    }
    drop(place);
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.append(*name, HeaderValue::from_static(value));
        }
        map
    }

    #[test]
    fn only_a_token_with_a_loopback_name_and_no_web_origin_is_accepted() {
        let gate = Gate::new("secret", 7070);
        let good = [("host", "localhost:7070"), ("authorization", "Bearer secret")];
        assert!(gate.check(&headers(&good)).is_ok());
        for bad in [
            &[("host", "localhost:7070")][..],
            &[("authorization", "Bearer secret")],
            &[("host", "localhost:7070"), ("authorization", "Bearer wrong")],
            &[("host", "localhost:7070"), ("authorization", "secret")],
            &[("host", "evil.test:7070"), ("authorization", "Bearer secret")],
            &[("host", "localhost.evil.test:7070"), ("authorization", "Bearer secret")],
            &[("host", "localhost"), ("authorization", "Bearer secret")],
            &[("host", "localhost:7070"), ("host", "evil.test"), ("authorization", "Bearer secret")],
            &[
                ("host", "localhost:7070"),
                ("authorization", "Bearer secret"),
                ("origin", "http://localhost:7070"),
            ],
            &[("host", "localhost:7070"), ("authorization", "Bearer secret"), ("origin", "null")],
            &[
                ("host", "localhost:7070"),
                ("authorization", "Bearer secret"),
                ("sec-fetch-site", "cross-site"),
            ],
        ] {
            assert_eq!(gate.check(&headers(bad)).unwrap_err().code, ErrorCode::Unauthorized, "{bad:?}");
        }
    }

    #[tokio::test]
    async fn a_tcp_address_that_is_not_loopback_is_refused() {
        for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"] {
            let refused = tcp(address.parse().unwrap()).await;
            assert!(matches!(refused, Err(ServeError::NotLoopback { .. })), "{address}");
        }
    }

    #[tokio::test]
    async fn an_ending_daemon_does_not_remove_the_socket_of_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bay.sock");
        let (_first, ours) = unix(&path, None).unwrap();
        let (_second, theirs) = unix(&path, None).unwrap();
        ours.remove();
        assert!(path.exists());
        theirs.remove();
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn a_stale_socket_is_replaced_and_a_file_in_its_place_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bay.sock");
        drop(unix(&path, None).unwrap());
        let _listener = unix(&path, None).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        // The leftover of a daemon that died here is no obstacle, and nothing of the new socket's directory remains.
        std::fs::create_dir(dir.path().join("bay.sock.new")).unwrap();
        std::fs::write(dir.path().join("bay.sock.new/socket"), b"").unwrap();
        let group = rustix::process::getegid().as_raw();
        let _listener = unix(&path, Some(group)).unwrap();
        let made = std::fs::metadata(&path).unwrap();
        assert_eq!((made.permissions().mode() & 0o777, made.gid()), (0o660, group));
        assert!(!dir.path().join("bay.sock.new").exists());
        let long = dir.path().join("x".repeat(MAX_SOCKET_PATH));
        assert!(unix(&long, None).is_err());
        let file = dir.path().join("file");
        std::fs::write(&file, b"precious").unwrap();
        assert!(unix(&file, None).is_err());
        assert_eq!(std::fs::read(&file).unwrap(), b"precious");
    }
}
