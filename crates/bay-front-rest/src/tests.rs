//! The API with a real store and a scripted guest: the router's own errors, what a hostile guest can and cannot do, and
//! the life of an exec. The end-to-end tests cover disks and namespaces.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use axum::body::Body;
use bay_backend::files::NoFiles;
use bay_backend::{
    Backend, BackendError, BayFiles, BoxedStream, EgressPort, LimitEvents, RuntimeFacts, Seen, StartSpec,
};
use bay_store::{BayNew, Draft, NameChoice, Store};
use bay_types::backend::{
    AttributionGrain, Capabilities, EgressControl, FilesCheckpoint, IsolationGrade, Support,
};
use bay_types::bay::{BayCreate, BayView, Desired, Isolation, Limits, Source, State};
use bay_types::event::OtherEvent;
use bay_types::exec::{EndReason, ExecSpec, ExecView, Exit};
use bay_types::guest::PROTOCOL;
use bay_types::principal::Principal;
use bay_types::runtime::RuntimeHandle;
use bay_types::{BayId, ExecId, ImageId};
use http_body_util::BodyExt;
use hyper::service::Service;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;

use super::*;
use bay_core::testing::{self, BayHandle};
use bay_core::{ApprovalsConfig, EgressConfig, Fault, HostSize, Parts};

mod authority;
mod bays;
mod egress;
mod execs;
mod inside;
mod policy;

/// A backend whose bays all have the same scripted guest behind a socket.
#[derive(Debug)]
struct Scripted {
    socket: PathBuf,
    /// Becomes true when PID 1 has ended.
    gone: watch::Sender<bool>,
    /// A fault that occurs once.
    defect: Arc<AtomicBool>,
    /// The number of processes that the kernel killed for lack of memory.
    oom_kills: Arc<AtomicU64>,
}

fn no_disk() -> CoreError {
    CoreError::new(ErrorCode::Interrupted, "there is no disk here", "")
}

#[async_trait]
impl Backend for Scripted {
    fn isolation(&self) -> Isolation {
        Isolation { backend: "script".to_owned(), grade: "none".to_owned(), detail: "a test".to_owned() }
    }
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            isolation: IsolationGrade::SharedKernel,
            memory_checkpoints: Support::no("this backend keeps files only"),
            files_checkpoint: FilesCheckpoint::Snapshot,
            live_limits: Support::Yes,
            egress: EgressControl::Gateway,
            attribution: AttributionGrain::Bay,
            nested_containers: Support::no("a test"),
            quota: Support::no("a test"),
        }
    }
    async fn start(&self, _: &StartSpec) -> Result<RuntimeHandle, BackendError> {
        Err(BackendError::Disk(Box::new(no_disk())))
    }
    async fn inspect(&self, _: BayId, _: &RuntimeHandle) -> Seen {
        assert!(!self.defect.swap(false, Ordering::SeqCst), "a defect");
        if *self.gone.borrow() { Seen::Gone } else { Seen::Running }
    }
    async fn stats(&self, _: BayId, _: &RuntimeHandle) -> bay_types::stats::BayStats {
        bay_types::stats::BayStats { cpu_us: Some(1_500_000), ..Default::default() }
    }
    async fn network(&self, _: &RuntimeHandle) -> bay_backend::NetworkUse {
        bay_backend::NetworkUse::default()
    }
    fn files(&self) -> Arc<dyn BayFiles> {
        Arc::new(NoFiles(no_disk()))
    }
    fn facts(&self, runtime: &RuntimeHandle) -> RuntimeFacts {
        RuntimeFacts { identity: serde_json::to_string(runtime).unwrap(), ..RuntimeFacts::default() }
    }
    async fn egress(&self, _: BayId) -> std::io::Result<EgressPort> {
        Err(std::io::ErrorKind::Unsupported.into())
    }
    async fn clear(&self, _: BayId) -> Result<(), BackendError> {
        Ok(())
    }
    async fn pause(&self, _: BayId) -> Result<(), BackendError> {
        Err(BackendError::Step { step: "freeze".to_owned(), message: "no freezer".to_owned() })
    }
    async fn resume(&self, _: BayId) -> Result<(), BackendError> {
        Ok(())
    }
    fn can_keep(&self, _: &Limits) -> Result<(), BackendError> {
        Ok(())
    }
    async fn set_limits(&self, _: &bay_backend::LimitSpec) -> Result<(), BackendError> {
        Ok(())
    }
    async fn connect(&self, _: BayId) -> std::io::Result<BoxedStream> {
        Ok(Box::new(UnixStream::connect(&self.socket).await?))
    }
    fn limit_events(&self, _: BayId) -> LimitEvents {
        LimitEvents { oom_kills: self.oom_kills.load(Ordering::SeqCst), forks_refused: 0 }
    }
    async fn wait_gone(&self, _: &RuntimeHandle) {
        let _ = self.gone.subscribe().wait_for(|gone| *gone).await;
    }
    async fn leftovers(&self) -> Result<Vec<BayId>, BackendError> {
        Ok(vec![])
    }
}

