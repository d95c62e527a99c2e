//! A real PostgreSQL server and client, with a password that the client does not have.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;

use bay_gateway::Ending;
use bay_gateway::secrets::{Held, Named, Secrets};
use bay_tests::database::Database;
use bay_tests::wait::within;
use secrecy::SecretString;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use crate::lab::{Entry, Lab, PATIENCE};

const POLICY: &str = r#"
[[rule]]
id = "database"
outcome = "allow"
kind = "tcp"
host = ["db.test", "other.test"]
port = "*"
"#;
const VALUE: &str = "CANARY-5f0d2c9e-real-password";
const SENTINEL: &str = "SENTRY-1a2b3c4d-fake-password";

fn place(text: &str) -> Option<bay_gateway::secrets::Use> {
    match Named::parse(text).unwrap() {
        Named::Place(one) => Some(*one),
        Named::Rule { .. } => None,
    }
}

/// The outcome of `psql`, which plays a client in a bay.
#[derive(Debug)]
struct Said {
    ok: bool,
    out: String,
    err: String,
}

/// A lab with a database at `db.test`.
struct Rig {
    lab: Lab,
    database: Database,
    door: SocketAddr,
    trust: PathBuf,
}

impl Rig {
    async fn new(tls: bool, plain: bool) -> Option<Self> {
        let mut lab = Lab::new(POLICY).await;
        let database = Database::start(tls.then(|| lab.origins.leaf_pem("db.test")), VALUE)?;
        lab.net.lead("db.test", "192.0.2.20", database.place());
        lab.net.lead("other.test", "192.0.2.21", database.place());
        let door = lab.open("db.test").await;
        let trust = database.dir().join("bay.pem");
        fs::write(&trust, pem::encode(&pem::Pem::new("CERTIFICATE", lab.bay_authority.to_vec()))).unwrap();
        let rig = Self { lab, database, door, trust };
        rig.secret(VALUE, plain);
        Some(rig)
    }

    fn secret(&self, value: &str, plain: bool) {
        let slot = if plain { "postgres-plain" } else { "postgres" };
        let port = self.lab.port;
        let uses = [
            format!("db.test:{port} as {slot} app"),
            format!("db.test:{port}/app as {slot} older"),
            format!("other.test:{port}/app as {slot}"),
        ];
        let held = Held {
            name: "PG".to_owned(),
            incarnation: 1,
            uses: uses.iter().flat_map(|text| place(text)).collect(),
            sentinels: vec![SENTINEL.to_owned(), "SENTRY-of-an-ancestor".to_owned()],
            values: vec![Arc::new(SecretString::from(value.to_owned()))],
            public: 0,
            weak: false,
            managed: true,
            literal_bodies: false,
            guesses: Arc::default(),
        };
        self.set(vec![held]);
    }

    /// Sets a secret for one database, with this suffix of its slot.
    fn only(&self, slot: &str) {
        let uses = [format!("db.test:{}/app as postgres {slot}", self.lab.port)];
        let mut held = self.lab.ledger.secrets.lock().unwrap().held()[0].clone();
        held.uses = uses.iter().flat_map(|text| place(text)).collect();
        self.set(vec![held]);
    }

    fn set(&self, held: Vec<Held>) {
        *self.lab.ledger.secrets.lock().unwrap() = Arc::new(Secrets::new(held));
        self.lab.gateway.policy_changed();
    }

    fn client(&self, host: &str, user: &str, password: &str, more: &str) -> tokio::process::Command {
        let mut command = tokio::process::Command::new(self.database.program("psql"));
        let door = self.door;
        let line = format!(
            "host={host} hostaddr={} port={} user={user} dbname=app connect_timeout=20 {more}",
            door.ip(),
            door.port()
        );
        command
            .env_clear()
            .env("PGPASSWORD", password)
            .env("PGSSLROOTCERT", &self.trust)
            .args(["-qAtX", "-v", "ON_ERROR_STOP=1", "-v", "VERBOSITY=verbose", "-d", &line])
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }

    async fn says(&self, user: &str, password: &str, more: &str, sql: &str) -> Said {
        self.at("db.test", user, password, more, sql).await
    }

    async fn at(&self, host: &str, user: &str, password: &str, more: &str, sql: &str) -> Said {
        let ran = self.client(host, user, password, more).args(["-c", sql]).output();
        let ran = timeout(PATIENCE, ran).await.expect("psql ends").unwrap();
        let said = Said {
            ok: ran.status.success(),
            out: String::from_utf8(ran.stdout).unwrap().trim().to_owned(),
            err: String::from_utf8(ran.stderr).unwrap(),
        };
        let shown = format!("{said:?}{:?}", self.lab.ledger.entries());
        assert!(!shown.contains("CANARY"), "{shown}");
        said
    }

