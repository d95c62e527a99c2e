//! A server of git repositories over SSH, with a host key and one key that may log in.

use std::collections::HashMap;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use russh::keys::{PrivateKey, PublicKey};
use russh::server::{self, Auth, ChannelOpenHandle, Msg, PublicKeyOffer, Session, VerifiedPublicKey};
use russh::{Channel, ChannelId, ChannelMsg};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

/// The requests that the forge received.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Asked {
    /// Whole command lines.
    pub commands: Vec<String>,
    /// Users, once for each login with the right key.
    pub users: Vec<String>,
    /// All connections, successful or not.
    pub connections: usize,
    /// `NAME=VALUE` of each variable that was sent.
    pub variables: Vec<String>,
}

/// Its directory contains the operator's `key` and `key.pub`, the server's `host` and `host.pub`, and repositories
/// below `repos`.
#[derive(Debug, Clone)]
pub struct SshForge {
    dir: PathBuf,
    asked: Arc<Mutex<Asked>>,
}

fn run(command: &mut Command) {
    let done = command.stdin(Stdio::null()).output().unwrap();
    assert!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr));
}

/// Makes a new key pair with `ssh-keygen`.
///
/// # Panics
/// If it cannot be made.
pub fn make_key(path: &Path, kind: &str) {
    let _ = fs::remove_file(path);
    run(Command::new("ssh-keygen").args(["-q", "-t", kind, "-N", "", "-C", "lab", "-f"]).arg(path));
}

impl SshForge {
    /// # Panics
    /// If its files cannot be made.
    #[must_use]
    pub fn new(dir: &Path) -> Self {
        fs::create_dir_all(dir).unwrap();
        make_key(&dir.join("key"), "ed25519");
        make_key(&dir.join("host"), "ed25519");
        Self { dir: dir.to_owned(), asked: Arc::default() }
    }

    /// The operator's private key.
    #[must_use]
    pub fn key(&self) -> PathBuf {
        self.dir.join("key")
    }

    /// # Panics
    /// If it cannot be read.
    #[must_use]
    pub fn key_text(&self) -> String {
        fs::read_to_string(self.key()).unwrap()
    }

    #[must_use]
    pub fn asked(&self) -> Asked {
        self.asked.lock().unwrap().clone()
    }

    /// The line for `known_hosts` with this host name.
    ///
    /// # Panics
    /// If its key cannot be read.
    #[must_use]
    pub fn known_hosts(&self, name: &str, port: u16) -> String {
        let public = fs::read_to_string(self.dir.join("host.pub")).unwrap();
        if port == 22 { format!("{name} {public}") } else { format!("[{name}]:{port} {public}") }
    }

    /// A bare repository with one commit, at a path such as `team/app.git`.
    ///
    /// # Panics
    /// If git cannot make it.
    pub fn repository(&self, path: &str, text: &str) -> PathBuf {
        let bare = self.dir.join("repos").join(path);
        let work = self.dir.join("work").join(path);
        fs::create_dir_all(&work).unwrap();
        let git = |dir: &Path, args: &[&str]| run(quiet_git(dir).args(args));
        run(quiet_git(&self.dir).args(["init", "-q", "--bare", "-b", "main"]).arg(&bare));
        git(&work, &["init", "-q", "-b", "main"]);
        fs::write(work.join("read.me"), text).unwrap();
        git(&work, &["add", "."]);
        git(&work, &["commit", "-q", "-m", "first"]);
        run(quiet_git(&work).args(["push", "-q"]).arg(&bare).arg("main"));
        bare
    }

    /// The commit of a branch of a repository.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn tip(&self, path: &str, branch: &str) -> String {
        let name = format!("refs/heads/{branch}");
        let mut git = quiet_git(&self.dir.join("repos").join(path));
        let said = git.args(["rev-parse", "--verify", &name]).output().unwrap();
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
        String::from_utf8(said.stdout).unwrap().trim().to_owned()
    }

    /// Serves on a loopback port, with the host key that is in its directory now.
    ///
    /// # Panics
    /// If it cannot listen.
    pub async fn serve(&self) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        self.serve_on(listener);
        address
    }

    fn serve_on(&self, listener: TcpListener) {
        let forge = self.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                forge.asked.lock().unwrap().connections += 1;
                let host = fs::read_to_string(forge.dir.join("host")).unwrap();
                let config = server::Config {
                    keys: vec![PrivateKey::from_openssh(host).unwrap()],
                    auth_rejection_time: std::time::Duration::ZERO,
                    ..server::Config::default()
                };
                let public = fs::read_to_string(forge.dir.join("key.pub")).unwrap();
                let side = ForgeSide {
                    forge: forge.clone(),
                    may_log_in: PublicKey::from_openssh(&public).unwrap(),
                    channels: HashMap::new(),
                };
                tokio::spawn(async move {
                    if let Ok(session) = server::run_stream(Arc::new(config), stream, side).await {
                        let _ = session.await;
                    }
                });
            }
        });
    }
}