fn runtime() -> RuntimeHandle {
    RuntimeHandle::of(&"script").unwrap()
}

struct Rig {
    dir: TempDir,
    store: Store,
    daemon: Arc<Daemon>,
    router: TowerToHyperService<Router>,
    gone: watch::Sender<bool>,
    defect: Arc<AtomicBool>,
    oom_kills: Arc<AtomicU64>,
}

async fn rig() -> Rig {
    rig_in(tempfile::tempdir().unwrap()).await
}

/// A rig that uses the database in the directory, if there is one.
async fn rig_in(dir: TempDir) -> Rig {
    let store = Store::open(&dir.path().join("bay.db")).await.unwrap();
    let gone = watch::Sender::new(false);
    let defect = Arc::new(AtomicBool::new(false));
    let oom_kills = Arc::new(AtomicU64::new(0));
    let backend = Scripted {
        socket: dir.path().join("guest.sock"),
        gone: gone.clone(),
        defect: Arc::clone(&defect),
        oom_kills: Arc::clone(&oom_kills),
    };
    let daemon = Daemon::assemble(Parts {
        store: store.clone(),
        pool: None,
        backends: vec![Arc::new(backend)],
        backend: "script".into(),
        data_dir: dir.path().to_owned(),
        pool_dir: dir.path().join("pool"),
        host: HostSize { memory_mib: 1024, cpus: 2, disk_mib: 4096 },
        memory_reserve_mib: None,
        otlp: None,
        egress: EgressConfig { key_file: Some(dir.path().join("key")), ..EgressConfig::default() },
        approvals: ApprovalsConfig::default(),
        fault: Fault::default(),
    });
    let daemon = daemon.await.unwrap();
    let router = TowerToHyperService::new(router(Arc::clone(&daemon)));
    Rig { dir, store, daemon, router, gone, defect, oom_kills }
}

impl Rig {
    async fn send(&self, method: &str, path: &str, body: impl Into<Body>) -> Response {
        self.send_as(Principal::operator(0), method, path, body).await
    }

    async fn send_as(&self, who: Principal, method: &str, path: &str, body: impl Into<Body>) -> Response {
        let mut request = http::Request::builder().method(method).uri(path).body(body.into()).unwrap();
        request.extensions_mut().insert(who);
        self.router.call(request).await.unwrap()
    }

