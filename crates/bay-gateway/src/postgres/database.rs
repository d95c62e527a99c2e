//! The PostgreSQL client towards the database: TLS, and the login with the real password.

use std::io;

use bay_policy::{CanonicalRequest, Decision, Host};
use bay_text::{foreign, hex};
use md5::{Digest, Md5};
use rustls::pki_types::ServerName;
use tokio::io::AsyncReadExt;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use zeroize::Zeroizing;

use super::scram::{self, ScramError};
use super::wire;
use crate::decider::Failure;
use crate::limits::Timeouts;
use crate::origin::{Origins, tls_error};
use crate::scrub::Patterns;
use crate::stream::Prefixed;
use crate::upstream::{DialError, seconds};

/// Most messages of a login, including notices.
const MAX_LOGIN_MESSAGES: usize = 32;

/// Replaces the text of an error that contains the value of a secret.
const VALUE_IN_TEXT: &str = "its message had the value of a secret in it and is left out";

pub(super) struct Line {
    pub(super) stream: Prefixed,
    pub(super) encrypted: bool,
}

/// Why the login failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum LoginError {
    #[error("the connection to the database broke: {0}")]
    Broken(#[from] io::Error),
    #[error("the database refused it: {text}")]
    Refused { code: String, text: String },
    #[error("the database did not log in as it should: {0}")]
    Scram(#[from] ScramError),
    #[error("the database asks for {0}, which the gateway does not answer")]
    Asked(&'static str),
}

/// Connects to the database of an allowed request.
pub(super) async fn connect(
    origins: &Origins,
    timeouts: &Timeouts,
    decision: &Decision,
    request: &CanonicalRequest,
    plain: bool,
) -> Result<Line, DialError> {
    let dialled = origins.dial(decision, request).await?;
    let host = request.host();
    let mut stream = dialled.stream;
    let handshake = async {
        let broken = |error: io::Error| {
            DialError::failed(Failure::Broken, format!("{host} closed the connection at once: {error}"))
        };
        wire::write(&mut stream, &wire::ssl_request()).await.map_err(broken)?;
        match stream.read_u8().await.map_err(broken)? {
            b'S' => {
                let name = match host {
                    Host::Name(name) => ServerName::try_from(name.to_string()).map_err(|error| {
                        let why = format!("{name} cannot be in a certificate: {error}");
                        DialError::failed(Failure::Certificate, why)
                    })?,
                    Host::Address(address) => ServerName::from(*address),
                };
                let connector = TlsConnector::from(origins.speaking(super::ALPN));
                let stream =
                    connector.connect(name, stream).await.map_err(|error| tls_error(host, &error))?;
                Ok(Line { stream: Prefixed::new(stream), encrypted: true })
            }
            b'N' if plain => Ok(Line { stream: Prefixed::new(stream), encrypted: false }),
            b'N' => {
                let why = format!("{host} offers no TLS, and its secret is not said to go without");
                Err(DialError::failed(Failure::Tls, why))
            }
            _ => Err(DialError::failed(Failure::BadAnswer, format!("{host} does not speak PostgreSQL"))),
        }
    };
    timeout(timeouts.connect, handshake).await.unwrap_or_else(|_| {
        let within = seconds(timeouts.connect);
        let why = format!("{host} did not finish the handshake within {within}");
        Err(DialError::failed(Failure::ConnectTimeout, why))
    })
}

impl Line {
    /// Logs in. Reads nothing beyond the end of the login.
    pub(super) async fn log_in(
        &mut self,
        parameters: &[(String, String)],
        user: &str,
        password: &str,
        patterns: Option<&Patterns>,
    ) -> Result<(), LoginError> {
        let encrypted = self.encrypted;
        let stream = &mut self.stream;
        wire::write(stream, &wire::begin(parameters)).await?;
        let mut scram: Option<scram::Client> = None;
        let mut proven = true;
        for _ in 0..MAX_LOGIN_MESSAGES {
            let (kind, body) = wire::read(stream).await?;
            let asked = match (kind, body.split_first_chunk::<4>()) {
                (b'R', Some((asked, rest))) => (u32::from_be_bytes(*asked), rest),
                (b'E', _) => {
                    let (code, mut text) = wire::error_text(&body);
                    if patterns.is_some_and(|patterns| shows_value(patterns, &body)) {
                        VALUE_IN_TEXT.clone_into(&mut text);
                    }
                    return Err(LoginError::Refused { code, text });
                }
                (b'N', _) => continue,
                _ => return Err(LoginError::Asked("something that is no login")),
            };
            let answer = match asked {
                // The database must complete its own proof. Otherwise it need not know the password.
                (0, _) if proven => return Ok(()),
                (0, _) => return Err(ScramError::Signature.into()),
                (3, _) if encrypted => with_zero(password),
                (3, _) => return Err(LoginError::Asked("the password itself, without TLS")),
                (5, salt) if salt.len() == 4 => with_zero(&md5_answer(user, password, salt)),
                (10, mechanisms) => {
                    if !mechanisms.split(|byte| *byte == 0).any(|name| name == scram::MECHANISM.as_bytes()) {
                        return Err(LoginError::Asked("a mechanism other than SCRAM-SHA-256"));
                    }
                    let client = scram::Client::new()?;
                    let first = client.first();
                    scram = Some(client);
                    proven = false;
                    let length = u32::try_from(first.len()).unwrap_or(u32::MAX);
                    let name = [scram::MECHANISM.as_bytes(), b"\0"].concat();
                    Zeroizing::new([&name[..], &length.to_be_bytes(), first.as_bytes()].concat())
                }
                (11, message) => {
                    let mut client = scram.take().ok_or(ScramError::Malformed)?;
                    let (message, password) = (message.to_vec(), Zeroizing::new(password.to_owned()));
                    // The database sets the number of iterations, so the work must not block other tasks.
                    let proving = tokio::task::spawn_blocking(move || {
                        let proof = client.prove(&message, &password);
                        proof.map(|proof| (client, proof))
                    });
                    let (client, proof) = proving.await.map_err(io::Error::other)??;
                    scram = Some(client);
                    Zeroizing::new(proof.into_bytes())
                }
                (12, message) => {
                    scram.as_ref().ok_or(ScramError::Malformed)?.check(message)?;
                    proven = true;
                    continue;
                }
                _ => return Err(LoginError::Asked("a way to log in that is not a password")),
            };
            wire::write(stream, &wire::message(b'p', &answer)).await?;
        }
        Err(LoginError::Asked("too many things"))
    }
}

/// Whether an error of the database contains the value of a secret, in its bytes or in the text made of them.
fn shows_value(patterns: &Patterns, body: &[u8]) -> bool {
    let whole = foreign::one_line(&String::from_utf8_lossy(body), body.len());
    let found = patterns.scrub(&mut body.to_vec()) + patterns.scrub(&mut whole.into_bytes());
    found > 0
}

fn with_zero(text: &str) -> Zeroizing<Vec<u8>> {
    let mut bytes = Zeroizing::new(Vec::with_capacity(text.len() + 1));
    bytes.extend_from_slice(text.as_bytes());
    bytes.push(0);
    bytes
}

/// The answer to PostgreSQL's MD5 login.
fn md5_answer(user: &str, password: &str, salt: &[u8]) -> Zeroizing<String> {
    let hex = |digest: Md5| Zeroizing::new(hex::encode(digest.finalize()));
    let inner = hex(Md5::new().chain_update(password).chain_update(user));
    let outer = hex(Md5::new().chain_update(inner.as_bytes()).chain_update(salt));
    Zeroizing::new(format!("md5{}", &*outer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_older_answer_is_what_postgresql_makes_of_it() {
        // select 'md5' || md5(md5('secretbob') || 'salt')
        assert_eq!(&**md5_answer("bob", "secret", b"salt"), "md5a472781a92412d8a652b427f4c5b7f3f");
    }
}
