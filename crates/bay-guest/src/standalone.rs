//! `bay __guest --alone ADDRESS`: the envd interface on a loopback port, without a bay.
//!
//! For trying clients and testing them. Commands run with the authority of the user who started it, beside everything
//! else on that machine. So it listens on loopback only, and refuses two kinds of requests that web pages send: those
//! with an `Origin`, as a browser adds to every POST, and those to a host name that is not this machine's.

use std::convert::Infallible;
use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bay_types::guest::GuestConfig;
use bay_types::inside::About;
use http::{HeaderMap, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Semaphore;

use crate::envd::{self, Envd};
use crate::execs::Bounds;
use crate::executor;
use crate::http::{ACCEPT_PAUSE, Body, connection, json};
use crate::log::Log;
use crate::primitives::{Config, Primitives};

const MAX_CONNECTIONS: usize = 1024;
/// How long a client may take to send the head of a request, or wait before the next one.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
/// How long processes have between TERM and KILL when the program is ended.
const GRACE: Duration = Duration::from_secs(1);
/// The id and the name of the one sandbox.
const NAME: &str = "alone";

const USAGE: &str = "usage: bay __guest --alone 127.0.0.1:49983 [--state DIR]";

/// The arguments on the command line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Arguments {
    address: SocketAddr,
    state: Option<PathBuf>,
}

/// Parses the arguments after `__guest`. None if there are none, as in a bay.
pub(crate) fn parse(mut arguments: impl Iterator<Item = OsString>) -> io::Result<Option<Arguments>> {
    let odd = |why: &str| io::Error::new(io::ErrorKind::InvalidInput, format!("{why}; {USAGE}"));
    let (mut address, mut state) = (None, None);
    let mut any = false;
    while let Some(argument) = arguments.next() {
        any = true;
        let mut value = || arguments.next().ok_or_else(|| odd("a value is missing"));
        match argument.to_str() {
            Some("--alone") => address = Some(value()?),
            Some("--state") => state = Some(PathBuf::from(value()?)),
            _ => return Err(odd(&format!("{argument:?} is not understood"))),
        }
    }
    if !any {
        return Ok(None);
    }
    let address = address.ok_or_else(|| odd("--alone is missing"))?;
    let address: SocketAddr = address
        .to_str()
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| odd(&format!("{address:?} is not an address and port")))?;
    if !address.ip().is_loopback() {
        return Err(odd(&format!(
            "{address} is not a loopback address, and anybody who reaches it controls this machine"
        )));
    }
    Ok(Some(Arguments { address, state }))
}

/// Serves until TERM or INT.
pub(crate) fn serve(arguments: &Arguments) -> io::Result<()> {
    // Then orphans of commands become children of this process, as they do in a bay.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let made;
    let state_dir = match &arguments.state {
        Some(dir) => dir.clone(),
        None => {
            let name =
                format!("bay-guest-{}-{:x}", std::process::id(), jiff::Timestamp::now().as_nanosecond());
            made = Temporary(std::env::temp_dir().join(name));
            made.0.clone()
        }
    };
    let config = Config {
        guest: GuestConfig {
            bay_id: NAME.to_owned(),
            hostname: NAME.to_owned(),
            machine_id: String::new(),
            author: None,
            user: None,
            certificate: None,
            ssh: None,
            secrets: Vec::new(),
            fork_index: None,
            about: About::default(),
        },
        cgroup: None,
        state_dir,
        root: PathBuf::from("/"),
        bounds: Bounds::default(),
    };
    executor::run(listen(arguments.address, config))
}

/// A directory that is removed when this is dropped.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        // If removing fails, the rest stays in the system's directory for temporary files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

