//! Services: commands that a bay keeps running.
//!
//! The guest owns them. It stores a definition in the bay's state before it acts on it, so that the definition
//! outlives the guest, `bay stop` and `bay replace`. The daemon only forwards requests.
//!
//! ```text
//!                    needs are met        program runs, health passes
//!   add, start ──► waiting ────► starting ──────────────────────────► ready ◄──────┐ health passes
//!                     ▲             │ └──── start period is over ───────│──► unhealthy
//!                     │             │                three checks fail ─┘      │
//!         time is up  │             ▼ the run ended                            ▼
//!        backing-off ─┴─◄───────────┴──────────────────────────────────────────┘
//!        crash-loop (five ends within ten seconds of their start; tried again every five minutes)
//!        done (succeeded; no restart by its policy)   failed (failed; no restart by its policy)
//!   stop ──► stopping ──► stopped
//! ```

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::error::{ApiError, ErrorCode};
use crate::exec::{ExecSpec, Exit};
use crate::id::ExecId;
pub use crate::id::ServiceName;
pub use crate::service_state::ServiceState;
use crate::text_enum::text_enum;

/// Most services of a bay.
pub const MAX_SERVICES: usize = 64;
/// Runs of a service whose output is kept, including the present one.
pub const KEPT_RUNS: usize = 10;

/// When an ended run is followed by another.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Restart {
    /// However it ended.
    #[default]
    Always,
    /// When it ended by a signal or with another code than 0.
    OnFailure,
    Never,
}

text_enum!(Restart { Always = "always", OnFailure = "on-failure", Never = "never" });

/// How the guest checks that a service works.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum HealthCheck {
    /// A command that exits with 0; run with the service's user, directory and environment.
    Command { argv: Vec<String> },
    /// A connection to the port on `localhost` is accepted.
    Tcp { port: u16 },
    /// A GET of the path on `localhost` is answered with a status from 200 to 399.
    Http { port: u16, path: String },
}

impl fmt::Display for HealthCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Command { argv } => write!(f, "cmd:{}", argv.join(" ")),
            Self::Tcp { port } => write!(f, "tcp:{port}"),
            Self::Http { port, path } => write!(f, "http://localhost:{port}{path}"),
        }
    }
}

/// A health check and its timing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Health {
    pub check: HealthCheck,
    /// Time between checks. A starting service is checked more often.
    #[serde(default = "default_interval")]
    pub interval_ms: u64,
    /// How long one check may take.
    #[serde(default = "default_timeout")]
    pub timeout_ms: u64,
    /// How long after its start a service may fail its checks before it is unhealthy.
    #[serde(default = "default_start_period")]
    pub start_period_ms: u64,
}

impl Health {
    pub const DEFAULT_INTERVAL_MS: u64 = 5_000;
    pub const DEFAULT_TIMEOUT_MS: u64 = 5_000;
    pub const DEFAULT_START_PERIOD_MS: u64 = 60_000;
    /// More frequent checks would be a load of their own.
    pub const MIN_INTERVAL_MS: u64 = 200;
    pub const MIN_TIMEOUT_MS: u64 = 100;
    /// Longest interval and longest start period: one day.
    pub const MAX_PERIOD_MS: u64 = 24 * 3600 * 1000;
    /// Longest timeout: ten minutes.
    pub const MAX_TIMEOUT_MS: u64 = 600 * 1000;
    /// Longest path of an HTTP check.
    pub const MAX_PATH: usize = 2048;

    #[must_use]
    pub fn new(check: HealthCheck) -> Self {
        Self {
            check,
            interval_ms: Self::DEFAULT_INTERVAL_MS,
            timeout_ms: Self::DEFAULT_TIMEOUT_MS,
            start_period_ms: Self::DEFAULT_START_PERIOD_MS,
        }
    }
}

fn default_interval() -> u64 {
    Health::DEFAULT_INTERVAL_MS
}

fn default_timeout() -> u64 {
    Health::DEFAULT_TIMEOUT_MS
}

fn default_start_period() -> u64 {
    Health::DEFAULT_START_PERIOD_MS
}

fn default_stop_grace() -> u64 {
    ServiceSpec::DEFAULT_STOP_GRACE_MS
}

