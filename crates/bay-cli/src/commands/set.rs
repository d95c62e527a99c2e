use bay_client::{Client, bay_path};
use bay_types::ApiError;
use bay_types::bay::BayView;
use bay_types::durability::Durability;
use bay_types::mib;
use bay_types::reach::ReachSet;
use bay_types::settings::{BaySet, Setting};
use clap::Args;
use jiff::SignedDuration;

use super::show::{limit_lines, reach_line};
use crate::failure::Outcome;
use crate::global_options::GlobalOptions;
use crate::output::table::section;

/// Change the limits of a bay, and the services of this host that it may use. It need not be stopped.
///
/// Limits that are not named stay unchanged; `none` removes a limit or restores its default. If a limit cannot be set,
/// the command fails with the reason, and all old limits remain. A stopped bay gets its new limits when it starts.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  bay set web --memory-mib 4G --cpus 2\n  bay set web --pids none --io-write-mibps 50\n  bay set web --idle-stop 30m          stop it after this time without activity\n  bay set web --durability relaxed     flushes return at once, for test databases\n  bay set web --reach host:5432        let it use the host's database, as host.bay.internal:5432"
)]
pub(crate) struct Set {
    /// Name or id of the bay.
    name: String,
    #[command(flatten)]
    limits: LimitFlags,
    #[command(flatten)]
    reach: ReachFlag,
    /// Close every port of the host that `--reach` opened, at once, even if a limit in the same command is refused.
    #[arg(long, conflicts_with = "reach")]
    no_reach: bool,
}

/// The flag that `bay up` and `bay set` share.
#[derive(Debug, Clone, Args)]
pub(crate) struct ReachFlag {
    /// Let it use the service at this TCP port of this host's 127.0.0.1, as host.bay.internal:PORT. May be repeated.
    /// On an existing bay, these replace the ones it had.
    #[arg(long, value_name = "host:PORT", value_parser = host_port)]
    pub(crate) reach: Vec<u16>,
}

/// The flags that `bay up` and `bay set` share.
#[derive(Debug, Clone, Args)]
pub(crate) struct LimitFlags {
    /// Processors that the bay may use; 1.5 is one and a half. `nproc` in the bay shows it rounded up.
    #[arg(long, value_name = "N|none", value_parser = number::<f64>, allow_negative_numbers = true)]
    cpus: Option<Setting<f64>>,
    /// Weight of the bay when several bays compete for the processors; `none` means 1024.
    #[arg(long, value_name = "N|none", value_parser = number::<u64>)]
    cpu_shares: Option<Setting<u64>>,
    /// Memory that it may use: a number of MiB, or with a unit, such as 4G.
    #[arg(long, alias = "memory", value_name = "SIZE|none", value_parser = mib, allow_negative_numbers = true)]
    memory_mib: Option<Setting<u64>>,
    /// Disk space that it may use beyond what it shares with its image and repository: MiB, or with a unit.
    #[arg(long, alias = "disk", value_name = "SIZE|none", value_parser = mib, allow_negative_numbers = true)]
    disk_mib: Option<Setting<u64>>,
    /// Processes and threads that the bay may have; `none` means 8192.
    #[arg(long, value_name = "N|none", value_parser = number::<u64>)]
    pids: Option<Setting<u64>>,
    /// MiB per second that it may read from the pool's disk; also with a unit.
    #[arg(long, value_name = "SIZE|none", value_parser = mib)]
    io_read_mibps: Option<Setting<u64>>,
    /// MiB per second that it may write to the pool's disk; also with a unit.
    #[arg(long, value_name = "SIZE|none", value_parser = mib)]
    io_write_mibps: Option<Setting<u64>>,
    /// Stop the bay after this time without activity, such as 30m. `off` disables that, which is the default of a new
    /// bay.
    #[arg(long, value_name = "TIME|off", value_parser = idle_time)]
    idle_stop: Option<Setting<u64>>,
    /// What a flush (`fsync`) in it waits for: the disk (strict, the default) or nothing (relaxed). With relaxed, databases
    /// commit several times as fast, and a power cut of this host loses the last seconds. In a running bay it applies to
    /// commands and services that start from now on.
    #[arg(long, value_name = "strict|relaxed")]
    durability: Option<Durability>,
}

impl LimitFlags {
    pub(crate) fn change(&self) -> BaySet {
        BaySet {
            cpus: self.cpus,
            cpu_shares: self.cpu_shares,
            memory_mib: self.memory_mib,
            disk_mib: self.disk_mib,
            pids: self.pids,
            io_read_mibps: self.io_read_mibps,
            io_write_mibps: self.io_write_mibps,
            idle_stop_s: self.idle_stop,
            durability: self.durability,
        }
    }
}

