//! Starts, ends and signals of execs.

use bay_tests::suite;
use bay_types::ErrorCode;
use bay_types::exec::{EndReason, ExecSpec, Exit};
use bay_types::guest::{GuestEvent, GuestInfo, PROTOCOL};
use http::{Method, StatusCode};
use http_body_util::BodyExt;

use crate::harness::{Guest, Options, json, sh, spec};

const SIGINT: i32 = 2;
const SIGKILL: i32 = 9;
const SIGUSR1: i32 = 10;
const SIGSEGV: i32 = 11;
const SIGTERM: i32 = 15;

#[tokio::test]
async fn a_command_prints_on_both_streams_and_exits() {
    let guest = Guest::start();
    let spec = sh("echo out; echo err >&2; exit 3");
    let got = guest.run(&spec).await;
    assert_eq!((got.out(), got.err()), ("out\n", "err\n"));
    assert_eq!(got.exit, Some(Exit { reason: EndReason::Exited, code: Some(3), signal: None }));
    let status = guest.status(spec.id).await;
    assert_eq!(status.exit, got.exit);
    assert_eq!((status.output_bytes, status.output_start), (8, 0));
    assert!(status.ended_at.unwrap() >= status.started_at);
    assert!(status.usage.max_rss_kib > Some(0));
    assert_eq!(status.spec, spec);
}

#[tokio::test]
async fn the_guest_reports_its_version_and_protocol() {
    let guest = Guest::start();
    let info: GuestInfo = serde_json::from_slice(&guest.ok(Method::GET, "/v1/info", vec![]).await).unwrap();
    assert_eq!(info.protocol, PROTOCOL);
    assert_eq!(guest.refused(Method::GET, "/v1/nothing", vec![]).await.code, ErrorCode::InvalidInput);
}

#[tokio::test]
async fn an_end_by_a_signal_is_not_reported_as_an_exit() {
    let guest = Guest::start();
    let got = guest.sh("kill -SEGV $$").await;
    assert_eq!(got.exit, Some(Exit { reason: EndReason::Signaled, code: None, signal: Some(SIGSEGV) }));
}

