//! `GET /metrics`: all counters in one answer. Apart from the names of bays, labels have only values that this file
//! or its types list. So the number of series is bounded: a fixed number for the daemon, and some for each of up to
//! [`MAX_BAYS`] bays.

use std::sync::Arc;

use bay_store::BayRow;
use bay_types::CoreError;
use bay_types::bay::State;
use bay_types::principal::Principal;
use bay_types::stats::{BayStats, Pressure, Stall};
use bay_types::usage::seconds;

use crate::authorize::Verb;
use crate::daemon::Daemon;
use crate::registry::BayHandle;
use crate::telemetry::counters::{BOUNDS, Counter, DECISIONS, EgressCounters, REASONS, REFUSALS};
use crate::telemetry::exposition::{self, Exposition, Kind, number};

/// How many bays have series of their own, oldest first.
const MAX_BAYS: usize = 1000;
/// The unit of processor time in `/proc/PID/stat` on all common Linux systems.
const TICKS_PER_SECOND: f64 = 100.0;

const STATES: [State; 8] = [
    State::Creating,
    State::Starting,
    State::Running,
    State::Paused,
    State::Stopping,
    State::Stopped,
    State::Failed,
    State::Deleting,
];

/// The numbers of one bay as they were measured last.
struct Bay {
    name: String,
    stats: Option<BayStats>,
    cost: bay_types::stats::BayCost,
}

/// The content type of the answer.
pub const CONTENT_TYPE: &str = exposition::CONTENT_TYPE;

/// The daemon's numbers in the exposition format of Prometheus.
pub async fn read(daemon: &Daemon, who: &Principal) -> Result<String, CoreError> {
    daemon.permit(who, Verb::MetricsRead)?;
    let handles = daemon.bays.list();
    let rows: Vec<BayRow> = handles.iter().map(|handle| handle.row()).collect();
    let running: usize = handles.iter().map(|handle| handle.execs_open()).sum();
    let bays: Vec<Bay> = rows
        .iter()
        .take(MAX_BAYS)
        .map(|row| Bay {
            name: row.name.to_string(),
            stats: daemon.telemetry.costs.stats(row.id),
            cost: daemon.telemetry.costs.cost(row.id, row.created_at),
        })
        .collect();
    let head = daemon.store.events_head().await.map_err(|e| e.to_api())?;

    let mut all = Exposition::default();
    all.family("workbay_build_info", Kind::Gauge, "The release that runs.")
        .sample(&[("version", bay_types::VERSION)], 1.0);
    let mut states = all.family("workbay_bays", Kind::Gauge, "Bays by state.");
    for state in STATES {
        let count = rows.iter().filter(|row| row.state == state).count();
        states.sample(&[("state", state.as_str())], number(count as u64));
    }
    all.family(
        "workbay_bays_without_series",
        Kind::Gauge,
        "Bays without series of their own, because there are too many bays.",
    )
    .sample(&[], number(rows.len().saturating_sub(MAX_BAYS) as u64));
    all.family("workbay_events_head", Kind::Gauge, "Number of the last event of the record.")
        .sample(&[], number(head));
    execs(&mut all, daemon, running);
    per_bay(&mut all, &bays);
    egress(&mut all, &daemon.telemetry.counters.egress);
    dropped(&mut all, &handles);
    process(&mut all, daemon);
    Ok(all.text())
}