/// Opens exactly these ports of the host to the bay.
async fn set_reach(client: &mut Client, bay: &str, ports: Vec<u16>) -> Result<BayView, ApiError> {
    client.put(&bay_path(bay, "/reach"), &ReachSet { ports }).await
}

fn host_port(text: &str) -> Result<u16, String> {
    let wrong = || "write host:PORT, such as host:5432; no other machine can be named".to_owned();
    let port = text.strip_prefix("host:").ok_or_else(wrong)?;
    let plain = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    port.parse().ok().filter(|port| plain && *port > 0).ok_or_else(wrong)
}

fn number<T: std::str::FromStr + Copy>(text: &str) -> Result<Setting<T>, String>
where
    T::Err: std::fmt::Display,
{
    if text == "none" {
        return Ok(Setting::LIFTED);
    }
    text.parse().map(Setting::To).map_err(|error: T::Err| format!("{error}; give a number, or `none`"))
}

fn mib(text: &str) -> Result<Setting<u64>, String> {
    if text == "none" {
        return Ok(Setting::LIFTED);
    }
    mib::parse(text).map(Setting::To).map_err(|error| format!("{error}, or `none`"))
}

fn idle_time(text: &str) -> Result<Setting<u64>, String> {
    if matches!(text, "off" | "none") {
        return Ok(Setting::LIFTED);
    }
    let wrong = || "give a time such as 90s, 30m or 2h, or `off`".to_owned();
    let time: SignedDuration = text.parse().map_err(|_| wrong())?;
    u64::try_from(time.as_secs()).map(Setting::To).map_err(|_| wrong())
}

impl Set {
    pub(crate) async fn run(self, global: &GlobalOptions) -> Outcome {
        let bay = crate::naming::bay(&self.name)?;
        let (change, ports) = (self.limits.change(), self.reach.reach);
        let mut client = global.client();
        // Closing ports waits for no limit. They are opened only if the limits are in force.
        if self.no_reach && !change.is_empty() {
            let _closed = set_reach(&mut client, bay, Vec::new()).await?;
        }
        let mut view = None;
        if !change.is_empty() || (ports.is_empty() && !self.no_reach) {
            view = Some(client.patch(&bay_path(bay, "/limits"), &change).await?);
        }
        let view = match view {
            Some(view) if ports.is_empty() => view,
            _ => set_reach(&mut client, bay, ports).await?,
        };
        if global.json {
            crate::output::json(&view)?;
        } else {
            let mut lines = limit_lines(&view);
            lines.extend(reach_line(&view.reach));
            crate::output::data(&section(view.name.as_str(), &lines))?;
        }
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_of_the_host_is_named_by_its_port_alone() {
        assert_eq!(host_port("host:5432"), Ok(5432));
        for odd in [
            "",
            "5432",
            "host",
            "host:",
            "host:0",
            "host:65536",
            "host:+1",
            "127.0.0.1:80",
            "Host:80",
            "host:80:80",
        ] {
            assert!(host_port(odd).is_err(), "{odd}");
        }
    }

    #[test]
    fn limits_are_numbers_times_or_words_that_remove_them() {
        assert_eq!(number::<u64>("5"), Ok(Setting::To(5)));
        assert_eq!(number::<f64>("1.5"), Ok(Setting::To(1.5)));
        assert_eq!(number::<u64>("none"), Ok(Setting::LIFTED));
        for odd in ["", "-1", "1.5", "1g", "None"] {
            assert!(number::<u64>(odd).is_err(), "{odd}");
        }
        assert_eq!(mib("4G"), Ok(Setting::To(4096)));
        assert_eq!(mib("4096"), Ok(Setting::To(4096)));
        assert_eq!(mib("none"), Ok(Setting::LIFTED));
        let error = mib("4X").unwrap_err();
        assert!(error.contains("4096") && error.contains("4G") && error.contains("none"), "{error}");
        assert_eq!(idle_time("30m"), Ok(Setting::To(1800)));
        assert_eq!(idle_time("90s"), Ok(Setting::To(90)));
        assert_eq!(idle_time("1h 30m"), Ok(Setting::To(5400)));
        assert_eq!(idle_time("off"), Ok(Setting::LIFTED));
        for odd in ["", "30", "-5m", "soon", "9999999999999999h"] {
            assert!(idle_time(odd).is_err(), "{odd}");
        }
    }
}