#[tokio::test]
async fn a_caller_can_signal_kill_and_terminate() {
    let guest = Guest::start();
    for (signal, tree, reason) in [
        (SIGTERM, false, EndReason::Killed),
        (SIGTERM, true, EndReason::Killed),
        (SIGKILL, true, EndReason::Killed),
        (SIGKILL, false, EndReason::Killed),
        (SIGUSR1, false, EndReason::Signaled),
    ] {
        let spec = sh("echo ready; exec sleep 1000");
        let mut attached = guest.attach(spec.id, Some(&spec), 0).await;
        attached.until("ready").await;
        guest.signal(spec.id, signal, tree).await;
        let exit = attached.collect().await.exit.unwrap();
        assert_eq!(exit, Exit { reason, code: None, signal: Some(signal) }, "{signal} {tree}");
    }
    let spec = sh("trap 'echo caught; exit 7' INT; echo ready; while :; do sleep 0.05; done");
    let mut attached = guest.attach(spec.id, Some(&spec), 0).await;
    attached.until("ready").await;
    attached.send(bay_types::frame::Frame::Signal(SIGINT)).await;
    let got = attached.collect().await;
    assert_eq!((got.out(), got.code()), ("caught\n", Some(7)));
    let wrong = guest
        .refused(Method::POST, &format!("/v1/execs/{}/signal", spec.id), br#"{"signal":99}"#.to_vec())
        .await;
    assert_eq!(wrong.code, ErrorCode::InvalidInput);
    // An exec that has ended takes no signals, and no other process gets them.
    assert_eq!(guest.signal(spec.id, SIGKILL, false).await.exit, got.exit);
}

/// If its children were killed first, a waiting shell would end by itself with success.
#[tokio::test]
async fn a_tree_that_is_killed_never_reports_success() {
    let guest = Guest::start();
    for round in 0..40 {
        let signal = if round % 2 == 0 { SIGKILL } else { SIGTERM };
        let spec = sh("sleep 1000 & echo ready; wait");
        let mut attached = guest.attach(spec.id, Some(&spec), 0).await;
        attached.until("ready").await;
        guest.signal(spec.id, signal, true).await;
        let exit = attached.collect().await.exit.unwrap();
        assert_eq!(exit, Exit { reason: EndReason::Killed, code: None, signal: Some(signal) });
    }
}

#[tokio::test]
async fn a_time_limit_ends_the_whole_tree() {
    let guest = Guest::start();
    let mut spec = sh("setsid sleep 1000 & sleep 1001 & echo $! ; wait");
    spec.timeout_s = Some(1);
    let got = guest.run(&spec).await;
    assert_eq!(got.exit.unwrap().reason, EndReason::TimedOut);
    assert_eq!(got.exit.unwrap().shell_code(), 124);
    guest
        .eventually(async || {
            guest.sh("ps ax -o args= | grep -c '[s]leep 100'").await.out().starts_with('0').then_some(())
        })
        .await;
}

#[tokio::test]
async fn the_same_start_twice_is_one_exec_and_another_spec_is_a_conflict() {
    let guest = Guest::start();
    let marker = guest.dir().join("marker");
    let spec = sh(&format!("echo x >> {}; sleep 0.2", marker.display()));
    let path = format!("/v1/execs/{}", spec.id);
    let calls = (0..8).map(|_| guest.call(Method::PUT, &path, json(&spec)));
    let answers = futures_util::future::join_all(calls).await;
    let created = answers.iter().filter(|(status, _)| *status == StatusCode::CREATED).count();
    assert_eq!(created, 1);
    assert!(answers.iter().all(|(status, _)| status.is_success()));
    assert_eq!(guest.output(spec.id, 0, true).await.code(), Some(0));
    // Also after its end.
    let (status, _) = guest.call(Method::PUT, &path, json(&spec)).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(std::fs::read_to_string(&marker).unwrap(), "x\n");
    let other = ExecSpec { argv: vec!["true".into()], ..spec.clone() };
    assert_eq!(guest.start_refused(&other).await.code, ErrorCode::ExecConflict);
    let mismatch = guest.refused(Method::PUT, &path, json(&sh("true"))).await;
    assert_eq!(mismatch.code, ErrorCode::InvalidInput);
}

#[tokio::test]
async fn a_command_that_cannot_start_has_a_reason() {
    let guest = Guest::start();
    let dir = guest.dir();
    std::fs::write(dir.join("plain"), "data").unwrap();
    std::fs::write(dir.join("script"), "#!/no/such/interpreter\n").unwrap();
    std::fs::write(dir.join("shebangless"), "echo as a shell would\n").unwrap();
    for name in ["script", "shebangless"] {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(dir.join(name), mode).unwrap();
    }
    let in_dir = |name: &str| spec(&[dir.join(name).to_str().unwrap()]);
    for (spec, says) in [
        (spec(&["no-such-command"]), "command not found"),
        (spec(&["/no/such/command"]), "command not found"),
        (in_dir("plain"), "may not be executed"),
        (spec(&["/"]), "may not be executed"),
        (in_dir("script"), "interpreter"),
        (ExecSpec { cwd: Some("/no/such/directory".into()), ..sh("true") }, "/no/such/directory"),
        (ExecSpec { user: Some("no-such-user".into()), ..sh("true") }, "no-such-user"),
    ] {
        let error = guest.start_refused(&spec).await;
        let code = match says {
            "command not found" => ErrorCode::CommandNotFound,
            _ => ErrorCode::ExecStart,
        };
        assert_eq!(error.code, code, "{says}");
        assert!(error.message.contains(says), "{:?} does not say {says:?}", error.message);
        assert_eq!(
            guest.refused(Method::GET, &format!("/v1/execs/{}", spec.id), vec![]).await.code,
            ErrorCode::ExecNotFound
        );
    }
    for spec in [
        spec(&[]),
        spec(&[""]),
        spec(&["a\0b"]),
        ExecSpec { env: vec![("A=B".into(), "c".into())], ..sh("true") },
        ExecSpec { argv: vec!["x".repeat(2 << 20)], ..sh("true") },
        ExecSpec { timeout_s: Some(0), ..sh("true") },
    ] {
        assert_eq!(guest.start_refused(&spec).await.code, ErrorCode::InvalidInput);
    }
    assert_eq!(guest.run(&in_dir("shebangless")).await.out(), "as a shell would\n");
}

#[tokio::test]
async fn the_environment_is_new_and_the_callers_variables_take_precedence() {
    let guest = Guest::start();
    let mut spec = spec(&["env"]);
    spec.env = vec![("LANG".into(), "de_DE".into()), ("MINE".into(), "1".into())];
    let got = guest.run(&spec).await;
    let has = |line: &str| assert!(got.out().lines().any(|l| l == line), "{line} is not in {}", got.out());
    has("LANG=de_DE");
    has("MINE=1");
    has("USER=root");
    has("HOME=/root");
    has("BAY_ID=bay_test");
    has("BAY_NAME=testbay");
    has(&format!("BAY_EXEC_ID={}", spec.id));
    assert!(!got.out().contains("BAY_TEST_GUEST_DIR"), "the guest's own environment leaks");
    assert!(!got.out().contains("TERM="));
}

#[tokio::test]
async fn a_command_runs_as_the_requested_user() {
    if !suite::has_root("running commands as others") {
        return;
    }
    let guest = Guest::start();
    std::fs::create_dir(guest.root().join("etc")).unwrap();
    std::fs::write(guest.root().join("etc/passwd"), "dev:x:1234:1235::/home/dev:/bin/zsh\n").unwrap();
    std::fs::write(guest.root().join("etc/group"), "extra:x:1300:dev\n").unwrap();
    let mut spec = sh("id -u; id -g; id -G; echo $HOME $SHELL; umask; cat /proc/self/status | grep CapEff");
    spec.user = Some("dev".into());
    let got = guest.run(&spec).await;
    assert_eq!(got.out(), "1234\n1235\n1235 1300\n/home/dev /bin/zsh\n0022\nCapEff:\t0000000000000000\n");
    let numeric = guest.run(&ExecSpec { user: Some("4000:5000".into()), ..sh("id -u; id -G") }).await;
    assert_eq!(numeric.out(), "4000\n5000\n");
}

#[tokio::test]
async fn a_command_inherits_no_descriptor_and_no_signal_state_of_the_guest() {
    let guest = Guest::start();
    let got = guest
        .sh("for n in 0 1 2 3 4 5 6 7 8 9; do [ -e /proc/$$/fd/$n ] && echo $n; done; cat /proc/self/status | grep -E 'Sig(Blk|Ign|Cgt)'")
        .await;
    assert_eq!(
        got.out(),
        "0\n1\n2\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\nSigCgt:\t0000000000000000\n"
    );
}

#[tokio::test]
async fn events_report_every_end() {
    let guest = Guest::start();
    let mut body = guest.stream(Method::GET, "/v1/events", vec![]).await.into_body();
    let mut line = async || -> GuestEvent {
        let frame = body.frame().await.unwrap().unwrap().into_data().unwrap();
        serde_json::from_slice(&frame).unwrap()
    };
    assert_eq!(line().await, GuestEvent::Hello);
    let spec = sh("exit 4");
    guest.start_exec(&spec).await;
    let exit = Exit { reason: EndReason::Exited, code: Some(4), signal: None };
    let ended = line().await;
    let GuestEvent::ExecEnded { id, exit: told, end: Some(end) } = ended else { panic!("{ended:?}") };
    assert_eq!((id, told), (spec.id, exit));
    assert_eq!(*end, guest.status(spec.id).await.end().unwrap());
}

#[tokio::test]
async fn execs_are_listed_and_forgotten() {
    let guest = Guest::start();
    let (done, running) = (sh("echo hi"), sh("exec sleep 1000"));
    guest.run(&done).await;
    guest.start_exec(&running).await;
    let list = async || -> Vec<bay_types::exec::ExecStatus> {
        serde_json::from_slice(&guest.ok(Method::GET, "/v1/execs", vec![]).await).unwrap()
    };
    let ids = |all: Vec<bay_types::exec::ExecStatus>| all.into_iter().map(|s| s.spec.id).collect::<Vec<_>>();
    assert_eq!(ids(list().await), [done.id, running.id]);
    let path = |id| format!("/v1/execs/{id}");
    assert_eq!(guest.refused(Method::DELETE, &path(running.id), vec![]).await.code, ErrorCode::BayState);
    guest.ok(Method::DELETE, &path(done.id), vec![]).await;
    assert_eq!(guest.refused(Method::DELETE, &path(done.id), vec![]).await.code, ErrorCode::ExecNotFound);
    assert_eq!(ids(list().await), [running.id]);
}

#[tokio::test]
async fn the_number_of_finished_execs_is_bounded() {
    let guest = Guest::with(&Options { bounds: Some((1 << 20, 1 << 16, 3)), ..Options::default() });
    let mut ids = Vec::new();
    for n in 0..6 {
        let spec = sh(&format!("echo {n}"));
        guest.run(&spec).await;
        ids.push(spec.id);
    }
    guest
        .eventually(async || {
            let all: Vec<bay_types::exec::ExecStatus> =
                serde_json::from_slice(&guest.ok(Method::GET, "/v1/execs", vec![]).await).unwrap();
            let kept: Vec<_> = all.into_iter().map(|s| s.spec.id).collect();
            (kept == ids[3..]).then_some(())
        })
        .await;
    assert_eq!(guest.output(ids[5], 0, false).await.out(), "5\n");
}

#[tokio::test]
async fn thousands_of_orphans_are_reaped_without_delays() {
    let guest = Guest::start();
    let got = guest.sh("i=0; while [ $i -lt 2000 ]; do (true &); i=$((i+1)); done; echo done").await;
    assert_eq!(got.out(), "done\n");
    guest
        .eventually(async || {
            let zombies = guest.sh("ps ax -o stat= | grep -c '^Z' || true").await;
            (zombies.out().trim() == "0").then_some(())
        })
        .await;
}

#[tokio::test]
async fn many_short_execs_at_once_all_report_their_end() {
    let guest = Guest::start();
    let runs = (0..60).map(|n| {
        let guest = &guest;
        async move { guest.sh(&format!("exit {n}")).await.code() }
    });
    let codes = futures_util::future::join_all(runs).await;
    assert_eq!(codes, (0..60).map(Some).collect::<Vec<_>>());
}
