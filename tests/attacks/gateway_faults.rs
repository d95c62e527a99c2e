//! Faults around the gateway: the daemon, its disk, its key, its policies, and origins that lie.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use bay_tests::disk::SmallDisk;
use bay_tests::lab::{lab, lab_with};
use bay_tests::seeded_random::SeededRandom;
use bay_tests::wait::pause;
use bay_tests::{Daemon, image, suite, until};
use serde_json::Value;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Clients that send requests until they are stopped, each for another path.
const LOAD: &str = r#"
import os, sys, threading, urllib.request
done = [0] * 4
def ask(client):
    number = 0
    while not os.path.exists("/tmp/stop"):
        number += 1
        try:
            urllib.request.urlopen("%s/%d/%d" % (sys.argv[1], client, number), timeout=20).read()
            done[client] += 1
        except OSError:
            pass
        with open("/tmp/done.%d" % client, "w") as said:
            said.write(str(done[client]))
clients = [threading.Thread(target=ask, args=(client,)) for client in range(4)]
for client in clients: client.start()
for client in clients: client.join()
open("/tmp/ended", "w").close()
"#;

#[test]
fn a_daemon_killed_under_load_has_every_request_on_record_that_an_origin_saw() {
    if !image::with_python() {
        return;
    }
    let mut chance = SeededRandom::announced("kill -9 under load");
    let mut lab = lab();
    let origin = lab.echo_for(&["b"]);
    let url = origin.url("https", "/n");
    let _begun = lab.daemon.bay(&["exec", "--detach", "b", "--", "python3", "-c", LOAD, &url]).ok();
    for _ in 0..3 {
        let before = origin.seen.lines().len();
        until("requests arrive", || (origin.seen.lines().len() > before + 20).then_some(()));
        pause(chance.moment(Duration::from_millis(200)));
        lab.daemon.kill_9();
        // Requests that already left may still arrive, but no new ones.
        let closed = origin.seen.lines().len();
        pause(Duration::from_millis(300));
        assert!(origin.seen.lines().len() <= closed + 4, "egress is closed while no daemon runs");
        lab.daemon.launch();
    }
    let before = origin.seen.lines().len();
    until("the same clients go on", || (origin.seen.lines().len() > before + 20).then_some(()));
    let _stop = lab.daemon.sh("b", "touch /tmp/stop").ok();
    until("they end", || (lab.daemon.sh("b", "test -e /tmp/ended").code == 0).then_some(()));
    let allowed: BTreeSet<String> = lab
        .record("b", "egress.decided")
        .iter()
        .filter(|body| body["outcome"] == "allow")
        .map(|body| body["request"].as_str().unwrap().to_owned())
        .collect();
    for line in origin.seen.lines() {
        let path = line.strip_prefix("GET ").unwrap();
        let request = format!("GET {}", origin.url("https", path));
        assert!(allowed.contains(&request), "{request} reached the origin and is not on record");
    }
    let _holds = lab.daemon.bay(&["audit", "verify"]).ok();
}

/// Size of a disk for the daemon's copy of the binary, its database and its logs.
const DATA_MIB: u64 = 768;

#[test]
fn audit_full_on_a_full_disk_nothing_leaves_and_the_refusal_has_the_reason() {
    if !image::with_python() {
        return;
    }
    let disk = SmallDisk::mounted_at(&suite::fresh("m"), DATA_MIB);
    let lab = lab_with(Daemon::setup().data_at(disk.path().join("d")));
    let origin = lab.echo_for(&["b"]);
    // Start the client before the disk is full: a new exec could not be recorded.
    let client = r#"
import os, sys, time, urllib.request, urllib.error
while not os.path.exists("/tmp/stop"):
    try:
        answer = urllib.request.urlopen(sys.argv[1], timeout=20)
    except urllib.error.HTTPError as refused:
        answer = refused
    text = "%d\n%s" % (answer.status, answer.read().decode())
    with open("/workspace/said.new", "w") as said:
        said.write(text)
    os.rename("/workspace/said.new", "/workspace/said")
    time.sleep(0.02)
"#;
    let url = origin.url("https", "/");
    let _begun = lab.daemon.bay(&["exec", "--detach", "b", "--", "python3", "-c", client, &url]).ok();
    let said = || {
        let read = lab.daemon.rest("GET", "/v1/bays/b/files?path=/workspace/said", &Value::Null);
        String::from_utf8_lossy(&read.body).into_owned()
    };
    until("it gets through", || said().starts_with("200").then_some(()));
    let fill = disk.fill();
    let refused = until("it is refused", || Some(said()).filter(|said| said.starts_with("403")));
    assert!(
        refused.contains("record cannot be written") && refused.contains("without being on record"),
        "{refused}"
    );
    let seen = origin.seen.lines().len();
    pause(Duration::from_millis(200));
    assert!(origin.seen.lines().len() <= seen + 1, "nothing leaves");
    fs::remove_file(fill).unwrap();
    until("it gets through again", || said().starts_with("200").then_some(()));
    let allowed = lab.record("b", "egress.decided").iter().filter(|body| body["outcome"] == "allow").count();
    let _stop = lab.daemon.sh("b", "touch /tmp/stop").ok();
    assert!(allowed > 0);
    until("everything that left is on record", || {
        let allowed =
            lab.record("b", "egress.decided").iter().filter(|body| body["outcome"] == "allow").count();
        (allowed >= origin.seen.lines().len()).then_some(())
    });
    let _holds = lab.daemon.bay(&["audit", "verify"]).ok();
    drop(lab);
    drop(disk);
}

