//! The costs of bays, added up from measurement to measurement.
//!
//! Processor time is a counter of the kernel for the life of a runtime. The daemon adds up differences and stores
//! the last value beside the sum. So what a runtime uses while no daemon runs is added later, if the kernel still
//! has its counter then. Memory and disk have no such counter: they are summed up between measurements, and do not
//! count while no daemon runs.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bay_store::CostRow;
use bay_types::BayId;
use bay_types::stats::{BayCost, BayStats};
use bay_types::usage::{gib_seconds, seconds};
use jiff::Timestamp;
use tokio::time::Instant;

/// The accounts of all bays.
#[derive(Debug, Default)]
pub(crate) struct Costs {
    accounts: Mutex<HashMap<BayId, Account>>,
}

#[derive(Debug)]
struct Account {
    row: CostRow,
    /// The account as the store has it.
    saved: Option<CostRow>,
    /// The memory of the present runtime when it was last measured.
    memory: Option<(Instant, u64)>,
    disk_measured: Option<Instant>,
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
        Self { row, saved: None, memory: None, disk_measured: None, stats: None }
    }

    fn measured(&mut self, runtime: &str, stats: BayStats, now: Instant) {
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

    fn disk_measured(&mut self, bytes: u64, now: Instant) {
        if let (Some(at), Some(before)) = (self.disk_measured, self.row.disk_bytes) {
            self.row.disk_gib_s += gib_seconds(before, now.duration_since(at).as_secs_f64());
        }
        self.row.disk_bytes = Some(bytes);
        self.disk_measured = Some(now);
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

    /// Takes over what an earlier daemon stored.
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

    /// What a running bay used when it was last measured.
    pub(crate) fn stats(&self, bay: BayId) -> Option<BayStats> {
        self.accounts().get(&bay)?.stats
    }

    pub(crate) fn forget(&self, bay: BayId) {
        self.accounts().remove(&bay);
    }

    /// Adds what a bay's runtime used until now. Without a runtime nothing is used. `runtime` distinguishes one
    /// runtime of a bay from the next.
    pub(crate) fn measured(&self, bay: BayId, since: Timestamp, runtime: Option<(&str, BayStats)>) {
        self.with(bay, since, |account| match runtime {
            Some((identity, stats)) => account.measured(identity, stats, Instant::now()),
            None => (account.memory, account.stats) = (None, None),
        });
    }

    /// Whether a bay's disk was measured within this time.
    pub(crate) fn disk_is_fresh(&self, bay: BayId, since: Timestamp, within: Duration) -> bool {
        self.with(bay, since, |account| {
            account.disk_measured.is_some_and(|measured| measured.elapsed() < within)
        })
    }

    pub(crate) fn disk_measured(&self, bay: BayId, since: Timestamp, bytes: u64) {
        self.with(bay, since, |account| account.disk_measured(bytes, Instant::now()));
    }

    /// Forgets all bays but these.
    pub(crate) fn keep_only(&self, known: &HashSet<BayId>) {
        self.accounts().retain(|bay, _| known.contains(bay));
    }

    /// The accounts that changed since they were stored.
    pub(crate) fn unsaved(&self) -> Vec<CostRow> {
        let changed = |account: &&Account| account.saved.as_ref() != Some(&account.row);
        self.accounts().values().filter(changed).map(|account| account.row.clone()).collect()
    }

    /// Notes that the store has these accounts.
    pub(crate) fn saved(&self, rows: Vec<CostRow>) {
        let mut accounts = self.accounts();
        for row in rows {
            if let Some(account) = accounts.get_mut(&row.bay) {
                account.saved = Some(row);
            }
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
        account.measured("a", stats(5, 0), now);
        account.measured("a", stats(8, 0), now);
        assert_eq!(account.row.cpu_us, 8);
        account.measured("b", stats(3, 0), now);
        assert_eq!(account.row.cpu_us, 11);
        // A later daemon continues from the stored counter.
        let costs = Costs::default();
        let bay = account.row.bay;
        costs.restore(vec![account.row]);
        costs.with(bay, Timestamp::now(), |account| account.measured("b", stats(10, 0), now));
        assert!((costs.cost(bay, Timestamp::now()).core_s - 18e-6).abs() < 1e-9);
        assert_eq!(costs.cost(bay, Timestamp::now()).since, Timestamp::UNIX_EPOCH);
    }

    #[test]
    fn memory_is_summed_up_between_looks_and_not_across_runtimes() {
        let gib = 1 << 30;
        let start = Instant::now();
        let mut account = Account::new(BayId::generate(), Timestamp::UNIX_EPOCH);
        account.measured("a", stats(0, gib), start);
        account.measured("a", stats(0, 3 * gib), start + Duration::from_secs(10));
        assert!((account.row.memory_gib_s - 20.0).abs() < 1e-6);
        account.measured("b", stats(0, gib), start + Duration::from_secs(1000));
        assert!((account.row.memory_gib_s - 20.0).abs() < 1e-6);
    }

    #[test]
    fn disk_is_summed_up_from_what_was_held() {
        let start = Instant::now();
        let mut account = Account::new(BayId::generate(), Timestamp::UNIX_EPOCH);
        account.disk_measured(1 << 30, start);
        account.disk_measured(1 << 20, start + Duration::from_secs(4));
        assert!((account.cost().disk_gib_s - 4.0).abs() < 1e-6);
        assert_eq!(account.cost().disk_bytes, Some(1 << 20));
    }

    #[test]
    fn only_what_changed_is_written_down() {
        let costs = Costs::default();
        let bay = BayId::generate();
        costs.with(bay, Timestamp::now(), |account| account.measured("a", stats(1, 1), Instant::now()));
        let rows = costs.unsaved();
        assert_eq!(rows.len(), 1);
        costs.saved(rows);
        assert_eq!(costs.unsaved(), []);
    }
}
