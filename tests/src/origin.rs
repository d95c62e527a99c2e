//! Origins: servers outside the bay, correct ones and faulty ones.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

pub type Body = UnsyncBoxBody<Bytes, Infallible>;

pub fn text(text: impl Into<Bytes>) -> Body {
    Full::new(text.into()).boxed_unsync()
}

pub struct OriginAuthority {
    certificate: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

impl std::fmt::Debug for OriginAuthority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OriginAuthority").finish_non_exhaustive()
    }
}

impl Default for OriginAuthority {
    fn default() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap().der().clone();
        Self { certificate, issuer: Issuer::new(params, key) }
    }
}

impl OriginAuthority {
    pub fn certificate(&self) -> CertificateDer<'static> {
        self.certificate.clone()
    }

    /// Its certificate in PEM.
    #[must_use]
    pub fn pem(&self) -> String {
        pem::encode(&pem::Pem::new("CERTIFICATE", self.certificate.to_vec()))
    }

    /// A server configuration for the name. `change` may modify the certificate.
    ///
    /// # Panics
    /// If the changed certificate is invalid.
    pub fn server(&self, name: &str, change: impl FnOnce(&mut CertificateParams)) -> Arc<ServerConfig> {
        let (leaf, key) = self.leaf(name, change);
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![leaf], PrivatePkcs8KeyDer::from(key.serialize_der()).into())
            .unwrap();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Arc::new(config)
    }

    /// The certificate and key of a server for the name, in PEM.
    ///
    /// # Panics
    /// If the name is invalid.
    #[must_use]
    pub fn leaf_pem(&self, name: &str) -> (String, String) {
        let (leaf, key) = self.leaf(name, |_| {});
        (pem::encode(&pem::Pem::new("CERTIFICATE", leaf.to_vec())), key.serialize_pem())
    }

    fn leaf(
        &self,
        name: &str,
        change: impl FnOnce(&mut CertificateParams),
    ) -> (CertificateDer<'static>, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        change(&mut params);
        (params.signed_by(&key, &self.issuer).unwrap().der().clone(), key)
    }
}

/// The requests that an origin received.
#[derive(Debug, Default)]
pub struct Seen {
    pub connections: AtomicUsize,
    pub requests: Mutex<Vec<http::request::Parts>>,
}

impl Seen {
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    pub fn lines(&self) -> Vec<String> {
        let requests = self.requests.lock().unwrap();
        requests.iter().map(|head| format!("{} {}", head.method, head.uri)).collect()
    }
}

/// An HTTP origin; over TLS if it has a configuration.
pub async fn serve<F, A>(tls: Option<Arc<ServerConfig>>, answer: F) -> (SocketAddr, Arc<Seen>)
where
    F: Fn(Request<Incoming>) -> A + Clone + Send + Sync + 'static,
    A: Future<Output = Response<Body>> + Send + 'static,
{
    let seen = Arc::new(Seen::default());
    let told = seen.clone();
    let address = accept(move |stream| {
        let (answer, seen, tls) = (answer.clone(), told.clone(), tls.clone());
        async move {
            seen.connections.fetch_add(1, Ordering::SeqCst);
            let service = service_fn(move |request: Request<Incoming>| {
                let (head, body) = request.into_parts();
                seen.requests.lock().unwrap().push(head.clone());
                let answered = answer(Request::from_parts(head, body));
                async move { Ok::<_, Infallible>(answered.await) }
            });
            let http1 = hyper::server::conn::http1::Builder::new();
            let Some(tls) = tls else {
                http1.serve_connection(TokioIo::new(stream), service).with_upgrades().await.ok();
                return;
            };
            let Ok(stream) = TlsAcceptor::from(tls).accept(stream).await else { return };
            if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
                hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                    .serve_connection(TokioIo::new(stream), service)
                    .await
                    .ok();
            } else {
                http1.serve_connection(TokioIo::new(stream), service).with_upgrades().await.ok();
            }
        }
    })
    .await;
    (address, seen)
}

/// An origin with a custom handler for its connections.
pub async fn accept<F, A>(serve: F) -> SocketAddr
where
    F: Fn(TcpStream) -> A + Send + 'static,
    A: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream));
        }
    });
    address
}

/// An origin with a custom handler for its TLS connections.
pub async fn accept_tls<F, A>(mut config: Arc<ServerConfig>, serve: F) -> SocketAddr
where
    F: Fn(TlsStream<TcpStream>) -> A + Clone + Send + Sync + 'static,
    A: Future<Output = ()> + Send + 'static,
{
    Arc::get_mut(&mut config).unwrap().alpn_protocols = vec![b"http/1.1".to_vec()];
    accept(move |stream| {
        let (config, serve) = (config.clone(), serve.clone());
        async move {
            if let Ok(stream) = TlsAcceptor::from(config).accept(stream).await {
                serve(stream).await;
            }
        }
    })
    .await
}
