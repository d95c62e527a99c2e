//! The table of bays.

use std::collections::HashSet;

use bay_text::hex;
use bay_types::backend::BackendName;
use bay_types::bay::{BayCreate, Desired, Lineage, Origin, State};
use bay_types::checkpoint::Point;
use bay_types::environment::Environment;
use bay_types::runtime::RuntimeHandle;
use bay_types::settings::Settings;
use bay_types::{BayId, BayName, CheckpointName, ImageId};
use jiff::Timestamp;
use sqlx::Row;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use crate::column::now;
use crate::draft::Draft;
use crate::error::{Result, StoreError};
use crate::policy::{self, PolicyNew, Scope};
use crate::store::{Store, random_bytes};
use crate::{approval, id_ranges, meta};

const ID_CURSOR: &str = "id_cursor";
/// The numbers below this are tried as suffixes of a name, from 2 on.
const MAX_NAME_SUFFIX: u32 = 9999;

/// A bay as the daemon stores it.
#[derive(Debug, Clone, PartialEq)]
pub struct BayRow {
    pub id: BayId,
    pub name: BayName,
    /// The request that made it, with the settings in force.
    pub spec: BayCreate,
    pub desired: Desired,
    pub state: State,
    pub reason: String,
    /// Since when it is in `state`.
    pub since: Timestamp,
    pub created_at: Timestamp,
    pub image_id: ImageId,
    pub origin: Option<Origin>,
    /// First host id of the bay's range.
    pub id_base: u32,
    /// 32 hexadecimal digits, the same for the bay's whole life.
    pub machine_id: String,
    /// The driver that runs it, for its whole life.
    pub backend: BackendName,
    /// The backend's handle of the runtime, while the daemon believes that one runs.
    pub runtime: Option<RuntimeHandle>,
    /// The pool holds the bay's subvolumes. Until then the bay has no data to lose.
    pub disk_ready: bool,
    /// The next start makes the root filesystem anew from this image.
    pub replace_with: Option<ImageId>,
    /// The deletion was requested with the workspace kept.
    pub keep_workspace: bool,
    /// Requested settings that are not applied yet.
    pub settings_wanted: Option<Settings>,
    /// Why the daemon stops the bay, if no caller requested it.
    pub stop_why: Option<String>,
    /// The checkpoint that the bay's present state descends from.
    pub checkpoint: Option<CheckpointName>,
    /// The name of the next checkpoint.
    pub next_checkpoint: CheckpointName,
    /// The checkpoint of another bay that this bay began as.
    pub forked_from: Option<Lineage>,
    /// The checkpoint of another bay whose root filesystem it began with.
    pub environment: Option<Environment>,
    /// The checkpoint to restore the files from.
    pub restore_wanted: Option<Point>,
    /// The next start restores the processes of this checkpoint.
    pub thaw_from: Option<Point>,
}

/// How a new bay gets its name.
#[derive(Debug, Clone)]
pub enum NameChoice {
    /// This name, or the creation fails.
    Exact(BayName),
    /// This name, or this name with the first free number appended. Fails if all numbers are taken.
    Derived(BayName),
}

/// A bay to be made.
#[derive(Debug, Clone)]
pub struct BayNew {
    pub name: NameChoice,
    pub spec: BayCreate,
    pub image_id: ImageId,
    pub origin: Option<Origin>,
    pub forked_from: Option<Lineage>,
    pub environment: Option<Environment>,
    pub backend: BackendName,
    /// Its egress policy. A fork without one inherits its parent's.
    pub policy: Option<PolicyNew>,
    pub reason: String,
}

macro_rules! select {
    ($tail:literal) => {
        concat!(
            "SELECT id, name, spec, desired, state, reason, since, created_at, image_id, origin, id_base, ",
            "machine_id, runtime, disk_ready, replace_with, keep_workspace, settings_wanted, stop_why, checkpoint, ",
            "next_checkpoint, forked_from, restore_wanted, thaw_from, backend, environment FROM bays ",
            $tail
        )
    };
}

fn parse<T>(text: &str) -> Result<T>
where
    T: std::str::FromStr,
    T::Err: std::error::Error + Send + Sync + 'static,
{
    text.parse().map_err(|e| StoreError::column("bays", e))
}

fn from_json<T: serde::de::DeserializeOwned>(text: &str) -> Result<T> {
    serde_json::from_str(text).map_err(|e| StoreError::column("bays", e))
}

