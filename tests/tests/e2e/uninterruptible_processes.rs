//! Processes in uninterruptible sleep, which not even KILL ends. The bay reports them, and every request gets an
//! answer. Other bays and the daemon continue. Once the process is released, the bay recovers by itself.

use std::time::{Duration, Instant};

use bay_tests::checkpoint_invariants::checkpoints_are_whole;
use bay_tests::hanging_filesystem::{FILE, HangingFilesystem};
use bay_tests::suite::{self, Lack, Scratch};
use bay_tests::{Daemon, SMALL, until};
use bay_types::ErrorCode;
use bay_types::bay::State;
use serde_json::{Value, json};

/// Longest time of any request, whatever hangs.
const ANSWERED_WITHIN: Duration = Duration::from_secs(60);

/// Longest time for which a bay that cannot be adopted may delay other bays at the start of a daemon.
const READY_WITHIN: Duration = Duration::from_secs(10);

/// A daemon with a bay `b`, in which exec 1 reads a file that never answers, and an uninvolved bay `other`. The hanging
/// filesystem is dropped before `scratch`.
fn with_a_stuck_bay(test: impl FnOnce(&mut Daemon, HangingFilesystem)) {
    let mut daemon = Daemon::start();
    let scratch = Scratch::new();
    let disk = match HangingFilesystem::mounted_at(&scratch.join("disk")) {
        Ok(disk) => disk,
        Err(error) => return suite::skip(Lack::Host, &format!("no filesystem to wait for: {error}")),
    };
    daemon.empty_bay("other");
    let mounts = json!([{ "source": disk.path(), "target": "/stuck" }]);
    let body = json!({ "name": "b", "source": { "kind": "empty" }, "image": SMALL, "mounts": mounts });
    let made = daemon.rest("POST", "/v1/bays", &body);
    let text = String::from_utf8_lossy(&made.body).into_owned();
    assert!(text.contains("\"done\""), "{text}");
    let _started = daemon.bay(&["exec", "b", "-d", "--", "cat", &format!("/stuck/{FILE}")]).ok();
    until("the read to wait", || (disk.reads() == 1).then_some(()));
    test(&mut daemon, disk);
}

fn works(daemon: &Daemon, bay: &str) {
    let ran = daemon.sh(bay, "echo alive > f && cat f");
    assert_eq!((ran.code, ran.text().as_str()), (0, "alive"), "{bay}: {ran}");
}

/// Runs `what` while the other bay works, and asserts that both end.
fn while_the_other_works<T: Send>(daemon: &Daemon, what: impl FnOnce() -> T + Send) -> T {
    let began = Instant::now();
    let outcome = std::thread::scope(|scope| {
        let asked = scope.spawn(what);
        loop {
            works(daemon, "other");
            if asked.is_finished() {
                return asked.join();
            }
        }
    });
    assert!(began.elapsed() < ANSWERED_WITHIN, "it took {:?}", began.elapsed());
    outcome.unwrap_or_else(|why| std::panic::resume_unwind(why))
}

fn exec_view(daemon: &Daemon, exec: &str) -> Value {
    daemon.rest("GET", &format!("/v1/bays/b/execs/{exec}"), &Value::Null).json()
}

#[test]
fn a_command_that_hangs_in_the_kernel_is_given_up_with_the_reason_and_its_bay_continues() {
    with_a_stuck_bay(|daemon, disk| {
        // A pause that fails is undone: no process of the bay stays frozen.
        let paused = while_the_other_works(daemon, || daemon.bay(&["pause", "b"]));
        paused.fails_with(ErrorCode::BayFailed);
        assert!(
            paused.errors().contains("cat (process") && paused.errors().contains("hangs in the kernel"),
            "{paused}"
        );
        assert_eq!(daemon.show("b")["state"], "running");
        works(daemon, "b");

        let killed = while_the_other_works(daemon, || daemon.bay(&["kill", "b", "1"]));
        killed.fails_with(ErrorCode::BayState);
        assert!(killed.errors().contains("hangs in the kernel"), "{killed}");
        let view = exec_view(daemon, "1");
        assert_eq!(view["exit"], json!({ "reason": "killed" }), "{view}");
        assert_eq!(view["usage"]["processes_left"], 1, "{view}");
        let shown = daemon.bay(&["execs", "show", "b", "1"]).ok().text();
        assert!(shown.contains("hung in the kernel"), "{shown}");
        works(daemon, "b");

        // A timeout also returns control to the caller.
        let file = format!("/stuck/{FILE}");
        let timed = while_the_other_works(daemon, || {
            daemon.bay(&["exec", "b", "--timeout", "1", "--", "cat", &file])
        });
        assert_eq!(timed.code, 124, "{timed}");
        assert_eq!(daemon.sh("b", "pidof cat | wc -w").ok().text(), "2", "it is still there, of course");

        drop(disk);
        until("both to be gone", || (daemon.sh("b", "pidof cat | wc -w").text() == "0").then_some(()));
        let _paused = daemon.bay(&["pause", "b"]).ok();
        let _resumed = daemon.bay(&["resume", "b"]).ok();
        works(daemon, "b");
    });
}

