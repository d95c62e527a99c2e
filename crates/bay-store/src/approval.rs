//! The table of approvals: questions to a person, and their answers. Only the first answer counts. Each step of an
//! approval is one transaction that checks its state and appends the event that records the step.

use bay_types::approval::{Answer, Approval, ApprovalState};
use bay_types::event::Field;
use bay_types::event::approval::ApprovalDropped;
use bay_types::id::ParseIdError;
use bay_types::{ApprovalId, BayId};
use jiff::Timestamp;
use sqlx::Row;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use crate::column::{now, to_i64};
use crate::draft::Draft;
use crate::error::{Result, StoreError};
use crate::policy::{self, GrantRow, PolicyNew, Scope};
use crate::store::Store;

/// A closed approval is kept while it is among so many newest approvals of its bay. This keeps one bay from
/// displacing the approvals of others. The ledger has the events of all of them.
const KEPT_OF_BAY: u32 = 200;
/// A closed approval is kept while it is among so many newest approvals of all bays.
const KEPT: u32 = 10_000;
/// The value of `uses_left` of an allow without a limit.
const UNBOUNDED: i64 = -1;

/// A stored approval.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApprovalRow {
    /// The key that a later request is compared with.
    pub key: String,
    /// The approval with its answer. `held` is not set here.
    pub card: Approval,
    /// How often an allow may still be used; `None` without a limit.
    pub uses_left: Option<u64>,
}

/// A lasting change that an answer makes besides deciding the request. It is stored together with the answer, or
/// neither is.
#[derive(Debug, Clone)]
pub enum Lasting {
    /// The bay's policy with one more rule, and the event that records it.
    Policy(PolicyNew, Draft),
    /// A grant, the most grants the bay may have, and the event that records it.
    Grant(GrantRow, usize, Draft),
}

/// The result of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answered {
    /// Stored; has the number of the last event.
    Yes(u64),
    /// The approval is not open any more.
    TooLate,
    /// The bay has as many grants as it may have.
    NoRoomForGrant,
}