    fn dialled(&self) -> usize {
        self.lab.net.dialled.lock().unwrap().len()
    }
}

const VERIFIED: &str = "sslmode=verify-full";

#[tokio::test]
async fn a_client_with_the_sentinel_is_logged_in_with_the_password() {
    let Some(rig) = Rig::new(true, false).await else { return };
    for how in [VERIFIED, "sslmode=disable", "sslmode=prefer gssencmode=prefer"] {
        let said = rig
            .says(
                "app",
                SENTINEL,
                how,
                "select current_user, ssl from pg_stat_ssl where pid = pg_backend_pid()",
            )
            .await;
        assert_eq!((said.ok, said.out.as_str()), (true, "app|t"), "{how}: {said:?}");
    }
    for other in ["SENTRY-of-an-ancestor", "__PG__"] {
        let said = rig.says("app", other, VERIFIED, "select 1").await;
        assert!(said.ok, "{said:?}");
    }
    // A long answer without a secret passes unchanged.
    let said = rig
        .says(
            "app",
            SENTINEL,
            VERIFIED,
            "select length(string_agg(i::text, ',')) from generate_series(1, 200000) i",
        )
        .await;
    assert_eq!(said.out, "1288894", "{said:?}");
    rig.lab.ledger.all_ended_once().await;
    let ended = rig.lab.ledger.ended().await;
    assert_eq!(ended.ending, Ending::Closed);
}

#[tokio::test]
async fn cred_wrongslot_any_other_password_is_refused_before_it_reaches_the_database() {
    let Some(rig) = Rig::new(true, false).await else { return };
    // Even the real password is refused: the bay must prove that it has the sentinel.
    for wrong in ["guess", VALUE] {
        let said = rig.says("app", wrong, VERIFIED, "select 1").await;
        assert!(
            !said.ok && said.err.contains("the password is not the one that this bay has for the secret PG"),
            "{said:?}"
        );
        assert!(said.err.contains("28P01") || said.err.contains("HINT"), "{said:?}");
    }
    let said = rig.says("admin", SENTINEL, VERIFIED, "select 1").await;
    assert!(!said.ok && said.err.contains("no secret of this bay is for user admin"), "{said:?}");
    assert_eq!(rig.dialled(), 0);
    let refused: Vec<_> =
        rig.lab.ledger.entries().into_iter().filter(|entry| matches!(entry, Entry::Refused(_))).collect();
    assert_eq!(refused.len(), 3, "{refused:?}");
}

#[tokio::test]
async fn a_new_password_applies_from_the_next_login_on() {
    let Some(rig) = Rig::new(true, false).await else { return };
    assert!(rig.says("app", SENTINEL, VERIFIED, "select 1").await.ok);
    rig.database.admin("alter role app password 'CANARY-another-real-password'").unwrap();
    let said = rig.says("app", SENTINEL, VERIFIED, "select 1").await;
    assert!(!said.ok && said.err.contains("bay secret rotate PG"), "{said:?}");
    rig.secret("CANARY-another-real-password", false);
    let said = rig.says("app", SENTINEL, VERIFIED, "select 1").await;
    assert!(said.ok, "{said:?}");
}

#[tokio::test]
async fn older_login_methods_are_answered_too() {
    let Some(rig) = Rig::new(true, true).await else { return };
    rig.database
        .admin("set password_encryption = 'md5'; alter role app password 'CANARY-5f0d2c9e-real-password'")
        .unwrap();
    let said = rig.says("app", SENTINEL, VERIFIED, "select current_user").await;
    assert_eq!(said.out, "app", "{said:?}");
    rig.database.admin("create role older login password 'CANARY-5f0d2c9e-real-password'").unwrap();
    let said = rig.says("older", SENTINEL, VERIFIED, "select current_user").await;
    assert_eq!(said.out, "older", "{said:?}");
}

#[tokio::test]
async fn cred_echo_the_password_is_scrubbed_from_database_answers() {
    let Some(rig) = Rig::new(true, false).await else { return };
    let sql = format!("create table t (v text); insert into t values ('{VALUE}'); grant select on t to app");
    rig.database.admin(&sql).unwrap();
    // The administrator uses another database.
    let said = rig
        .at(
            "db.test",
            "app",
            SENTINEL,
            &format!("{VERIFIED} dbname=postgres"),
            "select v, encode(v::bytea, 'hex') from t",
        )
        .await;
    assert!(said.ok && said.out.contains(SENTINEL), "{said:?}");
}