fn to_json<T: serde::Serialize>(value: &T) -> Result<String> {
    serde_json::to_string(value).map_err(|e| StoreError::column("bays", e))
}

pub(crate) fn checkpoint_name(number: i64) -> Result<CheckpointName> {
    let name = u32::try_from(number).ok().and_then(CheckpointName::new);
    name.ok_or_else(|| {
        StoreError::column("bays", std::io::Error::other("a checkpoint's number is out of range"))
    })
}

fn row(row: &SqliteRow) -> Result<BayRow> {
    fn get<'r, T>(row: &'r SqliteRow, column: usize) -> Result<T>
    where
        T: sqlx::Decode<'r, sqlx::Sqlite> + sqlx::Type<sqlx::Sqlite>,
    {
        row.try_get(column).map_err(|e| StoreError::column("bays", e))
    }
    Ok(BayRow {
        id: parse(get(row, 0)?)?,
        name: parse(get(row, 1)?)?,
        spec: from_json(get(row, 2)?)?,
        desired: parse(get(row, 3)?)?,
        state: parse(get(row, 4)?)?,
        reason: get(row, 5)?,
        since: parse(get(row, 6)?)?,
        created_at: parse(get(row, 7)?)?,
        image_id: parse(get(row, 8)?)?,
        origin: get::<Option<&str>>(row, 9)?.map(from_json).transpose()?,
        id_base: u32::try_from(get::<i64>(row, 10)?).map_err(|e| StoreError::column("bays", e))?,
        machine_id: get(row, 11)?,
        runtime: get::<Option<&str>>(row, 12)?.map(from_json).transpose()?,
        disk_ready: get::<i64>(row, 13)? != 0,
        replace_with: get::<Option<&str>>(row, 14)?.map(parse).transpose()?,
        keep_workspace: get::<i64>(row, 15)? != 0,
        settings_wanted: get::<Option<&str>>(row, 16)?.map(from_json).transpose()?,
        stop_why: get(row, 17)?,
        checkpoint: get::<Option<i64>>(row, 18)?.map(checkpoint_name).transpose()?,
        next_checkpoint: checkpoint_name(get(row, 19)?)?,
        forked_from: get::<Option<&str>>(row, 20)?.map(from_json).transpose()?,
        restore_wanted: get::<Option<&str>>(row, 21)?.map(from_json).transpose()?,
        thaw_from: get::<Option<&str>>(row, 22)?.map(from_json).transpose()?,
        backend: get::<String>(row, 23)?.into(),
        environment: get::<Option<&str>>(row, 24)?.map(from_json).transpose()?,
    })
}

impl BayRow {
    /// The settings in force, or the ones about to be applied.
    #[must_use]
    pub fn settings(&self) -> Settings {
        self.settings_wanted.clone().unwrap_or_else(|| Settings {
            limits: self.spec.limits.clone(),
            idle_stop_s: self.spec.idle_stop_s,
            durability: self.spec.durability,
        })
    }
}

