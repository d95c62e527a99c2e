//! The table of execs. The environment of a command is not stored: it may hold secrets. A hash of the whole
//! specification is enough to tell a repeated request from a different one.

use bay_text::hex;
use bay_types::blame::Blame;
use bay_types::checkpoint::Point;
use bay_types::event::Field;
use bay_types::event::exec::ExecRevived;
use bay_types::exec::{ExecEnd, ExecSpec, ExecState, ExecView, Exit, LimitHit, Usage, duration_s};
use bay_types::output::OutputHash;
use bay_types::trace::ExecTrace;
use bay_types::usage::ExecCost;
use bay_types::{BayId, ExecId};
use jiff::Timestamp;
use sha2::{Digest, Sha256};
use sqlx::Row;
use sqlx::sqlite::SqliteRow;

use crate::column::{now, to_i64, to_u64};
use crate::draft::Draft;
use crate::error::{Result, StoreError};
use crate::store::Store;

/// An exec as the daemon stores it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecRow {
    pub id: ExecId,
    pub bay: BayId,
    pub number: u64,
    /// Without its environment.
    pub spec: ExecSpec,
    pub started_at: Timestamp,
    pub ended_at: Option<Timestamp>,
    pub exit: Option<Exit>,
    pub usage: Usage,
    pub output_bytes: u64,
    /// As the guest reported them at the end; `None` if no guest did.
    pub output_hashes: Option<Vec<OutputHash>>,
    pub limits_hit: Vec<LimitHit>,
    pub blame: Vec<Blame>,
    pub trace: Option<ExecTrace>,
}

impl ExecRow {
    /// Its duration, if it ended.
    #[must_use]
    pub fn duration_s(&self) -> Option<f64> {
        self.ended_at.map(|ended_at| duration_s(self.started_at, ended_at))
    }

    #[must_use]
    pub fn view(&self) -> ExecView {
        ExecView {
            id: self.id,
            bay: self.bay,
            number: self.number,
            state: ExecState::of(self.exit, self.ended_at),
            argv: self.spec.argv.clone(),
            cwd: self.spec.cwd.clone(),
            user: self.spec.user.clone(),
            tty: self.spec.tty.is_some(),
            tool_call: self.spec.tool_call.clone(),
            started_at: self.started_at,
            ended_at: self.ended_at,
            exit: self.exit,
            usage: self.usage,
            output_bytes: self.output_bytes,
            output_hashes: self.output_hashes.clone(),
            limits_hit: self.limits_hit.clone(),
            blame: self.blame.clone(),
            trace: self.trace,
            cost: ExecCost::of(&self.usage, self.duration_s()),
            files: None,
        }
    }
}

/// What the daemon found out about an exec when it ended.
#[derive(Debug, Clone, Copy, Default)]
pub struct Findings<'a> {
    pub limits_hit: &'a [LimitHit],
    pub blame: &'a [Blame],
}

/// The result of an insert.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Inserted {
    New(ExecRow),
    /// The request was repeated: this exec is stored already.
    Known(ExecRow),
}

impl Inserted {
    #[must_use]
    pub fn row(&self) -> &ExecRow {
        match self {
            Self::New(row) | Self::Known(row) => row,
        }
    }
}

macro_rules! columns {
    () => {
        "id, bay, number, spec, started_at, ended_at, exit, usage, output_bytes, trace, spec_hash, limits_hit, \
         output_hashes, blame"
    };
}

macro_rules! select {
    ($tail:literal) => {
        concat!("SELECT ", columns!(), " FROM execs ", $tail)
    };
}

