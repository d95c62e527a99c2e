//! Ends of the guest itself: crashes, shutdowns, full disks.

use std::os::fd::AsFd;

use bay_guest::spool::{self, Piece, Reader};
use bay_tests::suite;
use bay_types::ErrorCode;
use bay_types::exec::EndReason;
use http::Method;

use crate::harness::{Guest, Options, sh};

/// Reads the state directory as the daemon does for a stopped bay.
fn read_as_the_daemon(guest: &Guest, id: bay_types::ExecId) -> (bay_types::exec::ExecStatus, Vec<u8>) {
    let state = guest.state();
    let status = spool::read_status(state.as_fd(), id).unwrap();
    let mut reader = Reader::open(state.as_fd(), &status, 0).unwrap();
    let (mut all, mut buffer) = (Vec::new(), vec![0; 4096]);
    loop {
        match reader.next(&mut buffer).unwrap() {
            Piece::Output { len, .. } => all.extend_from_slice(&buffer[..len]),
            Piece::Gap(_) => panic!("a gap"),
            Piece::End => return (status, all),
        }
    }
}

#[tokio::test]
async fn a_crashed_guest_loses_no_output_and_its_running_execs_are_lost() {
    let guest = Guest::start();
    let (done, running) = (sh("echo finished; exit 6"), sh("echo before; exec sleep 1000"));
    guest.run(&done).await;
    let mut attached = guest.attach(running.id, Some(&running), 0).await;
    attached.until("before").await;
    let guest = guest.crash_and_restart(&Options::default());

    let (status, output) = read_as_the_daemon(&guest, done.id);
    assert_eq!((status.exit.unwrap().code, output.as_slice()), (Some(6), &b"finished\n"[..]));
    let (_, output) = read_as_the_daemon(&guest, running.id);
    assert_eq!(output, b"before\n");

    let got = guest.output(running.id, 0, true).await;
    assert_eq!(got.out(), "before\n");
    assert_eq!(got.exit.unwrap().reason, EndReason::Lost);
    assert_eq!(guest.status(done.id).await.exit.unwrap().code, Some(6));
    // The same start again finds the lost exec and does not run it again.
    assert_eq!(guest.start_exec(&running).await.exit.unwrap().reason, EndReason::Lost);
    assert_eq!(guest.sh("echo alive").await.out(), "alive\n");
}

#[tokio::test]
async fn a_shutdown_lets_processes_finish_and_then_ends_the_rest() {
    let mut guest = Guest::start();
    let polite = sh("trap 'echo saved; exit 0' TERM; echo ready; while :; do sleep 0.05; done");
    let stubborn = sh("trap '' TERM; echo ready; while :; do sleep 0.05; done");
    let mut one = guest.attach(polite.id, Some(&polite), 0).await;
    let mut two = guest.attach(stubborn.id, Some(&stubborn), 0).await;
    one.until("ready").await;
    two.until("ready").await;
    guest.ok(Method::POST, "/v1/shutdown", br#"{"grace_ms":700}"#.to_vec()).await;
    assert!(guest.wait().await.success());
    let (status, output) = read_as_the_daemon(&guest, polite.id);
    // The shell may also print on stderr that its sleep was terminated.
    assert!(String::from_utf8_lossy(&output).contains("saved\n"), "{}", String::from_utf8_lossy(&output));
    assert_eq!((status.exit.unwrap().reason, status.exit.unwrap().code), (EndReason::Stopped, Some(0)));
    let (status, _) = read_as_the_daemon(&guest, stubborn.id);
    assert_eq!((status.exit.unwrap().reason, status.exit.unwrap().signal), (EndReason::Stopped, Some(9)));
}

#[tokio::test]
async fn a_stopping_bay_starts_nothing_new() {
    let guest = Guest::start();
    let stubborn = sh("trap '' TERM; echo ready; while :; do sleep 0.05; done");
    let mut attached = guest.attach(stubborn.id, Some(&stubborn), 0).await;
    attached.until("ready").await;
    let shutdown = guest.ok(Method::POST, "/v1/shutdown", br#"{"grace_ms":2000}"#.to_vec());
    let refused = async {
        let deadline = tokio::time::Instant::now() + crate::harness::PATIENCE;
        loop {
            let spec = sh("true");
            let (status, bytes) =
                guest.call(Method::PUT, &format!("/v1/execs/{}", spec.id), crate::harness::json(&spec)).await;
            if !status.is_success() {
                return serde_json::from_slice::<bay_types::ApiError>(&bytes).unwrap();
            }
            assert!(tokio::time::Instant::now() < deadline);
        }
    };
    let (_, error) = tokio::join!(shutdown, refused);
    assert_eq!(error.code, ErrorCode::BayState);
}

#[tokio::test]
async fn commands_go_on_while_the_disk_is_full_and_are_recorded_afterwards() {
    if !suite::has_root("mounting a small disk") {
        return;
    }
    let guest = Guest::with(&Options { small_state: true, ..Options::default() });
    let state = guest.dir().join("state");
    let filler = format!(
        "cat /dev/zero > {0}/filler 2>/dev/null; cat /dev/zero > {0}/filler2 2>/dev/null; df {0} >&2",
        state.display()
    );
    // There is no room for the output, nor for the record of this command.
    let full = guest.sh(&filler).await;
    assert_eq!(full.code(), Some(0));
    let spec = sh("head -c 100000 /dev/zero; exit 2");
    let got = guest.run(&spec).await;
    // A follower gets all of the output, although little of it is kept.
    assert_eq!((got.gap, got.stdout.len(), got.code()), (0, 100_000, Some(2)));
    let status = guest.status(spec.id).await;
    assert_eq!(status.exit, got.exit);
    assert!(status.refused_bytes > 50_000, "{}", status.refused_bytes);
    let again = guest.output(spec.id, 0, true).await;
    assert_eq!((again.gap, again.exit), (got.gap, got.exit));
    // With room again, the end is recorded and new output is kept.
    guest.sh(&format!("rm {0}/filler {0}/filler2", state.display())).await;
    assert_eq!(guest.sh("echo kept").await.out(), "kept\n");
    let look = format!("grep -c '\"code\":2' {}/execs/{}/meta.json", state.display(), spec.id);
    guest.eventually(async || (guest.sh(&look).await.out() == "1\n").then_some(())).await;
}

#[tokio::test]
async fn the_guest_is_small() {
    let guest = Guest::start();
    guest.sh("echo warm").await;
    let pids = format!("/proc/{0}/task/{0}/children", guest.pid());
    let children = std::fs::read_to_string(pids).unwrap();
    let pid = children.split_whitespace().next().map_or(guest.pid().to_string(), str::to_owned);
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let rss: u64 = status
        .lines()
        .find_map(|l| l.strip_prefix("RssAnon:"))
        .and_then(|l| l.trim().strip_suffix(" kB"))
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    println!(
        "{}",
        status
            .lines()
            .filter(|l| l.starts_with("Rss") || l.starts_with("VmRSS") || l.starts_with("Threads"))
            .collect::<Vec<_>>()
            .join("; ")
    );
    // This is the whole test binary; its private memory is still what the guest allocates.
    assert!(rss < 8 * 1024, "{rss} KiB of private memory");
}
