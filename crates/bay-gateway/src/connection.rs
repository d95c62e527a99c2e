//! Serves one connection of the bay to a known destination. The decider's route selects the server. If the route leaves
//! the protocol open, the first bytes of the client show it.

use std::io;
use std::time::Duration;

use bay_policy::{CanonicalRequest, Connection, Host, Outcome, Route, Scheme};
use rustls::server::Acceptor;
use tokio::time::timeout;
use tokio_rustls::LazyConfigAcceptor;

use crate::bay_connection::BayConnection;
use crate::decider::{Ending, Failure, Refused};
use crate::exchange::HttpConnection;
use crate::first_line;
use crate::hello::{self, TLS_HANDSHAKE};
use crate::http_server;
use crate::postgres;
use crate::progress::Progress;
use crate::scrub::{Stream, Tally};
use crate::sight::Sight;
use crate::ssh;
use crate::stream::Prefixed;
use crate::tunnel;

/// Ports of protocols in which the client sends first. A refused client gets more time there to begin.
const SPEAKING_PORTS: &[u16] = &[80, 443];

/// Serves a connection to its end.
pub(crate) async fn serve(connection: BayConnection, stream: Prefixed) {
    let timeouts = &connection.gateway.timeouts;
    let first = timeouts.first_byte;
    match connection.gateway.decider().route(&connection.host, connection.port) {
        Route::Tcp { .. }
            if connection.gateway.decider().secrets().has_logins(&connection.host, connection.port) =>
        {
            postgres::serve(connection, stream).await;
        }
        Route::Tcp { .. } => pass_tcp(connection, stream).await,
        Route::Passthrough { .. } => pass_tls(connection, stream).await,
        Route::Inspect => inspect(connection, stream, first, None).await,
        Route::HostItself { .. } => serve_host_itself(connection, stream).await,
        Route::GitSsh => ssh::serve(connection, stream).await,
        Route::Refuse { decision } => {
            let speaks = SPEAKING_PORTS.contains(&connection.port);
            let within = if speaks { first } else { timeouts.refused_first_byte };
            inspect(connection, stream, within, Some(decision)).await;
        }
    }
}

/// Serves a connection to a service of the host, as HTTP or as a tunnel. A client that does not begin a request line in
/// time is taken to speak another protocol.
async fn serve_host_itself(connection: BayConnection, mut stream: Prefixed) {
    let within = connection.gateway.timeouts.refused_first_byte;
    if first_line::is_http1(&mut stream, within).await {
        serve_plain(connection, stream).await;
    } else {
        pass_tcp(connection, stream).await;
    }
}

/// Detects the protocol and has each request decided on. If the policy can allow nothing here, a client of TLS, HTTP or
/// SSH gets the reason in its own protocol, and any other connection is closed.
async fn inspect(
    connection: BayConnection,
    mut stream: Prefixed,
    within: Duration,
    refused: Option<bay_policy::Decision>,
) {
    let first = timeout(within, stream.first()).await;
    match (first, refused) {
        (Ok(Ok(Some(TLS_HANDSHAKE))), _) => serve_tls(connection, stream).await,
        (Ok(Ok(Some(b'S'))), _) if matches!(timeout(within, ssh::is_spoken(&mut stream)).await, Ok(true)) => {
            // The SSH server has the command decided on, so that it can report the reason.
            ssh::serve(connection, stream).await;
        }
        // An HTTP request begins with its method, a word.
        (Ok(Ok(Some(byte))), _) if byte.is_ascii_alphabetic() => serve_plain(connection, stream).await,
        (_, Some(decision)) => {
            let what =
                Refused::Connection { host: &connection.host, port: connection.port, decision: &decision };
            connection.refuse(&what).await;
        }
        (Ok(Ok(Some(_))), None) => connection.refuse_protocol("it is neither TLS nor HTTP").await,
        // The client opened the connection in advance and did not need it.
        (Ok(Ok(None) | Err(_)), None) => {}
        (Err(_), None) => connection.refuse_protocol("it said nothing").await,
    }
}

async fn serve_plain(connection: BayConnection, stream: Prefixed) {
    http_server::serve_http1(HttpConnection::new(connection, None, Scheme::Http), stream).await;
}

