//! Connections from outside to TCP ports of the bay.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bay_types::forward::{MAX_CONNECTIONS, UPGRADE};
use bay_types::{ApiError, ErrorCode};
use http::{HeaderValue, Request, StatusCode, header};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::http::{Answer, empty, invalid};

/// How long a listener may take to accept: its queue may be full.
const ACCEPTED_WITHIN: Duration = Duration::from_secs(5);

/// Twice the daemon's own limit, because connections that it gave up may still be ending here.
static SLOTS: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(2 * MAX_CONNECTIONS)));

/// Answers `POST /v1/tcp/{port}`: connects, then becomes a relay of that connection.
pub(crate) async fn route(port: &str, mut request: Request<Incoming>) -> Answer {
    let asked = request.headers().get(header::UPGRADE).is_some_and(|v| v.as_bytes() == UPGRADE.as_bytes());
    if !asked {
        return Err(invalid(format!("a TCP connection needs the header `Upgrade: {UPGRADE}`")));
    }
    let port: u16 = port
        .parse()
        .ok()
        .filter(|port| *port > 0)
        .ok_or_else(|| invalid("the port is not a number from 1 to 65535"))?;
    let slot = Arc::clone(&SLOTS).try_acquire_owned().map_err(|_| {
        ApiError::new(
            ErrorCode::Interrupted,
            "too many connections are being closed just now",
            "connect again in a moment",
        )
    })?;
    let tcp = connect(port).await.map_err(|error| closed(port, &error))?;
    tokio::spawn(relay(hyper::upgrade::on(&mut request), tcp, slot));
    let mut response = empty(StatusCode::SWITCHING_PROTOCOLS);
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    response.headers_mut().insert(header::UPGRADE, HeaderValue::from_static(UPGRADE));
    Ok(response)
}

/// Connects to the port on the loopback addresses. Returns the error of IPv4, which most servers listen on.
async fn connect(port: u16) -> io::Result<TcpStream> {
    let addresses: [SocketAddr; 2] = [(Ipv4Addr::LOCALHOST, port).into(), (Ipv6Addr::LOCALHOST, port).into()];
    let mut first = None;
    for address in addresses {
        let connected = tokio::time::timeout(ACCEPTED_WITHIN, TcpStream::connect(address)).await;
        match connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            Ok(tcp) if is_itself(&tcp) => drop(first.get_or_insert(io::ErrorKind::ConnectionRefused.into())),
            Ok(tcp) => return Ok(tcp),
            Err(error) => drop(first.get_or_insert(error)),
        }
    }
    Err(first.unwrap_or_else(|| io::ErrorKind::ConnectionRefused.into()))
}

/// Whether the connection is to itself. If nothing listens on a port of the range for clients, the kernel may choose
/// that port for the client and then connects it to itself.
fn is_itself(tcp: &TcpStream) -> bool {
    matches!((tcp.local_addr(), tcp.peer_addr()), (Ok(local), Ok(peer)) if local == peer)
}

fn closed(port: u16, error: &io::Error) -> ApiError {
    let message = match error.kind() {
        io::ErrorKind::ConnectionRefused => format!("nothing in the bay listens on port {port}"),
        io::ErrorKind::TimedOut => {
            let within = ACCEPTED_WITHIN.as_secs();
            format!("the listener on port {port} accepted no connection within {within} s")
        }
        _ => format!("port {port} of the bay cannot be connected to: {error}"),
    };
    // The daemon names the command that lists the ports.
    ApiError::new(ErrorCode::PortClosed, message, "")
}

async fn relay(upgrade: OnUpgrade, tcp: TcpStream, slot: OwnedSemaphorePermit) {
    let _slot = slot;
    // The daemon went away before it had the answer.
    let Ok(upgraded) = upgrade.await else { return bay_tunnel::reset(tcp) };
    let Ok(parts) = upgraded.downcast::<TokioIo<UnixStream>>() else { return };
    bay_tunnel::relay(tcp, parts.io.into_inner(), &parts.read_buf).await;
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_listener_is_found_on_either_loopback_address() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(address).await.unwrap();
            let port = listener.local_addr().unwrap().port();
            let (connected, accepted) = tokio::join!(connect(port), listener.accept());
            assert_eq!(connected.unwrap().peer_addr().unwrap().port(), port);
            accepted.unwrap();
        }
    }

    #[tokio::test]
    async fn a_port_without_a_listener_is_reported_as_such() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let error = closed(port, &connect(port).await.unwrap_err());
        assert_eq!(error.code, ErrorCode::PortClosed);
        assert_eq!(error.message, format!("nothing in the bay listens on port {port}"));
    }
}