/// `PUT …/services/{name}`: the definition of a service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceSpec {
    pub argv: Vec<String>,
    #[serde(default)]
    pub env: Vec<(String, String)>,
    /// When absent: `/workspace`, or `/` if that does not exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// A user name or numeric id of the bay; root when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Services that must be ready, or done, before this one is started.
    #[serde(default)]
    pub needs: Vec<ServiceName>,
    #[serde(default)]
    pub restart: Restart,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<Health>,
    /// Time between TERM and KILL when it is stopped.
    #[serde(default = "default_stop_grace")]
    pub stop_grace_ms: u64,
}

impl ServiceSpec {
    pub const DEFAULT_STOP_GRACE_MS: u64 = 10_000;
    pub const MAX_STOP_GRACE_MS: u64 = 600_000;
    /// Most services that one service may need.
    pub const MAX_NEEDS: usize = 16;
    /// Longest definition, as JSON. All definitions of a bay fit into one answer of the guest.
    pub const MAX_BYTES: usize = 64 << 10;

    pub fn new<S: Into<String>>(argv: impl IntoIterator<Item = S>) -> Self {
        Self {
            argv: argv.into_iter().map(Into::into).collect(),
            env: vec![],
            cwd: None,
            user: None,
            needs: vec![],
            restart: Restart::default(),
            health: None,
            stop_grace_ms: Self::DEFAULT_STOP_GRACE_MS,
        }
    }

    /// The exec of a run of this service.
    #[must_use]
    pub fn exec(&self, argv: &[String]) -> ExecSpec {
        ExecSpec {
            env: self.env.clone(),
            cwd: self.cwd.clone(),
            user: self.user.clone(),
            ..ExecSpec::new(argv.iter().cloned())
        }
    }

    /// Refuses a definition that breaks a rule which holds in every bay. CLI, daemon and guest use the same check.
    ///
    /// # Errors
    /// [`ErrorCode::InvalidInput`] with what is wrong and what to write instead.
    pub fn check(&self) -> Result<(), ApiError> {
        let invalid =
            |message: String, next: &str| Err(ApiError::new(ErrorCode::InvalidInput, message, next));
        self.exec(&self.argv).check()?;
        if self.needs.len() > Self::MAX_NEEDS {
            return invalid(
                format!("the service needs {} others, more than {}", self.needs.len(), Self::MAX_NEEDS),
                "needs are passed on: name only those it uses itself",
            );
        }
        if self.stop_grace_ms > Self::MAX_STOP_GRACE_MS {
            return invalid(
                "the grace of a stop is longer than ten minutes".to_owned(),
                "shorten --stop-grace",
            );
        }
        if let Some(health) = &self.health {
            self.check_health(health)?;
        }
        let bytes = serde_json::to_vec(self).map_or(usize::MAX, |text| text.len());
        if bytes > Self::MAX_BYTES {
            return invalid(
                format!("the definition of the service has {bytes} bytes, more than {}", Self::MAX_BYTES),
                "put long text into a file of the bay and name that",
            );
        }
        Ok(())
    }

    fn check_health(&self, health: &Health) -> Result<(), ApiError> {
        let invalid =
            |message: String, next: &str| Err(ApiError::new(ErrorCode::InvalidInput, message, next));
        let periods = Health::MIN_INTERVAL_MS..=Health::MAX_PERIOD_MS;
        if !periods.contains(&health.interval_ms) || health.start_period_ms > Health::MAX_PERIOD_MS {
            return invalid(
                "the interval of the health check is not between 0.2 s and one day, or its start period is longer"
                    .to_owned(),
                "give --interval and --start-period in seconds",
            );
        }
        if !(Health::MIN_TIMEOUT_MS..=Health::MAX_TIMEOUT_MS).contains(&health.timeout_ms) {
            return invalid(
                "the timeout of the health check is not between 0.1 s and 600 s".to_owned(),
                "give --timeout in seconds",
            );
        }
        match &health.check {
            HealthCheck::Command { argv } => self.exec(argv).check(),
            HealthCheck::Tcp { port } | HealthCheck::Http { port, .. } if *port == 0 => invalid(
                "a health check cannot ask port 0".to_owned(),
                "name the port that the service listens on",
            ),
            HealthCheck::Http { path, .. }
                if !path.starts_with('/')
                    || path.len() > Health::MAX_PATH
                    || !path.bytes().all(|b| b.is_ascii_graphic() && b != b'#') =>
            {
                invalid(
                    format!(
                        "the path of the health check does not begin with '/', has characters that must be \
                         percent-encoded, or is longer than {} bytes",
                        Health::MAX_PATH
                    ),
                    "write --health http://localhost:PORT/path, with odd characters percent-encoded",
                )
            }
            HealthCheck::Tcp { .. } | HealthCheck::Http { .. } => Ok(()),
        }
    }
}

