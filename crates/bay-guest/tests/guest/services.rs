//! Services with real processes: order, health, restarts, ends and logs.

use std::path::PathBuf;

use bay_types::ErrorCode;
use bay_types::frame::Frame;
use bay_types::service::{Health, HealthCheck, Restart, ServiceSpec, ServiceState, ServiceView};
use http::Method;
use http_body_util::BodyExt;

use crate::cgroup_leaves::Group;
use crate::harness::{Guest, Options, json};

fn sh(script: &str) -> ServiceSpec {
    ServiceSpec { cwd: Some("/".into()), ..ServiceSpec::new(["/bin/sh", "-c", script]) }
}

fn once(script: &str) -> ServiceSpec {
    ServiceSpec { restart: Restart::Never, ..sh(script) }
}

fn quick_health(check: HealthCheck) -> Option<Health> {
    Some(Health { interval_ms: 200, timeout_ms: 2000, ..Health::new(check) })
}

fn by_command(script: &str) -> Option<Health> {
    quick_health(HealthCheck::Command { argv: ["/bin/sh", "-c", script].map(str::to_owned).into() })
}

impl Guest {
    async fn put(&self, name: &str, spec: &ServiceSpec) -> ServiceView {
        let bytes = self.ok(Method::PUT, &format!("/v1/services/{name}"), json(spec)).await;
        serde_json::from_slice(&bytes).unwrap()
    }

    async fn service(&self, name: &str) -> ServiceView {
        serde_json::from_slice(&self.ok(Method::GET, &format!("/v1/services/{name}"), vec![]).await).unwrap()
    }

    async fn ask(&self, name: &str, verb: &str) -> ServiceView {
        let bytes = self.ok(Method::POST, &format!("/v1/services/{name}/{verb}"), vec![]).await;
        serde_json::from_slice(&bytes).unwrap()
    }

    async fn becomes(&self, name: &str, state: ServiceState) -> ServiceView {
        self.eventually(async || Some(self.service(name).await).filter(|view| view.state == state)).await
    }

    async fn log(&self, name: &str, since: u64) -> String {
        let path = format!("/v1/services/{name}/output?since={since}");
        let bytes = self.ok(Method::GET, &path, vec![]).await;
        frames(&bytes)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.root().join(name)
    }
}

fn frames(mut bytes: &[u8]) -> String {
    let mut text = String::new();
    while let Some((frame, used)) = Frame::decode(bytes).unwrap() {
        match frame {
            Frame::Stdout(part) | Frame::Stderr(part) => text.push_str(&String::from_utf8_lossy(&part)),
            Frame::Gap(gap) => text.push_str(&format!("[{} bytes]", gap.dropped)),
            other => panic!("{other:?} in a log"),
        }
        bytes = &bytes[used..];
    }
    text
}

fn lines(path: &PathBuf) -> Vec<String> {
    std::fs::read_to_string(path).unwrap_or_default().lines().map(str::to_owned).collect()
}

