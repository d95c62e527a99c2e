//! Clients inside the bay.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use bay_gateway::Gateway;
use bytes::Bytes;
use hickory_proto::op::{Message, Query, ResponseCode};
use hickory_proto::rr::{Name, RData, RecordType};
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::{Lab, PATIENCE};

pub(crate) type Body = Full<Bytes>;

pub(crate) fn question(name: &str, kind: RecordType) -> Message {
    let mut message = Message::query();
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
    message
}

pub(crate) async fn ask(dns: SocketAddr, message: &[u8]) -> Option<Message> {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    socket.send_to(message, dns).await.unwrap();
    let mut buffer = [0; 2048];
    let length = timeout(std::time::Duration::from_secs(1), socket.recv(&mut buffer)).await.ok()?.unwrap();
    Some(Message::from_vec(&buffer[..length]).unwrap())
}

pub(crate) async fn look_up(dns: SocketAddr, name: &str) -> Option<IpAddr> {
    let answer = ask(dns, &question(name, RecordType::A).to_vec().unwrap()).await?;
    assert!(answer.answers.is_empty() || answer.metadata.response_code == ResponseCode::NoError);
    answer.answers.first().map(|record| match &record.data {
        RData::A(address) => IpAddr::V4(address.0),
        other => panic!("{other:?}"),
    })
}

pub(crate) fn first_address(gateway: &Gateway) -> IpAddr {
    gateway.names().pools.v4.network().into()
}

pub(crate) fn config(authority: &CertificateDer<'static>, alpn: &[&str]) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(authority.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    Arc::new(config)
}

impl Lab {
    pub(crate) async fn tls(&mut self, name: &str, sni: &str, alpn: &[&str]) -> TlsStream<TcpStream> {
        let stream = TcpStream::connect(self.open(name).await).await.unwrap();
        let connector = TlsConnector::from(config(&self.bay_authority, alpn));
        connector.connect(ServerName::try_from(sni.to_owned()).unwrap(), stream).await.unwrap()
    }

    pub(crate) async fn https(&mut self, name: &str) -> http1::SendRequest<Body> {
        http1_over(self.tls(name, name, &["http/1.1"]).await).await
    }

    pub(crate) async fn http(&mut self, name: &str) -> http1::SendRequest<Body> {
        http1_over(TcpStream::connect(self.open(name).await).await.unwrap()).await
    }

    pub(crate) async fn http2(&mut self, name: &str) -> http2::SendRequest<Body> {
        let stream = self.tls(name, name, &["h2"]).await;
        let (sender, connection) =
            http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        sender
    }

    /// A GET over HTTP/1.1.
    pub(crate) fn get(&self, name: &str, target: &str) -> Request<Body> {
        self.request("GET", name, target, "")
    }

    pub(crate) fn request(
        &self,
        method: &str,
        name: &str,
        target: &str,
        body: impl Into<Bytes>,
    ) -> Request<Body> {
        Request::builder()
            .method(method)
            .uri(target)
            .header("host", self.authority(name))
            .body(Full::new(body.into()))
            .unwrap()
    }
}

pub(crate) async fn http1_over(
    io: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
) -> http1::SendRequest<Body> {
    let (sender, connection) = http1::handshake(TokioIo::new(io)).await.unwrap();
    tokio::spawn(connection.with_upgrades());
    sender
}

/// A complete answer.
#[derive(Debug)]
pub(crate) struct Read {
    pub(crate) status: u16,
    pub(crate) headers: http::HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) trailers: Option<http::HeaderMap>,
}

impl Read {
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

pub(crate) async fn read(response: Response<Incoming>) -> Result<Read, hyper::Error> {
    let (head, body) = response.into_parts();
    let body = timeout(PATIENCE, body.collect()).await.expect("the body ends")?;
    let trailers = body.trailers().cloned();
    Ok(Read { status: head.status.as_u16(), headers: head.headers, body: body.to_bytes(), trailers })
}

pub(crate) async fn send(sender: &mut http1::SendRequest<Body>, request: Request<Body>) -> Read {
    timeout(PATIENCE, sender.ready()).await.unwrap().unwrap();
    let response = timeout(PATIENCE, sender.send_request(request)).await.expect("an answer in time").unwrap();
    read(response).await.unwrap()
}

pub(crate) async fn send2(sender: &mut http2::SendRequest<Body>, request: Request<Body>) -> Read {
    let response = timeout(PATIENCE, sender.send_request(request)).await.expect("an answer in time").unwrap();
    read(response).await.unwrap()
}

/// Sends bytes and reads until the end of the stream.
pub(crate) async fn raw(address: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    let mut answer = Vec::new();
    timeout(PATIENCE, stream.read_to_end(&mut answer)).await.expect("the gateway closes").ok();
    String::from_utf8_lossy(&answer).into_owned()
}