/// Only a right guess is scrubbed, so a bay could find the password by trying candidates. The gateway closes the
/// database after a few.
#[tokio::test]
async fn cred_guess_sql_candidates_that_a_query_returns_close_the_database_after_a_few() {
    let Some(rig) = Rig::new(true, false).await else { return };
    let right = VALUE.strip_prefix("CANARY").unwrap();
    let sql = format!("select 'CANARY' || '{right}', i from generate_series(1, 1) i");
    let mut shown = 0;
    for _ in 0..20 {
        let said = rig.says("app", SENTINEL, VERIFIED, &sql).await;
        if said.err.contains("is closed to this bay") {
            break;
        }
        shown += usize::from(said.ok);
    }
    assert!((1..8).contains(&shown), "{shown} of them were answered");
    let said = rig.says("app", SENTINEL, VERIFIED, "select 1").await;
    assert!(!said.ok && said.err.contains("is closed to this bay"), "{said:?}");
    // Also within one connection.
    rig.secret(VALUE, false);
    let said = rig.says("app", SENTINEL, VERIFIED, &sql.replace("(1, 1)", "(1, 100)")).await;
    assert!(!said.ok, "{said:?}");
}

/// A replica can read all databases, not only the one that it logs in to.
#[tokio::test]
async fn pg_replication_a_password_for_one_database_is_none_for_replicas() {
    let Some(rig) = Rig::new(true, false).await else { return };
    rig.database.admin("alter role app replication").unwrap();
    rig.only("app");
    assert!(rig.says("app", SENTINEL, VERIFIED, "select 1").await.ok);
    for value in ["true", "database", "on", "1", "TRUE", "t", "yes"] {
        let line = format!("{VERIFIED} replication={value}");
        let said = rig.says("app", SENTINEL, &line, "BASE_BACKUP (CHECKPOINT 'fast')").await;
        assert!(!said.ok && said.err.contains("replication"), "{value}: {said:?}");
        assert!(said.err.contains("with replication"), "{value}: {said:?}");
    }
    assert_eq!(rig.dialled(), 1, "the database hears of none of them");
}

#[tokio::test]
async fn pg_startup_unlisted_parameters_are_refused_before_they_reach_the_database() {
    let Some(rig) = Rig::new(true, false).await else { return };
    for (line, named) in [
        ("options='-c session_preload_libraries=x'", "session_preload_libraries"),
        ("options='-c replication=true'", "replication"),
        ("options=-W1", "-W1"),
    ] {
        let said = rig.says("app", SENTINEL, &format!("{VERIFIED} {line}"), "select 1").await;
        assert!(
            !said.ok && said.err.contains("no login with a secret may") && said.err.contains(named),
            "{said:?}"
        );
    }
    assert_eq!(rig.dialled(), 0);
    // The parameters of usual drivers are passed on.
    let line =
        format!("{VERIFIED} options='-c search_path=pg_catalog --statement-timeout=7s' application_name=own");
    let sql = "select current_setting('search_path'), current_setting('statement_timeout'), current_setting('application_name')";
    let said = rig.says("app", SENTINEL, &line, sql).await;
    assert_eq!(said.out, "pg_catalog|7s|own", "{said:?}");
    // A client may be a replica if the secret says so.
    rig.database.admin("alter role app replication").unwrap();
    let uses = [format!("db.test:{} as postgres app with replication", rig.lab.port)];
    let mut held = rig.lab.ledger.secrets.lock().unwrap().held()[0].clone();
    held.uses = uses.iter().flat_map(|text| place(text)).collect();
    rig.set(vec![held]);
    let said =
        rig.says("app", SENTINEL, &format!("{VERIFIED} replication=database"), "IDENTIFY_SYSTEM").await;
    assert!(said.ok && said.out.contains('|'), "{said:?}");
}

#[tokio::test]
async fn a_password_is_not_sent_without_tls_unless_the_operator_permits_it() {
    let Some(rig) = Rig::new(false, false).await else { return };
    let said = rig.says("app", SENTINEL, VERIFIED, "select 1").await;
    assert!(!said.ok && said.err.contains("offers no TLS") && said.err.contains("plain"), "{said:?}");
    rig.secret(VALUE, true);
    let said = rig.says("app", SENTINEL, VERIFIED, "select 1").await;
    assert!(said.ok, "{said:?}");
    // Even then the password is not sent in plain text.
    rig.database.admin("create role older login password 'CANARY-5f0d2c9e-real-password'").unwrap();
    let said = rig.says("older", SENTINEL, VERIFIED, "select 1").await;
    assert!(!said.ok && said.err.contains("without TLS"), "{said:?}");
}