/// Git without any user's settings.
#[must_use]
pub fn quiet_git(dir: &Path) -> Command {
    let mut git = Command::new("git");
    git.current_dir(dir).envs([
        ("GIT_CONFIG_GLOBAL", "/dev/null"),
        ("GIT_CONFIG_SYSTEM", "/dev/null"),
        ("GIT_AUTHOR_NAME", "a"),
        ("GIT_AUTHOR_EMAIL", "a@a.test"),
        ("GIT_COMMITTER_NAME", "a"),
        ("GIT_COMMITTER_EMAIL", "a@a.test"),
        ("GIT_TERMINAL_PROMPT", "0"),
    ]);
    git
}

struct ForgeSide {
    forge: SshForge,
    may_log_in: PublicKey,
    channels: HashMap<ChannelId, Channel<Msg>>,
}

impl server::Handler for ForgeSide {
    type Error = russh::Error;

    async fn auth_publickey_offered(
        &mut self,
        _user: &str,
        offer: PublicKeyOffer<'_>,
    ) -> Result<Auth, russh::Error> {
        let right = offer.public_key.key_data() == self.may_log_in.key_data();
        Ok(if right { Auth::Accept } else { Auth::reject() })
    }

    async fn auth_publickey(&mut self, user: &str, key: VerifiedPublicKey<'_>) -> Result<Auth, russh::Error> {
        if key.public_key.key_data() != self.may_log_in.key_data() {
            return Ok(Auth::reject());
        }
        self.forge.asked.lock().unwrap().users.push(user.to_owned());
        Ok(Auth::Accept)
    }

    async fn channel_open_session(
        &mut self,
        channel: Channel<Msg>,
        reply: ChannelOpenHandle,
        _session: &mut Session,
    ) -> Result<(), russh::Error> {
        self.channels.insert(channel.id(), channel);
        reply.accept().await;
        Ok(())
    }

    async fn env_request(
        &mut self,
        id: ChannelId,
        name: &str,
        value: &str,
        session: &mut Session,
    ) -> Result<(), russh::Error> {
        self.forge.asked.lock().unwrap().variables.push(format!("{name}={value}"));
        session.channel_success(id)
    }

    async fn exec_request(
        &mut self,
        id: ChannelId,
        command: &[u8],
        session: &mut Session,
    ) -> Result<(), russh::Error> {
        let line = String::from_utf8_lossy(command).into_owned();
        let mut asked = self.forge.asked.lock().unwrap();
        asked.commands.push(line.clone());
        let protocol = asked.variables.last().cloned().unwrap_or_default();
        drop(asked);
        let Some(channel) = self.channels.remove(&id) else { return session.channel_failure(id) };
        session.channel_success(id)?;
        tokio::spawn(serve_git(self.forge.dir.join("repos"), line, protocol, channel));
        Ok(())
    }
}

async fn serve_git(repos: PathBuf, line: String, protocol: String, channel: Channel<Msg>) {
    let (program, path) = line.split_once(' ').unwrap_or((&line, ""));
    let path = repos.join(path.trim_matches('\'').trim_start_matches('/'));
    let mut command = tokio::process::Command::new("git");
    command.arg(program.trim_start_matches("git-")).arg(path).env("GIT_CONFIG_SYSTEM", "/dev/null");
    command.env("GIT_PROTOCOL", protocol.trim_start_matches("GIT_PROTOCOL="));
    command
        .env("GIT_CONFIG_COUNT", "1")
        .env("GIT_CONFIG_KEY_0", "safe.directory")
        .env("GIT_CONFIG_VALUE_0", "*");
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let (mut stdin, mut stdout, mut stderr) =
        (child.stdin.take(), child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let (mut reader, writer) = channel.split();
    let input = async {
        while let Some(message) = reader.wait().await {
            match (message, &mut stdin) {
                (ChannelMsg::Data { data }, Some(stdin)) => {
                    let _ = stdin.write_all(&data).await;
                }
                (ChannelMsg::Eof, _) => stdin = None,
                _ => {}
            }
        }
    };
    let output = async {
        let (mut out, mut err) = (writer.make_writer(), writer.make_writer_ext(Some(1)));
        let copied =
            tokio::join!(tokio::io::copy(&mut stdout, &mut out), tokio::io::copy(&mut stderr, &mut err),);
        let _ = copied;
        child.wait().await.ok().and_then(|status| status.code()).unwrap_or(255)
    };
    tokio::select! {
        () = input => {}
        status = output => {
            let _ = writer.exit_status(u32::try_from(status).unwrap_or(255)).await;
            let _ = writer.eof().await;
            let _ = writer.close().await;
        }
    }
}