fn execs(all: &mut Exposition, daemon: &Daemon, running: usize) {
    let counters = &daemon.telemetry.counters;
    all.family("workbay_execs_running", Kind::Gauge, "Execs that have not ended.")
        .sample(&[], number(running as u64));
    let mut count = |name, help: &str, counter: &Counter| {
        all.family(name, Kind::Counter, help).sample(&[], number(counter.get()));
    };
    count("workbay_execs_started_total", "Execs started.", &counters.execs_started);
    count(
        "workbay_exec_output_bytes_total",
        "Output of ended execs, as reported by their guests.",
        &counters.output_bytes,
    );
    count(
        "workbay_reconcile_errors_total",
        "How often a bay could not reach its wanted state.",
        &counters.reconcile_errors,
    );
    count("workbay_otlp_spans_sent_total", "Spans that the collector accepted.", &counters.spans_sent);
    count("workbay_otlp_spans_dropped_total", "Spans that were dropped.", &counters.spans_dropped);
    count(
        "workbay_otlp_failures_total",
        "Attempts to reach the collector that failed.",
        &counters.export_failures,
    );
    all.family(
        "workbay_exec_cpu_seconds_total",
        Kind::Counter,
        "Processor time of ended execs, as reported by their guests.",
    )
    .sample(&[], seconds(counters.exec_cpu_us.get()));
    let mut ended = all.family("workbay_execs_ended_total", Kind::Counter, "Execs ended, by reason.");
    for (reason, counter) in REASONS.iter().zip(&counters.execs_ended) {
        ended.sample(&[("reason", reason.as_str())], number(counter.get()));
    }
    let durations = counters.durations.each_ref().map(Counter::get);
    all.family("workbay_exec_duration_seconds", Kind::Histogram, "How long ended execs ran.").histogram(
        &BOUNDS,
        &durations,
        seconds(counters.duration_us.get()),
    );
}

fn per_bay(all: &mut Exposition, bays: &[Bay]) {
    let mut each = |name, kind, help: &str, value: &dyn Fn(&Bay) -> Option<f64>| {
        let mut family = all.family(name, kind, help);
        for bay in bays {
            if let Some(value) = value(bay) {
                family.sample(&[("bay", &bay.name)], value);
            }
        }
    };
    let (counter, gauge) = (Kind::Counter, Kind::Gauge);
    each("workbay_bay_cpu_seconds_total", counter, "Processor time over all runtimes of a bay.", &|bay| {
        Some(bay.cost.core_s)
    });
    each("workbay_bay_memory_gib_seconds_total", counter, "Memory in use, summed up over time.", &|bay| {
        Some(bay.cost.memory_gib_s)
    });
    each("workbay_bay_disk_gib_seconds_total", counter, "Disk of its own, summed up over time.", &|bay| {
        Some(bay.cost.disk_gib_s)
    });
    each("workbay_bay_disk_bytes", gauge, "Disk a bay holds on its own.", &|bay| {
        bay.cost.disk_bytes.map(number)
    });
    each("workbay_bay_memory_bytes", gauge, "Memory in use, page cache included.", &|bay| {
        bay.stats?.memory_bytes.map(number)
    });
    each("workbay_bay_pids", gauge, "Processes and threads.", &|bay| bay.stats?.pids.map(number));
    each("workbay_bay_oom_kills_total", counter, "Processes killed for want of memory.", &|bay| {
        bay.stats?.oom_kills.map(number)
    });
    each("workbay_bay_throttled_seconds_total", counter, "Time the quota kept a bay from running.", &|bay| {
        bay.stats?.throttled_us.map(seconds)
    });
    let mut io = all.family("workbay_bay_io_bytes_total", Kind::Counter, "Bytes from and to disks.");
    for bay in bays {
        if let Some(stats) = bay.stats.and_then(|stats| stats.io) {
            io.sample(&[("bay", &bay.name), ("direction", "read")], number(stats.read_bytes));
            io.sample(&[("bay", &bay.name), ("direction", "write")], number(stats.write_bytes));
        }
    }
    let help = "Time in which some or all processes of a bay waited for a resource.";
    let mut stalled = all.family("workbay_bay_pressure_seconds_total", Kind::Counter, help);
    for bay in bays {
        let Some(pressure) = bay.stats.map(|stats| stats.pressure) else { continue };
        for (resource, pressure) in [("cpu", pressure.cpu), ("memory", pressure.memory), ("io", pressure.io)]
        {
            let Some(Pressure { some, full }) = pressure else { continue };
            let mut tell = |kind, stall: Stall| {
                let labels = [("bay", bay.name.as_str()), ("resource", resource), ("kind", kind)];
                stalled.sample(&labels, seconds(stall.total_us));
            };
            tell("some", some);
            if let Some(full) = full {
                tell("full", full);
            }
        }
    }
}

