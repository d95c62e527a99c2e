//! The SSH client towards the origin: checks the host key, logs in with the operator's key, and requests one command.

use std::sync::{Arc, Mutex, PoisonError};

use bay_policy::{CanonicalRequest, Decision, GitSsh};
use russh::client::{self, ChannelOpenHandle, Handle, Msg, Session};
use russh::keys::{HashAlg, PrivateKeyWithHashAlg, PublicKeyOrCertificate};
use russh::{Channel, ChannelOpenFailure, Preferred, SshId};
use tokio::time::timeout;

use super::close_on_drop::{Leash, leashed};
use super::known_hosts::{Known, Verdict};
use super::plain_preferences;
use crate::decider::Failure;
use crate::limits::{SSH_CHANNEL_MESSAGES, SSH_PACKET_BYTES, SSH_WINDOW_BYTES, Timeouts};
use crate::origin::Origins;
use crate::upstream::{DialError, SshLogin, seconds};

/// The default port of SSH.
pub(super) const OWN_PORT: u16 = 22;
/// The environment variable with which a client requests a newer version of git's protocol.
pub(super) const PROTOCOL_VARIABLE: &str = "GIT_PROTOCOL";

/// A command that runs at the origin. Dropping it ends the command.
pub(super) struct Origin {
    pub(super) channel: Channel<Msg>,
    pub(super) connection: Handle<Checker>,
    pub(super) leash: Leash,
}

/// Connects to the host of an allowed request, logs in, and requests the command.
pub(super) async fn open(
    origins: &Origins,
    timeouts: &Timeouts,
    decision: &Decision,
    request: &CanonicalRequest,
    git: &GitSsh,
    protocol: Option<&'static str>,
    login: &SshLogin,
) -> Result<Origin, DialError> {
    let (host, port) = (request.host().to_string(), request.port());
    let known = Known::read(&login.known_hosts, &host, port);
    if known.is_empty() {
        let why = format!(
            "no host key of {} is known; the operator of this host has to add it to the file of --ssh-known-hosts",
            request.authority()
        );
        return Err(DialError::failed(Failure::HostKey, why));
    }
    let key = russh::keys::decode_secret_key(&login.key, None).map_err(|error| {
        let why = format!("the operator's key for {host} cannot be used: {error}");
        DialError::failed(Failure::Login, why)
    })?;
    let dialled = origins.dial(decision, request).await?;
    let (stream, leash) = leashed(dialled.stream);
    let within = timeouts.connect;
    let opening = begin(stream, known, &host, key, login, git, protocol);
    match timeout(within, opening).await {
        Ok(Ok((connection, channel))) => Ok(Origin { channel, connection, leash }),
        Ok(Err(error)) => Err(error),
        Err(_) => {
            let why = format!("{host} did not let the gateway log in within {}", seconds(within));
            Err(DialError::failed(Failure::ConnectTimeout, why))
        }
    }
}

