//! The envd interface as E2B's published Python package uses it: served by a guest alone, and by a bay's own guest.
//!
//! `tests/python/envd_conformance.py` makes the checks. `./test` installs the package (`BAY_TEST_E2B`).

use std::io::{BufRead, BufReader};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use bay_tests::suite::{self, Lack, Scratch};
use bay_tests::{Daemon, image};

/// The Python with the package. If there is none, the test counts as skipped.
fn python() -> Option<PathBuf> {
    let python = std::env::var_os("BAY_TEST_E2B").map(PathBuf::from).filter(|path| path.exists());
    if python.is_none() {
        suite::skip(Lack::Installable, "E2B's Python package is not there: ./test installs it");
    }
    python
}

fn conforms(python: &Path, address: &str) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/envd_conformance.py");
    let output = Command::new(python)
        .args(["-I", "-B"])
        .arg(script)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("E2B_DEBUG", "true")
        .env("E2B_API_KEY", format!("e2b_{}", "0".repeat(40)))
        .env("E2B_SANDBOX_URL", format!("http://{address}"))
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{told}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(told.contains("20 of 20 checks hold"), "{told}");
}

/// `bay __guest --alone` in its own namespaces, with the small image as its root.
struct Alone {
    child: Child,
    address: String,
    _root: Scratch,
}

impl Alone {
    fn start() -> Self {
        let root = Scratch::new();
        let copied =
            Command::new("cp").arg("-a").arg(image::small().join(".")).arg(root.path()).status().unwrap();
        assert!(copied.success());
        std::fs::copy(suite::binary(), root.join("bay")).unwrap();
        let script = "set -e; mount --rbind /dev \"$0/dev\"; mount -t proc proc \"$0/proc\"; \
            exec chroot \"$0\" /bay __guest --alone 127.0.0.1:0";
        let mut child = Command::new("unshare")
            .args(["--mount", "--pid", "--fork", "--kill-child=KILL", "--", "sh", "-c", script])
            .arg(root.path())
            .env_clear()
            .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("serving envd on http://").map(str::to_owned);
        Self { address: address.unwrap_or_else(|| panic!("{line}")), child, _root: root }
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        // Its children end with the PID namespace, and its mounts with their namespace.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Forwards a loopback port to a bay's guest, as the daemon's own listener for these clients will.
fn forward(socket: PathBuf) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let Ok(guest) = UnixStream::connect(&socket) else { return };
            join(client, guest);
        }
    });
    address
}

fn join(client: TcpStream, guest: UnixStream) {
    let (mut from_client, mut to_guest) = (client.try_clone().unwrap(), guest.try_clone().unwrap());
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut from_client, &mut to_guest);
        // A client that closes its side has left: HTTP has no half-closed connections.
        let _ = to_guest.shutdown(Shutdown::Both);
    });
    let (mut from_guest, mut to_client) = (guest, client);
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut from_guest, &mut to_client);
        let _ = to_client.shutdown(Shutdown::Both);
    });
}

#[test]
fn the_published_package_works_with_the_guest_alone() {
    let Some(python) = python() else { return };
    let alone = Alone::start();
    conforms(&python, &alone.address);
}

#[test]
fn the_published_package_works_with_a_bays_own_guest() {
    let Some(python) = python() else { return };
    let daemon = Daemon::start();
    let bay = daemon.empty_bay("b");
    let id = bay["id"].as_str().unwrap();
    conforms(&python, &forward(daemon.data_dir.join("run").join(id).join("guest.sock")));
}

#[test]
fn a_guest_alone_listens_only_on_loopback() {
    for address in ["0.0.0.0:0", "[::]:0"] {
        let output = Command::new(suite::binary()).args(["__guest", "--alone", address]).output().unwrap();
        assert!(!output.status.success());
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(told.contains("not a loopback address"), "{told}");
    }
}