#[test]
fn a_checkpoint_is_refused_with_the_name_of_a_hanging_process_and_the_bay_continues() {
    with_a_stuck_bay(|daemon, disk| {
        // A pending read can still be stopped before the first signal, but not after it.
        let killed = while_the_other_works(daemon, || daemon.bay(&["kill", "b", "1"]));
        killed.fails_with(ErrorCode::BayState);
        let guest = daemon.host_pid("b");
        for (kind, code) in
            [("--files-only", ErrorCode::BayFailed), ("--memory", ErrorCode::MemoryUnavailable)]
        {
            let made = while_the_other_works(daemon, || daemon.bay(&["checkpoint", "b", kind]));
            let (what, _) = made.fails_with(code);
            assert!(what.contains("cat"), "{what}");
            assert_eq!(daemon.show("b")["state"], "running");
            works(daemon, "b");
            assert!(checkpoints_are_whole(daemon, "b").is_empty());
        }
        let forked = while_the_other_works(daemon, || daemon.bay(&["fork", "b"]));
        assert!(forked.code != 0, "{forked}");
        let restored = while_the_other_works(daemon, || daemon.bay(&["pause", "b", "--to-disk"]));
        restored.fails_with(ErrorCode::MemoryUnavailable);
        works(daemon, "b");
        assert_eq!((daemon.host_pid("b"), daemon.list().len()), (guest, 2));

        drop(disk);
        until("it to be gone", || (daemon.sh("b", "pidof cat | wc -w").text() == "0").then_some(()));
        let _made = daemon.bay(&["checkpoint", "b", "--files-only"]).ok();
        works(daemon, "b");
    });
}

#[test]
fn a_stop_that_a_process_outlasts_fails_with_the_reason_and_completes_once_it_is_released() {
    with_a_stuck_bay(|daemon, disk| {
        let stopped = while_the_other_works(daemon, || daemon.bay(&["stop", "b", "--grace", "1"]));
        stopped.fails_with(ErrorCode::BayFailed);
        assert!(stopped.errors().contains("do not end: cat (process"), "{stopped}");
        let bay = daemon.show("b");
        assert_eq!(
            (bay["state"].as_str(), bay["desired"].as_str()),
            (Some("failed"), Some("stopped")),
            "{bay}"
        );
        assert!(bay["reason"].as_str().unwrap().contains("hangs in the kernel"), "{bay}");
        works(daemon, "other");

        drop(disk);
        daemon.until_state("b", State::Stopped);
        // The bay is stopped first; its execs are closed after that.
        until("its exec to be closed", || {
            let reason = exec_view(daemon, "1")["exit"]["reason"].clone();
            (!reason.is_null()).then(|| assert_eq!(reason, "stopped"))
        });
        assert!(daemon.bay(&["start", "b"]).code != 0, "what it has mounted is gone");
    });
}

#[test]
fn a_removal_that_a_process_outlasts_completes_once_it_is_released_by_any_daemon() {
    with_a_stuck_bay(|daemon, disk| {
        let removed = while_the_other_works(daemon, || daemon.bay(&["rm", "b", "--yes"]));
        removed.fails_with(ErrorCode::BayFailed);
        assert!(removed.errors().contains("hangs in the kernel"), "{removed}");
        let bay = daemon.show("b");
        assert_eq!(bay["state"], "deleting", "{bay}");
        assert!(bay["reason"].as_str().unwrap().contains("could not be removed yet"), "{bay}");

        daemon.kill_9();
        let launched = Instant::now();
        daemon.launch();
        assert!(launched.elapsed() < READY_WITHIN, "a new daemon was ready after {:?}", launched.elapsed());
        works(daemon, "other");
        drop(disk);
        until("the bay to be gone", || (daemon.list().len() == 1).then_some(()));
        works(daemon, "other");
    });
}
