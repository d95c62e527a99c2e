//! What bays cost: one task looks at every running bay's groups every few seconds, from the host's side.
//!
//! Processor time is a counter that the kernel keeps for as long as a runtime lives: differences are added up, and the
//! last value is stored beside the sum, so that a daemon that was away loses none. Memory and disk have no such counter:
//! they are summed up from look to look, and are not counted while nobody looks.
//!
//! A look is about ten reads of small files. For 100 bays that is some 10 ms every [`LOOK_EVERY`].

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bay_store::CostRow;
use bay_types::BayId;
use bay_types::stats::{BayCost, BayStats};
use bay_types::usage::{gib_seconds, seconds};
use jiff::Timestamp;
use tokio::time::Instant;

use crate::daemon::Daemon;
use crate::registry::BayHandle;

const LOOK_EVERY: Duration = Duration::from_secs(5);
/// How often sums go to the store. A daemon that is killed loses at most this much of memory and disk.
const SAVE_EVERY: Duration = Duration::from_secs(60);
/// How old a bay's disk usage may be.
const DISK_EVERY: Duration = Duration::from_secs(60);
/// Counting a disk without quotas reads its extents. After each count the counter rests for this many times as long as
/// it took: never more than a hundredth of one processor.
const DISK_REST: u32 = 100;

/// Accounts of all bays.
#[derive(Debug, Default)]
pub(crate) struct Costs {
    accounts: Mutex<HashMap<BayId, Account>>,
}

#[derive(Debug)]
struct Account {
    row: CostRow,
    /// What the store has.
    saved: Option<CostRow>,
    /// Memory at the last look at the runtime that runs now.
    memory: Option<(Instant, u64)>,
    disk_looked: Option<Instant>,
    stats: Option<BayStats>,
}

impl Account {
    fn new(bay: BayId, since: Timestamp) -> Self {
        let row = CostRow {
            bay,
            cpu_us: 0,
            memory_gib_s: 0.0,
            disk_gib_s: 0.0,
            disk_bytes: None,
            since,
            runtime: None,
            runtime_cpu_us: 0,
        };
        Self { row, saved: None, memory: None, disk_looked: None, stats: None }
    }

    fn looked(&mut self, runtime: &str, stats: BayStats, now: Instant) {
        let row = &mut self.row;
        if row.runtime.as_deref() != Some(runtime) {
            row.runtime = Some(runtime.to_owned());
            row.runtime_cpu_us = 0;
            self.memory = None;
        }
        if let Some(cpu_us) = stats.cpu_us {
            row.cpu_us = row.cpu_us.saturating_add(cpu_us.saturating_sub(row.runtime_cpu_us));
            row.runtime_cpu_us = cpu_us;
        }
        if let Some(bytes) = stats.memory_bytes {
            if let Some((at, before)) = self.memory {
                let between = before / 2 + bytes / 2;
                row.memory_gib_s += gib_seconds(between, now.duration_since(at).as_secs_f64());
            }
            self.memory = Some((now, bytes));
        }
        self.stats = Some(stats);
    }

    fn disk_looked(&mut self, bytes: u64, now: Instant) {
        if let (Some(at), Some(before)) = (self.disk_looked, self.row.disk_bytes) {
            self.row.disk_gib_s += gib_seconds(before, now.duration_since(at).as_secs_f64());
        }
        self.row.disk_bytes = Some(bytes);
        self.disk_looked = Some(now);
    }

    fn cost(&self) -> BayCost {
        BayCost {
            core_s: seconds(self.row.cpu_us),
            memory_gib_s: self.row.memory_gib_s,
            disk_gib_s: self.row.disk_gib_s,
            disk_bytes: self.row.disk_bytes,
            since: self.row.since,
        }
    }
}

impl Costs {
    fn accounts(&self) -> MutexGuard<'_, HashMap<BayId, Account>> {
        self.accounts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, bay: BayId, since: Timestamp, work: impl FnOnce(&mut Account) -> T) -> T {
        work(self.accounts().entry(bay).or_insert_with(|| Account::new(bay, since)))
    }

    /// Takes over what an earlier daemon wrote down.
    pub(crate) fn restore(&self, rows: Vec<CostRow>) {
        let mut accounts = self.accounts();
        for row in rows {
            let account = Account::new(row.bay, row.since);
            accounts.insert(row.bay, Account { saved: Some(row.clone()), row, ..account });
        }
    }

    pub(crate) fn cost(&self, bay: BayId, since: Timestamp) -> BayCost {
        self.accounts().get(&bay).map_or_else(|| Account::new(bay, since).cost(), Account::cost)
    }

    /// What the bay used at the last look, while it runs.
    pub(crate) fn stats(&self, bay: BayId) -> Option<BayStats> {
        self.accounts().get(&bay)?.stats
    }

    pub(crate) fn forget(&self, bay: BayId) {
        self.accounts().remove(&bay);
    }

    fn unsaved(&self) -> Vec<CostRow> {
        let changed = |account: &&Account| account.saved.as_ref() != Some(&account.row);
        self.accounts().values().filter(changed).map(|account| account.row.clone()).collect()
    }

    fn saved(&self, rows: Vec<CostRow>) {
        let mut accounts = self.accounts();
        for row in rows {
            if let Some(account) = accounts.get_mut(&row.bay) {
                account.saved = Some(row);
            }
        }
    }
}

