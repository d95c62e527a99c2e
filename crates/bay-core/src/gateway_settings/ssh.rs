//! Keys with which gateways log in at forges over SSH, and the servers that the operator knows.
//!
//! Both are files of the operator. The daemon reads them for each login, so a new key is used at once, and it
//! keeps no key between logins. A bay learns neither the paths of the files nor what exactly is wrong with them:
//! the daemon's log has that.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use bay_gateway::SshLogin;
use bay_policy::Host;
use zeroize::Zeroizing;

/// The longest key that is read.
const MAX_KEY_BYTES: u64 = 64 << 10;
/// The longest list of hosts that is read.
const MAX_KNOWN_HOSTS_BYTES: u64 = 4 << 20;
/// The user name for a key that names none: that of forges.
const USUAL_USER: &str = "git";
/// The port for a key that names none.
const USUAL_PORT: u16 = 22;
/// The mode bits for others than the owner. A key file may have none of them.
const FOR_OTHERS: u32 = 0o077;

/// A key for one host: `[USER@]HOST[:PORT]=FILE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SshKey {
    pub user: String,
    /// In canonical form.
    pub host: String,
    pub port: u16,
    pub file: PathBuf,
}

impl FromStr for SshKey {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let usage = "write [USER@]HOST[:PORT]=FILE";
        let (place, file) = text.split_once('=').ok_or(usage)?;
        let (user, place) = place.split_once('@').unwrap_or((USUAL_USER, place));
        let (host, port) = bay_policy::canonical::host::parse_authority(place).map_err(|e| e.to_string())?;
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if user.is_empty() || !user.bytes().all(plain) || file.is_empty() {
            return Err(usage.to_owned());
        }
        Ok(Self {
            user: user.to_owned(),
            host: host.to_string(),
            port: port.unwrap_or(USUAL_PORT),
            file: PathBuf::from(file),
        })
    }
}

/// All configured keys, and the known hosts.
#[derive(Debug, Default)]
pub(super) struct SshLogins {
    keys: Vec<SshKey>,
    known_hosts: Option<PathBuf>,
}

impl SshLogins {
    /// Logs keys that cannot be used now. Until that is fixed, logins with them fail.
    pub(super) fn new(keys: &[SshKey], known_hosts: Option<&Path>) -> Self {
        for key in keys {
            if let Err(error) = read_key(&key.file) {
                tracing::warn!(host = %key.host, file = %key.file.display(), %error, "an SSH key cannot be used");
            }
        }
        if known_hosts.is_none() && !keys.is_empty() {
            tracing::warn!(
                "there are SSH keys and no --ssh-known-hosts: no server is known, none is logged in to"
            );
        }
        Self { keys: keys.to_vec(), known_hosts: known_hosts.map(Path::to_owned) }
    }

    /// Hosts that have a key at the default port.
    pub(super) fn hosts(&self) -> Vec<String> {
        let usual = |key: &&SshKey| key.port == USUAL_PORT && Host::parse(&key.host).is_ok();
        self.keys.iter().filter(usual).map(|key| key.host.clone()).collect()
    }

    pub(super) async fn login(&self, host: &str, port: u16) -> Result<SshLogin, String> {
        let Some(key) = self.keys.iter().find(|key| key.host == host && key.port == port) else {
            return Err(format!(
                "there is no SSH key for {host}:{port}; the operator of this host gives the daemon one with --ssh-key {host}=FILE"
            ));
        };
        let (key, known_hosts) = (key.clone(), self.known_hosts.clone());
        let read = tokio::task::spawn_blocking(move || -> Result<SshLogin, (PathBuf, io::Error)> {
            let text = read_key(&key.file).map_err(|error| (key.file.clone(), error))?;
            let known_hosts = match known_hosts {
                Some(path) => read_text(&path, MAX_KNOWN_HOSTS_BYTES).map_err(|error| (path, error))?,
                None => Zeroizing::default(),
            };
            Ok(SshLogin { user: key.user, key: text, known_hosts: known_hosts.to_string() })
        });
        match read.await {
            Ok(Ok(login)) => Ok(login),
            Ok(Err((file, error))) => {
                tracing::warn!(%host, file = %file.display(), %error, "an SSH login is not possible");
                Err(format!("the key for {host} cannot be used; the log of the daemon says why"))
            }
            Err(_) => Err("the daemon is ending".to_owned()),
        }
    }
}

fn read_key(path: &Path) -> io::Result<Zeroizing<String>> {
    let text = read_text(path, MAX_KEY_BYTES)?;
    let mode = std::fs::metadata(path)?.mode();
    if mode & FOR_OTHERS != 0 {
        return Err(io::Error::other(format!(
            "others than its owner may read it (mode {:o}); `chmod 600` it",
            mode & 0o777
        )));
    }
    Ok(text)
}

fn read_text(path: &Path, most: u64) -> io::Result<Zeroizing<String>> {
    // Without this, opening a pipe or a device could wait for ever.
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let file = File::options().read(true).custom_flags(nonblocking).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    let mut text = Zeroizing::new(String::new());
    file.take(most + 1).read_to_string(&mut text)?;
    if text.len() as u64 > most {
        return Err(io::Error::other(format!("it is longer than {most} bytes")));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_key_is_for_a_user_at_a_host_and_a_port() {
        let key: SshKey = "Forge.test=/etc/key".parse().unwrap();
        assert_eq!((key.user.as_str(), key.host.as_str(), key.port), ("git", "forge.test", 22));
        let key: SshKey = "deploy@forge.test:2222=/a=b".parse().unwrap();
        assert_eq!((key.user.as_str(), key.port, key.file.to_str()), ("deploy", 2222, Some("/a=b")));
        for wrong in
            ["forge.test", "forge.test=", "@forge.test=/x", "a b@forge.test=/x", "forge..test=/x", "=/x"]
        {
            assert!(wrong.parse::<SshKey>().is_err(), "{wrong}");
        }
    }

    #[tokio::test]
    async fn a_key_that_others_could_read_is_not_used_and_a_bay_learns_no_path() {
        let dir = tempfile::tempdir().unwrap();
        let (file, known) = (dir.path().join("key"), dir.path().join("known"));
        fs::write(&known, "forge.test x y").unwrap();
        fs::write(&file, "a key").unwrap();
        let set = |mode| fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        let key: SshKey = format!("forge.test={}", file.display()).parse().unwrap();
        let logins = SshLogins::new(&[key], Some(&known));
        assert_eq!(logins.hosts(), ["forge.test"]);
        set(0o644);
        let why = logins.login("forge.test", 22).await.unwrap_err();
        assert!(!why.contains(dir.path().to_str().unwrap()), "{why}");
        set(0o600);
        let login = logins.login("forge.test", 22).await.unwrap();
        assert_eq!((login.user.as_str(), login.key.as_str()), ("git", "a key"));
        assert_eq!(login.known_hosts, "forge.test x y");
        assert!(!format!("{login:?}").contains("a key"));
        assert!(logins.login("forge.test", 2222).await.unwrap_err().contains("--ssh-key"));
        fs::remove_file(&file).unwrap();
        assert!(logins.login("forge.test", 22).await.is_err());
    }
}
