//! The SSH server for the bay's clients, with one host key for every host that they connect to. It runs no command
//! itself, and relays git's fetches and pushes.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bay_policy::{CanonicalRequest, GitSsh};
use russh::server::{self, Auth, ChannelOpenHandle, Msg, RunningSession, Session, VerifiedPublicKey};
use russh::{Channel, ChannelId, ChannelOpenFailure, MethodKind, MethodSet, Pty, SshId};
use tokio::task::JoinSet;

use super::client::PROTOCOL_VARIABLE;
use super::close_on_drop::Leashed;
use super::host_key::HostKey;
use super::{plain_preferences, relay};
use crate::bay_connection::BayConnection;
use crate::decider::Refused;
use crate::limits::{MAX_SSH_CHANNELS, SSH_CHANNEL_MESSAGES, SSH_PACKET_BYTES, SSH_WINDOW_BYTES};
use crate::stream::Prefixed;

/// The versions of git's protocol that a client may request.
const PROTOCOLS: [&str; 3] = ["version=0", "version=1", "version=2"];

/// Begins a session. It runs in a task that ends with the stream.
pub(super) async fn run(
    connection: Arc<BayConnection>,
    stream: Leashed<Prefixed>,
    under_way: Arc<()>,
) -> Result<RunningSession<BaySide>, russh::Error> {
    let config = server::Config {
        server_id: SshId::Standard("SSH-2.0-Workbay".into()),
        methods: MethodSet::from(&[MethodKind::None, MethodKind::PublicKey][..]),
        auth_rejection_time: Duration::ZERO,
        keys: vec![HostKey::of_authority(&connection.gateway.authority).private()],
        window_size: SSH_WINDOW_BYTES,
        maximum_packet_size: SSH_PACKET_BYTES,
        channel_buffer_size: SSH_CHANNEL_MESSAGES,
        preferred: plain_preferences(),
        // The commands and the connection have idle timeouts of their own.
        inactivity_timeout: None,
        ..server::Config::default()
    };
    let bay_side = BaySide {
        connection,
        user: String::new(),
        waiting: HashMap::new(),
        protocols: HashMap::new(),
        commands: JoinSet::new(),
        under_way,
    };
    server::run_stream(Arc::new(config), stream, bay_side).await
}

/// One connection of a bay. Dropping it ends its commands.
pub(super) struct BaySide {
    connection: Arc<BayConnection>,
    user: String,
    /// Open channels without a command.
    waiting: HashMap<ChannelId, Channel<Msg>>,
    protocols: HashMap<ChannelId, &'static str>,
    commands: JoinSet<()>,
    under_way: Arc<()>,
}

impl BaySide {
    async fn refuse(&self, why: &str) {
        self.connection.refuse_protocol(why).await;
    }

    /// Writes the reason to the channel's standard error and closes the channel.
    fn turn_away(&mut self, id: ChannelId, session: &mut Session, line: &str) -> Result<(), russh::Error> {
        self.waiting.remove(&id);
        session.channel_success(id)?;
        session.extended_data(id, relay::STANDARD_ERROR, relay::told(line))?;
        session.exit_status_request(id, relay::REFUSED_STATUS)?;
        session.eof(id)?;
        session.close(id)
    }
}

impl server::Handler for BaySide {
    type Error = russh::Error;

    /// Any user name is accepted. It is compared with the user of the operator's key when a command runs.
    async fn auth_none(&mut self, user: &str) -> Result<Auth, russh::Error> {
        user.clone_into(&mut self.user);
        Ok(Auth::Accept)
    }

    async fn auth_publickey(
        &mut self,
        user: &str,
        _key: VerifiedPublicKey<'_>,
    ) -> Result<Auth, russh::Error> {
        user.clone_into(&mut self.user);
        Ok(Auth::Accept)
    }

    async fn channel_open_session(
        &mut self,
        channel: Channel<Msg>,
        reply: ChannelOpenHandle,
        _session: &mut Session,
    ) -> Result<(), russh::Error> {
        while self.commands.try_join_next().is_some() {}
        if self.waiting.len() + self.commands.len() >= MAX_SSH_CHANNELS {
            reply.reject(ChannelOpenFailure::ResourceShortage).await;
            return Ok(());
        }
        self.waiting.insert(channel.id(), channel);
        reply.accept().await;
        Ok(())
    }

