//! The tables of policies and grants, which hold texts as they were given. The store does not parse them, so that a
//! policy of an older release can always be read, shown and replaced.
//!
//! A policy belongs to a *scope*: the host, a project (a repository, by its location), or a bay. One transaction
//! makes each change and appends the event that records it, or that of the bay which is made or removed with it.

use std::fmt;

use bay_types::BayId;
use bay_types::event::policy::GrantRemove;
use jiff::Timestamp;
use sqlx::Row;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use crate::column::now;
use crate::draft::Draft;
use crate::error::{Result, StoreError};
use crate::store::Store;

/// What a policy applies to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Scope {
    /// Every bay of this host.
    Host,
    /// Every bay of a repository, by its location.
    Project(String),
    Bay(BayId),
}

impl Scope {
    /// The bay on whose record a change is.
    fn bay(&self) -> Option<BayId> {
        match self {
            Self::Bay(bay) => Some(*bay),
            Self::Host | Self::Project(_) => None,
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("host"),
            Self::Project(location) => write!(f, "project:{location}"),
            Self::Bay(bay) => write!(f, "bay:{bay}"),
        }
    }
}

/// A stored policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyRow {
    /// Its displayed name: a preset or a file.
    pub name: String,
    pub text: String,
    /// JSON: what the client found in settings on its machine when the policy was set.
    pub places: String,
    pub set_at: Timestamp,
}

/// A policy to be set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyNew {
    pub name: String,
    pub text: String,
    pub places: String,
}

/// A stored grant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrantRow {
    pub id: String,
    pub text: String,
    pub expires: Timestamp,
    pub created_at: Timestamp,
}

/// All texts that make up a bay's policy, read at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PolicyTexts {
    pub host: Option<PolicyRow>,
    pub project: Option<PolicyRow>,
    pub bay: Option<PolicyRow>,
    /// Oldest first, including expired ones.
    pub grants: Vec<GrantRow>,
}

