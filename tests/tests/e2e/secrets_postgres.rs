//! A bay uses a database with a password that it does not have.

use bay_tests::database::Database;
use bay_tests::lab::{Lab, lab};
use bay_tests::{CliRun, image};

const CANARY: &str = "CANARY-7d1fQ9xLm2Zt7RbW4KcVd8PnJ6sY";
const OTHER: &str = "CANARY-90abX3vTq8Hs1Jf5Gk7Nc2MwPzRd";
const BAY: &str = "db";

/// A name that resolves to loopback, where the database listens.
const NAME: &str = "origin.test";

struct Rig {
    lab: Lab,
    database: Database,
}

impl Rig {
    fn new() -> Option<Self> {
        let image = image::postgres()?;
        let lab = lab();
        let database = Database::start(Some(lab.servers.leaf_pem(NAME)), CANARY)?;
        lab.daemon.import(&image, image::POSTGRES);
        lab.daemon.bay_from(BAY, image::POSTGRES);
        let rig = Self { lab, database };
        let policy = format!(
            "[[rule]]\nid = \"database\"\noutcome = \"allow\"\nkind = \"tcp\"\nhost = \"{NAME}\"\nport = {}\naddress = \"127.0.0.1\"\n",
            rig.port()
        );
        rig.lab.set(BAY, &policy);
        let place = format!("{NAME}:{}/app as postgres app", rig.port());
        let _set = rig.given(CANARY, &["secret", "set", "PGPASSWORD", "-", "--for", &place]).ok();
        Some(rig)
    }

    fn port(&self) -> u16 {
        self.database.place().port()
    }

    fn given(&self, value: &str, line: &[&str]) -> CliRun {
        self.lab.daemon.bay_with_input(line, format!("{value}\n").as_bytes())
    }

    /// Runs a query in the bay with the bay's environment; `before` are further assignments.
    fn query(&self, before: &str, user: &str, sql: &str) -> CliRun {
        let psql = self.database.program("psql").display().to_string();
        let port = self.port();
        let line = format!("{before} {psql} -h {NAME} -p {port} -U {user} -d app -qAtX -c \"{sql}\" 2>&1");
        let ran = self.lab.daemon.sh(BAY, &line);
        assert!(!ran.text().contains("CANARY"), "{ran}");
        ran
    }

    fn told(&self, line: &[&str]) -> String {
        let ran = self.lab.daemon.bay(line);
        let said = format!("{}{}", String::from_utf8_lossy(&ran.stdout), ran.errors());
        assert!(!said.contains("CANARY"), "{said}");
        said
    }
}

#[test]
fn a_bay_uses_a_database_whose_password_it_does_not_have() {
    let Some(rig) = Rig::new() else { return };
    let sql = "select current_user, ssl from pg_stat_ssl where pid = pg_backend_pid()";
    assert_eq!(rig.query("", "app", sql).ok().text(), "app|t");
    // The bay has a text as long as the password, but not the password.
    let has = rig.lab.daemon.sh(BAY, "printf %s \"$PGPASSWORD\"").ok().text();
    assert_eq!(has.len(), CANARY.len());
    assert!(!has.contains("7d1fQ9xLm2Zt"), "{has}");
    // Other users are refused with the reason, which is recorded.
    for (before, user, why) in [
        (
            "PGPASSWORD=guess",
            "app",
            "the password is not the one that this bay has for the secret PGPASSWORD",
        ),
        ("", "admin", "no secret of this bay is for user admin"),
    ] {
        let refused = rig.query(before, user, "select 1");
        assert!(refused.code != 0 && refused.text().contains(why), "{refused}");
        assert!(rig.told(&["egress", BAY, "--denied"]).contains(why));
    }
    // A new value applies from the next login on, and the bay does not notice.
    rig.database.admin(&format!("alter role app password '{OTHER}'")).unwrap();
    let stale = rig.query("", "app", "select 1");
    assert!(stale.code != 0 && stale.text().contains("bay secret rotate PGPASSWORD"), "{stale}");
    let _rotated = rig.given(OTHER, &["secret", "rotate", "PGPASSWORD", "-"]).ok();
    assert_eq!(rig.query("", "app", "select 2").ok().text(), "2");
    let said = rig.told(&["egress", BAY, "--json"]);
    assert!(said.contains(&format!("tcp://{NAME}:{}", rig.port())), "{said}");
    rig.told(&["timeline", BAY]);
    rig.told(&["audit", "export"]);
    // After its removal, the sentinel is only a word.
    let _removed = rig.lab.daemon.bay(&["secret", "rm", "PGPASSWORD"]).ok();
    let gone = rig.query("", "app", "select 1");
    assert!(gone.code != 0, "{gone}");
}
