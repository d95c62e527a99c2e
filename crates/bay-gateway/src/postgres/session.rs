//! One connection of a PostgreSQL client.

use std::io;
use std::sync::Arc;

use bay_policy::{CanonicalRequest, Outcome};
use secrecy::ExposeSecret;
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use zeroize::Zeroizing;

use super::database::{self, LoginError};
use super::scram::{self, ScramError};
use super::wire::{self, Failed, Startup};
use super::{ALPN, parameters};
use crate::bay_connection::BayConnection;
use crate::decider::{Ending, Failure, Refused};
use crate::hello::TLS_HANDSHAKE;
use crate::progress::Progress;
use crate::scrub::{Stream, Tally};
use crate::secrets::{Login, LoginSecret, Sent};
use crate::sight::Sight;
use crate::stream::Prefixed;
use crate::tunnel;
use crate::upstream::DialError;

/// Encryption requests that a client may send before the startup message.
const MAX_PRELUDES: usize = 4;
/// The prefix of protocol options, which are not passed on: they belong to a newer protocol version.
const NEWER: &str = "_pq_.";

/// PostgreSQL's error codes.
const PROTOCOL_VIOLATION: &str = "08P01";
const CONNECTION_FAILURE: &str = "08006";
const REJECTED: &str = "08004";
const INVALID_AUTHORIZATION: &str = "28000";
const INVALID_PASSWORD: &str = "28P01";
const NOT_PRIVILEGED: &str = "42501";

/// The first request of a client, after encryption.
enum Begun {
    Session { stream: Prefixed, parameters: Vec<(String, String)> },
    Cancel { packet: Vec<u8> },
}

/// Serves a connection to a place where logins use secrets as passwords.
pub(crate) async fn serve(connection: BayConnection, stream: Prefixed) {
    let within = connection.gateway.timeouts.handshake;
    let begun = match timeout(within, greet(&connection, stream)).await {
        Ok(Ok(begun)) => begun,
        // The client disconnected, perhaps after checking that the port is open.
        Ok(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => return,
        Ok(Err(error)) => return connection.refuse_protocol(&format!("PostgreSQL: {error}")).await,
        Err(_) => {
            return connection.refuse_protocol("PostgreSQL: the connection did not begin in time").await;
        }
    };
    match begun {
        Begun::Cancel { packet } => cancel(&connection, &packet).await,
        Begun::Session { mut stream, parameters } => {
            if let Err(Some(failed)) =
                (Session { connection: &connection, parameters }).run(&mut stream).await
            {
                wire::write(&mut stream, &failed.message()).await.ok();
                stream.shutdown().await.ok();
            }
        }
    }
}

/// Encrypts the connection if the client asks for it, and reads the first request.
async fn greet(connection: &BayConnection, mut stream: Prefixed) -> io::Result<Begun> {
    let mut encrypted = false;
    if stream.first().await? == Some(TLS_HANDSHAKE) {
        stream = encrypt(connection, stream).await?;
        encrypted = true;
    }
    for _ in 0..MAX_PRELUDES {
        match wire::startup(&mut stream).await? {
            Startup::Ssl if !encrypted => {
                wire::write(&mut stream, b"S").await?;
                stream = encrypt(connection, stream).await?;
                encrypted = true;
            }
            Startup::Ssl | Startup::Gss => wire::write(&mut stream, b"N").await?,
            Startup::Cancel(packet) => return Ok(Begun::Cancel { packet }),
            Startup::Begin { minor, parameters } => {
                let (newer, parameters): (Vec<_>, Vec<_>) =
                    parameters.into_iter().partition(|(name, _)| name.starts_with(NEWER));
                if minor > 0 || !newer.is_empty() {
                    wire::write(&mut stream, &only_version(&newer)).await?;
                }
                return Ok(Begun::Session { stream, parameters });
            }
        }
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, "it asks for encryption again and again"))
}