fn column(e: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> StoreError {
    StoreError::column("policies", e)
}

fn time(text: &str) -> Result<Timestamp> {
    text.parse().map_err(column)
}

fn policy(row: &SqliteRow) -> Result<PolicyRow> {
    Ok(PolicyRow {
        name: row.try_get(0).map_err(column)?,
        text: row.try_get(1).map_err(column)?,
        places: row.try_get(2).map_err(column)?,
        set_at: time(row.try_get(3).map_err(column)?)?,
    })
}

fn grant(row: &SqliteRow) -> Result<GrantRow> {
    Ok(GrantRow {
        id: row.try_get(0).map_err(column)?,
        text: row.try_get(1).map_err(column)?,
        expires: time(row.try_get(2).map_err(column)?)?,
        created_at: time(row.try_get(3).map_err(column)?)?,
    })
}

const POLICY: &str = "SELECT name, text, places, set_at FROM policies WHERE scope = $1";
const GRANTS: &str = "SELECT id, text, expires, created_at FROM grants WHERE bay = $1";

/// Sorts grants by creation. The database cannot sort them: timestamps are text without trailing zeros.
fn grants(rows: &[SqliteRow]) -> Result<Vec<GrantRow>> {
    let mut grants: Vec<GrantRow> = rows.iter().map(grant).collect::<Result<_>>()?;
    grants.sort_by(|one, other| (one.created_at, &one.id).cmp(&(other.created_at, &other.id)));
    Ok(grants)
}

/// Sets a policy within the caller's transaction.
pub(crate) async fn put(
    connection: &mut SqliteConnection,
    scope: &Scope,
    new: &PolicyNew,
    at: Timestamp,
) -> sqlx::Result<()> {
    sqlx::query(concat!(
        "INSERT INTO policies (scope, name, text, places, set_at) VALUES ($1, $2, $3, $4, $5) ",
        "ON CONFLICT (scope) DO UPDATE SET name = excluded.name, text = excluded.text, ",
        "places = excluded.places, set_at = excluded.set_at"
    ))
    .bind(scope.to_string())
    .bind(&new.name)
    .bind(&new.text)
    .bind(&new.places)
    .bind(at.to_string())
    .execute(connection)
    .await
    .map(drop)
}

/// Gives a fork its parent's present policy, and none of its grants.
pub(crate) async fn inherit(
    connection: &mut SqliteConnection,
    parent: BayId,
    child: BayId,
) -> sqlx::Result<()> {
    sqlx::query(concat!(
        "INSERT INTO policies (scope, name, text, places, set_at) ",
        "SELECT $2, name, text, places, set_at FROM policies WHERE scope = $1"
    ))
    .bind(Scope::Bay(parent).to_string())
    .bind(Scope::Bay(child).to_string())
    .execute(connection)
    .await
    .map(drop)
}

/// Deletes the policy and grants of a removed bay.
pub(crate) async fn forget(connection: &mut SqliteConnection, bay: BayId) -> sqlx::Result<()> {
    sqlx::query("DELETE FROM policies WHERE scope = $1")
        .bind(Scope::Bay(bay).to_string())
        .execute(&mut *connection)
        .await?;
    sqlx::query("DELETE FROM grants WHERE bay = $1")
        .bind(bay.to_string())
        .execute(&mut *connection)
        .await
        .map(drop)
}

/// Adds a grant within the caller's transaction, and deletes expired ones. Returns `false` if the bay already has
/// `most` grants; then the caller must not commit.
pub(crate) async fn put_grant(
    store: &Store,
    connection: &mut SqliteConnection,
    bay: BayId,
    new: &GrantRow,
    most: usize,
) -> Result<bool> {
    let failed = store.failed("adding a grant");
    bay_known(store, &mut *connection, bay).await?;
    let held = sqlx::query(GRANTS).bind(bay.to_string()).fetch_all(&mut *connection).await;
    let mut others = 0;
    for row in grants(&held.map_err(&failed)?)? {
        if row.id != new.id && row.expires > new.created_at {
            others += 1;
            continue;
        }
        sqlx::query("DELETE FROM grants WHERE bay = $1 AND id = $2")
            .bind(bay.to_string())
            .bind(&row.id)
            .execute(&mut *connection)
            .await
            .map_err(&failed)?;
    }
    if others >= most {
        return Ok(false);
    }
    sqlx::query("INSERT INTO grants (bay, id, text, expires, created_at) VALUES ($1, $2, $3, $4, $5)")
        .bind(bay.to_string())
        .bind(&new.id)
        .bind(&new.text)
        .bind(new.expires.to_string())
        .bind(new.created_at.to_string())
        .execute(&mut *connection)
        .await
        .map_err(&failed)?;
    Ok(true)
}

pub(crate) async fn bay_known(store: &Store, connection: &mut SqliteConnection, bay: BayId) -> Result<()> {
    let found = sqlx::query("SELECT 1 FROM bays WHERE id = $1")
        .bind(bay.to_string())
        .fetch_optional(connection)
        .await
        .map_err(store.failed("looking for a bay"))?;
    found.map(drop).ok_or(StoreError::BayUnknown(bay))
}

impl Store {
    /// The policy of a scope.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn policy_get(&self, scope: &Scope) -> Result<Option<PolicyRow>> {
        let found = sqlx::query(POLICY)
            .bind(scope.to_string())
            .fetch_optional(&self.inner.readers)
            .await
            .map_err(self.failed("reading a policy"))?;
        found.as_ref().map(policy).transpose()
    }

    /// All texts that make up a bay's policy, read at one moment.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn policy_texts(&self, bay: BayId, project: Option<&str>) -> Result<PolicyTexts> {
        let failed = self.failed("reading the policy of a bay");
        let mut moment = self.inner.readers.begin().await.map_err(&failed)?;
        let mut texts = PolicyTexts::default();
        let project = project.map(|location| Scope::Project(location.to_owned()));
        for (scope, text) in [
            (Some(Scope::Host), &mut texts.host),
            (project, &mut texts.project),
            (Some(Scope::Bay(bay)), &mut texts.bay),
        ] {
            let Some(scope) = scope else { continue };
            let found = sqlx::query(POLICY)
                .bind(scope.to_string())
                .fetch_optional(&mut *moment)
                .await
                .map_err(&failed)?;
            *text = found.as_ref().map(policy).transpose()?;
        }
        let held =
            sqlx::query(GRANTS).bind(bay.to_string()).fetch_all(&mut *moment).await.map_err(&failed)?;
        texts.grants = grants(&held)?;
        Ok(texts)
    }

    /// Sets or replaces the policy of a scope.
    ///
    /// # Errors
    /// [`StoreError::BayUnknown`], or when the database cannot be written.
    pub async fn policy_set(&self, scope: &Scope, new: &PolicyNew, event: &Draft) -> Result<()> {
        let failed = self.failed("setting a policy");
        let mut writer = self.writer().await;
        let mut transaction = writer.begin().await?;
        if let Some(bay) = scope.bay() {
            bay_known(self, transaction.connection(), bay).await?;
        }
        put(transaction.connection(), scope, new, now()).await.map_err(&failed)?;
        transaction.commit_with(scope.bay(), event).await.map(drop)
    }

    /// Deletes the policy of a scope. Returns whether there was one.
    ///
    /// # Errors
    /// When the database cannot be written.
    pub async fn policy_unset(&self, scope: &Scope, event: &Draft) -> Result<bool> {
        let mut writer = self.writer().await;
        let mut transaction = writer.begin().await?;
        let gone = sqlx::query("DELETE FROM policies WHERE scope = $1")
            .bind(scope.to_string())
            .execute(transaction.connection())
            .await
            .map_err(self.failed("taking a policy away"))?
            .rows_affected();
        if gone == 0 {
            transaction.commit().await?;
            return Ok(false);
        }
        transaction.commit_with(scope.bay(), event).await?;
        Ok(true)
    }

    /// Adds a grant, replaces one with the same id, and deletes expired ones. Returns `None` if the bay already has
    /// `most` grants.
    ///
    /// # Errors
    /// [`StoreError::BayUnknown`], or when the database cannot be written.
    pub async fn grant_add(
        &self,
        bay: BayId,
        new: &GrantRow,
        most: usize,
        event: &Draft,
    ) -> Result<Option<()>> {
        let mut writer = self.writer().await;
        let mut transaction = writer.begin().await?;
        let connection = transaction.connection();
        if !put_grant(self, connection, bay, new, most).await? {
            return Ok(None);
        }
        transaction.commit_with(Some(bay), event).await?;
        Ok(Some(()))
    }

    /// Revokes a grant. Returns `None` if there is no such grant.
    ///
    /// # Errors
    /// When the database cannot be written.
    pub async fn grant_rm(&self, bay: BayId, id: &str, event: &Draft) -> Result<Option<GrantRow>> {
        let failed = self.failed("taking a grant back");
        let mut writer = self.writer().await;
        let mut transaction = writer.begin().await?;
        let connection = transaction.connection();
        let held = sqlx::query(GRANTS).bind(bay.to_string()).fetch_all(&mut *connection).await;
        let held = grants(&held.map_err(&failed)?)?;
        let Some(found) = held.into_iter().find(|grant| grant.id == id) else {
            transaction.commit().await?;
            return Ok(None);
        };
        sqlx::query("DELETE FROM grants WHERE bay = $1 AND id = $2")
            .bind(bay.to_string())
            .bind(id)
            .execute(&mut *connection)
            .await
            .map_err(&failed)?;
        transaction.commit_with(Some(bay), event).await?;
        Ok(Some(found))
    }

    /// Revokes all grants of a bay, because the state that they were given to is gone, as after a stop or before a
    /// start. Returns whether there were any. If not, nothing is recorded.
    ///
    /// # Errors
    /// When the database cannot be written.
    pub async fn grants_drop(&self, bay: BayId, why: &str) -> Result<bool> {
        let failed = self.failed("taking the grants of a bay back");
        // Most bays have none, and need not wait for the writer.
        let any = sqlx::query("SELECT 1 FROM grants WHERE bay = $1 LIMIT 1")
            .bind(bay.to_string())
            .fetch_optional(&self.inner.readers)
            .await
            .map_err(&failed)?;
        if any.is_none() {
            return Ok(false);
        }
        let mut writer = self.writer().await;
        let mut transaction = writer.begin().await?;
        let connection = transaction.connection();
        let held = sqlx::query(GRANTS).bind(bay.to_string()).fetch_all(&mut *connection).await;
        let ids: Vec<String> = grants(&held.map_err(&failed)?)?.into_iter().map(|grant| grant.id).collect();
        if ids.is_empty() {
            transaction.commit().await?;
            return Ok(false);
        }
        sqlx::query("DELETE FROM grants WHERE bay = $1")
            .bind(bay.to_string())
            .execute(&mut *connection)
            .await
            .map_err(&failed)?;
        let event = Draft::of(GrantRemove { ids, why: Some(why.to_owned()), by: None });
        transaction.commit_with(Some(bay), &event).await?;
        Ok(true)
    }
}