    async fn channel_close(&mut self, id: ChannelId, _session: &mut Session) -> Result<(), russh::Error> {
        self.waiting.remove(&id);
        self.protocols.remove(&id);
        Ok(())
    }

    async fn exec_request(
        &mut self,
        id: ChannelId,
        command: &[u8],
        session: &mut Session,
    ) -> Result<(), russh::Error> {
        let connection = Arc::clone(&self.connection);
        let (host, port) = (&connection.host, connection.port);
        let read = GitSsh::read_command(command)
            .and_then(|(service, path)| CanonicalRequest::git_ssh(&host.to_string(), port, service, &path));
        let request = match read {
            Ok(request) => request,
            Err(refusal) => {
                let what = Refused::Form { host, port, refusal: &refusal };
                let record = connection.refuse(&what).await;
                let line = format!("refused: {refusal} (record {})", record.0);
                return self.turn_away(id, session, &line);
            }
        };
        let Some(channel) = self.waiting.remove(&id) else { return session.channel_failure(id) };
        session.channel_success(id)?;
        let protocol = self.protocols.remove(&id);
        let (user, busy) = (self.user.clone(), Arc::clone(&self.under_way));
        self.commands.spawn(async move {
            relay::run(&connection, channel, request, &user, protocol).await;
            drop(busy);
        });
        Ok(())
    }

    async fn shell_request(&mut self, id: ChannelId, session: &mut Session) -> Result<(), russh::Error> {
        self.refuse("a shell by SSH does not go through the gateway").await;
        let line = "refused: no shell goes through the gateway; only git fetch and git push go over SSH";
        self.turn_away(id, session, line)
    }

    async fn subsystem_request(
        &mut self,
        id: ChannelId,
        _name: &str,
        session: &mut Session,
    ) -> Result<(), russh::Error> {
        self.refuse("a subsystem of SSH, such as sftp, does not go through the gateway").await;
        session.channel_failure(id)
    }

    async fn pty_request(
        &mut self,
        id: ChannelId,
        _term: &str,
        _columns: u32,
        _rows: u32,
        _width: u32,
        _height: u32,
        _modes: &[(Pty, u32)],
        session: &mut Session,
    ) -> Result<(), russh::Error> {
        session.channel_failure(id)
    }

    async fn x11_request(
        &mut self,
        id: ChannelId,
        _single: bool,
        _protocol: &str,
        _cookie: &str,
        _screen: u32,
        session: &mut Session,
    ) -> Result<(), russh::Error> {
        session.channel_failure(id)
    }

    /// `GIT_PROTOCOL` is the only environment variable that is passed on.
    async fn env_request(
        &mut self,
        id: ChannelId,
        name: &str,
        value: &str,
        session: &mut Session,
    ) -> Result<(), russh::Error> {
        let known = PROTOCOLS.into_iter().find(|known| name == PROTOCOL_VARIABLE && *known == value);
        match known.filter(|_| self.waiting.contains_key(&id)) {
            Some(protocol) => {
                self.protocols.insert(id, protocol);
                session.channel_success(id)
            }
            None => session.channel_failure(id),
        }
    }

    async fn channel_open_direct_tcpip(
        &mut self,
        _channel: Channel<Msg>,
        _host: &str,
        _port: u32,
        _originator: &str,
        _originator_port: u32,
        reply: ChannelOpenHandle,
        _session: &mut Session,
    ) -> Result<(), russh::Error> {
        self.refuse("forwarding by SSH does not go through the gateway").await;
        reply.reject(ChannelOpenFailure::AdministrativelyProhibited).await;
        Ok(())
    }

    async fn tcpip_forward(
        &mut self,
        _address: &str,
        _port: &mut u32,
        _session: &mut Session,
    ) -> Result<bool, russh::Error> {
        self.refuse("forwarding by SSH does not go through the gateway").await;
        Ok(false)
    }
}