/// The negotiation of version 3.0 without any of these options.
fn only_version(options: &[(String, String)]) -> Zeroizing<Vec<u8>> {
    let count = u32::try_from(options.len()).unwrap_or(u32::MAX);
    let mut body = [0u32.to_be_bytes(), count.to_be_bytes()].concat();
    for (name, _) in options {
        body.extend_from_slice(name.as_bytes());
        body.push(0);
    }
    wire::message(b'v', &body)
}

async fn encrypt(connection: &BayConnection, stream: Prefixed) -> io::Result<Prefixed> {
    let config = connection.gateway.leaves.server(&connection.host.to_string()).map_err(io::Error::other)?;
    let mut config = (*config).clone();
    config.alpn_protocols = vec![ALPN.to_vec()];
    let stream = TlsAcceptor::from(Arc::new(config)).accept(stream).await?;
    Ok(Prefixed::new(stream))
}

/// Passes on the request to cancel a query of another connection. The key in the packet is its only credential.
async fn cancel(connection: &BayConnection, packet: &[u8]) {
    let Some((request, ruling, progress)) = allowed(connection, Sight::nothing()).await.ok().flatten() else {
        return;
    };
    // TLS is optional here: whoever opened the query's connection was allowed to use it without TLS.
    match database::connect(
        &connection.gateway.origins,
        &connection.gateway.timeouts,
        &ruling.decision,
        &request,
        true,
    )
    .await
    {
        Ok(mut line) => match wire::write(&mut line.stream, packet).await {
            Ok(()) => progress.end(Ending::Closed),
            Err(_) => progress.end_failed(Failure::Broken),
        },
        Err(error) => progress.end_failed(error.failure()),
    }
}

type Allowed = (CanonicalRequest, crate::decider::Ruling, Arc<Progress>);

/// Has the connection decided on. `Ok(None)` if it has no canonical form, `Err` with the error for the client if it
/// is refused.
async fn allowed(connection: &BayConnection, mut sight: Sight<'_>) -> Result<Option<Allowed>, Failed> {
    let request = match CanonicalRequest::tcp(&connection.host.to_string(), connection.port) {
        Ok(request) => request.with_secrets(sight.secrets().to_vec()),
        Err(refusal) => {
            let what = Refused::Form { host: &connection.host, port: connection.port, refusal: &refusal };
            connection.refuse(&what).await;
            return Ok(None);
        }
    };
    let gateway = &connection.gateway;
    let decided_in = gateway.policy.version();
    let ruling = gateway.decider().decide(&connection.caller, &request, &mut sight).await;
    let progress = Progress::new(
        &gateway.policy,
        ruling.id.clone(),
        request.clone(),
        decided_in,
        connection.busy.clone(),
    );
    if ruling.decision.outcome != Outcome::Allow {
        progress.end(Ending::Refused);
        let line = ruling.explanation.as_ref().map_or_else(
            || format!("{}: {request}", ruling.decision.outcome),
            |explanation| explanation.line(),
        );
        let next = format!("the record is number {}: `bay policy explain` tells more", ruling.id.0);
        return Err(Failed::new(NOT_PRIVILEGED, line, next));
    }
    Ok(Some((request, ruling, progress)))
}

/// A client that logs in.
struct Session<'a> {
    connection: &'a BayConnection,
    parameters: Vec<(String, String)>,
}