    async fn json(&self, method: &str, path: &str, body: Value) -> (StatusCode, Value) {
        let body = if body.is_null() { Body::empty() } else { Body::from(body.to_string()) };
        let response = self.send(method, path, body).await;
        let status = response.status();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        (status, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
    }

    async fn error(&self, method: &str, path: &str, body: Value) -> (u16, String) {
        let (status, body) = self.json(method, path, body).await;
        assert!(body["message"].is_string(), "{method} {path}: {status} {body}");
        (status.as_u16(), body["code"].as_str().unwrap_or_default().to_owned())
    }

    /// A bay that the store lists as running, with its disk.
    async fn bay(&self, name: &str, state: State) -> Arc<BayHandle> {
        self.bay_on("script", name, state).await
    }

    async fn bay_on(&self, backend: &str, name: &str, state: State) -> Arc<BayHandle> {
        let new = BayNew {
            name: NameChoice::Exact(name.parse().unwrap()),
            spec: BayCreate {
                name: None,
                source: Source::Empty,
                image: "host".to_owned(),
                limits: Limits::default(),
                mounts: vec![],
                idle_stop_s: None,
                durability: bay_types::durability::Durability::Strict,
                author: None,
                user: None,
                reach: vec![],
                backend: None,
                policy: None,
                environment: None,
            },
            image_id: ImageId::generate(),
            origin: None,
            forked_from: None,
            environment: None,
            backend: backend.into(),
            policy: None,
            reason: String::new(),
        };
        let row = self
            .store
            .bay_create(new, |_| Draft::of(OtherEvent::new("bay.create", json!({}))))
            .await
            .unwrap();
        let row = self
            .store
            .bay_update(row.id, None, |row| {
                row.state = state;
                row.desired = if state == State::Running { Desired::Running } else { Desired::Stopped };
                row.runtime = (state == State::Running).then(runtime);
                row.disk_ready = true;
            })
            .await
            .unwrap();
        testing::add_bay(&self.daemon, row)
    }

    fn listener(&self) -> UnixListener {
        UnixListener::bind(self.dir.path().join("guest.sock")).unwrap()
    }
}

/// A guest that answers every request with the response of `script`.
fn guest<F>(listener: UnixListener, script: F)
where
    F: Fn(&str, &str) -> (u16, Body) + Clone + Send + 'static,
{
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let script = script.clone();
            tokio::spawn(async move {
                let service =
                    hyper::service::service_fn(move |request: http::Request<hyper::body::Incoming>| {
                        let script = script.clone();
                        async move {
                            let (status, body) =
                                script(request.method().as_str(), &request.uri().to_string());
                            let _ = request.into_body().collect().await;
                            Ok::<_, std::convert::Infallible>(
                                http::Response::builder().status(status).body(body).unwrap(),
                            )
                        }
                    });
                let _ = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service)
                    .await;
            });
        }
    });
}

fn exec() -> ExecSpec {
    ExecSpec::new(["true"])
}

fn status(spec: &ExecSpec, exit: Option<Exit>) -> String {
    let now = jiff::Timestamp::now();
    json!({
        "spec": spec, "pid": 7, "started_at": now, "ended_at": exit.map(|_| now), "exit": exit,
        "usage": { "user_us": 1, "system_us": 2, "max_rss_kib": 3 }, "output_bytes": 42, "output_start": 0,
        "witnessed": exit.is_some(),
    })
    .to_string()
}

fn info(protocol: u32) -> String {
    json!({ "version": "1", "protocol": protocol, "started_at": jiff::Timestamp::now() }).to_string()
}

const OK: Exit = Exit { reason: EndReason::Exited, code: Some(0), signal: None };

#[tokio::test]
async fn errors_including_the_routers_own_are_json_with_a_code() {
    let rig = rig().await;
    rig.bay("web", State::Stopped).await;
    for (method, path, body, status, code) in [
        ("GET", "/nowhere", Value::Null, 404, "path-not-found"),
        ("GET", "/v1/bays/web/nothing", Value::Null, 404, "path-not-found"),
        ("DELETE", "/v1/bays", Value::Null, 405, "invalid-input"),
        ("PUT", "/v1/health", Value::Null, 405, "invalid-input"),
        ("POST", "/v1/bays", Value::Null, 400, "invalid-input"),
        ("POST", "/v1/bays", json!({ "source": { "kind": "moon" } }), 400, "invalid-input"),
        ("POST", "/v1/bays", json!({ "source": { "kind": "empty" }, "surprise": 1 }), 400, "invalid-input"),
        ("POST", "/v1/bays", json!({ "source": { "kind": "empty" }, "name": "A b" }), 400, "invalid-name"),
        ("POST", "/v1/bays", json!({ "source": { "kind": "empty" }, "name": "web" }), 409, "bay-exists"),
        (
            "POST",
            "/v1/bays",
            json!({ "source": { "kind": "empty" }, "limits": { "memory_mib": 9999 } }),
            422,
            "not-enough",
        ),
        ("POST", "/v1/bays", json!({ "source": { "kind": "remote", "url": "--x" } }), 400, "invalid-input"),
        ("GET", "/v1/bays/none", Value::Null, 404, "bay-not-found"),
        ("GET", "/v1/bays/%FF", Value::Null, 400, "invalid-input"),
        ("POST", "/v1/bays/web/pause", Value::Null, 409, "bay-state"),
        ("POST", "/v1/bays/web/resume", Value::Null, 409, "bay-state"),
        ("POST", "/v1/bays/web/stop?grace_s=99999", Value::Null, 400, "invalid-input"),
        ("POST", "/v1/bays/web/stop?grace_s=x", Value::Null, 400, "invalid-input"),
        ("GET", "/v1/bays/web/execs/7", Value::Null, 404, "exec-not-found"),
        ("GET", "/v1/bays/web/execs/%25", Value::Null, 404, "exec-not-found"),
        ("POST", "/v1/bays/web/execs", json!(exec()), 409, "bay-state"),
        ("POST", "/v1/bays/web/execs/attach", json!(exec()), 400, "invalid-input"),
        ("GET", "/v1/bays/web/files", Value::Null, 400, "invalid-input"),
        ("GET", "/v1/bays/web/files?path=relative", Value::Null, 400, "invalid-input"),
        ("GET", "/v1/bays/web/files?path=/x", Value::Null, 409, "bay-state"),
        ("GET", "/v1/events?since=-1", Value::Null, 400, "invalid-input"),
        ("POST", "/v1/repos/offer", json!({ "location": "/x", "commit": "HEAD" }), 400, "invalid-input"),
        ("GET", "/v1/images", Value::Null, 503, "interrupted"),
    ] {
        let got = rig.error(method, path, body.clone()).await;
        assert_eq!(got, (status, code.to_owned()), "{method} {path} {body}");
    }
}