#[tokio::test]
async fn tls_upstream_verify_a_database_with_another_name_gets_no_password() {
    let Some(mut rig) = Rig::new(true, false).await else { return };
    rig.door = rig.lab.open("other.test").await;
    let said = rig.at("other.test", "app", SENTINEL, VERIFIED, "select 1").await;
    assert!(!said.ok && said.err.contains("TLS with other.test failed"), "{said:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_query_can_be_cancelled() {
    let Some(rig) = Rig::new(true, false).await else { return };
    let client = rig
        .client("db.test", "app", SENTINEL, VERIFIED)
        .args(["-c", "select pg_sleep(600)"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let sleeping = || {
        let count = rig.database.admin("select count(*) from pg_stat_activity where query like '%pg_sleep(600)' and state = 'active' and usename = 'app'");
        (count.unwrap().trim() == "1").then_some(())
    };
    assert!(tokio::task::block_in_place(|| within(PATIENCE, sleeping)).is_some());
    let pid = i32::try_from(client.id().unwrap()).unwrap();
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), rustix::process::Signal::INT)
        .unwrap();
    let ran = timeout(PATIENCE, client.wait_with_output()).await.expect("the query ends").unwrap();
    let err = String::from_utf8(ran.stderr).unwrap();
    assert!(err.contains("57014") || err.to_lowercase().contains("cancel"), "{err}");
}

#[tokio::test]
async fn a_connection_ends_when_its_secret_is_removed() {
    let Some(rig) = Rig::new(true, false).await else { return };
    let client = rig
        .client("db.test", "app", SENTINEL, VERIFIED)
        .args(["-c", "select pg_sleep(600)"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    rig.lab.ledger.wait(|entry| matches!(entry, Entry::Attached { .. }).then_some(())).await;
    rig.set(vec![Held::gone("PG".to_owned(), vec![SENTINEL.to_owned()])]);
    let ran = timeout(PATIENCE, client.wait_with_output()).await.expect("the client ends").unwrap();
    assert!(!ran.status.success());
}

#[tokio::test]
async fn a_connection_ends_when_it_is_no_longer_allowed() {
    let Some(rig) = Rig::new(true, false).await else { return };
    let client = rig
        .client("db.test", "app", SENTINEL, VERIFIED)
        .args(["-c", "select pg_sleep(600)"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    rig.lab.ledger.wait(|entry| matches!(entry, Entry::Decided { .. }).then_some(())).await;
    rig.lab.set_policy("");
    let ran = timeout(PATIENCE, client.wait_with_output()).await.expect("the client ends").unwrap();
    assert!(!ran.status.success());
    let said = rig.says("app", SENTINEL, VERIFIED, "select 1").await;
    assert!(!said.ok, "{said:?}");
}

#[tokio::test]
async fn cred_echo_error_database_messages_about_a_password_are_omitted() {
    let Some(rig) = Rig::new(true, false).await else { return };
    let mut tls = (*rig.lab.origins.server("db.test", |_| {})).clone();
    tls.alpn_protocols = vec![b"postgresql".to_vec()];
    let tls = tokio_rustls::TlsAcceptor::from(Arc::new(tls));
    // A database that asks for the plain password and quotes it in its refusal.
    let place = bay_tests::origin::accept(move |mut stream| {
        let tls = tls.clone();
        async move {
            stream.read_exact(&mut [0; 8]).await.ok();
            stream.write_all(b"S").await.ok();
            let Ok(mut stream) = tls.accept(stream).await else { return };
            let length = stream.read_u32().await.unwrap() as usize;
            stream.read_exact(&mut vec![0; length - 4]).await.unwrap();
            stream.write_all(b"R\0\0\0\x08\0\0\0\x03").await.unwrap();
            assert_eq!(stream.read_u8().await.unwrap(), b'p');
            let length = stream.read_u32().await.unwrap() as usize;
            let mut password = vec![0; length - 4];
            stream.read_exact(&mut password).await.unwrap();
            let fields = [b"SFATAL\0C3D000\0Mno database for ", &password[..], b"\0"].concat();
            let length = u32::try_from(fields.len() + 4).unwrap().to_be_bytes();
            stream.write_all(&[&b"E"[..], &length, &fields].concat()).await.ok();
            stream.flush().await.ok();
            stream.read_to_end(&mut Vec::new()).await.ok();
        }
    })
    .await;
    rig.lab.net.lead("db.test", "192.0.2.20", place);
    let said = rig.says("app", SENTINEL, VERIFIED, "select 1").await;
    assert!(!said.ok && said.err.contains("the database refused the connection"), "{said:?}");
    assert!(!said.err.contains("CANARY"), "{said:?}");
}