impl Session<'_> {
    /// Serves the client to its end. `Err(Some(_))` is an error that the client should still get.
    async fn run(&self, stream: &mut Prefixed) -> Result<(), Option<Failed>> {
        let gateway = &self.connection.gateway;
        let (host, port) = (&self.connection.host, self.connection.port);
        let Some(user) = self.parameter("user") else {
            let why = "PostgreSQL: the connection names no user";
            self.connection.refuse_protocol(why).await;
            return Err(Some(Failed::new(PROTOCOL_VIOLATION, why, "name a user")));
        };
        let database = self.parameter("database").filter(|name| !name.is_empty()).unwrap_or(user);
        let login = Login { host, port, user, database };
        let known_in = gateway.policy.version();
        let secrets = gateway.decider().secrets();
        if let Some(misuse) = secrets.closed(&host.to_string()) {
            self.connection.refuse(&Refused::Secret { host, port, misuse: &misuse }).await;
            return Err(Some(Failed::new(NOT_PRIVILEGED, misuse.to_string(), "ask the operator")));
        }
        let secret = match secrets.login(&login) {
            Ok(secret) => secret,
            Err(uses) => {
                let why = format!("no secret of this bay is for user {user} and database {database}");
                self.connection.refuse_protocol(&format!("PostgreSQL: {why}")).await;
                let next = format!("secrets here are for {}", uses.join(", "));
                return Err(Some(Failed::new(INVALID_AUTHORIZATION, why, next)));
            }
        };
        let passed = match parameters::checked(&self.parameters, secret.replication) {
            Ok(passed) => passed,
            Err(failed) => {
                self.connection.refuse_protocol(&format!("PostgreSQL: {}", failed.message)).await;
                return Err(Some(failed));
            }
        };
        let within = gateway.timeouts.handshake;
        let checked = timeout(within, check(stream, &secret)).await;
        let last = match checked {
            Ok(Ok(last)) => last,
            Ok(Err(failed)) => {
                if let Some(failed) = &failed {
                    self.connection.refuse_protocol(&format!("PostgreSQL: {}", failed.message)).await;
                }
                return Err(failed);
            }
            Err(_) => {
                self.connection.refuse_protocol("PostgreSQL: the login took too long").await;
                return Err(None);
            }
        };
        let Some((request, ruling, progress)) =
            allowed(self.connection, Sight::of_login(secret.name.clone(), login.to_string()))
                .await
                .map_err(Some)?
        else {
            return Err(None);
        };
        let wanted = [(secret.name.clone(), secret.incarnation)];
        progress.set_secrets(wanted.to_vec());
        let attached = gateway.decider().attach(&ruling.id, &wanted).await;
        let unusable = |why: String| {
            progress.end_failed(Failure::Secret);
            let next = format!("the operator sees what is wrong with `bay secret show {}`", secret.name);
            Some(Failed::new(INVALID_AUTHORIZATION, why, next))
        };
        let values = attached.map_err(unusable)?;
        let sent = Sent::all(&wanted, &values);
        let patterns =
            secrets.patterns(&host.to_string(), &sent).map_err(|error| unusable(error.to_string()))?;
        let value = values.first().ok_or_else(|| unusable("the secret has no value".to_owned()))?;
        if !progress.still_allowed() {
            return Err(Some(Failed::new(NOT_PRIVILEGED, "it is no longer allowed", "ask the operator")));
        }
        let mut line =
            database::connect(&gateway.origins, &gateway.timeouts, &ruling.decision, &request, secret.plain)
                .await
                .map_err(|error| {
                    progress.end_failed(error.failure());
                    Some(not_connected(&error, &secret))
                })?;
        let logging_in = line.log_in(&passed, user, value.expose_secret(), patterns.as_deref());
        let logged_in = timeout(gateway.timeouts.connect, logging_in).await.unwrap_or_else(|_| {
            Err(LoginError::Broken(io::Error::new(
                io::ErrorKind::TimedOut,
                "it did not answer the login in time",
            )))
        });
        if let Err(error) = logged_in {
            progress.end_failed(match error {
                LoginError::Broken(_) => Failure::Broken,
                _ => Failure::BadAnswer,
            });
            return Err(Some(not_logged_in(&error, &login, &secret)));
        }
        let welcome =
            [&wire::authentication(12, last.as_bytes())[..], &wire::authentication(0, &[])].concat();
        if wire::write(stream, &welcome).await.is_err() {
            progress.end(Ending::Abandoned);
            return Err(None);
        }
        // No query needs the password, so every password in an answer counts as a guess.
        let scrub = patterns.map(|patterns| {
            let renewal = gateway.policy.renewal(host, sent, known_in);
            Stream::new(patterns).renewed_by(renewal).tallied(Tally::connection(Vec::new()))
        });
        let client = std::mem::replace(stream, Prefixed::new(tokio::io::empty()));
        let (idle, changes) = (gateway.timeouts.tunnel_idle, gateway.policy.changes());
        tunnel::run(client, line.stream, progress, idle, changes, scrub).await;
        Ok(())
    }

    fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }
}

