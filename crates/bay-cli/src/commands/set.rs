use bay_client::bay_path;
use bay_types::bay::BayView;
use bay_types::settings::{BaySet, Setting};
use clap::Args;
use jiff::SignedDuration;

use super::show::limit_lines;
use crate::failure::Outcome;
use crate::global_options::GlobalOptions;
use crate::output::table::section;

/// Change the limits of a bay while it runs.
///
/// Limits that are not named stay unchanged; `none` removes a limit. If a limit cannot be set, the command fails with
/// the reason, and all old limits remain. A stopped bay gets its new limits when it starts.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  bay set web --memory-mib 4096 --cpus 2\n  bay set web --pids none --io-write-mibps 50\n  bay set web --idle-stop 30m          stop it after this time without activity"
)]
pub(crate) struct Set {
    /// Name or id of the bay.
    name: String,
    #[command(flatten)]
    limits: LimitFlags,
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
    /// Memory that the bay may use, in MiB.
    #[arg(long, value_name = "N|none", value_parser = number::<u64>)]
    memory_mib: Option<Setting<u64>>,
    /// Disk space that the bay may use beyond what it shares with its image and repository, in MiB.
    #[arg(long, value_name = "N|none", value_parser = number::<u64>)]
    disk_mib: Option<Setting<u64>>,
    /// Processes that the bay may have; `none` means 8192.
    #[arg(long, value_name = "N|none", value_parser = number::<u64>)]
    pids: Option<Setting<u64>>,
    /// MiB per second that the bay may read from the pool's disk.
    #[arg(long, value_name = "N|none", value_parser = number::<u64>)]
    io_read_mibps: Option<Setting<u64>>,
    /// MiB per second that the bay may write to the pool's disk.
    #[arg(long, value_name = "N|none", value_parser = number::<u64>)]
    io_write_mibps: Option<Setting<u64>>,
    /// Stop the bay after this time without activity, such as 30m. `off` disables that, which is the default of a new
    /// bay.
    #[arg(long, value_name = "TIME|off", value_parser = idle_time)]
    idle_stop: Option<Setting<u64>>,
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
        }
    }
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
        let change = self.limits.change();
        let view: BayView = global.client().patch(&bay_path(bay, "/limits"), &change).await?;
        if global.json {
            crate::output::json(&view)?;
        } else {
            crate::output::data(&section(view.name.as_str(), &limit_lines(&view)))?;
        }
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_numbers_times_or_words_that_remove_them() {
        assert_eq!(number::<u64>("5"), Ok(Setting::To(5)));
        assert_eq!(number::<f64>("1.5"), Ok(Setting::To(1.5)));
        assert_eq!(number::<u64>("none"), Ok(Setting::LIFTED));
        for odd in ["", "-1", "1.5", "1g", "None"] {
            assert!(number::<u64>(odd).is_err(), "{odd}");
        }
        assert_eq!(idle_time("30m"), Ok(Setting::To(1800)));
        assert_eq!(idle_time("90s"), Ok(Setting::To(90)));
        assert_eq!(idle_time("1h 30m"), Ok(Setting::To(5400)));
        assert_eq!(idle_time("off"), Ok(Setting::LIFTED));
        for odd in ["", "30", "-5m", "soon", "9999999999999999h"] {
            assert!(idle_time(odd).is_err(), "{odd}");
        }
    }
}
