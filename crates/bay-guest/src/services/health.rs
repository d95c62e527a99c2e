//! Health checks of services.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use bay_text::foreign;
use bay_types::service::{Health, HealthCheck, ServiceSpec};
use bytes::Bytes;
use http::{Request, header};
use http_body_util::Empty;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::execs::Execs;

/// Longest head of an answer to an HTTP check.
const MAX_HEAD: usize = 16 << 10;
const MAX_HEADERS: usize = 128;
/// Characters that a reason quotes of what a failed check said.
const MAX_SAID: usize = 200;
const LOCALHOST: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];

/// Makes one check. The error is a short reason.
pub(super) async fn check(execs: &Execs, spec: &ServiceSpec, health: &Health) -> Result<(), String> {
    let within = Duration::from_millis(health.timeout_ms);
    let late = |_| format!("no answer within {} s", within.as_secs_f32());
    match &health.check {
        HealthCheck::Command { argv } => command(execs, spec, argv, within).await,
        HealthCheck::Tcp { port } => {
            tokio::time::timeout(within, connect(*port)).await.map_err(late)?.map(drop)
        }
        HealthCheck::Http { port, path } => {
            tokio::time::timeout(within, http(*port, path)).await.map_err(late)?
        }
    }
}

async fn command(execs: &Execs, spec: &ServiceSpec, argv: &[String], within: Duration) -> Result<(), String> {
    let probed = execs.run_unrecorded(&spec.exec(argv), within).await.map_err(|e| clip(&e.message))?;
    probed.failure(within).map_or(Ok(()), Err)
}

/// Connects to the port, over IPv4 or IPv6.
async fn connect(port: u16) -> Result<TcpStream, String> {
    let mut refusal = String::new();
    for address in LOCALHOST {
        match TcpStream::connect((address, port)).await {
            Ok(stream) => return Ok(stream),
            // The first error is the one that people expect. The second may only say that the bay has no IPv6.
            Err(error) if refusal.is_empty() => refusal = format!("port {port}: {error}"),
            Err(_) => {}
        }
    }
    Err(refusal)
}

async fn http(port: u16, path: &str) -> Result<(), String> {
    let stream = connect(port).await?;
    let (mut sender, connection) = hyper::client::conn::http1::Builder::new()
        .max_buf_size(MAX_HEAD)
        .max_headers(MAX_HEADERS)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|e| clip(&e.to_string()))?;
    let request = Request::get(path)
        .header(header::HOST, format!("localhost:{port}"))
        .header(header::USER_AGENT, "workbay-health")
        .header(header::CONNECTION, "close")
        .body(Empty::<Bytes>::new())
        .map_err(|e| clip(&e.to_string()))?;
    // The connection is closed when this function returns, so the body is not read.
    let answer = sender.send_request(request);
    tokio::pin!(answer);
    let answer = tokio::select! {
        biased;
        answer = &mut answer => answer,
        ended = connection => match ended {
            // The answer may have arrived together with the end of the connection.
            Ok(()) => answer.await,
            Err(error) => Err(error),
        },
    };
    let status = answer.map_err(|e| format!("port {port}: {}", clip(&bay_types::error::chain(&e))))?.status();
    if status.is_success() || status.is_redirection() {
        return Ok(());
    }
    Err(format!("{path} is answered with {status}"))
}

/// What a program or a server said, in the form in which the reason of a service's state quotes it.
pub(super) fn clip(text: &str) -> String {
    foreign::one_line(text, MAX_SAID)
}
