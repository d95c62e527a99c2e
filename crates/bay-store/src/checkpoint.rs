//! The table of checkpoints. The daemon adds a row after all files of the checkpoint are on disk, and deletes it
//! before any of them, so that a listed checkpoint is complete.

use bay_types::checkpoint::{CheckpointKind, CheckpointView};
use bay_types::event::checkpoint::CheckpointAsked;
use bay_types::event::{Event, Recorded};
use bay_types::id::ParseIdError;
use bay_types::{BayId, CheckpointName, ExecId};
use jiff::Timestamp;
use sqlx::Row;
use sqlx::sqlite::SqliteRow;

use crate::bay::{BayRow, checkpoint_name};
use crate::column::{now, to_i64, to_u64};
use crate::draft::Draft;
use crate::error::{Result, StoreError};
use crate::event_row::event_row;
use crate::store::Store;

/// A checkpoint as the daemon stores it.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckpointRow {
    pub bay: BayId,
    pub name: CheckpointName,
    pub parent: Option<CheckpointName>,
    pub kind: CheckpointKind,
    pub message: Option<String>,
    pub by: String,
    /// Why the daemon made it, if nobody requested it.
    pub automatic: Option<String>,
    /// The newest exec at that time.
    pub after_exec: Option<ExecId>,
    pub created_at: Timestamp,
    pub pause_us: u64,
    pub without_memory: Vec<String>,
}

/// A checkpoint whose files are in place.
#[derive(Debug, Clone)]
pub struct CheckpointNew {
    pub bay: BayId,
    /// The bay's `next_checkpoint`.
    pub name: CheckpointName,
    pub kind: CheckpointKind,
    pub message: Option<String>,
    pub by: String,
    pub automatic: Option<String>,
    pub pause_us: u64,
    pub without_memory: Vec<String>,
}

impl CheckpointRow {
    /// `current` is the checkpoint that the bay's state descends from; `shown` says whether the bay can see this
    /// one.
    #[must_use]
    pub fn view(&self, current: Option<CheckpointName>, shown: bool) -> CheckpointView {
        #[allow(clippy::cast_precision_loss, reason = "a pause is far below what a float holds")]
        let pause_ms = self.pause_us as f64 / 1000.0;
        CheckpointView {
            name: self.name,
            parent: self.parent,
            kind: self.kind,
            pause_ms,
            created_at: self.created_at,
            message: self.message.clone(),
            by: self.by.clone(),
            automatic: self.automatic.clone(),
            after_exec: self.after_exec,
            current: current == Some(self.name),
            shown_inside: shown,
            // Only the pool knows what is on disk.
            memory_bytes: None,
            without_memory: self.without_memory.clone(),
        }
    }
}

fn row(row: &SqliteRow) -> Result<CheckpointRow> {
    fn column<E: std::error::Error + Send + Sync + 'static>(e: E) -> StoreError {
        StoreError::column("checkpoints", e)
    }
    fn get<'r, T>(row: &'r SqliteRow, index: usize) -> Result<T>
    where
        T: sqlx::Decode<'r, sqlx::Sqlite> + sqlx::Type<sqlx::Sqlite>,
    {
        row.try_get(index).map_err(column)
    }
    Ok(CheckpointRow {
        bay: get::<&str>(row, 0)?.parse().map_err(column::<ParseIdError>)?,
        name: checkpoint_name(get(row, 1)?)?,
        parent: get::<Option<i64>>(row, 2)?.map(checkpoint_name).transpose()?,
        kind: get::<&str>(row, 3)?.parse().map_err(column::<ParseIdError>)?,
        message: get(row, 4)?,
        by: get(row, 5)?,
        automatic: get(row, 6)?,
        after_exec: get::<Option<&str>>(row, 7)?
            .map(str::parse)
            .transpose()
            .map_err(column::<ParseIdError>)?,
        created_at: get::<&str>(row, 8)?.parse().map_err(column::<jiff::Error>)?,
        pause_us: to_u64(get(row, 9)?),
        without_memory: serde_json::from_str(get(row, 10)?).map_err(column)?,
    })
}

const SELECT: &str = "SELECT bay, number, parent, kind, message, author, automatic, after_exec, created_at, pause_us, \
                      without_memory FROM checkpoints WHERE bay = $1 ORDER BY number";

/// The subquery must repeat the condition of the index `events_checkpoints`.
pub(crate) const UNFINISHED: &str = concat!(
    "SELECT seq, at, bay, kind, body, hash FROM events WHERE kind = $1 AND seq IN (SELECT (SELECT MAX(seq) FROM events ",
    "WHERE bay = bays.id AND kind IN ('checkpoint.asked', 'checkpoint.made', 'checkpoint.failed')) FROM bays) ",
    "ORDER BY seq"
);

