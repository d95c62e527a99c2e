//! Passwords of databases.

use std::fmt;

use bay_policy::Host;

use super::{Held, Secrets};

/// The default port of PostgreSQL.
pub(super) const DEFAULT_PORT: u16 = 5432;
/// A login to a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Login<'a> {
    pub host: &'a Host,
    pub port: u16,
    pub user: &'a str,
    pub database: &'a str,
}

impl fmt::Display for Login<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "user {} to database {}", self.user, self.database)
    }
}

/// The secret that is the password of a login.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoginSecret {
    pub name: String,
    /// Changes when the secret is removed and set again, but not when its value is replaced.
    pub incarnation: u64,
    /// The bay proves that it has the secret with any of these: its sentinel, the sentinels of its ancestors, and the
    /// secret's alias.
    pub passwords: Vec<String>,
    /// Whether the gateway may connect without TLS, if the database offers none.
    pub plain: bool,
    /// Whether the client may be a replica.
    pub replication: bool,
}

impl Secrets {
    /// Whether any secret is a password for databases at this place.
    #[must_use]
    pub fn has_logins(&self, host: &Host, port: u16) -> bool {
        let host = host.to_string();
        self.held.iter().flat_map(|held| &held.uses).any(|one| one.has_logins(&host, port))
    }

    /// The first secret that is the password of a login.
    ///
    /// # Errors
    /// If no secret is for this login: the uses of the secrets for this place.
    pub fn login(&self, login: &Login<'_>) -> Result<LoginSecret, Vec<String>> {
        let found = self.held.iter().find_map(|held| {
            // If several uses match, their permissions are combined.
            let uses = held.uses.iter().filter_map(|one| one.login(login));
            let (plain, replication) = uses.reduce(|one, other| (one.0 || other.0, one.1 || other.1))?;
            Some(LoginSecret {
                name: held.name.clone(),
                incarnation: held.incarnation,
                passwords: held.sentinels.iter().cloned().chain([held.alias()]).collect(),
                plain,
                replication,
            })
        });
        let (host, port) = (login.host.to_string(), login.port);
        let at = |held: &Held| {
            let uses = held.uses.iter().filter(|one| one.has_logins(&host, port));
            uses.map(ToString::to_string).collect::<Vec<_>>()
        };
        found.ok_or_else(|| self.held.iter().flat_map(at).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Named, Use};
    use super::*;

    fn uses(texts: &[&str]) -> Vec<Use> {
        let parsed = texts.iter().map(|text| match Named::parse(text).unwrap() {
            Named::Place(one) => *one,
            Named::Rule { .. } => panic!("{text}"),
        });
        parsed.collect()
    }

    #[test]
    fn a_login_is_for_its_place_user_and_database_alone() {
        let held = Held {
            uses: uses(&["db.test/app as postgres app", "postgres://db.test:6432 as postgres-plain"]),
            ..Held::gone("PG".to_owned(), vec!["sentinel".to_owned()])
        };
        let secrets = Secrets::new(vec![held]);
        let (host, other) = (Host::Name("db.test".into()), Host::Name("other.test".into()));
        assert!(secrets.has_logins(&host, 5432) && secrets.has_logins(&host, 6432));
        assert!(!secrets.has_logins(&host, 443) && !secrets.has_logins(&other, 5432));
        let plain = |host, port, user, database| {
            secrets.login(&Login { host, port, user, database }).ok().map(|secret| secret.plain)
        };
        assert_eq!(plain(&host, 5432, "app", "app"), Some(false));
        assert_eq!(plain(&host, 5432, "admin", "app"), None);
        assert_eq!(plain(&host, 5432, "app", "other"), None);
        assert_eq!(plain(&host, 6432, "anybody", "anything"), Some(true));
        assert_eq!(plain(&other, 5432, "app", "app"), None);
        let secret = secrets.login(&Login { host: &host, port: 5432, user: "app", database: "app" }).unwrap();
        assert_eq!(secret.passwords, ["sentinel", "__PG__"]);
    }

    #[test]
    fn pg_replication_is_said_by_the_secret() {
        let replicates = |text: &str| {
            let held =
                Held { uses: uses(&[text]), ..Held::gone("PG".to_owned(), vec!["sentinel".to_owned()]) };
            let host = Host::Name("db.test".into());
            let login = Login { host: &host, port: 5432, user: "app", database: "app" };
            Secrets::new(vec![held]).login(&login).ok().map(|secret| secret.replication)
        };
        assert_eq!(replicates("db.test as postgres app with replication"), Some(true));
        assert_eq!(replicates("db.test as postgres with replication"), Some(true));
        assert_eq!(replicates("db.test as postgres app"), Some(false));
        assert_eq!(
            uses(&["db.test as postgres with replication"])[0].slot().to_string(),
            "postgres with replication"
        );
    }

    #[test]
    fn a_place_of_a_database_is_written_in_full() {
        for wrong in [
            "GET db.test as postgres",
            "*.test as postgres",
            "db.test/* as postgres",
            "https://db.test as postgres",
            "rule:db as postgres",
            "db.test as postgres two users",
            "db.test/app as postgres app with replication",
            "db.test as postgres app replication",
        ] {
            assert!(Named::parse(wrong).is_err(), "{wrong}");
        }
    }
}