/// Looks at one bay now.
pub(crate) async fn look(daemon: &Daemon, handle: &BayHandle) {
    let row = handle.row();
    let costs = &daemon.telemetry.costs;
    match &row.runtime {
        // Nobody can measure it here; what was counted stays.
        Some(_) if handle.driver_missing.is_some() => {}
        Some(record) => {
            let stats = handle.backend.stats(row.id, record).await;
            let runtime = handle.backend.facts(record).identity;
            costs.with(row.id, row.created_at, |account| account.looked(&runtime, stats, Instant::now()));
        }
        None => costs.with(row.id, row.created_at, |account| {
            (account.memory, account.stats) = (None, None);
        }),
    }
}

/// The last look at a runtime that is about to be cleared: its counters go with it.
pub(crate) async fn close(daemon: &Daemon, handle: &BayHandle) {
    if handle.row().runtime.is_none() {
        return;
    }
    look(daemon, handle).await;
    daemon.telemetry.costs.with(handle.id, handle.row().created_at, |account| {
        (account.memory, account.stats) = (None, None);
    });
    save(daemon).await;
}

/// Writes down what changed.
pub(crate) async fn save(daemon: &Daemon) {
    let costs = &daemon.telemetry.costs;
    let rows = costs.unsaved();
    if rows.is_empty() {
        return;
    }
    match daemon.store.cost_save(&rows).await {
        Ok(()) => costs.saved(rows),
        Err(error) => tracing::warn!(%error, "what bays cost could not be written down"),
    }
}

/// Looks at all bays for ever.
pub(crate) async fn watch(daemon: Arc<Daemon>) {
    let mut saved = Instant::now();
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        for handle in daemon.bays.list() {
            look(&daemon, &handle).await;
            // The reads do not wait for anything, so others would have to.
            tokio::task::yield_now().await;
        }
        let known: HashSet<BayId> = daemon.bays.list().iter().map(|handle| handle.id).collect();
        daemon.telemetry.costs.accounts().retain(|bay, _| known.contains(bay));
        if saved.elapsed() >= SAVE_EVERY {
            saved = Instant::now();
            save(&daemon).await;
        }
    }
}

/// Looks at the disks of all bays for ever, one at a time.
pub(crate) async fn watch_disks(daemon: Arc<Daemon>) {
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        for handle in daemon.bays.list() {
            let row = handle.row();
            let costs = &daemon.telemetry.costs;
            let fresh = |account: &mut Account| {
                account.disk_looked.is_some_and(|looked| looked.elapsed() < DISK_EVERY)
            };
            if !row.disk_ready || costs.with(row.id, row.created_at, fresh) {
                continue;
            }
            let began = Instant::now();
            let id = row.id;
            match daemon.with_pool(move |pool| pool.bay_usage(id)).await {
                Ok(usage) => costs.with(row.id, row.created_at, |account| {
                    account.disk_looked(usage.own_bytes, Instant::now());
                }),
                // It may be going at this moment.
                Err(error) => {
                    tracing::debug!(bay = %row.name, message = %error.message, "a disk was not counted");
                }
            }
            tokio::time::sleep(began.elapsed() * DISK_REST).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats(cpu_us: u64, memory_bytes: u64) -> BayStats {
        BayStats { cpu_us: Some(cpu_us), memory_bytes: Some(memory_bytes), ..BayStats::default() }
    }

    #[test]
    fn processor_time_adds_up_over_runtimes_and_daemons() {
        let now = Instant::now();
        let mut account = Account::new(BayId::generate(), Timestamp::UNIX_EPOCH);
        account.looked("a", stats(5, 0), now);
        account.looked("a", stats(8, 0), now);
        assert_eq!(account.row.cpu_us, 8);
        account.looked("b", stats(3, 0), now);
        assert_eq!(account.row.cpu_us, 11);
        // A later daemon goes on where the counter was left.
        let costs = Costs::default();
        let bay = account.row.bay;
        costs.restore(vec![account.row]);
        costs.with(bay, Timestamp::now(), |account| account.looked("b", stats(10, 0), now));
        assert!((costs.cost(bay, Timestamp::now()).core_s - 18e-6).abs() < 1e-9);
        assert_eq!(costs.cost(bay, Timestamp::now()).since, Timestamp::UNIX_EPOCH);
    }

    #[test]
    fn memory_is_summed_up_between_looks_and_not_across_runtimes() {
        let gib = 1 << 30;
        let start = Instant::now();
        let mut account = Account::new(BayId::generate(), Timestamp::UNIX_EPOCH);
        account.looked("a", stats(0, gib), start);
        account.looked("a", stats(0, 3 * gib), start + Duration::from_secs(10));
        assert!((account.row.memory_gib_s - 20.0).abs() < 1e-6);
        account.looked("b", stats(0, gib), start + Duration::from_secs(1000));
        assert!((account.row.memory_gib_s - 20.0).abs() < 1e-6);
    }

    #[test]
    fn disk_is_summed_up_from_what_was_held() {
        let start = Instant::now();
        let mut account = Account::new(BayId::generate(), Timestamp::UNIX_EPOCH);
        account.disk_looked(1 << 30, start);
        account.disk_looked(1 << 20, start + Duration::from_secs(4));
        assert!((account.cost().disk_gib_s - 4.0).abs() < 1e-6);
        assert_eq!(account.cost().disk_bytes, Some(1 << 20));
    }

    #[test]
    fn only_what_changed_is_written_down() {
        let costs = Costs::default();
        let bay = BayId::generate();
        costs.with(bay, Timestamp::now(), |account| account.looked("a", stats(1, 1), Instant::now()));
        let rows = costs.unsaved();
        assert_eq!(rows.len(), 1);
        costs.saved(rows);
        assert_eq!(costs.unsaved(), []);
    }
}
