//! One attempt to send one message to one webhook.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::hmac;
use bay_gateway::Upstream;
use bay_policy::Host;
use bay_policy::address::{AddressClass, classify_with};
use bay_text::hex;
use bay_types::notify::{DELIVERY_HEADER, SIGNATURE_HEADER};
use http::{HeaderMap, HeaderValue, StatusCode, Uri};
use jiff::Timestamp;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::Message;
use crate::gateway_settings::GatewaySettings;
use crate::outgoing_http::{Trouble, post_json};

/// How long one attempt may take, from the look-up to the answer.
const ATTEMPT_WITHIN: Duration = Duration::from_secs(10);
/// The most addresses of a webhook that are tried.
const MAX_ADDRESSES: usize = 4;

/// Where messages go.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    tls: bool,
    host: Host,
    port: u16,
    target: String,
    authority: String,
    /// Addresses that are allowed although they are not public: whoever added the webhook named them.
    pub(crate) addresses: Vec<IpAddr>,
}

impl Target {
    pub(crate) fn parse(url: &str) -> Result<Self, String> {
        let uri: Uri = url.parse().map_err(|error| format!("{url:?} is not a URL: {error}"))?;
        let (tls, usual_port) = match uri.scheme_str() {
            Some("https") => (true, 443),
            Some("http") => (false, 80),
            _ => return Err("the URL begins with neither https:// nor http://".to_owned()),
        };
        let authority = uri.authority().ok_or("the URL has no host")?;
        if authority.as_str().contains('@') {
            return Err("the URL has a user in it, and messages are signed instead".to_owned());
        }
        let host = Host::parse(authority.host()).map_err(|refusal| refusal.to_string())?;
        let port = authority.port_u16().unwrap_or(usual_port);
        let target = uri.path_and_query().map_or("/", |target| target.as_str()).to_owned();
        Ok(Self { tls, host, port, target, authority: authority.to_string(), addresses: Vec::new() })
    }

    /// Whether the daemon may connect to this address: a public one, or one that the operator named.
    fn may_connect(&self, address: IpAddr, own: &[IpAddr]) -> bool {
        let named = match &self.host {
            Host::Address(host) => *host == address,
            Host::Name(_) => self.addresses.contains(&address),
        };
        named || classify_with(address, own) == AddressClass::Public
    }
}

pub(crate) async fn post(
    settings: &GatewaySettings,
    target: &Target,
    secret: &str,
    message: &Message,
) -> Result<StatusCode, Trouble> {
    let posting = async {
        let stream = connect(settings, target).await?;
        let (authority, path) = (&target.authority, &target.target);
        let (headers, body) = (signed(secret, message)?, message.body.clone());
        if !target.tls {
            return post_json(stream, authority, path, headers, body).await;
        }
        let name = match &target.host {
            Host::Name(name) => ServerName::try_from(name.to_string()).map_err(Trouble::passing)?,
            Host::Address(address) => ServerName::IpAddress((*address).into()),
        };
        let connector = TlsConnector::from(Arc::new(tls(settings)?));
        let stream = connector.connect(name, stream).await.map_err(Trouble::passing)?;
        post_json(stream, authority, path, headers, body).await
    };
    let status = tokio::time::timeout(ATTEMPT_WITHIN, posting)
        .await
        .map_err(|_| Trouble::Passing(format!("no answer within {} s", ATTEMPT_WITHIN.as_secs())))??;
    match status {
        status if status.is_success() => Ok(status),
        status if status.is_redirection() => {
            Err(Trouble::Lasting(format!("it answered {status}, and redirects are not followed")))
        }
        StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS => {
            Err(Trouble::passing(format!("it answered {status}")))
        }
        status if status.is_client_error() => Err(Trouble::Lasting(format!("it answered {status}"))),
        status => Err(Trouble::passing(format!("it answered {status}"))),
    }
}

fn tls(settings: &GatewaySettings) -> Result<ClientConfig, Trouble> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    Ok(ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(Trouble::passing)?
        .with_root_certificates(settings.roots().clone())
        .with_no_client_auth())
}

async fn connect(settings: &GatewaySettings, target: &Target) -> Result<TcpStream, Trouble> {
    let network = settings.network();
    let found = match &target.host {
        Host::Address(address) => vec![*address],
        Host::Name(name) => network
            .resolve(name)
            .await
            .map_err(|error| Trouble::passing(format!("{name} cannot be looked up: {error}")))?,
    };
    let own = network.own_addresses().map_err(Trouble::passing)?;
    let mut last = Trouble::Passing(format!("{} has no address", target.host));
    for address in found.into_iter().take(MAX_ADDRESSES) {
        if !target.may_connect(address, &own) {
            last = Trouble::Lasting(format!(
                "{} resolves to {address}, which is not public, and the webhook was not given that address",
                target.host
            ));
            continue;
        }
        match network.connect(SocketAddr::new(address, target.port)).await {
            Ok(stream) => return Ok(stream),
            Err(error) => last = Trouble::passing(format!("no connection to {address}: {error}")),
        }
    }
    Err(last)
}

/// Headers by which the receiver can check that the message is genuine and when it was sent.
fn signed(secret: &str, message: &Message) -> Result<HeaderMap, Trouble> {
    let time = Timestamp::now().as_second();
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    let mut signing = hmac::Context::with_key(&key);
    signing.update(format!("{time}.").as_bytes());
    signing.update(&message.body);
    let signature = hex::encode(signing.sign());
    let value = |text: &str| HeaderValue::from_str(text).map_err(|error| Trouble::Lasting(error.to_string()));
    let mut headers = HeaderMap::new();
    headers.insert(SIGNATURE_HEADER, value(&format!("t={time},v1={signature}"))?);
    headers.insert(DELIVERY_HEADER, value(&message.id)?);
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_public_or_named_by_the_operator() {
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        let mut target = Target::parse("https://hooks.example.com/x?y=1").unwrap();
        assert!(target.may_connect(address("192.0.2.1"), &[]));
        for private in ["127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "fd00::1", "192.0.2.9"] {
            assert!(!target.may_connect(address(private), &[address("192.0.2.9")]), "{private}");
        }
        target.addresses.push(address("10.0.0.1"));
        assert!(
            target.may_connect(address("10.0.0.1"), &[]) && !target.may_connect(address("10.0.0.2"), &[])
        );
        let named = Target::parse("http://127.0.0.1:8080/").unwrap();
        assert!(
            named.may_connect(address("127.0.0.1"), &[]) && !named.may_connect(address("127.0.0.2"), &[])
        );
        for odd in ["ftp://x/", "https://", "https://user@host/", "not a url", "https://0x7f.1/"] {
            assert!(Target::parse(odd).is_err(), "{odd}");
        }
    }
}
