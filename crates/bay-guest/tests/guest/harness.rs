//! Starts guests and sends requests to them.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream as StdStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use bay_guest::{Bounds, Config, spool};
use bay_types::exec::{ExecSpec, ExecStatus, Exit, SignalRequest, TtySize};
use bay_types::frame::{Frame, INPUT, UPGRADE};
use bay_types::guest::GuestConfig;
use bay_types::inside::About;
use bay_types::output::OutputCheck;
use bay_types::{ApiError, ExecId, InputId};
use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::origin;

/// The longest that any step of a test may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

const DIR: &str = "BAY_TEST_GUEST_DIR";
const CGROUP: &str = "BAY_TEST_GUEST_CGROUP";
const MACHINE: &str = "BAY_TEST_GUEST_MACHINE";
const BOUNDS: &str = "BAY_TEST_GUEST_BOUNDS";

/// Makes an overlay of this machine's root that ends with its mount namespace, and runs the test's own program in it.
/// Arguments: a directory that both see, the program, and the program's arguments.
const COPY: &str = r#"
mkdir "$0/copy"
mount -t tmpfs -o size=1g tmpfs "$0/copy"
mkdir "$0/copy/upper" "$0/copy/work" "$0/copy/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$0/copy/upper,workdir=$0/copy/work" "$0/copy/root"
for seen in /proc /dev /sys "$0" "$(dirname "$1")"; do
    mkdir -p "$0/copy/root$seen"
    mount --rbind "$seen" "$0/copy/root$seen"
done
mkdir -p "$0/copy/root/.bay" "$0/copy/root/workspace/.git"
printf '[remote "origin"]\n\turl = git@origin.test:team/x.git\n' > "$0/copy/root/workspace/.git/config"
ip link set lo up
ip address add 192.0.2.1/32 dev lo
exec chroot "$0/copy/root" "$@"
"#;

/// The re-executed test binary: serves on the socket that is its standard input.
pub(crate) fn guest_process() {
    let Some(dir) = std::env::var_os(DIR).map(PathBuf::from) else {
        return;
    };
    if std::process::id() != 1 {
        rustix::process::set_child_subreaper(Some(rustix::process::getpid())).unwrap();
    }
    let listener: OwnedFd = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    let mut bounds = Bounds::default();
    if let Ok(text) = std::env::var(BOUNDS) {
        let numbers: Vec<u64> = text.split(',').map(|n| n.parse().unwrap()).collect();
        bounds.output = spool::Bounds { exec_bytes: numbers[0], segment_bytes: numbers[1] };
        bounds.finished_execs = usize::try_from(numbers[2]).unwrap();
    }
    let machine = std::env::var_os(MACHINE).is_some();
    let config = Config {
        guest: GuestConfig {
            bay_id: "bay_test".into(),
            hostname: "testbay".into(),
            machine_id: "0".repeat(32),
            author: None,
            user: None,
            certificate: machine.then(|| std::fs::read_to_string(dir.join(origin::AUTHORITY)).unwrap()),
            ssh: None,
            secrets: Vec::new(),
            fork_index: None,
            about: About::default(),
        },
        cgroup: std::env::var_os(CGROUP).map(|path| File::open(path).unwrap().into()),
        state_dir: dir.join("state"),
        root: if machine { PathBuf::from("/") } else { dir.join("root") },
        bounds,
    };
    if machine {
        std::fs::create_dir_all(&config.state_dir).unwrap();
        bay_guest::prepare(&config);
        origin::serve(&dir);
    }
    bay_guest::serve(config, UnixListener::from(listener)).unwrap();
}

#[derive(Default)]
pub(crate) struct Options {
    pub(crate) cgroup: Option<PathBuf>,
    /// Bytes per exec, bytes per segment, and finished execs.
    pub(crate) bounds: Option<(u64, u64, u64)>,
    /// The state directory is on a disk of one megabyte; needs root.
    pub(crate) small_state: bool,
    /// The root has the guest's own directory, with the socket for the bay's own processes.
    pub(crate) home: bool,
    /// The root is a copy of this machine, with one web server and no other network; needs root.
    pub(crate) machine: bool,
}

/// A running guest. Dropping it ends everything that it started.
pub(crate) struct Guest {
    temp: Option<tempfile::TempDir>,
    child: Child,
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

impl Guest {
    pub(crate) fn start() -> Self {
        Self::with(&Options::default())
    }

