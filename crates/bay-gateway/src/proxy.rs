//! The explicit proxy. It checks which host a client names. The code for transparent connections does the rest.

use std::convert::Infallible;
use std::sync::Arc;

use bay_policy::canonical::host::parse_authority;
use bay_policy::{Host, Refusal, Route, Scheme};
use http::header::HOST;
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::time::timeout;

use crate::answers;
use crate::bay_connection::BayConnection;
use crate::body::{AnswerBody, full};
use crate::connection;
use crate::decider::{Caller, Refused};
use crate::exchange::{self, HttpConnection};
use crate::http_server::{http1_server, serve_until_end};
use crate::state::GatewayState;
use crate::stream::{Io, Prefixed};

struct Proxy {
    gateway: Arc<GatewayState>,
    caller: Caller,
    busy: Arc<dyn Send + Sync>,
}

pub(crate) async fn serve(
    gateway: Arc<GatewayState>,
    stream: impl Io,
    caller: Caller,
    busy: Arc<dyn Send + Sync>,
) {
    let local = Host::Address(caller.local.ip());
    let proxy = Arc::new(Proxy { gateway, caller, busy });
    let service = service_fn({
        let proxy = proxy.clone();
        move |request| {
            let proxy = proxy.clone();
            async move { proxy.answer(request).await }
        }
    });
    let connection =
        http1_server(&proxy.gateway).serve_connection(TokioIo::new(stream), service).with_upgrades();
    let served = serve_until_end(&proxy.gateway, connection).await;
    if let Err(error) = served
        && error.is_parse()
    {
        let why = format!("not HTTP as it should be: {error}");
        let what = Refused::Protocol { host: &local, port: proxy.caller.local.port(), why: &why };
        proxy.gateway.decider().refused(&proxy.caller, &what).await;
    }
}

impl Proxy {
    async fn answer(&self, request: Request<Incoming>) -> Result<Response<AnswerBody>, Infallible> {
        if request.method() == Method::CONNECT {
            return Ok(self.connect(request).await);
        }
        // With https the client must check the server's certificate itself, so it has to use CONNECT.
        let plain = request.uri().scheme_str() == Some("http");
        let Some(authority) = request.uri().authority().filter(|_| plain) else {
            let why = "a proxy takes CONNECT, or a whole URL that begins with http://";
            return Ok(self.malformed(why).await);
        };
        match self.destination(authority.as_str()) {
            Ok((host, port)) => {
                let port = port.unwrap_or(Scheme::Http.default_port());
                let (gateway, caller, busy) = (self.gateway.clone(), self.caller.clone(), self.busy.clone());
                let connection = BayConnection { gateway, caller, host, port, busy };
                let connection = HttpConnection::new(connection, None, Scheme::Http);
                exchange::serve(Arc::new(connection), request).await
            }
            Err(refusal) => Ok(self.refused(&refusal).await),
        }
    }

    /// Opens a tunnel to the gateway itself, unless the policy can allow nothing at that host and port. The connection
    /// inside is served like one that the bay made to the host directly.
    async fn connect(&self, mut request: Request<Incoming>) -> Response<AnswerBody> {
        let authority = request.uri().authority().map(ToString::to_string).unwrap_or_default();
        let (host, port) = match self.destination(&authority) {
            Ok((host, Some(port))) => (host, port),
            Ok((_, None)) => return self.malformed("CONNECT needs a host and a port").await,
            Err(refusal) => return self.refused(&refusal).await,
        };
        // If `Host` named another host, later parsers could believe either of the two names.
        let agrees = |value: &http::HeaderValue| {
            let named = value.to_str().ok().and_then(|text| self.destination(text).ok());
            named.is_some_and(|(named, at)| named == host && at.is_none_or(|at| at == port))
        };
        if !request.headers().get_all(HOST).iter().all(agrees) {
            return self.malformed("CONNECT and its Host header name different hosts").await;
        }
        if let Route::Refuse { decision } = self.gateway.decider().route(&host, port) {
            let what = Refused::Connection { host: &host, port, decision: &decision };
            let id = self.gateway.decider().refused(&self.caller, &what).await;
            return answers::decided(&id, &format!("CONNECT {host}:{port}"), &decision, None);
        }
        let (gateway, caller, busy) = (self.gateway.clone(), self.caller.clone(), self.busy.clone());
        let upgraded = hyper::upgrade::on(&mut request);
        tokio::spawn(async move {
            let mut changes = gateway.policy.changes();
            let closed = async { while changes.changed().await.is_ok() {} };
            let serving = async {
                let within = gateway.timeouts.handshake;
                if let Ok(Ok(upgraded)) = timeout(within, upgraded).await {
                    let connection = BayConnection { gateway, caller, host, port, busy };
                    connection::serve(connection, Prefixed::new(TokioIo::new(upgraded))).await;
                }
            };
            tokio::select! {
                () = serving => {}
                () = closed => {}
            }
        });
        Response::new(full(""))
    }

    /// The host that an authority names. A client may have resolved the name and send the synthetic address.
    fn destination(&self, authority: &str) -> Result<(Host, Option<u16>), Refusal> {
        let (host, port) = parse_authority(authority)?;
        let host = match host {
            Host::Address(address) => self.gateway.host_at(address).unwrap_or(Host::Address(address)),
            host @ Host::Name(_) => host,
        };
        Ok((host, port))
    }

    async fn malformed(&self, why: &str) -> Response<AnswerBody> {
        let local = Host::Address(self.caller.local.ip());
        let what = Refused::Protocol { host: &local, port: self.caller.local.port(), why };
        let id = self.gateway.decider().refused(&self.caller, &what).await;
        answers::plain(StatusCode::BAD_REQUEST, &id, why)
    }

    async fn refused(&self, refusal: &Refusal) -> Response<AnswerBody> {
        let local = Host::Address(self.caller.local.ip());
        let what = Refused::Form { host: &local, port: self.caller.local.port(), refusal };
        let id = self.gateway.decider().refused(&self.caller, &what).await;
        answers::malformed(&id, refusal)
    }
}