#[tokio::test]
async fn services_start_in_the_order_of_their_needs_and_stop_in_reverse() {
    let mut guest = Guest::start();
    let order = guest.file("order");
    let script = |name: &str| {
        let order = order.display();
        format!(
            "trap 'echo {name} down >> {order}; exit 0' TERM; echo {name} up >> {order}; while :; do sleep 0.05; done"
        )
    };
    // It becomes healthy only when the test allows it, so that the test sees the services that need it wait.
    let gate = guest.file("gate");
    let healthy = by_command(&format!("test -e {} && grep -q 'db up' {}", gate.display(), order.display()));
    guest.put("db", &ServiceSpec { health: healthy, ..sh(&script("db")) }).await;
    // A one-shot service that has ended satisfies needs, as a ready one does.
    let migrate = ServiceSpec {
        needs: vec!["db".parse().unwrap()],
        ..once(&format!("echo migrated >> {}", order.display()))
    };
    guest.put("migrate", &migrate).await;
    let web =
        ServiceSpec { needs: vec!["migrate".parse().unwrap(), "db".parse().unwrap()], ..sh(&script("web")) };
    let first = guest.put("web", &web).await;
    assert_eq!(first.state, ServiceState::Waiting);
    assert!(first.reason.contains("migrate ("), "{}", first.reason);
    std::fs::write(&gate, "").unwrap();
    let view = guest.becomes("web", ServiceState::Ready).await;
    assert!(view.pid.is_some() && view.wanted, "{view:?}");
    assert_eq!(guest.service("migrate").await.state, ServiceState::Done);
    guest.ok(Method::POST, "/v1/shutdown", br#"{"grace_ms":20000}"#.to_vec()).await;
    assert!(guest.wait().await.success());
    assert_eq!(lines(&order), ["db up", "migrated", "web up", "web down", "db down"]);
}

#[tokio::test]
async fn an_invalid_definition_is_refused_with_the_reason() {
    let guest = Guest::start();
    let needs = |names: &[&str]| ServiceSpec {
        needs: names.iter().map(|n| n.parse().unwrap()).collect(),
        ..sh("sleep 1000")
    };
    let error = guest.refused(Method::PUT, "/v1/services/web", json(&needs(&["db"]))).await;
    assert!(error.message.contains("db, which does not exist"), "{error:?}");
    guest.put("a", &needs(&[])).await;
    guest.put("b", &needs(&["a"])).await;
    guest.put("c", &needs(&["b"])).await;
    let error = guest.refused(Method::PUT, "/v1/services/a", json(&needs(&["c"]))).await;
    assert!(error.message.contains("a needs c needs b needs a"), "{error:?}");
    let error = guest.refused(Method::PUT, "/v1/services/a", json(&needs(&["a"]))).await;
    assert!(error.message.contains("a needs a"), "{error:?}");
    let error = guest.refused(Method::DELETE, "/v1/services/a", vec![]).await;
    assert_eq!(error.code, ErrorCode::ServiceInUse);
    assert!(error.message.contains("needed by b"), "{error:?}");
    for (method, path) in [
        (Method::GET, "/v1/services/nope"),
        (Method::DELETE, "/v1/services/nope"),
        (Method::POST, "/v1/services/nope/restart"),
        (Method::GET, "/v1/services/nope/output"),
    ] {
        assert_eq!(guest.refused(method, path, vec![]).await.code, ErrorCode::ServiceNotFound, "{path}");
    }
    for path in ["/v1/services/Bad%20Name", "/v1/services/..", "/v1/services/a/explode", "/v1/services/a/b/c"]
    {
        assert_eq!(guest.refused(Method::POST, path, vec![]).await.code, ErrorCode::InvalidInput, "{path}");
    }
    let error = guest.refused(Method::GET, "/v1/services/a/output?since=99999", vec![]).await;
    assert_eq!(error.code, ErrorCode::InvalidInput);
}

#[tokio::test]
async fn the_number_of_services_is_bounded() {
    let guest = Guest::start();
    for n in 0..bay_types::service::MAX_SERVICES {
        guest.put(&format!("s{n}"), &once("true")).await;
    }
    let error = guest.refused(Method::PUT, "/v1/services/more", json(&once("true"))).await;
    assert_eq!(error.code, ErrorCode::NotEnough);
    // An existing service can still be replaced.
    guest.put("s0", &once("exit 3")).await;
    guest.becomes("s0", ServiceState::Failed).await;
}

#[tokio::test]
async fn health_is_checked_by_command_tcp_and_http() {
    let guest = Guest::start();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    // This process answers for the service: the guest of these tests shares its network.
    let answers = std::thread::spawn(move || {
        use std::io::{Read, Write};
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut head = [0; 1024];
            let n = stream.read(&mut head).unwrap_or(0);
            let head = String::from_utf8_lossy(&head[..n]).into_owned();
            let answer = match head.split(' ').nth(1) {
                Some("/ok") => "HTTP/1.1 204 No Content\r\n\r\n".to_owned(),
                Some("/moved") => "HTTP/1.1 302 Found\r\nlocation: /x\r\n\r\n".to_owned(),
                Some("/bad") => "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n".to_owned(),
                Some("/endless") => format!("HTTP/1.1 200 OK\r\nx: {}", "y".repeat(100_000)),
                Some("/end") => return,
                _ => "not http at all\r\n\r\n".to_owned(),
            };
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    let http = |path: &str| quick_health(HealthCheck::Http { port, path: path.to_owned() });
    let dead = |check| Some(Health { start_period_ms: 0, ..quick_health(check).unwrap() });
    for (name, health) in [
        ("tcp", quick_health(HealthCheck::Tcp { port })),
        ("ok", http("/ok")),
        ("moved", http("/moved")),
        ("cmd", by_command("exit 0")),
    ] {
        guest.put(name, &ServiceSpec { health, ..sh("sleep 1000") }).await;
        guest.becomes(name, ServiceState::Ready).await;
    }
    for (name, health, words) in [
        ("bad", HealthCheck::Http { port, path: "/bad".into() }, "503"),
        ("odd", HealthCheck::Http { port, path: "/".into() }, "port"),
        ("endless", HealthCheck::Http { port, path: "/endless".into() }, "port"),
        ("closed", HealthCheck::Tcp { port: 1 }, "refused"),
        (
            "says",
            HealthCheck::Command { argv: ["sh", "-c", "echo no luck >&2; exit 4"].map(str::to_owned).into() },
            "code 4, saying \"no luck\"",
        ),
        ("none", HealthCheck::Command { argv: vec!["no-such-command".into()] }, "not found"),
    ] {
        guest.put(name, &ServiceSpec { health: dead(health), ..sh("sleep 1000") }).await;
        let view = guest.becomes(name, ServiceState::Unhealthy).await;
        assert!(view.reason.contains(words), "{name}: {}", view.reason);
    }
    drop(std::net::TcpStream::connect(("127.0.0.1", port)).map(|mut stream| {
        use std::io::Write;
        stream.write_all(b"GET /end HTTP/1.1\r\n\r\n")
    }));
    answers.join().unwrap();
}

#[tokio::test]
async fn a_health_command_that_hangs_is_killed_with_all_it_started_and_leaves_no_trace() {
    let guest = Guest::start();
    let check =
        HealthCheck::Command { argv: ["sh", "-c", "sleep 4545 & sleep 4545"].map(str::to_owned).into() };
    let health = Health { timeout_ms: 300, interval_ms: 200, start_period_ms: 0, ..Health::new(check) };
    guest.put("web", &ServiceSpec { health: Some(health), ..sh("sleep 1000") }).await;
    let view = guest.becomes("web", ServiceState::Unhealthy).await;
    assert!(view.reason.contains("did not end within 0.3 s"), "{}", view.reason);
    guest.ask("web", "stop").await;
    guest.becomes("web", ServiceState::Stopped).await;
    guest
        .eventually(async || {
            (guest.sh("ps ax -o args= | grep -c '[s]leep 4545'").await.out().trim() == "0").then_some(())
        })
        .await;
    // Neither the service nor its checks are execs.
    let execs: Vec<bay_types::exec::ExecStatus> =
        serde_json::from_slice(&guest.ok(Method::GET, "/v1/execs", vec![]).await).unwrap();
    assert!(
        execs.iter().all(|exec| exec.spec.argv.last().is_some_and(|a| a.starts_with("ps "))),
        "{execs:?}"
    );
    assert_eq!(std::fs::read_dir(guest.dir().join("state/services/execs")).unwrap().count(), 1);
}

#[tokio::test]
async fn a_service_that_ends_is_restarted_after_longer_waits_until_it_is_a_crash_loop() {
    let guest = Guest::start();
    guest.put("bad", &sh("echo run; exit 7")).await;
    let view = guest.becomes("bad", ServiceState::BackingOff).await;
    assert!(view.reason.contains("code 7") && view.retry_at.is_some(), "{view:?}");
    let view = guest.becomes("bad", ServiceState::CrashLoop).await;
    assert_eq!((view.restarts, view.attempt, view.runs.len()), (4, 5, 5));
    assert!(view.retry_at.unwrap() > view.since, "{view:?}");
    assert_eq!(guest.log("bad", 0).await, "run\n".repeat(5));
    assert!(view.runs.iter().all(|run| run.exit.is_some_and(|exit| exit.code == Some(7))), "{view:?}");
    let offsets: Vec<u64> = view.runs.iter().map(|run| run.log_offset).collect();
    assert_eq!((offsets, view.log_end), (vec![0, 4, 8, 12, 16], 20));
    // A fixed definition ends the crash loop at once.
    guest.put("bad", &sh("exec sleep 1000")).await;
    let view = guest.becomes("bad", ServiceState::Ready).await;
    assert_eq!(view.attempt, 0);
    let view = guest.put("nowhere", &ServiceSpec::new(["no-such-command"])).await;
    assert!(matches!(view.state, ServiceState::Starting | ServiceState::BackingOff), "{view:?}");
    let view = guest.becomes("nowhere", ServiceState::CrashLoop).await;
    assert!(view.reason.contains("not found"), "{}", view.reason);
}

#[tokio::test]
async fn many_restarts_keep_a_bounded_log() {
    let guest = Guest::start();
    guest.put("loop", &sh("echo this is one more run; exec sleep 1000")).await;
    for _ in 0..100 {
        let view = guest.becomes("loop", ServiceState::Ready).await;
        guest
            .eventually(async || {
                (guest.service("loop").await.log_end > view.runs.last().unwrap().log_offset).then_some(())
            })
            .await;
        guest.ask("loop", "restart").await;
    }
    let view = guest.becomes("loop", ServiceState::Ready).await;
    assert_eq!(view.runs.len(), bay_types::service::KEPT_RUNS);
    assert_eq!(view.restarts, 0, "asked for, not by itself");
    assert_eq!(view.log_start, 91 * 21);
    let kept = guest.dir().join("state/services/execs");
    guest
        .eventually(async || {
            (std::fs::read_dir(&kept).unwrap().count() == bay_types::service::KEPT_RUNS).then_some(())
        })
        .await;
    assert_eq!(
        guest.log("loop", 0).await,
        format!("[{} bytes]{}", 91 * 21, "this is one more run\n".repeat(10))
    );
}

#[tokio::test]
async fn a_service_that_forks_away_is_reported_and_counts_as_running() {
    let Some(group) = Group::make() else { return };
    let guest = Guest::with(&group.options());
    let spec = ServiceSpec {
        restart: Restart::OnFailure,
        health: by_command("true"),
        ..sh("env -i setsid sh -c 'echo late; exec sleep 4646' & exit 0")
    };
    guest.put("daemon", &spec).await;
    let view = guest
        .eventually(async || {
            Some(guest.service("daemon").await)
                .filter(|v| v.state == ServiceState::Ready && v.reason.contains("foreground"))
        })
        .await;
    assert!(view.reason.contains("1 process"), "{}", view.reason);
    assert_eq!(view.pid, None);
    guest.eventually(async || (guest.log("daemon", 0).await == "late\n").then_some(())).await;
    // Its end is seen when its last process is gone.
    guest.sh("kill $(pgrep -f '[s]leep 4646')").await;
    let view = guest.becomes("daemon", ServiceState::Done).await;
    assert!(view.reason.contains("have all ended"), "{}", view.reason);
    // A stop reaches processes that forked away.
    guest.ask("daemon", "start").await;
    guest
        .eventually(async || {
            Some(guest.service("daemon").await)
                .filter(|v| v.state == ServiceState::Ready && v.reason.contains("foreground"))
        })
        .await;
    guest.ask("daemon", "stop").await;
    guest.becomes("daemon", ServiceState::Stopped).await;
    assert_eq!(guest.sh("ps ax -o args= | grep -c '[s]leep 4646'").await.out().trim(), "0");
}

#[tokio::test]
async fn processes_that_a_crashed_service_left_are_killed_before_it_is_restarted() {
    let Some(group) = Group::make() else { return };
    let guest = Guest::with(&group.options());
    guest.put("leaky", &sh("env -i setsid sleep 4747 & exit 1")).await;
    guest.becomes("leaky", ServiceState::CrashLoop).await;
    assert_eq!(guest.sh("ps ax -o args= | grep -c '[s]leep 4747'").await.out().trim(), "0");
}

#[tokio::test]
async fn a_service_that_ignores_term_is_killed_after_its_grace() {
    let guest = Guest::start();
    let stubborn =
        ServiceSpec { stop_grace_ms: 300, ..sh("trap '' TERM; echo ready; while :; do sleep 0.05; done") };
    guest.put("stubborn", &stubborn).await;
    guest.becomes("stubborn", ServiceState::Ready).await;
    let view = guest.ask("stubborn", "stop").await;
    assert_eq!(view.state, ServiceState::Stopping);
    let view = guest.becomes("stubborn", ServiceState::Stopped).await;
    assert_eq!(view.runs[0].exit.unwrap().signal, Some(9));
    assert!(!view.wanted);
}

#[tokio::test]
async fn a_log_is_followed_from_run_to_run_until_the_service_is_removed() {
    let guest = Guest::start();
    guest.put("web", &sh("echo out; echo err >&2; exec sleep 1000")).await;
    let mut body = guest.stream(Method::GET, "/v1/services/web/output?follow=true", vec![]).await.into_body();
    let mut bytes = Vec::new();
    // Two streams of one run have no order between them.
    let lines = |text: &str| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let mut until = async |text: &str| {
        while lines(&frames(&bytes)) != lines(text) {
            let frame = tokio::time::timeout(crate::harness::PATIENCE, body.frame()).await.unwrap();
            let frame = frame.unwrap_or_else(|| panic!("the log ended at {:?}", frames(&bytes)));
            bytes.extend_from_slice(frame.unwrap().data_ref().unwrap());
        }
    };
    until("out\nerr\n").await;
    guest.becomes("web", ServiceState::Ready).await;
    guest.ask("web", "restart").await;
    until("out\nerr\nout\nerr\n").await;
    guest.ask("web", "stop").await;
    guest.becomes("web", ServiceState::Stopped).await;
    guest.put("web", &sh("echo another; exec sleep 1000")).await;
    until("out\nerr\nout\nerr\nanother\n").await;
    let (status, _) = guest.call(Method::DELETE, "/v1/services/web", vec![]).await;
    assert!(status.is_success());
    let end = async {
        while let Some(frame) = body.frame().await {
            frame.unwrap();
        }
    };
    tokio::time::timeout(crate::harness::PATIENCE, end).await.unwrap();
    guest
        .eventually(async || {
            (guest.call(Method::GET, "/v1/services/web", vec![]).await.0 == 404).then_some(())
        })
        .await;
    let kept = guest.dir().join("state/services/execs");
    guest.eventually(async || (std::fs::read_dir(&kept).unwrap().count() == 0).then_some(())).await;
}

#[tokio::test]
async fn a_new_guest_starts_the_wanted_services_and_keeps_their_logs() {
    let guest = Guest::start();
    guest.put("db", &sh("echo db; exec sleep 1000")).await;
    guest
        .put("web", &ServiceSpec { needs: vec!["db".parse().unwrap()], ..sh("echo web; exec sleep 1000") })
        .await;
    guest.put("off", &sh("exec sleep 1000")).await;
    guest.becomes("web", ServiceState::Ready).await;
    guest.ask("off", "stop").await;
    guest.becomes("off", ServiceState::Stopped).await;
    std::fs::write(guest.dir().join("state/services/torn.json"), r#"{"format":1,"sp"#).unwrap();
    let guest = guest.crash_and_restart(&Options::default());
    let view = guest.becomes("web", ServiceState::Ready).await;
    assert_eq!(view.runs.len(), 2);
    guest.eventually(async || (guest.log("web", 0).await == "web\nweb\n").then_some(())).await;
    assert_eq!(guest.log("web", view.runs[1].log_offset).await, "web\n");
    assert_eq!(view.runs[0].exit.unwrap().reason, bay_types::exec::EndReason::Lost);
    let off = guest.service("off").await;
    assert_eq!((off.state, off.wanted), (ServiceState::Stopped, false));
    // A torn file is reported, affects no other service, and is replaced by a new definition.
    let torn = guest.service("torn").await;
    assert_eq!((torn.state, torn.spec), (ServiceState::Failed, None));
    assert!(torn.reason.contains("cannot be read"), "{}", torn.reason);
    assert_eq!(
        guest.refused(Method::POST, "/v1/services/torn/start", vec![]).await.code,
        ErrorCode::ServiceFailed
    );
    guest.put("torn", &sh("exec sleep 1000")).await;
    guest.becomes("torn", ServiceState::Ready).await;
}

#[tokio::test]
async fn the_same_definition_again_changes_nothing_and_another_replaces_the_run() {
    let guest = Guest::start();
    let spec = sh("echo $BAY_SERVICE $GREETING; exec sleep 1000");
    guest.put("web", &spec).await;
    let first = guest.becomes("web", ServiceState::Ready).await;
    assert_eq!(guest.put("web", &spec).await.pid, first.pid);
    let other = ServiceSpec { env: vec![("GREETING".into(), "hello".into())], ..spec };
    let view = guest.put("web", &other).await;
    assert_eq!(view.state, ServiceState::Stopping);
    let second = guest.becomes("web", ServiceState::Ready).await;
    assert_ne!(second.pid, first.pid);
    guest.eventually(async || (guest.log("web", 0).await == "web\nweb hello\n").then_some(())).await;
}