async fn begin(
    stream: impl crate::stream::Io,
    known: Known,
    host: &str,
    key: russh::keys::PrivateKey,
    login: &SshLogin,
    git: &GitSsh,
    protocol: Option<&'static str>,
) -> Result<(Handle<Checker>, Channel<Msg>), DialError> {
    let broken = |error: russh::Error| {
        // Some of these errors quote the server, so the reason is the gateway's own text.
        let why = match error {
            russh::Error::IO(error) => error.kind().to_string(),
            russh::Error::Disconnect | russh::Error::HUP => "the server closed it".to_owned(),
            _ => "the server does not speak SSH as it should".to_owned(),
        };
        DialError::failed(Failure::Broken, format!("the SSH connection to {host} broke: {why}"))
    };
    let preferred = plain_preferences();
    let config = client::Config {
        client_id: SshId::Standard("SSH-2.0-Workbay".into()),
        window_size: SSH_WINDOW_BYTES,
        maximum_packet_size: SSH_PACKET_BYTES,
        channel_buffer_size: SSH_CHANNEL_MESSAGES,
        preferred: Preferred { key: known.algorithms(&preferred.key).into(), ..preferred },
        ..client::Config::default()
    };
    let verdict = Arc::new(Mutex::new(None));
    let checker = Checker { known, verdict: Arc::clone(&verdict) };
    let connected = client::connect_stream(Arc::new(config), stream, checker).await;
    let mut connection = match (connected, *verdict.lock().unwrap_or_else(PoisonError::into_inner)) {
        (Ok(connection), Some(Verdict::Known)) => connection,
        (_, Some(Verdict::Changed | Verdict::Revoked)) | (Ok(_), None) => {
            let why = format!(
                "the host key of {host} is not one that is known: somebody may be in between, or the server has a new key; \
                 the operator of this host has to compare it and change the file of --ssh-known-hosts"
            );
            return Err(DialError::failed(Failure::HostKey, why));
        }
        (Err(russh::Error::NoCommonAlgo { .. }), _) => {
            let why = format!("{host} has no host key of a kind that is known for it");
            return Err(DialError::failed(Failure::HostKey, why));
        }
        (Err(error), _) => return Err(broken(error)),
    };
    let hash = match key.algorithm().is_rsa() {
        true => {
            connection.best_supported_rsa_hash().await.map_err(broken)?.flatten().or(Some(HashAlg::Sha256))
        }
        false => None,
    };
    let key = PrivateKeyWithHashAlg::new(Arc::new(key), hash);
    if !connection.authenticate_publickey(&login.user, key).await.map_err(broken)?.success() {
        let why = format!("{host} does not take the operator's key for {}", login.user);
        return Err(DialError::failed(Failure::Login, why));
    }
    let channel = connection.channel_open_session().await.map_err(broken)?;
    if let Some(protocol) = protocol {
        channel.set_env(false, PROTOCOL_VARIABLE, protocol).await.map_err(broken)?;
    }
    channel.exec(true, git.command()).await.map_err(broken)?;
    Ok((connection, channel))
}

/// Checks the server's host key, and rejects every channel that the server opens.
pub(super) struct Checker {
    known: Known,
    verdict: Arc<Mutex<Option<Verdict>>>,
}

impl client::Handler for Checker {
    type Error = russh::Error;

    async fn check_server_key(&mut self, shown: &PublicKeyOrCertificate) -> Result<bool, russh::Error> {
        let verdict = match shown {
            PublicKeyOrCertificate::PublicKey { key, .. } => self.known.verdict(key),
            PublicKeyOrCertificate::Certificate(_) => Verdict::Changed,
        };
        *self.verdict.lock().unwrap_or_else(PoisonError::into_inner) = Some(verdict);
        Ok(verdict == Verdict::Known)
    }

    async fn server_channel_open_forwarded_tcpip(
        &mut self,
        _channel: Channel<Msg>,
        _connected_address: &str,
        _connected_port: u32,
        _originator_address: &str,
        _originator_port: u32,
        reply: ChannelOpenHandle,
        _session: &mut Session,
    ) -> Result<(), russh::Error> {
        reply.reject(ChannelOpenFailure::AdministrativelyProhibited).await;
        Ok(())
    }

    async fn server_channel_open_forwarded_streamlocal(
        &mut self,
        _channel: Channel<Msg>,
        _socket_path: &str,
        reply: ChannelOpenHandle,
        _session: &mut Session,
    ) -> Result<(), russh::Error> {
        reply.reject(ChannelOpenFailure::AdministrativelyProhibited).await;
        Ok(())
    }

    async fn server_channel_open_agent_forward(
        &mut self,
        _channel: Channel<Msg>,
        reply: ChannelOpenHandle,
        _session: &mut Session,
    ) -> Result<(), russh::Error> {
        reply.reject(ChannelOpenFailure::AdministrativelyProhibited).await;
        Ok(())
    }
}