fn column(e: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> StoreError {
    StoreError::column("approvals", e)
}

const ONE: &str = "SELECT key, state, card, answer, uses_left, expires FROM approvals WHERE id = $1";
const BY_SUFFIX: &str =
    "SELECT key, state, card, answer, uses_left, expires FROM approvals WHERE id LIKE $1 LIMIT 2";
const ALL: &str = "SELECT key, state, card, answer, uses_left, expires FROM approvals ORDER BY id";
const LIVE: &str = "SELECT key, state, card, answer, uses_left, expires FROM approvals \
                    WHERE state IN ('open', 'denied') OR (state = 'allowed' AND uses_left <> 0) ORDER BY id";
const LIVE_OF_BAY: &str = "SELECT id FROM approvals \
                           WHERE bay = $1 AND (state = 'open' OR (state = 'allowed' AND uses_left <> 0))";

fn row(row: &SqliteRow) -> Result<ApprovalRow> {
    let card: &str = row.try_get(2).map_err(column)?;
    let mut card: Approval = serde_json::from_str(card).map_err(column)?;
    let state: &str = row.try_get(1).map_err(column)?;
    card.state = state.parse().map_err(|e: ParseIdError| column(e))?;
    let answer: Option<&str> = row.try_get(3).map_err(column)?;
    card.answer = answer.map(serde_json::from_str::<Answer>).transpose().map_err(column)?;
    let expires: &str = row.try_get(5).map_err(column)?;
    card.expires = expires.parse::<Timestamp>().map_err(column)?;
    let uses_left: i64 = row.try_get(4).map_err(column)?;
    Ok(ApprovalRow { key: row.try_get(0).map_err(column)?, card, uses_left: u64::try_from(uses_left).ok() })
}

/// Closes the open approvals and the allows of a bay that is removed, or whose state is gone.
pub(crate) async fn forget(connection: &mut SqliteConnection, bay: BayId) -> sqlx::Result<()> {
    let dropped = sqlx::query("UPDATE approvals SET state = 'dropped' WHERE bay = $1 AND state = 'open'");
    dropped.bind(bay.to_string()).execute(&mut *connection).await?;
    // An allow stays recorded as allowed, but cannot be used any more.
    let over = sqlx::query("UPDATE approvals SET uses_left = 0 WHERE bay = $1 AND state = 'allowed'");
    over.bind(bay.to_string()).execute(connection).await.map(drop)
}

impl Store {
    /// Adds an approval, and deletes closed ones that are not kept. Returns the number of its event.
    ///
    /// # Errors
    /// When the database cannot be written.
    pub async fn approval_add(&self, new: &ApprovalRow, event: &Draft) -> Result<u64> {
        let failed = self.failed("writing a question down");
        let card = &new.card;
        let json = serde_json::to_string(card).map_err(column)?;
        let mut writer = self.writer().await;
        let mut transaction = writer.begin().await?;
        let connection = transaction.connection();
        sqlx::query(concat!(
            "INSERT INTO approvals (id, bay, key, state, asked_at, expires, card, answer, uses_left) ",
            "VALUES ($1, $2, $3, $4, $5, $6, $7, NULL, 0)"
        ))
        .bind(card.id.to_string())
        .bind(card.bay.to_string())
        .bind(&new.key)
        .bind(card.state.as_str())
        .bind(card.asked_at.to_string())
        .bind(card.expires.to_string())
        .bind(json)
        .execute(&mut *connection)
        .await
        .map_err(&failed)?;
        sqlx::query(concat!(
            "DELETE FROM approvals WHERE state <> 'open' AND NOT (state = 'allowed' AND uses_left <> 0) AND ",
            "((bay = $1 AND id NOT IN (SELECT id FROM approvals WHERE bay = $1 ORDER BY id DESC LIMIT $2)) ",
            "OR id NOT IN (SELECT id FROM approvals ORDER BY id DESC LIMIT $3))"
        ))
        .bind(card.bay.to_string())
        .bind(i64::from(KEPT_OF_BAY))
        .bind(i64::from(KEPT))
        .execute(&mut *connection)
        .await
        .map_err(&failed)?;
        transaction.commit_with(Some(card.bay), event).await
    }

    /// Answers an open approval, and makes the lasting change of the answer. `uses` limits how often an allow may
    /// be used.
    ///
    /// # Errors
    /// [`StoreError::BayUnknown`], or when the database cannot be written.
    #[expect(
        clippy::too_many_arguments,
        reason = "an answer is written whole, with everything that it leaves"
    )]
    pub async fn approval_answer(
        &self,
        id: ApprovalId,
        bay: BayId,
        state: ApprovalState,
        answer: &Answer,
        uses: Option<u64>,
        lasting: Option<&Lasting>,
        event: &Draft,
    ) -> Result<Answered> {
        let json = serde_json::to_string(answer).map_err(column)?;
        let mut writer = self.writer().await;
        let mut transaction = writer.begin().await?;
        let answered = sqlx::query(
            "UPDATE approvals SET state = $2, answer = $3, uses_left = $4 WHERE id = $1 AND state = 'open'",
        )
        .bind(id.to_string())
        .bind(state.as_str())
        .bind(json)
        .bind(uses.map_or(UNBOUNDED, to_i64))
        .execute(transaction.connection())
        .await
        .map_err(self.failed("answering a question"))?
        .rows_affected();
        if answered == 0 {
            transaction.commit().await?;
            return Ok(Answered::TooLate);
        }
        let connection = transaction.connection();
        let second = match lasting {
            None => None,
            Some(Lasting::Policy(new, event)) => {
                policy::bay_known(self, connection, bay).await?;
                policy::put(connection, &Scope::Bay(bay), new, now())
                    .await
                    .map_err(self.failed("setting a policy"))?;
                Some(event)
            }
            Some(Lasting::Grant(new, most, event)) => {
                if !policy::put_grant(self, connection, bay, new, *most).await? {
                    return Ok(Answered::NoRoomForGrant);
                }
                Some(event)
            }
        };
        let events: Vec<&Draft> = [event].into_iter().chain(second).collect();
        transaction.commit_with_all(Some(bay), &events).await.map(Answered::Yes)
    }

    /// Uses an allow once, and appends the event of the act. Returns the number of the event and whether this was
    /// the last use, or `None` if the allow is used up or gone.
    ///
    /// # Errors
    /// When the database cannot be written.
    pub async fn approval_use(
        &self,
        id: ApprovalId,
        bay: BayId,
        event: &Draft,
    ) -> Result<Option<(u64, bool)>> {
        let failed = self.failed("using an allow");
        let mut writer = self.writer().await;
        let mut transaction = writer.begin().await?;
        let left: Option<i64> = sqlx::query_scalar(concat!(
            "UPDATE approvals SET uses_left = CASE WHEN uses_left > 0 THEN uses_left - 1 ELSE uses_left END ",
            "WHERE id = $1 AND bay = $2 AND state = 'allowed' AND uses_left <> 0 RETURNING uses_left"
        ))
        .bind(id.to_string())
        .bind(bay.to_string())
        .fetch_optional(transaction.connection())
        .await
        .map_err(&failed)?;
        let Some(left) = left else {
            transaction.commit().await?;
            return Ok(None);
        };
        let seq = transaction.commit_with(Some(bay), event).await?;
        Ok(Some((seq, left == 0)))
    }

    /// Ends an allow that could still be used. Returns `None` if there is none.
    ///
    /// # Errors
    /// When the database cannot be written.
    pub async fn approval_revoke(&self, id: ApprovalId, bay: BayId, event: &Draft) -> Result<Option<u64>> {
        let mut writer = self.writer().await;
        let mut transaction = writer.begin().await?;
        let revoked = sqlx::query(concat!(
            "UPDATE approvals SET state = 'revoked', uses_left = 0 ",
            "WHERE id = $1 AND bay = $2 AND state = 'allowed' AND uses_left <> 0"
        ))
        .bind(id.to_string())
        .bind(bay.to_string())
        .execute(transaction.connection())
        .await
        .map_err(self.failed("revoking an allow"))?
        .rows_affected();
        if revoked == 0 {
            transaction.commit().await?;
            return Ok(None);
        }
        transaction.commit_with(Some(bay), event).await.map(Some)
    }

    /// Drops all open approvals and allows of a bay, because the state that they were about is gone. Returns their
    /// ids.
    ///
    /// # Errors
    /// When the database cannot be written.
    pub async fn approvals_drop(&self, bay: BayId, why: &str) -> Result<Vec<ApprovalId>> {
        let failed = self.failed("dropping the questions of a bay");
        // Most bays have none, and need not wait for the writer.
        let live = sqlx::query_scalar::<_, String>(LIVE_OF_BAY).bind(bay.to_string());
        if live.fetch_optional(&self.inner.readers).await.map_err(&failed)?.is_none() {
            return Ok(Vec::new());
        }
        let mut writer = self.writer().await;
        let mut transaction = writer.begin().await?;
        let connection = transaction.connection();
        let live = sqlx::query_scalar::<_, String>(LIVE_OF_BAY).bind(bay.to_string());
        let ids = live.fetch_all(&mut *connection).await.map_err(&failed)?;
        if ids.is_empty() {
            transaction.commit().await?;
            return Ok(Vec::new());
        }
        forget(connection, bay).await.map_err(&failed)?;
        let ids: Vec<ApprovalId> =
            ids.iter().map(|id| id.parse().map_err(|e: ParseIdError| column(e))).collect::<Result<_>>()?;
        let event = Draft::of(ApprovalDropped {
            approvals: ids.iter().copied().map(Field::Is).collect(),
            approval: None,
            digest: None,
            request: None,
            by: None,
            at: None,
            after_ms: None,
            why: Some(why.to_owned()),
        });
        transaction.commit_with(Some(bay), &event).await?;
        Ok(ids)
    }

    /// # Errors
    /// When the database cannot be read.
    pub async fn approval_get(&self, id: ApprovalId) -> Result<Option<ApprovalRow>> {
        let found = sqlx::query(ONE)
            .bind(id.to_string())
            .fetch_optional(&self.inner.readers)
            .await
            .map_err(self.failed("reading a question"))?;
        found.as_ref().map(row).transpose()
    }

    /// Approvals whose id ends with `suffix`, at most two.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn approval_by_suffix(&self, suffix: &str) -> Result<Vec<ApprovalRow>> {
        let rows = sqlx::query(BY_SUFFIX)
            .bind(format!("%{suffix}"))
            .fetch_all(&self.inner.readers)
            .await
            .map_err(self.failed("reading a question"))?;
        rows.iter().map(row).collect()
    }

    /// All stored approvals, oldest first. With `live`, only those that are open or may still be used.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn approval_list(&self, live: bool) -> Result<Vec<ApprovalRow>> {
        let rows = sqlx::query(if live { LIVE } else { ALL })
            .fetch_all(&self.inner.readers)
            .await
            .map_err(self.failed("listing questions"))?;
        rows.iter().map(row).collect()
    }
}