impl Store {
    /// Adds a new bay, with the desired state running, and its event.
    ///
    /// # Errors
    /// [`StoreError::NameTaken`], [`StoreError::IdsExhausted`], or when the database cannot be written.
    pub async fn bay_create(&self, new: BayNew, event: impl FnOnce(&BayRow) -> Draft) -> Result<BayRow> {
        let failed = self.failed("recording a new bay");
        let mut machine = [0_u8; 16];
        random_bytes(&mut machine)
            .map_err(|source| StoreError::Reach { path: self.path().to_owned(), source })?;

        let mut writer = self.writer().await;
        let mut transaction = writer.begin().await?;
        let connection = transaction.connection();
        let name = free_name(connection, new.name).await.map_err(&failed)?;
        let name = name.map_err(StoreError::NameTaken)?;
        let id_base = self.id_base(connection).await?;
        let at = now();
        let made = BayRow {
            id: BayId::generate(),
            name,
            spec: new.spec,
            desired: Desired::Running,
            state: State::Creating,
            reason: new.reason,
            since: at,
            created_at: at,
            image_id: new.image_id,
            origin: new.origin,
            id_base,
            machine_id: hex::encode(machine),
            backend: new.backend,
            runtime: None,
            disk_ready: false,
            replace_with: None,
            keep_workspace: false,
            settings_wanted: None,
            stop_why: None,
            checkpoint: None,
            next_checkpoint: CheckpointName::FIRST,
            thaw_from: new
                .forked_from
                .as_ref()
                .filter(|from| from.memory)
                .map(|from| Point { bay: from.bay, checkpoint: from.checkpoint }),
            forked_from: new.forked_from,
            environment: new.environment,
            restore_wanted: None,
        };
        sqlx::query(concat!(
            "INSERT INTO bays (id, name, spec, desired, state, reason, since, created_at, image_id, origin, id_base, ",
            "machine_id, runtime, disk_ready, replace_with, keep_workspace, forked_from, thaw_from, backend, environment) ",
            "VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, NULL, 0, NULL, 0, $13, $14, $15, $16)"
        ))
        .bind(made.id.to_string())
        .bind(made.name.as_str())
        .bind(to_json(&made.spec)?)
        .bind(made.desired.as_str())
        .bind(made.state.as_str())
        .bind(&made.reason)
        .bind(made.since.to_string())
        .bind(made.created_at.to_string())
        .bind(made.image_id.to_string())
        .bind(made.origin.as_ref().map(to_json).transpose()?)
        .bind(i64::from(made.id_base))
        .bind(&made.machine_id)
        .bind(made.forked_from.as_ref().map(to_json).transpose()?)
        .bind(made.thaw_from.as_ref().map(to_json).transpose()?)
        .bind(made.backend.as_str())
        .bind(made.environment.as_ref().map(to_json).transpose()?)
        .execute(&mut *connection)
        .await
        .map_err(&failed)?;
        match (&new.policy, &made.forked_from) {
            (Some(new), _) => {
                policy::put(connection, &Scope::Bay(made.id), new, at).await.map_err(&failed)?;
            }
            (None, Some(from)) => policy::inherit(connection, from.bay, made.id).await.map_err(&failed)?,
            (None, None) => {}
        }
        transaction.commit_with(Some(made.id), &event(&made)).await?;
        Ok(made)
    }

    /// A range of ids that no bay of this daemon has. The cursor moves on, so that a freed range is not used again
    /// soon.
    async fn id_base(&self, connection: &mut SqliteConnection) -> Result<u32> {
        let failed = self.failed("choosing a range of ids");
        let rows =
            sqlx::query("SELECT id_base FROM bays").fetch_all(&mut *connection).await.map_err(&failed)?;
        let taken: HashSet<u32> = rows
            .iter()
            .map(|row| row.try_get::<i64, _>(0).map(|base| u32::try_from(base).unwrap_or(0)))
            .collect::<sqlx::Result<_>>()
            .map_err(&failed)?;
        let cursor = meta::get(connection, ID_CURSOR)
            .await
            .map_err(&failed)?
            .and_then(|text| text.parse().ok())
            .unwrap_or(self.inner.first_slot);
        let slot = id_ranges::choose(cursor, &taken, &self.inner.reserved)
            .ok_or(StoreError::IdsExhausted(id_ranges::SLOTS))?;
        meta::set(connection, ID_CURSOR, &((slot + 1) % id_ranges::SLOTS).to_string())
            .await
            .map_err(&failed)?;
        Ok(id_ranges::base_of(slot))
    }