/// One run of a service whose output is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceRun {
    pub exec: ExecId,
    pub started_at: Timestamp,
    /// Where its output begins in the log of the service.
    pub log_offset: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
    /// How its first process ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<Exit>,
}

/// A service as `bay services show --json` prints it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceView {
    pub name: ServiceName,
    /// Absent when its definition cannot be read; the reason says why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<ServiceSpec>,
    pub state: ServiceState,
    /// Why it is in that state, for a person.
    pub reason: String,
    pub since: Timestamp,
    /// False after a caller stopped it; then it is not started with the bay either.
    pub wanted: bool,
    /// Process id of the run's first process inside the bay, while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<i32>,
    /// Restarts after a run ended by itself, since the bay started.
    pub restarts: u64,
    /// Consecutive ends without a healthy minute between them.
    pub attempt: u32,
    /// When it is retried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_at: Option<Timestamp>,
    /// Oldest first.
    pub runs: Vec<ServiceRun>,
    /// First byte of its log that is kept, and where the log ends.
    pub log_start: u64,
    pub log_end: u64,
}

/// `POST …/services/{name}/{verb}`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ServiceVerb {
    Start,
    Stop,
    Restart,
}

text_enum!(ServiceVerb { Start = "start", Stop = "stop", Restart = "restart" });

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn definitions_that_cannot_mean_anything_are_refused() {
        let fine = ServiceSpec {
            health: Some(Health::new(HealthCheck::Http { port: 80, path: "/up?x=1".to_owned() })),
            ..ServiceSpec::new(["server"])
        };
        fine.check().unwrap();
        let health = |spec: &mut ServiceSpec| spec.health.clone().unwrap();
        for change in [
            |s: &mut ServiceSpec, _| s.argv.clear(),
            |s: &mut ServiceSpec, _| s.cwd = Some("relative".to_owned()),
            |s: &mut ServiceSpec, _| s.stop_grace_ms = ServiceSpec::MAX_STOP_GRACE_MS + 1,
            |s: &mut ServiceSpec, _| s.needs = vec!["a".parse().unwrap(); ServiceSpec::MAX_NEEDS + 1],
            |s: &mut ServiceSpec, _| s.argv.push("x".repeat(ServiceSpec::MAX_BYTES)),
            |s: &mut ServiceSpec, h| s.health = Some(Health { interval_ms: 1, ..h }),
            |s: &mut ServiceSpec, h| s.health = Some(Health { timeout_ms: 0, ..h }),
            |s: &mut ServiceSpec, h| s.health = Some(Health { start_period_ms: u64::MAX, ..h }),
            |s: &mut ServiceSpec, h| s.health = Some(Health { check: HealthCheck::Tcp { port: 0 }, ..h }),
            |s: &mut ServiceSpec, h| {
                s.health = Some(Health { check: HealthCheck::Command { argv: vec![] }, ..h });
            },
            |s: &mut ServiceSpec, h: Health| {
                let check = HealthCheck::Http { port: 80, path: "/a b\r\nX: y".to_owned() };
                s.health = Some(Health { check, ..h });
            },
        ] as [fn(&mut ServiceSpec, Health); 11]
        {
            let mut given = fine.clone();
            let h = health(&mut given);
            change(&mut given, h);
            assert_eq!(given.check().unwrap_err().code, ErrorCode::InvalidInput, "{given:?}");
        }
    }

    #[test]
    fn a_definition_needs_nothing_but_a_command() {
        let spec: ServiceSpec = serde_json::from_str(r#"{"argv":["server"]}"#).unwrap();
        assert_eq!(spec, ServiceSpec::new(["server"]));
        let health: Health = serde_json::from_str(r#"{"check":{"kind":"tcp","port":5432}}"#).unwrap();
        assert_eq!(health, Health::new(HealthCheck::Tcp { port: 5432 }));
        assert!(serde_json::from_str::<ServiceSpec>(r#"{"argv":["a"],"resart":"never"}"#).is_err());
    }

    proptest! {
        #[test]
        fn a_name_is_always_a_plain_file_name(text in any::<String>()) {
            if let Ok(name) = text.parse::<ServiceName>() {
                prop_assert!(name.as_str().bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b)));
                prop_assert!(!name.as_str().is_empty() && name.as_str().len() <= ServiceName::MAX_LEN);
            }
        }
    }
}