fn column(e: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> StoreError {
    StoreError::column("execs", e)
}

fn row(row: &SqliteRow) -> Result<ExecRow> {
    fn get<'r, T>(row: &'r SqliteRow, at: usize) -> Result<T>
    where
        T: sqlx::Decode<'r, sqlx::Sqlite> + sqlx::Type<sqlx::Sqlite>,
    {
        row.try_get(at).map_err(column)
    }
    Ok(ExecRow {
        id: get::<&str>(row, 0)?.parse().map_err(column)?,
        bay: get::<&str>(row, 1)?.parse().map_err(column)?,
        number: to_u64(get(row, 2)?),
        spec: serde_json::from_str(get(row, 3)?).map_err(column)?,
        started_at: get::<&str>(row, 4)?.parse().map_err(column)?,
        ended_at: get::<Option<&str>>(row, 5)?.map(str::parse).transpose().map_err(column)?,
        exit: get::<Option<&str>>(row, 6)?.map(serde_json::from_str).transpose().map_err(column)?,
        usage: serde_json::from_str(get(row, 7)?).map_err(column)?,
        output_bytes: to_u64(get(row, 8)?),
        output_hashes: get::<Option<&str>>(row, 12)?.map(serde_json::from_str).transpose().map_err(column)?,
        limits_hit: serde_json::from_str(get(row, 11)?).map_err(column)?,
        blame: serde_json::from_str(get(row, 13)?).map_err(column)?,
        trace: get::<Option<&str>>(row, 9)?.map(serde_json::from_str).transpose().map_err(column)?,
    })
}

fn spec_hash(spec: &ExecSpec) -> Result<String> {
    let whole = serde_json::to_vec(spec).map_err(column)?;
    Ok(hex::encode(Sha256::digest(whole)))
}

impl Store {
    /// Adds an exec that is about to start, with its event, and gives it the bay's next number.
    ///
    /// # Errors
    /// [`StoreError::ExecConflict`] when the id belongs to another command, or when the database cannot be written.
    pub async fn exec_insert(
        &self,
        bay: BayId,
        spec: &ExecSpec,
        trace: Option<ExecTrace>,
        event: &Draft,
    ) -> Result<Inserted> {
        let failed = self.failed("recording an exec");
        let hash = spec_hash(spec)?;
        let mut kept = spec.clone();
        kept.env.clear();
        let kept_json = serde_json::to_string(&kept).map_err(column)?;
        let usage = serde_json::to_string(&Usage::default()).map_err(column)?;
        let started_at = now();

        let mut writer = self.writer().await;
        let mut transaction = writer.before_begin().await;
        let connection = transaction.connection();
        // If the id exists, the insert does nothing and returns no row.
        let inserted = sqlx::query(concat!(
            "BEGIN IMMEDIATE; ",
            "INSERT INTO execs (id, bay, number, spec, spec_hash, started_at, usage, output_bytes, trace) ",
            "VALUES ($1, $2, (SELECT COALESCE(MAX(number), 0) + 1 FROM execs WHERE bay = $2), $3, $4, $5, $6, 0, $7) ",
            "ON CONFLICT (bay, id) DO NOTHING RETURNING number"
        ))
        .bind(spec.id.to_string())
        .bind(bay.to_string())
        .bind(&kept_json)
        .bind(&hash)
        .bind(started_at.to_string())
        .bind(&usage)
        .bind(trace.as_ref().map(serde_json::to_string).transpose().map_err(column)?)
        .fetch_optional(&mut *connection)
        .await
        .map_err(&failed)?;
        let Some(inserted) = inserted else {
            let found = sqlx::query(select!("WHERE bay = $1 AND id = $2"))
                .bind(bay.to_string())
                .bind(spec.id.to_string())
                .fetch_one(&mut *connection)
                .await
                .map_err(&failed)?;
            let known = row(&found)?;
            let known_hash: String = found.try_get(10).map_err(column)?;
            if known_hash != hash {
                return Err(StoreError::ExecConflict(spec.id));
            }
            transaction.commit().await?;
            return Ok(Inserted::Known(known));
        };
        let number = to_u64(inserted.try_get(0).map_err(&failed)?);
        transaction.commit_with(Some(bay), &event.with("number", number)).await?;
        Ok(Inserted::New(ExecRow {
            id: spec.id,
            bay,
            number,
            spec: kept,
            started_at,
            ended_at: None,
            exit: None,
            usage: Usage::default(),
            output_bytes: 0,
            output_hashes: None,
            limits_hit: vec![],
            blame: vec![],
            trace,
        }))
    }