#[tokio::test]
async fn a_body_beyond_the_limit_is_refused() {
    let rig = rig().await;
    let response = rig.send("POST", "/v1/bays", vec![b' '; MAX_JSON + 1]).await;
    assert_eq!(response.status(), StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn a_caller_without_a_principal_is_refused() {
    let rig = rig().await;
    rig.bay("web", State::Stopped).await;
    let request = http::Request::post("/v1/bays/web/start").body(Body::empty()).unwrap();
    assert_eq!(rig.router.call(request).await.unwrap().status(), StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn bays_are_listed_and_found_by_name_and_id() {
    let rig = rig().await;
    let handle = rig.bay("web", State::Stopped).await;
    let (_, list) = rig.json("GET", "/v1/bays", Value::Null).await;
    assert_eq!(list.as_array().unwrap().len(), 1);
    for path in ["/v1/bays/web".to_owned(), format!("/v1/bays/{}", handle.id)] {
        let (status, body) = rig.json("GET", &path, Value::Null).await;
        assert_eq!(status, StatusCode::OK);
        let view: BayView = serde_json::from_value(body).unwrap();
        assert_eq!((view.id, view.state), (handle.id, State::Stopped));
    }
}

#[tokio::test]
async fn an_exec_is_recorded_started_and_observed_to_its_end() {
    let rig = rig().await;
    rig.bay("web", State::Running).await;
    let spec = exec();
    let shown = spec.clone();
    guest(rig.listener(), move |method, _| match method {
        "PUT" => (201, Body::from(status(&shown, None))),
        _ => (200, Body::from(status(&shown, Some(OK)))),
    });
    let (code, body) = rig.json("POST", "/v1/bays/web/execs", json!(spec)).await;
    assert_eq!(code, StatusCode::CREATED, "{body}");
    let (_, view) = rig.json("GET", "/v1/bays/web/execs/1", Value::Null).await;
    let view: ExecView = serde_json::from_value(view).unwrap();
    assert_eq!((view.id, view.exit, view.output_bytes), (spec.id, Some(OK), 42));
    // A repeated start is the same exec. With another command it is refused.
    let (_, again) = rig.json("POST", "/v1/bays/web/execs", json!(spec)).await;
    assert_eq!(again["number"], 1);
    let mut other = spec;
    other.argv.push("x".to_owned());
    assert_eq!(
        rig.error("POST", "/v1/bays/web/execs", json!(other)).await,
        (409, "exec-conflict".to_owned())
    );
}

#[tokio::test]
async fn a_command_that_the_guest_refuses_ends_with_an_escaped_message() {
    let rig = rig().await;
    rig.bay("web", State::Running).await;
    guest(rig.listener(), |_, _| {
        let error =
            json!({ "code": "exec-start", "message": format!("no\u{1b}[2J such {}", "x".repeat(9000)) });
        (422, Body::from(error.to_string()))
    });
    let (status, body) = rig.json("POST", "/v1/bays/web/execs", json!(exec())).await;
    assert_eq!((status.as_u16(), body["code"].as_str()), (422, Some("exec-start")));
    let message = body["message"].as_str().unwrap();
    assert!(!message.contains('\u{1b}') && message.len() < 5000);
    let (_, list) = rig.json("GET", "/v1/bays/web/execs", Value::Null).await;
    assert_eq!(list[0]["exit"]["code"], 126);
}

#[tokio::test]
async fn an_exec_that_the_guest_no_longer_knows_is_lost() {
    let rig = rig().await;
    let handle = rig.bay("web", State::Running).await;
    let spec = exec();
    rig.store
        .exec_insert(handle.id, &spec, None, &Draft::of(OtherEvent::new("exec.start", json!({}))))
        .await
        .unwrap();
    handle.exec_opened(spec.id);
    guest(rig.listener(), |_, _| {
        (404, Body::from(json!({ "code": "exec-not-found", "message": "" }).to_string()))
    });
    let starting = handle.exec_starting(spec.id);
    let (_, list) = rig.json("GET", "/v1/bays/web/execs", Value::Null).await;
    assert!(list[0]["exit"].is_null(), "one that is just being started is not");
    drop(starting);
    let (_, list) = rig.json("GET", "/v1/bays/web/execs", Value::Null).await;
    assert_eq!(list[0]["exit"]["reason"], "lost");
}

#[tokio::test]
async fn valid_events_of_the_guest_end_execs_and_invalid_ones_are_ignored() {
    let rig = rig().await;
    let handle = rig.bay("web", State::Running).await;
    let spec = exec();
    rig.store
        .exec_insert(handle.id, &spec, None, &Draft::of(OtherEvent::new("exec.start", json!({}))))
        .await
        .unwrap();
    handle.exec_opened(spec.id);
    let shown = spec.clone();
    guest(rig.listener(), move |_, path| {
        match path {
            "/v1/events" => {}
            "/v1/info" => return (200, Body::from(info(PROTOCOL))),
            _ => return (200, Body::from(status(&shown, None))),
        }
        let lines = [
            json!({ "event": "hello" }).to_string(),
            "garbage".to_owned(),
            json!({ "event": "exec-ended", "id": ExecId::generate(), "exit": OK }).to_string(),
            json!({ "event": "exec-ended", "id": shown.id, "exit": OK }).to_string(),
        ];
        (200, Body::from(lines.join("\n") + "\n"))
    });
    let (_gone, is_gone) = watch::channel(false);
    let following = tokio::spawn(testing::follow(Arc::clone(&rig.daemon), Arc::clone(&handle), is_gone));
    let ended = async {
        while handle.exec_is_open(spec.id) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), ended).await.unwrap();
    following.abort();
    let row = rig.store.exec_get(handle.id, spec.id).await.unwrap().unwrap();
    assert_eq!(row.exit, Some(OK));
}

/// A guest that never stops sending.
fn endless() -> Body {
    Body::from_stream(futures_util::stream::repeat_with(|| {
        Ok::<_, std::convert::Infallible>(bytes::Bytes::from_static(&[b'x'; 65536]))
    }))
}

#[tokio::test]
async fn an_endless_response_is_cut_off() {
    let rig = rig().await;
    rig.bay("web", State::Running).await;
    guest(rig.listener(), |_, _| (200, endless()));
    let got = rig.error("GET", "/v1/bays/web/stat?path=/x", Value::Null).await;
    assert_eq!(got, (503, "guest-unreachable".to_owned()));
}

#[tokio::test]
async fn a_missing_guest_is_reported_as_unreachable() {
    let rig = rig().await;
    rig.bay("web", State::Running).await;
    let got = rig.error("GET", "/v1/bays/web/stat?path=/x", Value::Null).await;
    assert_eq!(got, (503, "guest-unreachable".to_owned()));
}

#[tokio::test]
async fn a_restarted_guest_is_reached_over_a_new_connection() {
    let rig = rig().await;
    rig.bay("web", State::Running).await;
    let stat = json!({ "kind": "file", "size": 1, "mode": 420, "uid": 0, "gid": 0 }).to_string();
    // Each connection answers once and then closes without announcing it.
    let listener = rig.listener();
    let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{stat}", stat.len());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = [0; 4096];
            let _ = stream.read(&mut head).await;
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    for _ in 0..5 {
        let (status, body) = rig.json("GET", "/v1/bays/web/stat?path=/x", Value::Null).await;
        assert_eq!((status, body["size"].as_u64()), (StatusCode::OK, Some(1)));
    }
}

#[tokio::test]
async fn files_of_the_guest_are_forwarded_without_its_headers() {
    let rig = rig().await;
    rig.bay("web", State::Running).await;
    guest(rig.listener(), |_, path| {
        assert_eq!(path, "/v1/files?path=/a%20b%26c");
        (200, Body::from("content"))
    });
    let response = rig.send("GET", "/v1/bays/web/files?path=/a%20b%26c", Body::empty()).await;
    assert_eq!(response.headers()[header::CONTENT_TYPE], "application/octet-stream");
    assert!(response.headers().get(header::DATE).is_none());
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "content");
}

#[tokio::test]
async fn a_failed_pause_leaves_the_bay_running_with_the_reason() {
    let rig = rig().await;
    let handle = rig.bay("web", State::Running).await;
    guest(rig.listener(), |_, _| (404, Body::empty()));
    let found = handle.first_ask();
    testing::start_reconciler(Arc::clone(&rig.daemon), Arc::clone(&handle));
    // If the request came during the first inspection, that inspection would already see it.
    handle.outcome(found, Duration::from_secs(10)).await.unwrap();
    let (status, body) = rig.json("POST", "/v1/bays/web/pause", Value::Null).await;
    assert_eq!((status.as_u16(), body["code"].as_str()), (500, Some("bay-failed")), "{body}");
    let row = handle.row();
    assert_eq!((row.state, row.desired), (State::Running, Desired::Running));
    assert!(row.reason.contains("no freezer"), "{}", row.reason);
}

#[tokio::test]
async fn a_stop_ends_open_execs_and_records_events() {
    let rig = rig().await;
    let handle = rig.bay("web", State::Running).await;
    let spec = exec();
    rig.store
        .exec_insert(handle.id, &spec, None, &Draft::of(OtherEvent::new("exec.start", json!({}))))
        .await
        .unwrap();
    handle.exec_opened(spec.id);
    let shown = spec.clone();
    // It refuses to shut down, so it is cleared immediately.
    guest(rig.listener(), move |method, path| match (method, path) {
        ("POST", "/v1/shutdown") => (500, Body::empty()),
        ("GET", "/v1/events") => (404, Body::empty()),
        _ => (200, Body::from(status(&shown, None))),
    });
    testing::start_reconciler(Arc::clone(&rig.daemon), Arc::clone(&handle));
    let (code, body) = rig.json("POST", "/v1/bays/web/stop?grace_s=0", Value::Null).await;
    assert_eq!((code, body["state"].as_str()), (StatusCode::OK, Some("stopped")), "{body}");
    let row = rig.store.exec_get(handle.id, spec.id).await.unwrap().unwrap();
    assert_eq!(row.exit.unwrap().reason, EndReason::Stopped);
    let (_, events) = rig.json("GET", "/v1/events?bay=web", Value::Null).await;
    let kinds = events.as_array().unwrap().iter().map(|e| e["kind"].as_str().unwrap());
    // A scripted backend has no egress, which each pass of the reconciler reports.
    let kinds: Vec<&str> = kinds.filter(|kind| !kind.starts_with("egress.")).collect();
    assert_eq!(
        kinds,
        ["bay.create", "exec.start", "bay.stop-asked", "bay.stopping", "bay.stopped", "exec.end"]
    );
    assert!(Path::new(&rig.dir.path().join("bay.db")).exists());
}

#[tokio::test]
async fn a_bay_whose_guest_ends_before_it_answers_the_stop_is_stopped() {
    let rig = rig().await;
    let (listener, gone) = (rig.listener(), rig.gone.clone());
    tokio::spawn(async move {
        let mut held = vec![];
        while let Ok((stream, _)) = listener.accept().await {
            let gone = gone.clone();
            held.push(tokio::spawn(async move {
                let mut stream = stream;
                let mut head = [0; 1024];
                while let Ok(length @ 1..) = stream.read(&mut head).await {
                    if head[..length].starts_with(b"POST /v1/shutdown") {
                        gone.send_replace(true);
                    }
                }
            }));
        }
    });
    let handle = rig.bay("web", State::Running).await;
    testing::start_reconciler(Arc::clone(&rig.daemon), handle);
    let stopping = rig.json("POST", "/v1/bays/web/stop?grace_s=0", Value::Null);
    let (code, body) = tokio::time::timeout(Duration::from_secs(20), stopping).await.unwrap();
    assert_eq!((code, body["state"].as_str()), (StatusCode::OK, Some("stopped")), "{body}");
}