    pub(crate) fn with(options: &Options) -> Self {
        Self::prepared(options, |_| ())
    }

    /// A guest on a root that `prepare` has changed.
    pub(crate) fn prepared(options: &Options, prepare: impl FnOnce(&Path)) -> Self {
        let temp = tempfile::tempdir().unwrap();
        std::fs::create_dir(temp.path().join("root")).unwrap();
        if options.home {
            std::fs::create_dir(temp.path().join("root/.bay")).unwrap();
        }
        prepare(&temp.path().join("root"));
        let child = launch(temp.path(), options);
        Self { temp: Some(temp), child }
    }

    /// Kills the guest, and starts another one on the same disk.
    pub(crate) fn crash_and_restart(mut self, options: &Options) -> Self {
        let temp = self.temp.take().unwrap();
        self.kill();
        let child = launch(temp.path(), options);
        Self { temp: Some(temp), child }
    }

    pub(crate) fn dir(&self) -> &Path {
        self.temp.as_ref().unwrap().path()
    }

    /// The root directory of the file routes.
    pub(crate) fn root(&self) -> PathBuf {
        self.dir().join("root")
    }

    pub(crate) fn state(&self) -> OwnedFd {
        File::open(self.dir().join("state")).unwrap().into()
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Waits until the guest ends by itself.
    pub(crate) async fn wait(&mut self) -> std::process::ExitStatus {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(tokio::time::Instant::now() < deadline, "the guest does not end");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    async fn connect(&self) -> UnixStream {
        UnixStream::connect(self.dir().join("sock")).await.unwrap()
    }

    pub(crate) async fn send(&self, request: Request<Full<Bytes>>) -> http::Response<Incoming> {
        self.try_send(request).await.unwrap()
    }

    async fn try_send(&self, request: Request<Full<Bytes>>) -> hyper::Result<http::Response<Incoming>> {
        let stream = self.connect().await;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection.with_upgrades());
        tokio::time::timeout(PATIENCE, sender.send_request(request)).await.unwrap()
    }

    pub(crate) async fn stream(&self, method: Method, path: &str, body: Vec<u8>) -> http::Response<Incoming> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "guest")
            .body(Full::new(body.into()))
            .unwrap();
        self.send(request).await
    }

    pub(crate) async fn call(&self, method: Method, path: &str, body: Vec<u8>) -> (StatusCode, Bytes) {
        let response = self.stream(method, path, body).await;
        let status = response.status();
        (status, response.into_body().collect().await.unwrap().to_bytes())
    }

    /// Sends a request that must succeed.
    pub(crate) async fn ok(&self, method: Method, path: &str, body: Vec<u8>) -> Bytes {
        let (status, bytes) = self.call(method, path, body).await;
        assert!(status.is_success(), "{path}: {status} {}", String::from_utf8_lossy(&bytes));
        bytes
    }

    /// Sends a request that must be refused.
    pub(crate) async fn refused(&self, method: Method, path: &str, body: Vec<u8>) -> ApiError {
        let (status, bytes) = self.call(method, path, body).await;
        assert!(!status.is_success(), "{path} succeeded");
        let error: ApiError = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(error.code.http_status(), status.as_u16());
        error
    }

    pub(crate) async fn start_exec(&self, spec: &ExecSpec) -> ExecStatus {
        let path = format!("/v1/execs/{}", spec.id);
        serde_json::from_slice(&self.ok(Method::PUT, &path, json(spec)).await).unwrap()
    }

    pub(crate) async fn start_refused(&self, spec: &ExecSpec) -> ApiError {
        self.refused(Method::PUT, &format!("/v1/execs/{}", spec.id), json(spec)).await
    }

    pub(crate) async fn status(&self, id: ExecId) -> ExecStatus {
        serde_json::from_slice(&self.ok(Method::GET, &format!("/v1/execs/{id}"), vec![]).await).unwrap()
    }

    pub(crate) async fn signal(&self, id: ExecId, signal: i32, tree: bool) -> ExecStatus {
        let body = json(&SignalRequest { signal, tree });
        serde_json::from_slice(&self.ok(Method::POST, &format!("/v1/execs/{id}/signal"), body).await).unwrap()
    }