/// Checks that the client knows the sentinel. Returns the last message of the proof, to be sent after the database's
/// login.
async fn check(stream: &mut Prefixed, secret: &LoginSecret) -> Result<String, Option<Failed>> {
    let broken = |error: ScramError| {
        Some(Failed::new(
            PROTOCOL_VIOLATION,
            format!("the client cannot log in here: {error}"),
            "use a current client",
        ))
    };
    let mechanisms = [scram::MECHANISM.as_bytes(), b"\0\0"].concat();
    wire::write(stream, &wire::authentication(10, &mechanisms)).await.map_err(|_| None)?;
    let first = answer(stream).await?;
    // The message follows the mechanism and a length.
    let rest = first.strip_prefix(scram::MECHANISM.as_bytes()).and_then(|rest| rest.strip_prefix(b"\0"));
    let message = rest.and_then(|rest| rest.get(4..)).ok_or_else(|| broken(ScramError::Malformed))?;
    let server = scram::Server::new(message).map_err(broken)?;
    wire::write(stream, &wire::authentication(11, server.first().as_bytes())).await.map_err(|_| None)?;
    let last = answer(stream).await?;
    match server.check(&last, &secret.passwords).map_err(broken)? {
        Some(last) => Ok(last),
        None => {
            let why = format!("the password is not the one that this bay has for the secret {}", secret.name);
            let next = "use the value that the bay has in its environment or files: it stands for the password, which the \
                        bay does not have";
            Err(Some(Failed::new(INVALID_PASSWORD, why, next)))
        }
    }
}

/// Reads the client's answer to a request for its password.
async fn answer(stream: &mut Prefixed) -> Result<Zeroizing<Vec<u8>>, Option<Failed>> {
    match wire::read(stream).await {
        Ok((b'p', body)) => Ok(body),
        Ok(_) => {
            Err(Some(Failed::new(PROTOCOL_VIOLATION, "the client did not go on with its login", "try again")))
        }
        // A client without a password disconnects and asks its user.
        Err(_) => Err(None),
    }
}

fn not_connected(error: &DialError, secret: &LoginSecret) -> Failed {
    let next = match error {
        DialError::Address(_) | DialError::Revoked => "the policy of the bay has to allow it".to_owned(),
        DialError::Failed { failure: Failure::Tls, .. } => {
            format!(
                "turn TLS on in the database, or have the operator set {} for `postgres-plain`",
                secret.name
            )
        }
        DialError::Failed { .. } => "see whether the database runs there".to_owned(),
    };
    let code = if matches!(error, DialError::Failed { .. }) { CONNECTION_FAILURE } else { REJECTED };
    Failed::new(code, error.to_string(), next)
}

fn not_logged_in(error: &LoginError, login: &Login<'_>, secret: &LoginSecret) -> Failed {
    let Login { user, database, .. } = login;
    let name = &secret.name;
    match error {
        LoginError::Refused { code, text } if code == INVALID_PASSWORD || code == INVALID_AUTHORIZATION => {
            Failed::new(
                INVALID_PASSWORD,
                format!(
                    "the database does not take the value of the secret {name} for user {user} and database {database}: {text}"
                ),
                format!("the operator gives it the right one with `bay secret rotate {name}`"),
            )
        }
        LoginError::Refused { text, .. } => Failed::new(
            REJECTED,
            format!("the database refused the connection: {text}"),
            "its own log may tell more",
        ),
        error => Failed::new(
            CONNECTION_FAILURE,
            error.to_string(),
            "try again; the database's own log may tell more",
        ),
    }
}
