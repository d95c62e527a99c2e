//! A real PostgreSQL outside of bays.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::image;
use crate::suite::{self, Lack};
use crate::wait::within;

/// A database server must not run as root.
const NOBODY: u32 = 65534;
/// How long a test waits for the server.
const PATIENCE: Duration = Duration::from_secs(60);

/// A database server with one user, `app`, and a database of the same name.
#[derive(Debug)]
pub struct Database {
    home: PathBuf,
    dir: tempfile::TempDir,
    server: Child,
    port: u16,
}

impl Drop for Database {
    fn drop(&mut self) {
        if let Ok(pid) = i32::try_from(self.server.id())
            && let Some(pid) = rustix::process::Pid::from_raw(pid)
        {
            rustix::process::kill_process(pid, rustix::process::Signal::QUIT).ok();
        }
        self.server.wait().ok();
    }
}

impl Database {
    /// Starts it, with TLS if it gets a certificate and its key. `None` if there is no PostgreSQL; the test then counts
    /// as skipped.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start(tls: Option<(String, String)>, password: &str) -> Option<Self> {
        let Some(home) = image::postgres_home() else {
            suite::skip(Lack::Installable, "there is no PostgreSQL below /usr/lib/postgresql");
            return None;
        };
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let data = dir.path().join("data");
        fs::create_dir(&data).unwrap();
        let offers_tls = tls.is_some();
        let (certificate, key) = tls.unwrap_or_default();
        for (name, text) in [("cert.pem", &certificate), ("key.pem", &key)] {
            let path = dir.path().join(name);
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            own(&path);
        }
        own(&data);
        own(dir.path());
        let made = as_nobody(&home.join("bin/initdb"))
            .arg("-D")
            .arg(&data)
            .args(["--no-sync", "--no-locale", "-E", "UTF8", "-A", "trust", "-U", "admin"])
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        // The method `md5` works with every stored form of the password.
        let hba = "local all admin trust\nhost all older all password\nhost all all all md5\nhost replication all all md5\n";
        fs::write(data.join("pg_hba.conf"), hba).unwrap();
        let port =
            std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        let at = |name: &str| dir.path().join(name).display().to_string();
        let mut settings = vec![
            "listen_addresses=127.0.0.1".to_owned(),
            format!("port={port}"),
            "fsync=off".to_owned(),
            "shared_buffers=16MB".to_owned(),
            "timezone=GMT".to_owned(),
            "log_timezone=GMT".to_owned(),
        ];
        if offers_tls {
            settings.extend(["ssl=on".to_owned(), format!("ssl_cert_file={}", at("cert.pem"))]);
            settings.push(format!("ssl_key_file={}", at("key.pem")));
        }
        let log = fs::File::create(dir.path().join("log")).unwrap();
        let server = as_nobody(&home.join("bin/postgres"))
            .arg("-D")
            .arg(&data)
            .arg("-k")
            .arg(dir.path())
            .args(settings.iter().flat_map(|setting| ["-c", setting]))
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let database = Self { home, dir, server, port };
        let ready = within(PATIENCE, || database.admin("select 1").is_ok().then_some(()));
        assert!(ready.is_some(), "{}", fs::read_to_string(database.dir().join("log")).unwrap());
        for made in [
            format!("create role app login password '{password}'"),
            "create database app owner app".to_owned(),
        ] {
            database.admin(&made).unwrap();
        }
        Some(database)
    }

    /// Its address.
    #[must_use]
    pub fn place(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// The directory of its files.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// A program of the same installation.
    #[must_use]
    pub fn program(&self, name: &str) -> PathBuf {
        self.home.join("bin").join(name)
    }

    /// Runs a statement as the administrator, over the server's own socket.
    ///
    /// # Errors
    /// The client's error message.
    ///
    /// # Panics
    /// If there is no client.
    pub fn admin(&self, sql: &str) -> Result<String, String> {
        let ran = Command::new(self.home.join("bin/psql"))
            .env_clear()
            .args(["-qAtX", "-v", "ON_ERROR_STOP=1", "-U", "admin", "-d", "postgres", "-c", sql])
            .arg("-h")
            .arg(self.dir.path())
            .args(["-p", &self.port.to_string()])
            .output()
            .unwrap();
        if ran.status.success() {
            Ok(String::from_utf8(ran.stdout).unwrap())
        } else {
            Err(String::from_utf8(ran.stderr).unwrap())
        }
    }
}

fn own(path: &Path) {
    if rustix::process::geteuid().is_root() {
        chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    }
}

fn as_nobody(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("LC_ALL", "C").current_dir("/").stdin(Stdio::null());
    if rustix::process::geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    command
}
