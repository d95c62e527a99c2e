//! The accumulated usage of bays. The daemon keeps the sums in memory and saves them here from time to time. Each
//! row also has the last value of the kernel's CPU counter of the runtime, so that the daemon can later add what
//! the bay used while no daemon ran.

use bay_types::BayId;
use jiff::Timestamp;
use sqlx::Row;

use crate::column::{to_i64, to_u64};
use crate::error::{Result, StoreError};
use crate::store::Store;

/// The accumulated usage of one bay.
#[derive(Debug, Clone, PartialEq)]
pub struct CostRow {
    pub bay: BayId,
    /// Over all runtimes.
    pub cpu_us: u64,
    pub memory_gib_s: f64,
    pub disk_gib_s: f64,
    pub disk_bytes: Option<u64>,
    pub since: Timestamp,
    /// The runtime whose CPU counter was read last, with its value in `runtime_cpu_us`.
    pub runtime: Option<String>,
    pub runtime_cpu_us: u64,
}

fn column(e: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> StoreError {
    StoreError::column("costs", e)
}

impl Store {
    /// # Errors
    /// When the database cannot be read.
    pub async fn cost_list(&self) -> Result<Vec<CostRow>> {
        let rows = sqlx::query(concat!(
            "SELECT bay, cpu_us, memory_gib_s, disk_gib_s, disk_bytes, since, runtime, runtime_cpu_us FROM costs ",
            "ORDER BY bay"
        ))
        .fetch_all(&self.inner.readers)
        .await
        .map_err(self.failed("reading what bays cost"))?;
        rows.iter()
            .map(|row| {
                Ok(CostRow {
                    bay: row.try_get::<&str, _>(0).map_err(column)?.parse().map_err(column)?,
                    cpu_us: to_u64(row.try_get(1).map_err(column)?),
                    memory_gib_s: row.try_get(2).map_err(column)?,
                    disk_gib_s: row.try_get(3).map_err(column)?,
                    disk_bytes: row.try_get::<Option<i64>, _>(4).map_err(column)?.map(to_u64),
                    since: row.try_get::<&str, _>(5).map_err(column)?.parse().map_err(column)?,
                    runtime: row.try_get(6).map_err(column)?,
                    runtime_cpu_us: to_u64(row.try_get(7).map_err(column)?),
                })
            })
            .collect()
    }

    /// Saves accounts, all in one transaction. An account of a deleted bay is skipped.
    ///
    /// # Errors
    /// When the database cannot be written.
    pub async fn cost_save(&self, accounts: &[CostRow]) -> Result<()> {
        let failed = self.failed("writing down what bays cost");
        let mut writer = self.writer().await;
        let mut transaction = writer.begin().await?;
        for account in accounts {
            sqlx::query(concat!(
                "INSERT INTO costs (bay, cpu_us, memory_gib_s, disk_gib_s, disk_bytes, since, runtime, runtime_cpu_us) ",
                "SELECT $1, $2, $3, $4, $5, $6, $7, $8 WHERE EXISTS (SELECT 1 FROM bays WHERE id = $1) ",
                "ON CONFLICT (bay) DO UPDATE SET cpu_us = excluded.cpu_us, memory_gib_s = excluded.memory_gib_s, ",
                "disk_gib_s = excluded.disk_gib_s, disk_bytes = excluded.disk_bytes, runtime = excluded.runtime, ",
                "runtime_cpu_us = excluded.runtime_cpu_us"
            ))
            .bind(account.bay.to_string())
            .bind(to_i64(account.cpu_us))
            .bind(account.memory_gib_s)
            .bind(account.disk_gib_s)
            .bind(account.disk_bytes.map(to_i64))
            .bind(account.since.to_string())
            .bind(&account.runtime)
            .bind(to_i64(account.runtime_cpu_us))
            .execute(transaction.connection())
            .await
            .map_err(&failed)?;
        }
        transaction.commit().await
    }
}
