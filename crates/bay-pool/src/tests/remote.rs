//! Remotes on loopback.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use std::sync::mpsc;

/// The address of a directory on a git server that serves local paths until the tests end.
pub(super) fn remote(dir: &Path) -> String {
    static PORT: OnceLock<u16> = OnceLock::new();
    let port = PORT.get_or_init(|| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                std::thread::spawn(move || serve(stream).unwrap());
            }
        });
        port
    });
    format!("git://127.0.0.1:{port}{}", dir.display())
}

/// Reads `003egit-upload-pack /path\0host=…\0\0version=2\0`, then connects git with git.
fn serve(mut stream: TcpStream) -> std::io::Result<()> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = usize::from_str_radix(std::str::from_utf8(&length).unwrap(), 16).unwrap();
    let mut request = vec![0; length - 4];
    stream.read_exact(&mut request)?;
    let request = String::from_utf8(request).unwrap();
    let path = request.split('\0').next().unwrap().strip_prefix("git-upload-pack ").unwrap();
    if !Path::new(path).is_dir() {
        let refusal = format!("ERR access denied or repository not exported: {path}");
        return write!(stream, "{:04x}{refusal}", refusal.len() + 4);
    }
    Command::new("git")
        .args(["upload-pack", path])
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_PROTOCOL", if request.contains("version=2") { "version=2" } else { "" })
        .stdin(OwnedFd::from(stream.try_clone()?))
        .stdout(OwnedFd::from(stream))
        .status()
        .map(drop)
}

/// A server that gives its first `times` requests the same answer. Returns its address, and the requests.
pub(super) fn answering(times: usize, answer: &'static str) -> (String, mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (asked, asks) = mpsc::channel();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten().take(times) {
            let mut buffer = [0; 4096];
            let count = stream.read(&mut buffer).unwrap_or(0);
            let _ = asked.send(String::from_utf8_lossy(&buffer[..count]).into_owned());
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    (address, asks)
}
