//! Definitions of services that come with the product. Each is a script in `presets/services/` and the check that says
//! when it is ready.
//!
//! A script runs as the bay's root. It prepares what the server needs, gives up root if the server asks for that, and
//! becomes the server.

use bay_types::service::{Health, HealthCheck, ServiceSpec};

/// Time between two checks of a preset. It is shorter than the usual one: a database is wanted soon after it answers.
const INTERVAL_MS: u64 = 2_000;
/// How long a preset may take to end: a database first writes what it holds.
const STOP_GRACE_MS: u64 = 30_000;

/// A service that comes with the product. Its name is the service's name unless another is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Preset {
    /// PostgreSQL on localhost:5432 and /run/postgresql, as its own user
    Postgres,
    /// Redis or Valkey on localhost:6379
    Redis,
    /// MariaDB on localhost:3306 and /run/mysqld
    Mariadb,
    /// The files of the workspace on http://localhost:8000/
    Web,
}

impl Preset {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::Redis => "redis",
            Self::Mariadb => "mariadb",
            Self::Web => "web",
        }
    }

    fn script(self) -> &'static str {
        match self {
            Self::Postgres => include_str!("../../../../../presets/services/postgres.sh"),
            Self::Redis => include_str!("../../../../../presets/services/redis.sh"),
            Self::Mariadb => include_str!("../../../../../presets/services/mariadb.sh"),
            Self::Web => include_str!("../../../../../presets/services/web.sh"),
        }
    }

    fn check(self) -> HealthCheck {
        match self {
            Self::Postgres => HealthCheck::Tcp { port: 5432 },
            Self::Redis => HealthCheck::Tcp { port: 6379 },
            Self::Mariadb => HealthCheck::Tcp { port: 3306 },
            Self::Web => HealthCheck::Http { port: 8000, path: "/".to_owned() },
        }
    }

    /// The definition. The script runs as root, also in a bay whose commands run as another user.
    pub(super) fn spec(self) -> ServiceSpec {
        ServiceSpec {
            user: Some("root".to_owned()),
            health: Some(Health { interval_ms: INTERVAL_MS, ..Health::new(self.check()) }),
            stop_grace_ms: STOP_GRACE_MS,
            ..ServiceSpec::new(["/bin/sh", "-c", self.script()])
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use clap::ValueEnum;

    use super::*;

    #[test]
    fn every_preset_is_a_definition_that_a_bay_takes_and_a_script_that_a_shell_reads() {
        for preset in Preset::value_variants() {
            preset.spec().check().unwrap();
            assert_eq!(preset.to_possible_value().unwrap().get_name(), preset.name());
            assert!(preset.name().parse::<bay_types::service::ServiceName>().is_ok());
            let read = Command::new("/bin/sh").args(["-n", "-c", preset.script()]).status().unwrap();
            assert!(read.success(), "{preset:?}");
            assert!(preset.script().starts_with("# "), "{preset:?} does not say what it is");
        }
    }

    #[test]
    fn the_documentation_names_every_preset() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/services.md");
        let page = std::fs::read_to_string(page).unwrap();
        for preset in Preset::value_variants() {
            assert!(page.contains(&format!("--preset {}", preset.name())), "{preset:?}");
        }
    }
}