async fn listen(address: SocketAddr, config: Config) -> io::Result<()> {
    let Primitives { execs, files, log } = Primitives::start(config)?;
    let envd = Arc::new(Envd::new(Arc::clone(&execs), files));
    let listener = TcpListener::bind(address).await?;
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    eprintln!("serving envd on http://{}", listener.local_addr()?);
    tokio::select! {
        () = accept(&listener, &envd, &log) => {}
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
    execs.stop(GRACE).await;
    Ok(())
}

async fn accept(listener: &TcpListener, envd: &Arc<Envd>, log: &Log) {
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                log.line("accept.failed", format_args!("error={error}"));
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        // Over the limit, the connection is closed at once.
        if let Ok(slot) = Arc::clone(&slots).try_acquire_owned() {
            let envd = Arc::clone(envd);
            tokio::spawn(async move {
                let _slot = slot;
                serve_connection(stream, &envd).await;
            });
        }
    }
}

async fn serve_connection(stream: TcpStream, envd: &Arc<Envd>) {
    // Many messages are small. If the kernel refuses, they are only slower.
    let _ = stream.set_nodelay(true);
    let service = service_fn(|request: Request<Incoming>| {
        let envd = Arc::clone(envd);
        async move { Ok::<_, Infallible>(answer(&envd, request).await) }
    });
    // If a client breaks off or sends nonsense, only its own connection ends.
    let _ = connection(Some(HEAD_TIMEOUT)).serve_connection(TokioIo::new(stream), service).await;
}

async fn answer(envd: &Arc<Envd>, request: Request<Incoming>) -> Response<Body> {
    let refuse = |status: StatusCode, message: &str| {
        json(status, &serde_json::json!({ "code": status.as_u16(), "message": message }))
    };
    if is_from_web_page(request.headers()) {
        return refuse(StatusCode::FORBIDDEN, "requests of web pages are not served here");
    }
    if !envd::serves(request.uri().path()) {
        return refuse(StatusCode::NOT_FOUND, "there is no such route");
    }
    envd.answer(request).await
}

fn is_from_web_page(headers: &HeaderMap) -> bool {
    let host = headers.get(header::HOST).and_then(|h| h.to_str().ok()).unwrap_or("");
    let name = match host.strip_prefix('[') {
        Some(v6) => v6.split(']').next().unwrap_or(""),
        None => host.split(':').next().unwrap_or(""),
    };
    let ours = name == "localhost" || name.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback());
    !ours || headers.contains_key(header::ORIGIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(words: &[&str]) -> io::Result<Option<Arguments>> {
        parse(words.iter().map(OsString::from))
    }

    #[test]
    fn only_loopback_is_listened_on() {
        assert_eq!(asked(&[]).unwrap(), None);
        for address in ["127.0.0.1:49983", "[::1]:0"] {
            assert_eq!(asked(&["--alone", address]).unwrap().unwrap().address.to_string(), address);
        }
        for odd in [
            &["--alone", "0.0.0.0:49983"][..],
            &["--alone", "[::]:1"],
            &["--alone", "10.0.0.1:1"],
            &["--alone", "localhost:49983"],
            &["--alone"],
            &["--state", "/tmp"],
            &["--loud"],
        ] {
            assert!(asked(odd).unwrap_err().to_string().contains("usage"), "{odd:?}");
        }
    }

    #[test]
    fn a_web_page_is_recognised_by_its_origin_or_by_a_foreign_host_name() {
        let with = |pairs: &[(header::HeaderName, &'static str)]| {
            let pairs = pairs.iter().map(|(k, v)| (k.clone(), http::HeaderValue::from_static(v)));
            is_from_web_page(&HeaderMap::from_iter(pairs))
        };
        for host in ["localhost:49983", "127.0.0.1", "[::1]:49983"] {
            assert!(!with(&[(header::HOST, host)]), "{host}");
            assert!(with(&[(header::HOST, host), (header::ORIGIN, "http://localhost")]), "{host}");
        }
        for host in ["evil.test", "localhost.evil.test:49983", "10.0.0.1", ""] {
            assert!(with(&[(header::HOST, host)]), "{host}");
        }
    }
}