    pub(crate) async fn output(&self, id: ExecId, since: u64, follow: bool) -> Collected {
        let path = format!("/v1/execs/{id}/output?since={since}&follow={follow}");
        let bytes = tokio::time::timeout(PATIENCE, self.ok(Method::GET, &path, vec![])).await.unwrap();
        let mut collected = Collected::default();
        let mut rest = &bytes[..];
        while let Some((frame, used)) = Frame::decode(rest).unwrap() {
            collected.add(frame);
            rest = &rest[used..];
        }
        assert!(rest.is_empty(), "half a frame");
        collected
    }

    /// Starts the exec if there is a spec, and attaches.
    pub(crate) async fn attach(&self, id: ExecId, spec: Option<&ExecSpec>, since: u64) -> Attached {
        let (attached, received) = self.attach_as(None, id, spec, since).await;
        assert_eq!(received, None, "nobody asked");
        attached
    }

    /// Starts the exec if there is a spec, and attaches with named input. Returns how much of the input the guest has.
    pub(crate) async fn attach_with(
        &self,
        input: InputId,
        id: ExecId,
        spec: Option<&ExecSpec>,
    ) -> (Attached, u64) {
        let (attached, received) = self.attach_as(Some(input), id, spec, 0).await;
        (attached, received.expect("the guest says how much it has"))
    }

    async fn attach_as(
        &self,
        input: Option<InputId>,
        id: ExecId,
        spec: Option<&ExecSpec>,
        since: u64,
    ) -> (Attached, Option<u64>) {
        let body = spec.map(json).unwrap_or_default();
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(format!("/v1/execs/{id}/attach?since={since}"))
            .header("host", "guest")
            .header("connection", "upgrade")
            .header("upgrade", UPGRADE);
        if let Some(input) = input {
            request = request.header(INPUT, input.to_string());
        }
        let request = request.body(Full::new(body.into())).unwrap();
        let response = self.send(request).await;
        assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
        let received = response.headers().get(INPUT).map(|value| value.to_str().unwrap().parse().unwrap());
        let upgraded = hyper::upgrade::on(response).await.unwrap();
        let parts = upgraded.downcast::<TokioIo<UnixStream>>().unwrap();
        (Attached { stream: parts.io.into_inner(), buffer: parts.read_buf.to_vec() }, received)
    }

    /// Starts an exec, attaches and reads to the end.
    pub(crate) async fn run(&self, spec: &ExecSpec) -> Collected {
        self.attach(spec.id, Some(spec), 0).await.collect().await
    }

    pub(crate) async fn sh(&self, script: &str) -> Collected {
        self.run(&sh(script)).await
    }

    /// Polls a condition that has no event of its own.
    pub(crate) async fn eventually<T, F: Future<Output = Option<T>>>(
        &self,
        mut check: impl FnMut() -> F,
    ) -> T {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            if let Some(value) = check().await {
                return value;
            }
            assert!(tokio::time::Instant::now() < deadline, "it never became true");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // PID 1 ends everything with it. A guest that is not root is asked to shut down.
        if !is_root()
            && let Some(temp) = &self.temp
            && let Ok(mut stream) = StdStream::connect(temp.path().join("sock"))
        {
            let _ = stream.set_read_timeout(Some(Duration::from_secs(10)));
            let _ = stream.write_all(
                b"POST /v1/shutdown HTTP/1.1\r\nhost: guest\r\ncontent-length: 14\r\n\r\n{\"grace_ms\":0}",
            );
            let _ = stream.read(&mut [0; 64]);
        }
        self.kill();
    }
}

fn launch(dir: &Path, options: &Options) -> Child {
    let socket = dir.join("sock");
    let _ = std::fs::remove_file(&socket);
    let listener = UnixListener::bind(&socket).unwrap();
    let mut command = if is_root() {
        let mut unshare = Command::new("unshare");
        unshare.args(["--pid", "--fork", "--mount-proc", "--kill-child=KILL", "--"]);
        if options.small_state {
            // In the mount namespace that `--mount-proc` makes, so it ends with the guest.
            let state = dir.join("state");
            std::fs::create_dir_all(&state).unwrap();
            let script = "mount -t tmpfs -o size=1m tmpfs \"$0\" && exec \"$@\"";
            unshare.args(["sh", "-c", script]).arg(state);
        }
        if options.machine {
            unshare.args(["unshare", "--net", "sh", "-ec", COPY]).arg(dir);
        }
        unshare.arg(std::env::current_exe().unwrap());
        unshare
    } else {
        Command::new(std::env::current_exe().unwrap())
    };
    command
        .args(["--exact", "guest_process", "--ignored", "--nocapture", "--test-threads=1"])
        .env(DIR, dir)
        .env_remove(CGROUP)
        .env_remove(BOUNDS)
        .env_remove(MACHINE)
        .stdin(OwnedFd::from(listener))
        .stdout(Stdio::null());
    if let Some(path) = &options.cgroup {
        command.env(CGROUP, path);
    }
    if options.machine {
        command.env(MACHINE, "1");
    }
    if let Some((exec, segment, finished)) = options.bounds {
        command.env(BOUNDS, format!("{exec},{segment},{finished}"));
    }
    command.spawn().unwrap()
}