    /// Records how an open exec ended, and returns the changed row. If it ended already, nothing changes and this
    /// returns `None`.
    ///
    /// # Errors
    /// When the database cannot be written.
    pub async fn exec_end(
        &self,
        bay: BayId,
        id: ExecId,
        exit: Exit,
        end: Option<&ExecEnd>,
        found: Findings<'_>,
        event: &Draft,
    ) -> Result<Option<ExecRow>> {
        let failed = self.failed("recording the end of an exec");
        // A time in the future that a guest reports is not believed.
        let ended_at = end.map_or_else(now, |end| end.at.min(now()));
        let usage = end.map(|end| end.usage.bounded()).unwrap_or_default();
        let output = end.map_or(0, |end| end.output_bytes);
        let hashes = end.and_then(|end| end.output_hashes.as_ref()).map(serde_json::to_string);
        let mut writer = self.writer().await;
        let mut transaction = writer.begin().await?;
        let connection = transaction.connection();
        let changed = sqlx::query(concat!(
            "UPDATE execs SET ended_at = $3, exit = $4, usage = $5, output_bytes = $6, limits_hit = $7, output_hashes = $8, \
             blame = $9 ",
            "WHERE id = $1 AND bay = $2 AND ended_at IS NULL RETURNING ",
            columns!()
        ))
        .bind(id.to_string())
        .bind(bay.to_string())
        .bind(ended_at.to_string())
        .bind(serde_json::to_string(&exit).map_err(column)?)
        .bind(serde_json::to_string(&usage).map_err(column)?)
        .bind(to_i64(output))
        .bind(serde_json::to_string(found.limits_hit).map_err(column)?)
        .bind(hashes.transpose().map_err(column)?)
        .bind(serde_json::to_string(found.blame).map_err(column)?)
        .fetch_optional(&mut *connection)
        .await
        .map_err(&failed)?;
        let changed = changed.as_ref().map(row).transpose()?;
        match &changed {
            Some(row) => {
                // The event repeats these values, so that the record is complete when the row is deleted.
                let event = event
                    .with("number", row.number)
                    .with("tty", row.spec.tty.is_some())
                    .with("duration_s", row.duration_s());
                transaction.commit_with(Some(bay), &event).await?;
            }
            None => transaction.commit().await?,
        }
        Ok(changed)
    }

    /// Opens the execs again that ran at a checkpoint, because a restore runs them again. They are the bay's own,
    /// or for a fork copies of its parent's. Returns their ids.
    ///
    /// # Errors
    /// When the database cannot be written.
    pub async fn execs_revive(&self, bay: BayId, from: Point) -> Result<Vec<ExecId>> {
        let failed = self.failed("recording execs that run again");
        let mut writer = self.writer().await;
        let mut transaction = writer.begin().await?;
        let connection = transaction.connection();
        let listed: Option<String> =
            sqlx::query_scalar("SELECT open_execs FROM checkpoints WHERE bay = $1 AND number = $2")
                .bind(from.bay.to_string())
                .bind(i64::from(from.checkpoint.number()))
                .fetch_optional(&mut *connection)
                .await
                .map_err(&failed)?;
        let listed: Vec<ExecId> =
            listed.map(|text| serde_json::from_str(&text)).transpose().map_err(column)?.unwrap_or_default();
        let mut revived = Vec::new();
        for id in listed {
            // A fork has no row of this exec yet and gets a copy; a restored bay has one.
            let changed = sqlx::query(concat!(
                "INSERT INTO execs (id, bay, number, spec, spec_hash, started_at, usage, output_bytes, limits_hit, trace) ",
                "SELECT id, $3, number, spec, spec_hash, started_at, usage, 0, '[]', trace FROM execs ",
                "WHERE bay = $2 AND id = $1 ",
                "ON CONFLICT (bay, id) DO UPDATE SET ended_at = NULL, exit = NULL, output_hashes = NULL, \
                 blame = '[]' RETURNING id"
            ))
            .bind(id.to_string())
            .bind(from.bay.to_string())
            .bind(bay.to_string())
            .fetch_optional(&mut *connection)
            .await
            .map_err(&failed)?;
            revived.extend(changed.map(|_| id));
        }
        let execs = revived.iter().copied().map(Field::Is).collect();
        let event = Draft::of(ExecRevived { execs, from: from.into() });
        transaction.commit_with(Some(bay), &event).await?;
        Ok(revived)
    }