fn egress(all: &mut Exposition, counters: &EgressCounters) {
    let mut each = |name, help: &str, label, words: &[&str], counters: &[Counter]| {
        let mut family = all.family(name, Kind::Counter, help);
        for (word, counter) in words.iter().zip(counters) {
            family.sample(&[(label, word)], number(counter.get()));
        }
    };
    each(
        "workbay_egress_requests_total",
        "Requests of bays by what was decided on them.",
        "outcome",
        &DECISIONS,
        &counters.decided,
    );
    each(
        "workbay_egress_refused_total",
        "What was refused before there was a request to decide on.",
        "what",
        &REFUSALS,
        &counters.refused,
    );
    let mut bytes = all.family(
        "workbay_egress_bytes_total",
        Kind::Counter,
        "Bytes of bodies and tunnels that are over, from bays and to them.",
    );
    bytes.sample(&[("direction", "sent")], number(counters.sent.get()));
    bytes.sample(&[("direction", "received")], number(counters.received.get()));
    all.family(
        "workbay_egress_failures_total",
        Kind::Counter,
        "Requests let out whose origin could not be used.",
    )
    .sample(&[], number(counters.failed.get()));
}

/// Dropped packets of bays whose egress is open.
fn dropped(all: &mut Exposition, handles: &[Arc<BayHandle>]) {
    let help = "Dropped packets since the bay started: neither TCP nor DNS, or DNS above its limit.";
    let mut family = all.family("workbay_bay_egress_dropped_total", Kind::Counter, help);
    for handle in handles.iter().take(MAX_BAYS) {
        let Some(open) = handle.egress() else { continue };
        let dropped = open.dropped();
        let counts =
            [("udp", dropped.udp), ("icmp", dropped.icmp), ("other", dropped.other), ("dns", dropped.dns)];
        for (protocol, count) in counts {
            family.sample(&[("bay", handle.name.as_str()), ("protocol", protocol)], number(count));
        }
    }
}

/// The daemon itself, under the names that Prometheus recommends for every process.
fn process(all: &mut Exposition, daemon: &Daemon) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    if let Some(kib) = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:")?.split_ascii_whitespace().next()?.parse::<u64>().ok())
    {
        all.family("process_resident_memory_bytes", Kind::Gauge, "Resident memory of the daemon.")
            .sample(&[], number(kib.saturating_mul(1024)));
    }
    if let Ok(open) = std::fs::read_dir("/proc/self/fd") {
        all.family("process_open_fds", Kind::Gauge, "Open file descriptors of the daemon.")
            .sample(&[], number(open.count() as u64));
    }
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    if let Some(ticks) = cpu_ticks(&stat) {
        all.family("process_cpu_seconds_total", Kind::Counter, "Processor time of the daemon.")
            .sample(&[], number(ticks) / TICKS_PER_SECOND);
    }
    let started = u64::try_from(daemon.started_at.as_second()).unwrap_or(0);
    all.family("process_start_time_seconds", Kind::Gauge, "When the daemon started, since 1970.")
        .sample(&[], number(started));
}

/// Fields 14 and 15 of `/proc/PID/stat`, counted from behind the name.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.get(stat.rfind(')')? + 1..)?.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    Some(user + fields.next()?.parse::<u64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_found_behind_any_name() {
        assert_eq!(cpu_ticks("1 (a) b) S 0 1 1 0 -1 4194560 10 20 30 40 7 5 0 0 20"), Some(12));
        assert_eq!(cpu_ticks(""), None);
    }
}
