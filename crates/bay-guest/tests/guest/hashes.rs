//! What a guest saw of its execs, compared with files that root in the bay can change.

use std::fs;
use std::path::PathBuf;

use bay_types::ExecId;
use bay_types::exec::{EndReason, ExecStatus};
use bay_types::guest::ShutdownReport;
use bay_types::output::OutputCheck;
use http::Method;

use crate::harness::{Guest, Options, sh};

fn kept(guest: &Guest, id: ExecId) -> PathBuf {
    guest.dir().join("state/execs").join(id.to_string())
}

/// Replaces text in every file of an exec's kept output whose name ends with `files`.
fn rewrite(guest: &Guest, id: ExecId, files: &str, from: &str, to: &str) {
    let mut changed = 0;
    for entry in fs::read_dir(kept(guest, id)).unwrap().map(|entry| entry.unwrap().path()) {
        let text = fs::read(&entry).unwrap();
        let new = String::from_utf8_lossy(&text).replace(from, to);
        if entry.to_string_lossy().ends_with(files) && new.as_bytes() != text {
            fs::write(&entry, new).unwrap();
            changed += 1;
        }
    }
    assert!(changed > 0, "nothing in {files} has {from:?}");
}

async fn until_finished(guest: &Guest, id: ExecId) -> ExecStatus {
    guest.eventually(async || Some(guest.status(id).await).filter(|status| status.exit.is_some())).await
}

#[tokio::test]
async fn the_guest_that_wrote_output_reports_that_it_was_changed_on_disk() {
    let guest = Guest::start();
    let spec = sh("echo one FAILED; echo err >&2; exit 1");
    let live = guest.run(&spec).await;
    assert_eq!(live.check, Some(OutputCheck::Intact));
    let status = until_finished(&guest, spec.id).await;
    assert!(status.witnessed);
    let hashes = status.output_hashes.unwrap();
    assert_eq!(hashes.iter().map(|hash| (hash.start, hash.bytes)).collect::<Vec<_>>(), [(0, 15)]);
    assert_eq!(guest.output(spec.id, 0, true).await.check, Some(OutputCheck::Intact));
    assert_eq!(guest.output(spec.id, 4, true).await.check, Some(OutputCheck::Partial));

    rewrite(&guest, spec.id, ".out", "FAILED", "passed");
    let got = guest.output(spec.id, 0, true).await;
    assert_eq!((got.out(), got.check), ("one passed\n", Some(OutputCheck::Changed { from: 0, to: 15 })));
}

#[tokio::test]
async fn the_end_of_an_exec_is_what_the_guest_saw_even_if_its_record_is_changed() {
    let guest = Guest::start();
    let spec = sh("exit 1");
    guest.run(&spec).await;
    let seen = until_finished(&guest, spec.id).await;
    rewrite(&guest, spec.id, "meta.json", "\"code\":1", "\"code\":0");
    assert_eq!(guest.status(spec.id).await, seen);
    fs::remove_dir_all(kept(&guest, spec.id)).unwrap();
    let gone = guest.status(spec.id).await;
    assert_eq!((gone.exit, gone.witnessed, gone.ended_at), (seen.exit, true, seen.ended_at));

    // A guest that did not see the end says so, even if the record claims otherwise.
    let other = sh("exit 1");
    guest.run(&other).await;
    until_finished(&guest, other.id).await;
    rewrite(&guest, other.id, "meta.json", "\"witnessed\":false", "\"witnessed\":true,\"output_hashes\":[]");
    let guest = guest.crash_and_restart(&Options::default());
    let read = guest.status(other.id).await;
    assert_eq!((read.exit.unwrap().code, read.witnessed, read.output_hashes), (Some(1), false, None));
    assert_eq!(guest.output(other.id, 0, true).await.check, None);
}

#[tokio::test]
async fn only_output_that_the_bound_kept_is_hashed() {
    let guest = Guest::with(&Options { bounds: Some((1 << 20, 1 << 16, 100)), ..Options::default() });
    let spec = sh("yes 1234567 | head -c 3000000; echo end >&2");
    guest.run(&spec).await;
    let status = until_finished(&guest, spec.id).await;
    assert!(status.output_start > 0, "{status:?}");
    let hashes = status.output_hashes.unwrap();
    assert_eq!(hashes.first().unwrap().start, status.output_start);
    assert_eq!(hashes.last().unwrap().end(), status.output_bytes);
    assert!(hashes.windows(2).all(|pair| pair[0].end() == pair[1].start), "{hashes:?}");
    let got = guest.output(spec.id, 0, true).await;
    assert_eq!((got.gap, got.check), (status.output_start, Some(OutputCheck::Intact)));
    // Output in place of what was dropped.
    let first = kept(&guest, spec.id).join(format!("{:020}.out", 0));
    fs::write(first, "forged\n").unwrap();
    let got = guest.output(spec.id, 0, true).await;
    assert_eq!(got.check, Some(OutputCheck::Unchecked { from: 0, to: 7 }));
}

#[tokio::test]
async fn the_answer_to_a_shutdown_has_the_ends_of_what_ran() {
    let mut guest = Guest::start();
    let polite = sh("trap 'echo saved; exit 3' TERM; echo ready; while :; do sleep 0.05; done");
    let mut attached = guest.attach(polite.id, Some(&polite), 0).await;
    attached.until("ready").await;
    let answer = guest.ok(Method::POST, "/v1/shutdown", br#"{"grace_ms":5000}"#.to_vec()).await;
    let report: ShutdownReport = serde_json::from_slice(&answer).unwrap();
    assert_eq!(report.ended.len(), 1, "{report:?}");
    let ended = &report.ended[0];
    assert_eq!((ended.id, ended.exit.reason, ended.exit.code), (polite.id, EndReason::Stopped, Some(3)));
    assert!(ended.end.output_hashes.as_ref().is_some_and(|hashes| hashes.len() == 1), "{report:?}");
    assert!(guest.wait().await.success());
}
