//! Git remotes on loopback: the plain files of a bare repository over HTTP, which is all that git needs to fetch; and
//! one that accepts pushes with a password.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::repository::{Repository, git};
use crate::suite::Scratch;

/// Serves a repository until the test's process ends.
#[derive(Debug)]
pub struct Remote {
    scratch: Scratch,
    port: u16,
    requests: Arc<AtomicUsize>,
}

impl Remote {
    /// A remote with the present content of the repository.
    #[must_use]
    pub fn of(repository: &Repository) -> Self {
        let scratch = Scratch::new();
        let bare = scratch.join("project.git");
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let remote = Self { port: listener.local_addr().unwrap().port(), requests: Arc::default(), scratch };
        git(remote.scratch.path(), &["init", "-q", "--bare", "-b", "main", "project.git"]);
        remote.update(repository);
        serve(listener, bare, Arc::clone(&remote.requests));
        remote
    }

    /// Copies new commits from the repository.
    pub fn update(&self, repository: &Repository) {
        let bare = self.scratch.join("project.git");
        git(&bare, &["fetch", "-q", "--prune", &repository.arg(), "+refs/*:refs/*"]);
        git(&bare, &["update-server-info"]);
    }

    #[must_use]
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/project.git", self.port)
    }

    /// The number of requests so far.
    #[must_use]
    pub fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}

fn serve(listener: TcpListener, root: PathBuf, requests: Arc<AtomicUsize>) {
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            requests.fetch_add(1, Ordering::SeqCst);
            let root = root.clone();
            std::thread::spawn(move || {
                // A client may hang up.
                let _ = answer(stream, &root);
            });
        }
    });
}

fn answer(mut stream: TcpStream, root: &Path) -> std::io::Result<()> {
    let head = request_head(&mut stream)?;
    let path = head.split(' ').nth(1).unwrap_or("/").split('?').next().unwrap_or("/");
    let file = root.join(path.trim_start_matches("/project.git").trim_start_matches('/'));
    match fs::read(&file) {
        Ok(body) => {
            let length = body.len();
            write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n")?;
            stream.write_all(&body)
        }
        Err(_) => {
            stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        }
    }
}

/// A server on loopback that gives every request the same status; returns its port.
#[must_use]
pub fn always(status: &'static str) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            if request_head(&mut stream).is_ok() {
                let _ = write!(
                    stream,
                    "HTTP/1.1 {status}\r\nWWW-Authenticate: Basic realm=\"x\"\r\nContent-Length: 0\r\n\
                     Connection: close\r\n\r\n"
                );
            }
        }
    });
    port
}

/// The required header: the user `me` with the password `pw`.
const LOGIN: &str = "authorization: basic bwu6chc=";

/// A server on loopback that accepts pushes into `root`/project.git through git's own HTTP program; returns its URL.
#[must_use]
pub fn taking_pushes(root: &Path) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let root = root.to_owned();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            // A client may hang up.
            let _ = pass_on(&mut stream, &root);
        }
    });
    format!("http://127.0.0.1:{port}/project.git")
}

fn pass_on(stream: &mut TcpStream, root: &Path) -> std::io::Result<()> {
    let head = request_head(stream)?;
    let lower = head.to_ascii_lowercase();
    if !lower.contains(LOGIN) {
        return stream.write_all(
            b"HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Basic realm=\"x\"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        );
    }
    let header = |name: &str| {
        lower
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
            .unwrap_or_default()
            .to_owned()
    };
    let mut words = head.split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let mut body = vec![0; header("content-length").parse().unwrap_or(0)];
    stream.read_exact(&mut body)?;
    let mut child = Command::new("git")
        .arg("http-backend")
        .envs([("REQUEST_METHOD", method), ("PATH_INFO", path), ("QUERY_STRING", query)])
        .env("GIT_PROJECT_ROOT", root)
        .envs([("GIT_HTTP_EXPORT_ALL", "1"), ("REMOTE_USER", "me"), ("GIT_CONFIG_NOSYSTEM", "1")])
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("CONTENT_TYPE", header("content-type"))
        .env("CONTENT_LENGTH", body.len().to_string())
        .env("HTTP_CONTENT_ENCODING", header("content-encoding"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    child.stdin.take().unwrap().write_all(&body)?;
    let answer = child.wait_with_output()?.stdout;
    // Without a status line of the program, the request succeeded.
    let status = String::from_utf8_lossy(&answer)
        .lines()
        .find_map(|line| Some(line.strip_prefix("Status: ")?.trim_end().to_owned()))
        .unwrap_or_else(|| "200 OK".to_owned());
    write!(stream, "HTTP/1.1 {status}\r\nConnection: close\r\n")?;
    stream.write_all(&answer)
}

fn request_head(stream: &mut TcpStream) -> std::io::Result<String> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}