#[test]
fn a_policy_that_a_new_daemon_cannot_parse_closes_egress_with_the_reason() {
    if !image::with_python() {
        return;
    }
    let mut lab = lab();
    let origin = lab.echo_for(&["b", "other"]);
    assert_eq!(lab.get("b", &origin.url("https", "/")).0, 200);
    let id = lab.daemon.show("b")["id"].as_str().unwrap().to_owned();
    lab.daemon.kill_9();
    let database = lab.daemon.data_dir.join("bay.db");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut connection = SqliteConnectOptions::new().filename(&database).connect().await.unwrap();
        let changed = sqlx::query("UPDATE policies SET text = $1 WHERE scope LIKE '%' || $2 || '%'")
            .bind("[[rule]]\noutcome = \"as before\"\n")
            .bind(&id)
            .execute(&mut connection)
            .await
            .unwrap();
        assert_eq!(changed.rows_affected(), 1);
        connection.close().await.unwrap();
    });
    lab.daemon.launch();
    let (status, body) = lab.get("b", &origin.url("https", "/"));
    let told: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(status, 403, "{told:#}");
    assert!(told["line"].as_str().unwrap().contains("the policy cannot be read"), "{told:#}");
    assert_eq!(lab.get("other", &origin.url("https", "/other")).0, 200, "others have theirs");
    lab.set("b", &origin.allowed(""));
    assert_eq!(lab.get("b", &origin.url("https", "/")).0, 200, "a new one opens it again");
}

#[test]
fn without_the_daemons_key_bays_run_and_their_egress_is_closed_on_record() {
    if !image::with_python() {
        return;
    }
    let mut lab = lab();
    let origin = lab.echo_for(&["b"]);
    assert_eq!(lab.get("b", &origin.url("https", "/")).0, 200);
    lab.daemon.kill_9();
    let key = lab.daemon.key_file();
    let away = key.with_extension("away");
    fs::rename(&key, &away).unwrap();
    lab.daemon.launch();
    assert_eq!(lab.daemon.sh("b", "echo runs").ok().text().trim(), "runs");
    let closed = until("it is on record that the way is closed", || lab.record("b", "egress.closed").pop());
    assert!(closed["why"].as_str().unwrap().contains("is gone"), "{closed}");
    let tried = lab.daemon.sh("b", &format!("nc -w 5 198.18.0.1 {} </dev/null", origin.port()));
    assert_ne!(tried.code, 0, "{tried}");
    assert_eq!(lab.daemon.rest("GET", "/v1/bays/b/egress", &Value::Null).json()["open"], false);
    assert_eq!(origin.seen.lines().len(), 1);
    assert!(!key.exists(), "no other key takes its place");
    lab.daemon.kill_9();
    fs::rename(&away, &key).unwrap();
    lab.daemon.launch();
    until("the way is open again", || {
        let state = lab.daemon.rest("GET", "/v1/bays/b/egress", &Value::Null).json();
        (state["open"] == true).then_some(())
    });
    assert_eq!(lab.get("b", &origin.url("https", "/")).0, 200);
}

/// The peak memory of a process so far, in MiB.
fn peak_mib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1024
}

#[test]
fn an_origin_with_a_head_of_a_hundred_megabytes_is_a_502_and_costs_the_daemon_nothing() {
    if !image::with_python() {
        return;
    }
    let lab = lab();
    let origin = lab.servers.tcp("origin.test", |mut stream| async move {
        let _ = stream.read(&mut [0; 4096]).await;
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nX: ").await;
        let block = vec![b'y'; 1 << 20];
        for _ in 0..100 {
            if stream.write_all(&block).await.is_err() {
                return;
            }
        }
        let _ = stream.write_all(b"\r\n\r\n").await;
    });
    lab.bay("b", &origin.allowed("scheme = \"http\""));
    let before = peak_mib(lab.daemon.pid());
    for _ in 0..5 {
        let (status, body) = lab.get("b", &origin.url("http", "/"));
        let told: Value = serde_json::from_str(&body).unwrap();
        assert_eq!((status, told["failure"].as_str()), (502, Some("bad-answer")), "{told:#}");
    }
    let after = peak_mib(lab.daemon.pid());
    assert!(after < before + 40, "{before} MiB before, {after} MiB after");
    until("how it ended is on record", || (lab.record("b", "egress.ended").len() == 5).then_some(()));
}