    /// All bays, oldest first.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn bay_list(&self) -> Result<Vec<BayRow>> {
        let rows = sqlx::query(select!("ORDER BY id"))
            .fetch_all(&self.inner.readers)
            .await
            .map_err(self.failed("listing bays"))?;
        rows.iter().map(row).collect()
    }

    /// Changes a bay and appends the event, if there is one, in one transaction. A change of `state` sets `since`.
    /// What the bay has for life, such as id, name, backend and id range, is not stored again.
    ///
    /// # Errors
    /// [`StoreError::BayUnknown`], or when the database cannot be written.
    pub async fn bay_update(
        &self,
        id: BayId,
        event: Option<Draft>,
        change: impl FnOnce(&mut BayRow),
    ) -> Result<BayRow> {
        let mut writer = self.writer().await;
        let mut transaction = writer.begin().await?;
        let changed = self.bay_change(transaction.connection(), id, change).await?;
        match event {
            Some(event) => drop(transaction.commit_with(Some(id), &event).await?),
            None => transaction.commit().await?,
        }
        Ok(changed)
    }

    /// Changes a bay within the caller's transaction.
    pub(crate) async fn bay_change(
        &self,
        connection: &mut SqliteConnection,
        id: BayId,
        change: impl FnOnce(&mut BayRow),
    ) -> Result<BayRow> {
        let failed = self.failed("recording a change of a bay");
        let found = sqlx::query(select!("WHERE id = $1"))
            .bind(id.to_string())
            .fetch_optional(&mut *connection)
            .await
            .map_err(&failed)?
            .ok_or(StoreError::BayUnknown(id))?;
        let mut changed = row(&found)?;
        let before = changed.state;
        change(&mut changed);
        if changed.state != before {
            changed.since = now();
        }
        sqlx::query(concat!(
            "UPDATE bays SET desired = $2, state = $3, reason = $4, since = $5, image_id = $6, runtime = $7, ",
            "disk_ready = $8, replace_with = $9, keep_workspace = $10, spec = $11, settings_wanted = $12, ",
            "stop_why = $13, checkpoint = $14, next_checkpoint = $15, restore_wanted = $16, thaw_from = $17 ",
            "WHERE id = $1"
        ))
        .bind(id.to_string())
        .bind(changed.desired.as_str())
        .bind(changed.state.as_str())
        .bind(&changed.reason)
        .bind(changed.since.to_string())
        .bind(changed.image_id.to_string())
        .bind(changed.runtime.as_ref().map(to_json).transpose()?)
        .bind(i64::from(changed.disk_ready))
        .bind(changed.replace_with.map(|image| image.to_string()))
        .bind(i64::from(changed.keep_workspace))
        .bind(to_json(&changed.spec)?)
        .bind(changed.settings_wanted.as_ref().map(to_json).transpose()?)
        .bind(&changed.stop_why)
        .bind(changed.checkpoint.map(|checkpoint| i64::from(checkpoint.number())))
        .bind(i64::from(changed.next_checkpoint.number()))
        .bind(changed.restore_wanted.as_ref().map(to_json).transpose()?)
        .bind(changed.thaw_from.as_ref().map(to_json).transpose()?)
        .execute(&mut *connection)
        .await
        .map_err(&failed)?;
        Ok(changed)
    }

    /// Deletes a bay with its execs, costs, checkpoints, policy and grants, and closes its approvals. Its events
    /// stay.
    ///
    /// # Errors
    /// When the database cannot be written.
    pub async fn bay_delete(&self, id: BayId, event: &Draft) -> Result<()> {
        let failed = self.failed("forgetting a bay");
        let mut writer = self.writer().await;
        let mut transaction = writer.begin().await?;
        let connection = transaction.connection();
        sqlx::query("DELETE FROM execs WHERE bay = $1")
            .bind(id.to_string())
            .execute(&mut *connection)
            .await
            .map_err(&failed)?;
        sqlx::query("DELETE FROM costs WHERE bay = $1")
            .bind(id.to_string())
            .execute(&mut *connection)
            .await
            .map_err(&failed)?;
        sqlx::query("DELETE FROM checkpoints WHERE bay = $1")
            .bind(id.to_string())
            .execute(&mut *connection)
            .await
            .map_err(&failed)?;
        policy::forget(connection, id).await.map_err(&failed)?;
        approval::forget(connection, id).await.map_err(&failed)?;
        sqlx::query("DELETE FROM bays WHERE id = $1")
            .bind(id.to_string())
            .execute(&mut *connection)
            .await
            .map_err(&failed)?;
        transaction.commit_with(Some(id), event).await.map(drop)
    }
}

/// The free name to use, or the wanted name as an error if it is taken.
async fn free_name(
    connection: &mut SqliteConnection,
    choice: NameChoice,
) -> sqlx::Result<std::result::Result<BayName, BayName>> {
    let (wanted, derived) = match choice {
        NameChoice::Exact(name) => (name, false),
        NameChoice::Derived(name) => (name, true),
    };
    let mut candidate = wanted.clone();
    for number in 2..MAX_NAME_SUFFIX {
        let taken = sqlx::query("SELECT 1 FROM bays WHERE name = $1")
            .bind(candidate.as_str())
            .fetch_optional(&mut *connection)
            .await?
            .is_some();
        if !taken {
            return Ok(Ok(candidate));
        }
        if !derived {
            break;
        }
        candidate = with_number(&wanted, number);
    }
    Ok(Err(wanted))
}

/// `name-2`; the name is shortened if the result would be too long.
fn with_number(name: &BayName, number: u32) -> BayName {
    let suffix = format!("-{number}");
    let keep = name.as_str().len().min(BayName::MAX_LEN - suffix.len());
    BayName::slug(&format!("{}{suffix}", &name.as_str()[..keep]))
}
