use bay_client::invalid;
use bay_types::ApiError;
use bay_types::service::{Health, HealthCheck, Restart, ServiceSpec};
use clap::Args;

use super::preset::Preset;
use super::{One, service_name};
use crate::failure::{Failure, Outcome};
use crate::global_options::GlobalOptions;
use bay_text::clip;

/// Most characters of a bad argument that an error quotes.
const QUOTED: usize = 64;
/// The program that runs the text of a `cmd:` check.
const SHELL: [&str; 2] = ["/bin/sh", "-c"];

/// Define and start a service, or replace its definition; wait until it is ready.
///
/// A service is ready when its health check passes; without a check, when it has run for half a second. It starts after
/// every service that it needs is ready or done. After it ends, it starts again according to its restart policy: after
/// 0.5 s, then after increasing delays of up to 30 s, and after five ends within ten seconds of the start, every five
/// minutes. It also starts when the bay starts, unless somebody stopped it.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  bay services add web db --health tcp:5432 -- postgres -D /data\n  bay services add web app --needs db --health http://localhost:8000/up --env PORT=8000 -- npm run dev\n  bay services add web --preset postgres\n  bay services add web migrate --needs db --restart never -- ./migrate.sh\n  bay services add web worker --health 'cmd:test -e /run/worker.ok' --restart on-failure -- ./worker"
)]
pub(super) struct Add {
    /// Name or id of the bay.
    name: String,
    /// Name of the service [default: the preset's].
    #[arg(required_unless_present = "preset")]
    service: Option<String>,
    #[command(flatten)]
    definition: Definition,
}

/// The command of a service, and how to run it.
#[derive(Debug, Args)]
pub(crate) struct Definition {
    /// A definition that comes with Workbay, in place of a command. Other flags override parts of it.
    #[arg(long, value_name = "PRESET", conflicts_with_all = ["user", "command"])]
    preset: Option<Preset>,
    /// Start only after this service is ready, or done; repeatable.
    #[arg(long, value_name = "SERVICE")]
    needs: Vec<String>,
    /// The health check: tcp:PORT, http://localhost:PORT/path, or cmd:COMMAND.
    #[arg(long, value_name = "CHECK")]
    health: Option<String>,
    /// Seconds between two health checks [default: 5].
    #[arg(long, value_name = "SECONDS", requires = "health", value_parser = milliseconds)]
    interval: Option<u64>,
    /// Seconds until a health check counts as failed [default: 5].
    #[arg(long, value_name = "SECONDS", requires = "health", value_parser = milliseconds)]
    timeout: Option<u64>,
    /// Seconds after the start in which failed checks do not make it unhealthy [default: 60].
    #[arg(long, value_name = "SECONDS", requires = "health", value_parser = milliseconds)]
    start_period: Option<u64>,
    /// When to start it again after it ends: always, on-failure or never [default: always].
    #[arg(long, value_name = "POLICY")]
    restart: Option<Restart>,
    /// Seconds between TERM and KILL when it stops [default: 10].
    #[arg(long, value_name = "SECONDS", value_parser = milliseconds)]
    stop_grace: Option<u64>,
    /// Set a variable. NAME alone passes on the caller's value.
    #[arg(short, long, value_name = "NAME=VALUE")]
    env: Vec<String>,
    /// Directory to run in [default: /workspace].
    #[arg(short = 'C', long, visible_alias = "workdir", value_name = "DIR")]
    cwd: Option<String>,
    /// User of the bay, by name or number [default: root].
    #[arg(short, long)]
    user: Option<String>,
    /// Do not wait until it is ready.
    #[arg(long)]
    pub(crate) no_wait: bool,
    /// The command and its arguments; it must stay in the foreground.
    #[arg(
        required_unless_present = "preset",
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "CMD"
    )]
    command: Vec<String>,
}

impl Add {
    pub(super) async fn run(self, global: &GlobalOptions) -> Outcome {
        let spec = self.definition.spec()?;
        let preset = self.definition.preset.map(Preset::name);
        let service = self.service.as_deref().or(preset).unwrap_or_default().to_owned();
        let one = One { name: self.name, service };
        one.target(global)?.define(&mut global.client(), &spec, self.definition.no_wait).await
    }
}

