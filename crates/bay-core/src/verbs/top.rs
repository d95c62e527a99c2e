//! What all bays use now. One measurement serves all requests within [`FRESH_FOR`], so many viewers cost no more
//! than one. The disks are counted seldom, so their numbers are older.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bay_types::bay::State;
use bay_types::stats::{Pressure, Pressures};
use bay_types::top::{BayUse, DiskUse, HostUse, ProcessorTime, Top};
use tokio::time::Instant;

use crate::daemon::Daemon;
use crate::registry::BayHandle;

/// How long an answer is used again.
const FRESH_FOR: Duration = Duration::from_millis(200);
/// How long the count of all disks is used again. Counting a disk without quotas reads all its extents, so the
/// disks are counted one at a time, and only if somebody asks.
const DISK_EVERY: Duration = Duration::from_secs(15);

/// All bays and the host, as of now or up to [`FRESH_FOR`] ago.
pub(super) async fn top(daemon: &Arc<Daemon>) -> Arc<Top> {
    let mut last = daemon.last_usage.last.lock().await;
    if let Some((at, top)) = &*last
        && at.elapsed() < FRESH_FOR
    {
        return Arc::clone(top);
    }
    count_disks(daemon);
    let host = host(daemon).await;
    let mut bays = Vec::new();
    let (at, monotonic_us) = (jiff::Timestamp::now(), monotonic_us());
    for handle in daemon.bays.list() {
        bays.push(use_of_bay(daemon, &handle).await);
        // Each is a few reads from the kernel. Other tasks get their turn in between.
        tokio::task::yield_now().await;
    }
    let top = Arc::new(Top { at, monotonic_us, host, bays });
    *last = Some((Instant::now(), Arc::clone(&top)));
    top
}

async fn use_of_bay(daemon: &Daemon, handle: &BayHandle) -> BayUse {
    let row = handle.row();
    let running = matches!(row.state, State::Running | State::Paused);
    let stats = match &row.runtime {
        Some(record) if running => handle.backend.stats(row.id, record).await,
        _ => bay_types::stats::BayStats::default(),
    };
    BayUse {
        id: row.id,
        name: row.name,
        state: row.state,
        limits: row.spec.limits,
        execs_running: handle.execs_open() as u64,
        stats,
        disk: daemon.last_usage.disks().of.get(&row.id).copied(),
    }
}

/// Counts the disks of the bays in the background, if the last count is too old.
fn count_disks(daemon: &Arc<Daemon>) {
    {
        let mut disks = daemon.last_usage.disks();
        let fresh = disks.counted_at.is_some_and(|at| at.elapsed() < DISK_EVERY);
        if disks.counting || fresh {
            return;
        }
        disks.counting = true;
    }
    let daemon = Arc::clone(daemon);
    tokio::spawn(async move {
        let mut counted = HashMap::new();
        let images = daemon.with_pool(bay_pool::Pool::image_list).await.unwrap_or_default();
        for handle in daemon.bays.list() {
            let row = handle.row();
            let shared = images.iter().find(|image| image.id == row.image_id).map_or(0, |image| image.bytes);
            let id = row.id;
            if row.disk_ready
                && let Ok(usage) = handle.with_files(move |files| files.usage(id)).await
            {
                let disk = DiskUse { own_bytes: usage.own_bytes, shared_bytes: shared };
                counted.insert(id, disk);
                // Shown as soon as it is known: the whole round may take a while.
                daemon.last_usage.disks().of.insert(id, disk);
            }
        }
        let mut disks = daemon.last_usage.disks();
        disks.of = counted;
        disks.counted_at = Some(Instant::now());
        disks.counting = false;
    });
}

async fn host(daemon: &Daemon) -> HostUse {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let memory = read("/proc/meminfo");
    let kib = |key: &str| {
        let line = memory.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        line.and_then(|line| line.split_ascii_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0)
    };
    let pressure = |what: &str| Pressure::parse(&read(&format!("/proc/pressure/{what}")));
    let pool = daemon.with_pool(bay_pool::Pool::usage).await.ok();
    HostUse {
        cpus: daemon.host.cpus,
        processors: ProcessorTime::parse(&read("/proc/stat")).unwrap_or_default(),
        memory_total_bytes: kib("MemTotal").saturating_mul(1024),
        memory_available_bytes: kib("MemAvailable").saturating_mul(1024),
        pressure: Pressures { cpu: pressure("cpu"), memory: pressure("memory"), io: pressure("io") },
        pool_total_bytes: pool.map(|pool| pool.total_bytes),
        pool_free_bytes: pool.map(|pool| pool.free_bytes),
    }
}

fn monotonic_us() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let (seconds, nanos) = (now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs());
    seconds.saturating_mul(1_000_000).saturating_add(nanos / 1000)
}