impl Store {
    /// Adds a complete checkpoint. The bay's state descends from it from now on.
    ///
    /// # Errors
    /// [`StoreError::BayUnknown`], or when the database cannot be written.
    pub async fn checkpoint_add(
        &self,
        new: CheckpointNew,
        event: impl FnOnce(&CheckpointRow) -> Draft,
    ) -> Result<(CheckpointRow, BayRow)> {
        let failed = self.failed("recording a checkpoint");
        let mut writer = self.writer().await;
        let mut transaction = writer.begin().await?;
        let connection = transaction.connection();
        let mut parent = None;
        let bay = self
            .bay_change(connection, new.bay, |bay| {
                parent = bay.checkpoint;
                bay.checkpoint = Some(new.name);
                bay.next_checkpoint = new.name.next();
            })
            .await?;
        let after_exec: Option<String> =
            sqlx::query_scalar("SELECT id FROM execs WHERE bay = $1 ORDER BY number DESC LIMIT 1")
                .bind(new.bay.to_string())
                .fetch_optional(&mut *connection)
                .await
                .map_err(&failed)?;
        let open: Vec<String> =
            sqlx::query_scalar("SELECT id FROM execs WHERE bay = $1 AND ended_at IS NULL ORDER BY number")
                .bind(new.bay.to_string())
                .fetch_all(&mut *connection)
                .await
                .map_err(&failed)?;
        let made = CheckpointRow {
            bay: new.bay,
            name: new.name,
            parent,
            kind: new.kind,
            message: new.message,
            by: new.by,
            automatic: new.automatic,
            after_exec: after_exec.and_then(|id| id.parse().ok()),
            created_at: now(),
            pause_us: new.pause_us,
            without_memory: new.without_memory,
        };
        sqlx::query(concat!(
            "INSERT INTO checkpoints (bay, number, parent, kind, message, author, automatic, after_exec, created_at, ",
            "pause_us, without_memory, open_execs) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)"
        ))
        .bind(made.bay.to_string())
        .bind(i64::from(made.name.number()))
        .bind(made.parent.map(|parent| i64::from(parent.number())))
        .bind(made.kind.as_str())
        .bind(&made.message)
        .bind(&made.by)
        .bind(&made.automatic)
        .bind(made.after_exec.map(|id| id.to_string()))
        .bind(made.created_at.to_string())
        .bind(to_i64(made.pause_us))
        .bind(serde_json::to_string(&made.without_memory).unwrap_or_else(|_| "[]".to_owned()))
        .bind(serde_json::to_string(&open).unwrap_or_else(|_| "[]".to_owned()))
        .execute(&mut *connection)
        .await
        .map_err(&failed)?;
        transaction.commit_with(Some(made.bay), &event(&made)).await?;
        Ok((made, bay))
    }

    /// The checkpoints of a bay, oldest first.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn checkpoint_list(&self, bay: BayId) -> Result<Vec<CheckpointRow>> {
        let rows = sqlx::query(SELECT)
            .bind(bay.to_string())
            .fetch_all(&self.inner.readers)
            .await
            .map_err(self.failed("listing checkpoints"))?;
        rows.iter().map(row).collect()
    }

    /// The newest `checkpoint.asked` of each bay whose newest checkpoint neither succeeded nor failed in the record.
    /// Only a daemon that just started may take them for cut short.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn checkpoints_unfinished(&self) -> Result<Vec<Event>> {
        let failed = self.failed("reading unfinished checkpoints");
        let rows = sqlx::query(UNFINISHED)
            .bind(CheckpointAsked::KIND)
            .fetch_all(&self.inner.readers)
            .await
            .map_err(&failed)?;
        rows.iter().map(|row| event_row(row).map_err(&failed)?.event()).collect()
    }

    /// Deletes a checkpoint. Its descendants then descend from its parent.
    ///
    /// # Errors
    /// When the database cannot be written.
    pub async fn checkpoint_remove(&self, bay: BayId, name: CheckpointName, event: &Draft) -> Result<BayRow> {
        let failed = self.failed("forgetting a checkpoint");
        let mut writer = self.writer().await;
        let mut transaction = writer.begin().await?;
        let connection = transaction.connection();
        let number = i64::from(name.number());
        let parent: Option<i64> =
            sqlx::query_scalar("SELECT parent FROM checkpoints WHERE bay = $1 AND number = $2")
                .bind(bay.to_string())
                .bind(number)
                .fetch_optional(&mut *connection)
                .await
                .map_err(&failed)?
                .flatten();
        let parent_name = parent.map(checkpoint_name).transpose()?;
        sqlx::query("UPDATE checkpoints SET parent = $3 WHERE bay = $1 AND parent = $2")
            .bind(bay.to_string())
            .bind(number)
            .bind(parent)
            .execute(&mut *connection)
            .await
            .map_err(&failed)?;
        sqlx::query("DELETE FROM checkpoints WHERE bay = $1 AND number = $2")
            .bind(bay.to_string())
            .bind(number)
            .execute(&mut *connection)
            .await
            .map_err(&failed)?;
        let row = self
            .bay_change(connection, bay, |row| {
                if row.checkpoint == Some(name) {
                    row.checkpoint = parent_name;
                }
            })
            .await?;
        transaction.commit_with(Some(bay), event).await?;
        Ok(row)
    }
}
