//! `bay audit`: a record that nobody can change unnoticed, on the daemon's machine and elsewhere. The attacker here can
//! write to the database and to bundles, and knows the code, but does not have the key.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bay_ledger::{Bundle, EventRecord, Evidence, Frontier, Header, PublicKey, SecretKey};
use bay_tests::seeded_random::SeededRandom;
use bay_tests::suite::{Scratch, binary};
use bay_tests::wait::{PATIENCE, pause, within};
use bay_tests::{CliRun, Daemon, rest};
use bay_types::ErrorCode;
use serde_json::Value;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Row};

/// A machine that has never seen the daemon: its own home, no socket, no data directory.
struct Elsewhere(Scratch);

impl Elsewhere {
    fn new() -> Self {
        Self(Scratch::new())
    }

    fn bay(&self, args: &[&str]) -> CliRun {
        let mut command = Command::new(binary());
        command.env_clear().env("HOME", self.0.path()).env("BAY_NO_AUTOSTART", "1");
        command.env("BAY_DATA_DIR", self.0.join("nothing")).args(args);
        CliRun::new(args.join(" "), command.output().unwrap())
    }

    fn file(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let path = self.0.join(name);
        fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

/// A daemon with some events and a removed bay.
fn lived() -> Daemon {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let _ran = daemon.sh("b", "exit 3").exits(3);
    let _ran = daemon.bay(&["exec", "b", "--", "echo", "x\n{\"seq\":99,\"kind\":\"bay.forged\"}\n"]).ok();
    let _gone = daemon.bay(&["rm", "b", "--yes"]).ok();
    daemon
}

fn export(daemon: &Daemon, args: &[&str]) -> String {
    let all: Vec<&str> = ["audit", "export"].iter().chain(args).copied().collect();
    format!("{}\n", daemon.bay(&all).ok().text())
}

fn events(bundle: &str) -> Vec<EventRecord> {
    bundle.lines().skip(1).map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn in_lines(header: &str, events: &[EventRecord]) -> Vec<u8> {
    let events = events.iter().flat_map(Bundle::line);
    format!("{header}\n").into_bytes().into_iter().chain(events).collect()
}

/// The event with another body, and a matching hash.
fn rewritten(event: &EventRecord) -> EventRecord {
    let mut event = EventRecord { body: r#"{"by":"nobody"}"#.to_owned(), ..event.clone() };
    event.hash = event.leaf();
    event
}

#[test]
fn a_bundle_of_the_first_release_still_verifies() {
    let elsewhere = Elsewhere::new();
    let kept = concat!(env!("CARGO_MANIFEST_DIR"), "/data/first-release");
    let (bundle, key) = (format!("{kept}/ledger.bundle"), format!("{kept}/ledger.key"));
    let said = elsewhere.bay(&["audit", "verify", &bundle, "--key", &key]).ok().text();
    assert!(said.starts_with("all 87 events hold\n"), "{said}");
    let events = fs::read_to_string(&bundle).unwrap();
    let changed = elsewhere.file("changed", events.replace("amount", "Amount").replace("web", "wab"));
    let _broken =
        elsewhere.bay(&["audit", "verify", &changed, "--key", &key]).fails_with(ErrorCode::LedgerBroken);
}

#[test]
fn a_bundle_is_verified_elsewhere_with_nothing_but_the_key() {
    let daemon = lived();
    let key = daemon.bay(&["audit", "key"]).ok().text();
    let head = daemon.bay(&["audit", "head"]).ok().text();
    let live = daemon.bay(&["audit", "verify", "--json"]).ok().json();
    let size = live["size"].as_u64().unwrap();
    assert!(size > 5 && live["ok"] == true && live["first"] == 1 && live["last"] == size, "{live}");

    let elsewhere = Elsewhere::new();
    let key_file = elsewhere.file("ledger.pub", format!("{key}\n"));
    let whole = elsewhere.file("whole", export(&daemon, &[]));
    let said = elsewhere.bay(&["audit", "verify", &whole, "--key", &key_file]).ok().text();
    assert!(said.starts_with(&format!("all {size} events hold\n")), "{said}");
    assert!(said.contains(live["root"].as_str().unwrap()), "{said}");
    let json = elsewhere.bay(&["audit", "verify", &whole, "--key", &key, "--json"]).ok().json();
    assert_eq!(json["root"], live["root"]);
    assert_eq!(
        (&json["known"][0]["from"], &json["known"][0]["standing"]),
        (&"remembered".into(), &"continues".into())
    );
    let fields: Vec<&String> = json.as_object().unwrap().keys().collect();
    let stable = ["first", "known", "last", "log", "ok", "root", "signed_at", "size"];
    assert!(
        fields.iter().all(|field| stable.contains(&field.as_str())) && fields.len() == stable.len(),
        "{json}"
    );

    // Text that an agent wrote stays one string on one line, whatever it contains.
    let text = export(&daemon, &[]);
    assert_eq!(text.lines().count() as u64, size + 1);
    assert!(events(&text).iter().all(|event| event.kind != "bay.forged"));

    let part = elsewhere.file("part", export(&daemon, &["--from", "2", "--to", "4"]));
    let said = elsewhere.bay(&["audit", "verify", &part, "--key", &key_file]).ok().text();
    assert!(said.starts_with("events 2 to 4 hold\n"), "{said}");
    let proof = daemon.bay(&["audit", "proof", "3"]).ok().text();
    assert_eq!(proof.lines().count(), 2, "{proof}");
    let proof = elsewhere.file("proof", proof);
    let said = elsewhere.bay(&["audit", "verify", &proof, "--key", &key_file]).ok().text();
    assert!(said.starts_with("event 3 is in the record\n"), "{said}");

    // One verifier kept only a head, and another kept none.
    let head = elsewhere.file("head", format!("{head}\n"));
    daemon.empty_bay("c");
    let since =
        elsewhere.file("since", daemon.bay(&["audit", "proof", "--since", &size.to_string()]).ok().text());
    let said = elsewhere.bay(&["audit", "verify", &since, "--key", &key_file, "--head", &head]).ok().text();
    assert!(said.contains(&format!("continues the given head of {size} events")), "{said}");
    let stranger = Elsewhere::new();
    let (what, _) =
        stranger.bay(&["audit", "verify", &since, "--key", &key]).fails_with(ErrorCode::InvalidInput);
    assert!(what.contains("not known here"), "{what}");

    let (what, next) = elsewhere.bay(&["audit", "verify", &whole]).fails_with(ErrorCode::InvalidInput);
    assert!(what.contains("public key") && next.contains("bay audit key"), "{what} {next}");
    daemon.bay(&["audit", "proof", "99999"]).fails_with(ErrorCode::EventNotFound);
    daemon.bay(&["audit", "export", "--from", "9", "--to", "3"]).fails_with(ErrorCode::InvalidInput);
}

#[test]
fn changed_bundles_are_detected_with_the_public_key() {
    let daemon = lived();
    let key = daemon.bay(&["audit", "key"]).ok().text();
    let bundle = export(&daemon, &[]);
    let (header, good) = (bundle.lines().next().unwrap(), events(&bundle));
    let size = good.len();
    let finding = |name: &str, lines: Vec<u8>| {
        let elsewhere = Elsewhere::new();
        let file = elsewhere.file("bundle", lines);
        let (what, next) =
            elsewhere.bay(&["audit", "verify", &file, "--key", &key]).fails_with(ErrorCode::LedgerBroken);
        assert!(next.contains("evidence"), "{name}: {next}");
        what
    };
    let changed = |change: &dyn Fn(&mut Vec<EventRecord>)| {
        let mut events = good.clone();
        change(&mut events);
        in_lines(header, &events)
    };
    // AUDIT-EDIT, as an attacker without and with knowledge of the format does it.
    let edited = finding("edit", changed(&|events| events[2].body = "{}".to_owned()));
    assert!(edited.contains("event 3 was changed"), "{edited}");
    let edited = finding("edit", changed(&|events| events[2] = rewritten(&events[2])));
    assert!(edited.contains("do not lead to the signed root"), "{edited}");
    // AUDIT-REPLACE-LAST
    finding("replace last", changed(&|events| events[size - 1] = rewritten(&events[size - 1])));
    // AUDIT-TRUNC
    let cut = finding("truncate", changed(&|events| drop(events.pop())));
    assert!(cut.contains(&format!("end before event {size}")), "{cut}");
    // AUDIT-REORDER, with and without new numbers.
    finding("reorder", changed(&|events| events.swap(1, 2)));
    finding(
        "reorder",
        changed(&|events| {
            events.swap(1, 2);
            for at in [1, 2] {
                events[at].seq = at as u64 + 1;
                events[at].hash = events[at].leaf();
            }
        }),
    );
    // AUDIT-INJECT: an additional event with consistent hashes, and a header that announces it.
    finding("insert", changed(&|events| events.insert(3, rewritten(&events[3]))));
    let mut parsed: Header = serde_json::from_str(header).unwrap();
    parsed.evidence = Evidence::Range { from: 1, to: size as u64 - 1, before: vec![], behind: vec![] };
    let shorter = String::from_utf8(Bundle::line(&parsed)).unwrap();
    finding("truncate with a header to it", in_lines(shorter.trim_end(), &good[..size - 1]));
    // A head with another size, or signed by another key with the same name.
    parsed.head = parsed.head.replacen(&format!("\n{size}\n"), &format!("\n{}\n", size - 1), 1);
    let forged = String::from_utf8(Bundle::line(&parsed)).unwrap();
    let what = finding("an edited head", in_lines(forged.trim_end(), &good[..size - 1]));
    assert!(what.contains("signature"), "{what}");
    let log = PublicKey::parse(&key).unwrap().log().to_owned();
    let thief = SecretKey::new(&log, &[9; 32]).unwrap();
    let what = finding("another key", signed(&thief, &good));
    assert!(what.contains("not signed by this key"), "{what}");
}

/// A complete bundle of these events, signed with this key.
fn signed(key: &SecretKey, events: &[EventRecord]) -> Vec<u8> {
    let mut frontier = Frontier::default();
    for event in events {
        assert!(frontier.push(event.leaf(), |_, _| {}));
    }
    let size = frontier.size();
    let note = key.sign(size, frontier.root(), "2026-01-02T03:04:05Z".parse().unwrap());
    let evidence = Evidence::Range { from: 1, to: size, before: vec![], behind: vec![] };
    let header = String::from_utf8(Bundle::line(&Header::new(note, evidence))).unwrap();
    in_lines(header.trim_end(), events)
}

#[test]
fn a_forked_ledger_is_found_with_an_older_head() {
    let daemon = lived();
    let key = daemon.bay(&["audit", "key"]).ok().text();
    let bundle = export(&daemon, &[]);
    let (good, elsewhere) = (events(&bundle), Elsewhere::new());
    let whole = elsewhere.file("whole", &bundle);
    let _first = elsewhere.bay(&["audit", "verify", &whole, "--key", &key]).ok();
    // AUDIT-FORK: with the key itself, which only the daemon has.
    let secret = SecretKey::parse(&fs::read_to_string(daemon.data_dir.join("ledger/key")).unwrap()).unwrap();
    let mut fork = good.clone();
    let last = fork.len() - 1;
    fork[last] = rewritten(&fork[last]);
    let story = elsewhere.file("fork", signed(&secret, &fork));
    let (what, _) =
        elsewhere.bay(&["audit", "verify", &story, "--key", &key]).fails_with(ErrorCode::LedgerBroken);
    assert!(what.contains("forked"), "{what}");
    let mut longer = fork.clone();
    longer.push(EventRecord { seq: fork.len() as u64 + 1, ..fork[0].clone() });
    longer[last + 1] = rewritten(&longer[last + 1]);
    let story = elsewhere.file("longer", signed(&secret, &longer));
    let (what, _) =
        elsewhere.bay(&["audit", "verify", &story, "--key", &key]).fails_with(ErrorCode::LedgerBroken);
    assert!(what.contains("forked"), "{what}");
    // A shorter history: an old bundle is valid, unless it is compared with a newer head.
    let shorter = elsewhere.file("shorter", signed(&secret, &good[..last]));
    let old = elsewhere.bay(&["audit", "verify", &shorter, "--key", &key]).ok();
    assert!(old.errors().contains("was verified here before"), "{old}");
    let head = elsewhere.file("head", daemon.bay(&["audit", "head"]).ok().text() + "\n");
    let (what, _) = elsewhere
        .bay(&["audit", "verify", &shorter, "--key", &key, "--head", &head])
        .fails_with(ErrorCode::LedgerBroken);
    assert!(what.contains("is cut"), "{what}");
}

/// Runs statements on a daemon's database directly.
fn sql(database: &Path, statements: &str) {
    on_database(database, async |connection| {
        sqlx::raw_sql(AssertSqlSafe(statements.to_owned())).execute(&mut *connection).await.unwrap();
    });
}

fn on_database(database: &Path, work: impl AsyncFnOnce(&mut SqliteConnection)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut connection = SqliteConnectOptions::new().filename(database).connect().await.unwrap();
        work(&mut connection).await;
        connection.close().await.unwrap();
    });
}

/// Makes every hash in the database consistent: everything that is possible without the key.
fn fit_all_hashes(database: &Path) {
    on_database(database, async |connection| {
        let rows = sqlx::query("SELECT seq, at, bay, kind, body FROM events ORDER BY seq")
            .fetch_all(&mut *connection)
            .await
            .unwrap();
        let mut frontier = Frontier::default();
        for row in rows {
            let (seq, bay): (i64, Option<String>) = (row.get(0), row.get(2));
            let (at, kind, body): (String, String, String) = (row.get(1), row.get(3), row.get(4));
            let leaf = EventRecord::leaf_of(
                u64::try_from(seq).unwrap(),
                &at,
                bay.as_deref().unwrap_or(""),
                &kind,
                &body,
            );
            assert!(frontier.push(leaf, |_, _| {}));
            let update =
                sqlx::query("UPDATE events SET hash = $1 WHERE seq = $2").bind(leaf.to_string()).bind(seq);
            update.execute(&mut *connection).await.unwrap();
        }
        let peaks: Vec<String> = frontier.peaks().iter().map(ToString::to_string).collect();
        let kept = format!("{} {}", frontier.size(), peaks.join(" "));
        let update = sqlx::query("UPDATE meta SET value = $1 WHERE key = 'ledger'").bind(kept);
        assert_eq!(update.execute(&mut *connection).await.unwrap().rows_affected(), 1);
    });
}

/// A copy of the record's files, to restore them.
struct Copy {
    from: PathBuf,
    files: Vec<(PathBuf, Vec<u8>)>,
}

impl Copy {
    fn of(data_dir: &Path) -> Self {
        let names = ["bay.db", "bay.db-wal", "bay.db-shm", "ledger/head"];
        let files = names.iter().map(|name| data_dir.join(name));
        let files = files.filter_map(|path| Some((path.clone(), fs::read(&path).ok()?))).collect();
        Self { from: data_dir.to_owned(), files }
    }

    fn put_back(&self) {
        for name in ["bay.db-wal", "bay.db-shm"] {
            let _ = fs::remove_file(self.from.join(name));
        }
        for (path, content) in &self.files {
            fs::write(path, content).unwrap();
        }
    }
}

#[test]
fn changed_removed_and_reordered_events_are_found_in_the_live_record() {
    let mut daemon = lived();
    let verified = daemon.bay(&["audit", "verify", "--json"]).ok().json();
    let size = verified["size"].as_u64().unwrap();
    daemon.kill_9();
    let (copy, database) = (Copy::of(&daemon.data_dir), daemon.data_dir.join("bay.db"));
    let attacks = [
        ("AUDIT-EDIT", r#"UPDATE events SET body = '{"by":"nobody"}' WHERE seq = 3"#.to_owned()),
        ("AUDIT-TRUNC", format!("DELETE FROM events WHERE seq >= {}", size - 1)),
        (
            "AUDIT-REORDER",
            "UPDATE events SET seq = -seq WHERE seq IN (2, 3); UPDATE events SET seq = 5 + seq WHERE seq < 0".to_owned(),
        ),
        ("AUDIT-REPLACE-LAST", format!(r#"UPDATE events SET body = '{{"by":"nobody"}}' WHERE seq = {size}"#)),
        (
            "AUDIT-DROP",
            "DELETE FROM events WHERE seq = 3; UPDATE events SET seq = -seq WHERE seq > 3; UPDATE events SET seq = -seq - 1 WHERE seq < 0".to_owned(),
        ),
    ];
    for (name, statements) in attacks {
        for cunning in [false, true] {
            copy.put_back();
            sql(&database, &statements);
            if cunning {
                fit_all_hashes(&database);
            }
            daemon.launch();
            let (what, next) = daemon.bay(&["audit", "verify"]).fails_with(ErrorCode::LedgerBroken);
            assert!(next.contains("docs/audit.md"), "{name}: {next}");
            if cunning {
                let shorter = ["AUDIT-TRUNC", "AUDIT-DROP"].contains(&name);
                let wanted = if shorter { "was cut" } else { "not those" };
                assert!(what.contains(wanted), "{name}: {what}");
                // No further head is signed, but recording continues.
                daemon.bay(&["audit", "head"]).fails_with(ErrorCode::LedgerBroken);
                // If the daemon's own head is gone too, the caller's remains.
                daemon.kill_9();
                fs::remove_file(daemon.data_dir.join("ledger/head")).unwrap();
                daemon.launch();
                let (what, _) = daemon.bay(&["audit", "verify"]).fails_with(ErrorCode::LedgerBroken);
                assert!(what.contains("forked") || what.contains("is cut"), "{name}: {what}");
            }
            daemon.kill_9();
        }
    }
    copy.put_back();
    daemon.launch();
    let again = daemon.bay(&["audit", "verify", "--json"]).ok().json();
    assert_eq!(again["known"][0]["standing"], "continues");
}

#[test]
fn a_daemon_killed_while_it_records_leaves_a_record_that_verifies() {
    let mut chance = SeededRandom::announced("kill -9 while events are appended");
    let mut daemon = Daemon::start();
    daemon.empty_bay("b");
    let mut before = 0;
    for _ in 0..4 {
        let moment = chance.moment(Duration::from_millis(300));
        let (socket, answered, ended) = (daemon.socket(), AtomicU64::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for writer in 1..=3 {
                let (socket, answered, ended) = (&socket, &answered, &ended);
                scope.spawn(move || {
                    // Each changes a setting of the bay, which is recorded first.
                    let mut pids = 1000 * writer;
                    while !ended.load(Ordering::Relaxed) {
                        pids += 1;
                        let body = format!(r#"{{"pids":{pids}}}"#);
                        let answer = rest::request(socket, "PATCH", "/v1/bays/b/limits", body.as_bytes());
                        if answer.is_ok_and(|answer| answer.status == 200) {
                            answered.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
            let working = within(PATIENCE, || (answered.load(Ordering::Relaxed) >= 5).then_some(()));
            pause(moment);
            daemon.kill_9();
            ended.store(true, Ordering::Relaxed);
            assert!(working.is_some(), "the daemon answers");
        });
        daemon.launch();
        let report: Value = daemon.bay(&["audit", "verify", "--json"]).ok().json();
        let size = report["size"].as_u64().unwrap();
        assert!(size >= before + answered.into_inner(), "what was answered is on record: {report}");
        let known = report["known"].as_array().unwrap();
        assert!(known.iter().all(|known| known["standing"] == "continues"), "{report}");
        before = size;
    }
}

#[test]
fn a_lost_key_is_not_replaced_silently() {
    use std::os::unix::fs::PermissionsExt;
    let mut daemon = lived();
    let _signed = daemon.bay(&["audit", "head"]).ok();
    let key = daemon.data_dir.join("ledger/key");
    assert_eq!(fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
    daemon.kill_9();
    let kept = fs::read(&key).unwrap();
    fs::remove_file(&key).unwrap();
    let refused = daemon.serve().output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("ledger-broken") && said.contains("it is gone"), "{said}");
    fs::write(&key, kept).unwrap();
    daemon.launch();
    let _verified = daemon.bay(&["audit", "verify"]).ok();
}
