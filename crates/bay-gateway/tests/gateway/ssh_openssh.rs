//! The relay between OpenSSH's `ssh` and `sshd`.

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use bay_tests::suite::{self, Lack};
use bay_tests::until;
use tokio::process::{Child, Command};

use crate::ssh::{NAME, READING, Rig, said};

/// Starts a server whose user `git` is root, in a namespace with the files that both ends need.
const SCRIPT: &str = r#"
set -e
mount -t tmpfs none /run
mkdir /run/sshd
cp /etc/passwd /run/passwd
grep -q ^sshd: /run/passwd || echo "sshd:x:65533:65534::/run/sshd:/usr/sbin/nologin" >>/run/passwd
echo "git:x:0:0::$1:/bin/sh" >>/run/passwd
mount --bind /run/passwd /etc/passwd
exec "$2" -D -e -f "$1/sshd_config"
"#;

/// `BAY_TEST_SSHD`, or the host's own.
fn sshd() -> Option<PathBuf> {
    let found = std::env::var_os("BAY_TEST_SSHD").map_or_else(|| "/usr/sbin/sshd".into(), PathBuf::from);
    if fs::metadata("/proc/self").unwrap().uid() != 0 {
        suite::skip(Lack::Host, "a server of its own needs a mount namespace, and that needs root");
        return None;
    }
    if !found.exists() {
        suite::skip(Lack::Installable, "there is no sshd: ./test fetches it");
        return None;
    }
    Some(found)
}

fn serve(sshd: &Path, dir: &Path, keys: &str) -> (Child, SocketAddr) {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let forge = dir.join("forge");
    fs::copy(forge.join("key.pub"), dir.join("authorized")).unwrap();
    let config = format!(
        "Port {}\nListenAddress 127.0.0.1\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\nStrictModes no\n\
         UsePAM no\nPermitRootLogin yes\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n\
         AcceptEnv GIT_PROTOCOL\nLogLevel VERBOSE\n{keys}",
        free.port(),
        forge.join("host").display(),
        dir.join("authorized").display(),
    );
    fs::write(dir.join("sshd_config"), config).unwrap();
    let log = fs::File::create(dir.join("sshd.log")).unwrap();
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", SCRIPT, "sh"]).arg(dir).arg(sshd);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).kill_on_drop(true);
    let child = command.spawn().unwrap();
    // A process of its own, so it does not block this thread.
    let _up = until("sshd listens", || TcpStream::connect(free).ok());
    (child, free)
}

#[tokio::test]
async fn a_real_server_is_fetched_from_and_pushed_to() {
    let Some(sshd) = sshd() else { return };
    // Also with the oldest algorithms that current servers still support.
    for keys in ["", "Ciphers aes128-ctr\nMACs hmac-sha2-256\nKexAlgorithms diffie-hellman-group14-sha256\n"]
    {
        let mut rig =
            Rig::new(&READING.replace("path = \"/team/app\"", "method = \"*\"\npath = \"/**\"")).await;
        let dir = rig.dir.path().to_owned();
        let (mut server, place) = serve(&sshd, &dir, keys);
        rig.lab.net.lead(NAME, "192.0.2.11", place);
        let path = dir.join("forge/repos/team/app.git").display().to_string();
        let log = || fs::read_to_string(dir.join("sshd.log")).unwrap();
        let (work, done) = rig.clone(path.trim_start_matches('/')).await;
        assert!(done.status.success(), "{}\n{}", said(&done), log());
        assert_eq!(fs::read_to_string(work.join("read.me")).unwrap(), "the app");
        let bytes: Vec<u8> =
            (0..3_u32 << 20).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        fs::write(work.join("large"), &bytes).unwrap();
        for args in [&["add", "."][..], &["commit", "-q", "-m", "large"], &["push", "-q", "origin", "main"]] {
            let done = rig.git(&work, args).output().await.unwrap();
            assert!(done.status.success(), "{}\n{}", said(&done), log());
        }
        fs::remove_dir_all(&work).unwrap();
        let (work, done) = rig.clone(path.trim_start_matches('/')).await;
        assert!(done.status.success(), "{}\n{}", said(&done), log());
        assert!(fs::read(work.join("large")).unwrap() == bytes);
        let missing = rig.ssh(&["git@x", "git-upload-pack '/none.git'"]).output().await.unwrap();
        assert_eq!(missing.status.code(), Some(128), "{}", said(&missing));
        server.kill().await.unwrap();
    }
}