/// Frames in both directions with one exec.
pub(crate) struct Attached {
    pub(crate) stream: UnixStream,
    buffer: Vec<u8>,
}

impl Attached {
    pub(crate) async fn send(&mut self, frame: Frame) {
        self.stream.write_all(&frame.to_bytes()).await.unwrap();
    }

    pub(crate) async fn next(&mut self) -> Option<Frame> {
        loop {
            if let Some((frame, used)) = Frame::decode(&self.buffer).unwrap() {
                self.buffer.drain(..used);
                return Some(frame);
            }
            let read = tokio::time::timeout(PATIENCE, self.stream.read_buf(&mut self.buffer)).await.unwrap();
            if read.unwrap() == 0 {
                assert!(self.buffer.is_empty(), "half a frame");
                return None;
            }
        }
    }

    pub(crate) async fn collect(mut self) -> Collected {
        let mut collected = Collected::default();
        while let Some(frame) = self.next().await {
            assert!(collected.exit.is_none(), "something after the exit");
            collected.add(frame);
        }
        collected
    }

    /// Reads until the output so far is `text`. Ignores frames about input.
    pub(crate) async fn until_output(&mut self, text: &str) {
        let mut seen = String::new();
        while seen != text {
            match self.next().await {
                Some(Frame::Stdout(bytes)) => seen.push_str(&String::from_utf8_lossy(&bytes)),
                Some(Frame::Taken(_)) => {}
                other => panic!("{other:?} came before {text:?}; so far {seen:?}"),
            }
        }
    }

    /// Reads until this text has come on either stream.
    pub(crate) async fn until(&mut self, text: &str) -> String {
        let mut seen = String::new();
        while !seen.contains(text) {
            match self.next().await {
                Some(Frame::Stdout(bytes) | Frame::Stderr(bytes)) => {
                    seen.push_str(&String::from_utf8_lossy(&bytes));
                }
                other => panic!("{other:?} came before {text:?}; so far {seen:?}"),
            }
        }
        seen
    }
}

#[derive(Debug, Default)]
pub(crate) struct Collected {
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    pub(crate) gap: u64,
    pub(crate) exit: Option<Exit>,
    pub(crate) check: Option<OutputCheck>,
    pub(crate) error: Option<ApiError>,
}

impl Collected {
    fn add(&mut self, frame: Frame) {
        match frame {
            Frame::Stdout(bytes) => self.stdout.extend(bytes),
            Frame::Stderr(bytes) => self.stderr.extend(bytes),
            Frame::Gap(gap) => self.gap += gap.dropped,
            Frame::Exit(exit, check) => (self.exit, self.check) = (Some(exit), check),
            Frame::Error(error) => self.error = Some(error),
            other => panic!("{other:?} came from the guest"),
        }
    }

    pub(crate) fn out(&self) -> &str {
        std::str::from_utf8(&self.stdout).unwrap()
    }

    pub(crate) fn err(&self) -> &str {
        std::str::from_utf8(&self.stderr).unwrap()
    }

    pub(crate) fn code(&self) -> Option<i32> {
        self.exit.unwrap().code
    }
}

pub(crate) fn json<T: serde::Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).unwrap()
}

pub(crate) fn spec(argv: &[&str]) -> ExecSpec {
    ExecSpec { cwd: Some("/".into()), ..ExecSpec::new(argv.iter().copied()) }
}

pub(crate) fn sh(script: &str) -> ExecSpec {
    spec(&["/bin/sh", "-c", script])
}

pub(crate) fn tty(script: &str) -> ExecSpec {
    ExecSpec { tty: Some(TtySize { cols: 100, rows: 30 }), ..sh(script) }
}
