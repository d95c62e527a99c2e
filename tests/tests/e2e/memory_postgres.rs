//! A live database continues in several bays, each with its own data.

use bay_tests::{Daemon, consistency_probe, image, until};

const PARENT: &str = "db";
const CHILDREN: [&str; 2] = ["try-1", "try-2"];
/// In the workspace of the bay, and at the same path in its children.
const DATA: &str = "/workspace/data";

struct Database<'a> {
    daemon: &'a Daemon,
    bin: String,
}

impl Database<'_> {
    fn as_user(&self, bay: &str, script: &str) -> bay_tests::CliRun {
        self.daemon.bay(&["exec", bay, "-u", "user", "--", "sh", "-c", script])
    }

    /// Runs in the background until the bay stops.
    fn begin(&self, script: &str) {
        let _begun = self.daemon.bay(&["exec", PARENT, "-d", "-u", "user", "--", "sh", "-c", script]).ok();
    }

    fn query(&self, bay: &str, sql: &str) -> bay_tests::CliRun {
        let bin = &self.bin;
        self.as_user(bay, &format!("{bin}/psql -h /tmp -d postgres -v ON_ERROR_STOP=1 -qAtc \"{sql}\""))
    }

    fn all(&self, bay: &str) -> String {
        self.query(bay, "select string_agg(v, ',' order by v) from t").ok().text()
    }

    fn begin_server(&self) {
        let bin = &self.bin;
        let made = format!(
            "mkdir {DATA} && {bin}/initdb -D {DATA} --no-sync --no-locale -E UTF8 -A trust -U user > /tmp/initdb 2>&1"
        );
        let _open = self.daemon.sh(PARENT, "chmod 777 /workspace").ok();
        let ran = self.as_user(PARENT, &made);
        assert_eq!(ran.code, 0, "{}", self.daemon.sh(PARENT, "cat /tmp/initdb"));
        let settings = "-c timezone=GMT -c log_timezone=GMT -c listen_addresses= -c shared_buffers=16MB";
        self.begin(&format!("exec {bin}/postgres -D {DATA} -k /tmp {settings} > /tmp/log 2>&1"));
        until("the database to answer", || (self.query(PARENT, "select 1").code == 0).then_some(()));
    }

    /// A client with an open connection, in the middle of a transaction. It reads from `/workspace/say`.
    fn begin_session(&self) {
        let bin = &self.bin;
        let _fifo = self.as_user(PARENT, "mkfifo /workspace/say").ok();
        self.begin("exec sleep 100000 > /workspace/say");
        self.begin(&format!(
            "exec {bin}/psql -h /tmp -d postgres -v ON_ERROR_STOP=1 -qAt < /workspace/say > /workspace/said 2>&1"
        ));
        self.say(PARENT, "begin; create temp table mine as select 'held' as v; select v from mine;");
        until("the session to answer", || {
            (self.as_user(PARENT, "cat /workspace/said").text() == "held").then_some(())
        });
    }

    fn say(&self, bay: &str, sql: &str) {
        let _said = self.as_user(bay, &format!("echo \"{sql}\" > /workspace/say")).ok();
    }
}

#[test]
fn children_of_a_live_database_have_independent_data() {
    let daemon = Daemon::start();
    let (Some(directory), Some(home)) = (image::postgres(), image::postgres_home()) else { return };
    if !consistency_probe::can_run(&daemon) {
        return;
    }
    daemon.import(&directory, image::POSTGRES);
    daemon.bay_from(PARENT, image::POSTGRES);
    let at = Database { daemon: &daemon, bin: home.join("bin").display().to_string() };
    at.begin_server();
    let _made = at.query(PARENT, "create table t (v text); insert into t values ('before')").ok();
    at.begin_session();

    let made = daemon.bay(&["fork", PARENT, "--count", "2", "--name", "try", "--json"]).ok().json();
    assert_eq!(made["checkpoint"]["kind"], "memory", "{made}");
    let bays = [PARENT, CHILDREN[0], CHILDREN[1]];
    for bay in bays {
        assert_eq!(at.all(bay), "before", "{bay}");
        let _written = at.query(bay, &format!("insert into t values ('written in {bay}')")).ok();
    }
    // The connected client continues in each of them, with its own transaction.
    for bay in bays {
        at.say(bay, &format!("insert into t select v || ' in {bay}' from mine; commit;"));
    }
    for bay in bays {
        let whole = format!("before,held in {bay},written in {bay}");
        until(&format!("{bay} to have what was written there and nothing else"), || {
            (at.all(bay) == whole).then_some(())
        });
    }
    // Committed data is on disk: another server finds it in that bay only.
    let _stopped = daemon.bay(&["stop", CHILDREN[0]]).ok();
    let _started = daemon.bay(&["start", CHILDREN[0]]).ok();
    let bin = &at.bin;
    let script = format!(
        "rm -f {DATA}/postmaster.pid /tmp/.s.PGSQL.*; echo 'select string_agg(v, $$,$$ order by v) from t' | \
         {bin}/postgres --single -D {DATA} -c timezone=GMT -c log_timezone=GMT postgres"
    );
    let found = at.as_user(CHILDREN[0], &script).ok().text();
    assert!(found.contains("held in try-1,written in try-1") && !found.contains("try-2"), "{found}");
}