async fn serve_tls(connection: BayConnection, stream: Prefixed) {
    let within = connection.gateway.timeouts.handshake;
    let handshake = async {
        let start = LazyConfigAcceptor::new(Acceptor::default(), stream).await?;
        let sni = start.client_hello().server_name().map(str::to_owned);
        // The certificate is for the name that the client expects. Otherwise the client could not read why that name
        // is refused.
        let name = match sni.as_deref().map(Host::parse) {
            Some(Ok(host)) => host,
            Some(Err(_)) | None => connection.host.clone(),
        };
        let name = match name {
            Host::Name(name) => name.into_string(),
            Host::Address(address) => address.to_string(),
        };
        let config = connection.gateway.leaves.server(&name).map_err(io::Error::other)?;
        Ok::<_, io::Error>((sni, start.into_stream(config).await?))
    };
    let (sni, stream) = match timeout(within, handshake).await {
        Ok(Ok(done)) => done,
        Ok(Err(error)) => {
            return connection.refuse_protocol(&format!("the TLS handshake failed: {error}")).await;
        }
        Err(_) => return connection.refuse_protocol("the TLS handshake took too long").await,
    };
    let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    let site = HttpConnection::new(connection, sni, Scheme::Https);
    if is_http2 {
        http_server::serve_http2(site, stream).await;
    } else {
        http_server::serve_http1(site, stream).await;
    }
}

async fn pass_tcp(connection: BayConnection, stream: Prefixed) {
    match CanonicalRequest::tcp(&connection.host.to_string(), connection.port) {
        Ok(request) => pass(connection, stream, request, true).await,
        Err(refusal) => {
            let what = Refused::Form { host: &connection.host, port: connection.port, refusal: &refusal };
            connection.refuse(&what).await;
        }
    }
}

async fn pass_tls(connection: BayConnection, mut stream: Prefixed) {
    let hello = match hello::read(&mut stream, connection.gateway.timeouts.handshake).await {
        Ok(hello) => hello,
        Err(why) => return connection.refuse_protocol(why).await,
    };
    if hello.hides_name {
        return connection
            .refuse_protocol("its TLS handshake hides the name of a server (ECH); turn that off")
            .await;
    }
    let destination = connection.host.to_string();
    let named =
        Connection { destination: &destination, port: connection.port, sni: hello.server_name.as_deref() };
    match CanonicalRequest::passthrough(&named) {
        Ok(request) => pass(connection, stream, request, false).await,
        // So a client that trusts the gateway learns the reason: each request inside has the same contradicting or
        // missing name.
        Err(_) => serve_tls(connection, stream).await,
    }
}

/// Passes bytes on, if the decider allows it. Bytes to the bay are scrubbed of the secrets for this host if they are
/// `readable`, that is, not TLS that is passed through.
async fn pass(connection: BayConnection, stream: Prefixed, request: CanonicalRequest, readable: bool) {
    let gateway = &connection.gateway;
    let known_in = gateway.policy.version();
    let secrets = gateway.decider().secrets();
    if let Some(misuse) = secrets.closed(&connection.host.to_string()) {
        let what = Refused::Secret { host: &connection.host, port: connection.port, misuse: &misuse };
        connection.refuse(&what).await;
        return;
    }
    let decided_in = gateway.policy.version();
    let ruling = gateway.decider().decide(&connection.caller, &request, &mut Sight::nothing()).await;
    let progress = Progress::new(
        &gateway.policy,
        ruling.id.clone(),
        request.clone(),
        decided_in,
        connection.busy.clone(),
    );
    if ruling.decision.outcome != Outcome::Allow {
        return progress.end(Ending::Refused);
    }
    // Values cannot be found in bytes that are encrypted end to end.
    let Ok(patterns) = secrets.patterns(&connection.host.to_string(), &[]) else {
        return progress.end_failed(Failure::Secret);
    };
    let scrub = patterns.filter(|_| readable).map(|patterns| {
        let renewal = gateway.policy.renewal(&connection.host, Vec::new(), known_in);
        Stream::new(patterns).renewed_by(renewal).tallied(Tally::connection(Vec::new()))
    });
    match gateway.origins.dial(&ruling.decision, &request).await {
        Ok(dialled) => {
            let idle = gateway.timeouts.tunnel_idle;
            tunnel::run(stream, dialled.stream, progress, idle, gateway.policy.changes(), scrub).await;
        }
        Err(error) => progress.end_failed(error.failure()),
    }
}