impl Definition {
    pub(crate) fn spec(&self) -> Result<ServiceSpec, Failure> {
        let base = match self.preset {
            Some(preset) => preset.spec(),
            None => ServiceSpec::new(self.command.clone()),
        };
        let health = match &self.health {
            None => base.health,
            Some(given) => {
                let base = Health::new(check(given)?);
                Some(Health {
                    interval_ms: self.interval.unwrap_or(base.interval_ms),
                    timeout_ms: self.timeout.unwrap_or(base.timeout_ms),
                    start_period_ms: self.start_period.unwrap_or(base.start_period_ms),
                    ..base
                })
            }
        };
        let env =
            self.env.iter().map(|given| crate::naming::variable(given)).collect::<Result<Vec<_>, _>>()?;
        Ok(ServiceSpec {
            env,
            cwd: self.cwd.clone(),
            user: self.user.clone().or(base.user),
            needs: self.needs.iter().map(|need| service_name(need)).collect::<Result<Vec<_>, _>>()?,
            restart: self.restart.unwrap_or(base.restart),
            health,
            stop_grace_ms: self.stop_grace.unwrap_or(base.stop_grace_ms),
            argv: base.argv,
        })
    }
}

/// Seconds, with an optional fraction.
fn milliseconds(given: &str) -> Result<u64, String> {
    match given.parse::<f64>() {
        Ok(seconds) if (0.0..=1e9).contains(&seconds) => {
            // In range and not negative, because of the guard above.
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            Ok((seconds * 1000.0).round() as u64)
        }
        _ => Err("it is not a number of seconds".to_owned()),
    }
}

fn check(given: &str) -> Result<HealthCheck, ApiError> {
    let bad = |why: &str| {
        invalid(
            format!("--health {:?}: {why}", clip(given, QUOTED)),
            "write tcp:PORT, http://localhost:PORT/path, or cmd:COMMAND",
        )
    };
    if let Some(port) = given.strip_prefix("tcp:") {
        let port = port.strip_prefix("localhost:").unwrap_or(port);
        let port = port.parse().map_err(|_| bad("the port is not a number from 0 to 65535"))?;
        return Ok(HealthCheck::Tcp { port });
    }
    if let Some(text) = given.strip_prefix("cmd:") {
        let argv = SHELL.into_iter().chain([text]).map(str::to_owned).collect();
        return Ok(HealthCheck::Command { argv });
    }
    let Some(rest) = given.strip_prefix("http://") else {
        return Err(bad("unknown kind of health check"));
    };
    let (authority, path) = match rest.find('/') {
        Some(at) => rest.split_at(at),
        None => (rest, "/"),
    };
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) => (host, port.parse().map_err(|_| bad("its port is not a number"))?),
        None => (authority, 80),
    };
    if !matches!(host, "localhost" | "127.0.0.1" | "[::1]") {
        return Err(bad("a bay checks its own services only, at localhost"));
    }
    Ok(HealthCheck::Http { port, path: path.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_checks_have_three_kinds() {
        assert_eq!(check("tcp:5432").unwrap(), HealthCheck::Tcp { port: 5432 });
        let http = |port, path: &str| HealthCheck::Http { port, path: path.to_owned() };
        assert_eq!(check("http://localhost:8000/up?x=1").unwrap(), http(8000, "/up?x=1"));
        assert_eq!(check("http://127.0.0.1").unwrap(), http(80, "/"));
        let argv = ["/bin/sh", "-c", "test -e x && y"].map(str::to_owned).into();
        assert_eq!(check("cmd:test -e x && y").unwrap(), HealthCheck::Command { argv });
        for bad in [
            "",
            "5432",
            "tcp:",
            "tcp:99999",
            "http://example.org/",
            "http://localhost:x/",
            "https://localhost",
        ] {
            assert!(check(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn seconds_may_have_fractions() {
        assert_eq!(milliseconds("5"), Ok(5000));
        assert_eq!(milliseconds("0.25"), Ok(250));
        for bad in ["", "-1", "x", "NaN", "inf"] {
            assert!(milliseconds(bad).is_err(), "{bad}");
        }
    }
}