    /// Execs of a bay by number.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn exec_list(&self, bay: BayId) -> Result<Vec<ExecRow>> {
        let rows = sqlx::query(select!("WHERE bay = $1 ORDER BY number"))
            .bind(bay.to_string())
            .fetch_all(&self.inner.readers)
            .await
            .map_err(self.failed("listing execs"))?;
        rows.iter().map(row).collect()
    }

    /// Execs of a bay with no known end.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn exec_list_open(&self, bay: BayId) -> Result<Vec<ExecRow>> {
        let rows = sqlx::query(select!("WHERE bay = $1 AND ended_at IS NULL ORDER BY number"))
            .bind(bay.to_string())
            .fetch_all(&self.inner.readers)
            .await
            .map_err(self.failed("listing execs"))?;
        rows.iter().map(row).collect()
    }

    /// An exec of a bay by its id.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn exec_get(&self, bay: BayId, id: ExecId) -> Result<Option<ExecRow>> {
        sqlx::query(select!("WHERE bay = $1 AND id = $2"))
            .bind(bay.to_string())
            .bind(id.to_string())
            .fetch_optional(&self.inner.readers)
            .await
            .map_err(self.failed("reading an exec"))?
            .map(|found| row(&found))
            .transpose()
    }

    /// An exec of a bay by its number.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn exec_by_number(&self, bay: BayId, number: u64) -> Result<Option<ExecRow>> {
        sqlx::query(select!("WHERE bay = $1 AND number = $2"))
            .bind(bay.to_string())
            .bind(to_i64(number))
            .fetch_optional(&self.inner.readers)
            .await
            .map_err(self.failed("reading an exec"))?
            .map(|found| row(&found))
            .transpose()
    }

    /// Execs whose id ends with `suffix`, at most two: two are enough to see that the suffix is ambiguous. The
    /// caller has checked that the suffix consists of hexadecimal digits.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn exec_by_suffix(&self, bay: BayId, suffix: &str) -> Result<Vec<ExecRow>> {
        let rows = sqlx::query(select!("WHERE bay = $1 AND id LIKE $2 LIMIT 2"))
            .bind(bay.to_string())
            .bind(format!("%{suffix}"))
            .fetch_all(&self.inner.readers)
            .await
            .map_err(self.failed("reading an exec"))?;
        rows.iter().map(row).collect()
    }

    /// Deletes finished execs that are not among the newest `keep` numbers, and returns their ids, so that the
    /// caller can delete their output.
    ///
    /// # Errors
    /// When the database cannot be written.
    pub async fn exec_prune(&self, bay: BayId, keep: u32) -> Result<Vec<ExecId>> {
        let failed = self.failed("forgetting old execs");
        let mut writer = self.writer().await;
        let mut transaction = writer.begin().await?;
        let rows = sqlx::query(concat!(
            "DELETE FROM execs WHERE bay = $1 AND ended_at IS NOT NULL AND number <= ",
            "(SELECT MAX(number) - $2 FROM execs WHERE bay = $1) RETURNING id"
        ))
        .bind(bay.to_string())
        .bind(i64::from(keep))
        .fetch_all(transaction.connection())
        .await
        .map_err(&failed)?;
        transaction.commit().await?;
        rows.iter().map(|row| row.try_get::<&str, _>(0).map_err(column)?.parse().map_err(column)).collect()
    }
}
