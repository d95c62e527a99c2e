//! Tables, and the migration of older databases.
//!
//! A migration is a list of statements. A released migration is never edited: a change is a new migration at the
//! end.

use std::path::Path;

use sqlx::sqlite::SqliteConnection;
use sqlx::{Connection, Row};

use crate::error::{Result, StoreError};

const MIGRATIONS: &[&[&str]] = &[
    BAYS_EXECS_EVENTS,
    LIMITS_HIT,
    TRACES_AND_COSTS,
    LIVE_SETTINGS,
    CHECKPOINTS,
    LEDGER,
    POLICIES,
    APPROVALS,
    OUTPUT_HASHES,
    EVENT_COLUMNS,
    BACKENDS,
    CHECKPOINT_EVENTS,
    SECRET_EVENTS,
    BLAME,
    REMOVED_BAYS,
    ENVIRONMENTS,
];

/// A timeline has the events of the bay's secrets, which belong to no bay. `secret_events` repeats this condition.
const SECRET_EVENTS: &[&str] = &["CREATE INDEX events_secrets ON events (seq) \
     WHERE kind IN ('secret.set', 'secret.rotated', 'secret.removed', 'secret.stale')"];

/// Removed bays are found by their last name. `bays_removed` repeats this condition.
const REMOVED_BAYS: &[&str] =
    &["CREATE INDEX events_removed_bays ON events (seq) WHERE kind = 'bay.deleted'"];

/// The checkpoint of another bay whose root filesystem a bay began with.
const ENVIRONMENTS: &[&str] = &["ALTER TABLE bays ADD COLUMN environment TEXT"];

/// What may have made an exec fail.
const BLAME: &[&str] = &["ALTER TABLE execs ADD COLUMN blame TEXT NOT NULL DEFAULT '[]'"];

/// A daemon that starts looks for checkpoints that an earlier one did not finish. It must not read whole timelines for
/// that. `checkpoints_unfinished` repeats this condition: `SQLite` uses a partial index only for its own condition.
const CHECKPOINT_EVENTS: &[&str] = &["CREATE INDEX events_checkpoints ON events (bay, seq) \
     WHERE kind IN ('checkpoint.asked', 'checkpoint.made', 'checkpoint.failed')"];

/// The backend of a bay. Earlier releases had only `local`.
const BACKENDS: &[&str] = &["ALTER TABLE bays ADD COLUMN backend TEXT NOT NULL DEFAULT 'local'"];

const LIMITS_HIT: &[&str] = &["ALTER TABLE execs ADD COLUMN limits_hit TEXT NOT NULL DEFAULT '[]'"];

/// Hashes of an exec's output, as its guest reported them at the end; NULL if no guest did.
const OUTPUT_HASHES: &[&str] = &["ALTER TABLE execs ADD COLUMN output_hashes TEXT"];

/// Columns that queries filter on. Both follow from kind and body (`bay_types::event::EventColumns`); no hash
/// covers them.
const EVENT_COLUMNS: &[&str] = &[
    "ALTER TABLE events ADD COLUMN traffic TEXT",
    "ALTER TABLE events ADD COLUMN from_inside BIGINT NOT NULL DEFAULT 0",
    // A daemon never wrote a body that is not JSON. Such a row must not stop the migration of the others.
    "UPDATE events SET traffic = CASE \
     WHEN NOT json_valid(body) THEN 'other' \
     WHEN kind = 'egress.decided' AND coalesce(json_extract(body, '$.outcome'), '') = 'allow' THEN 'let-out' \
     WHEN kind = 'egress.ended' AND (coalesce(json_extract(body, '$.ending'), '') = 'revoked' \
     OR coalesce(json_extract(body, '$.failure'), '') = 'address') THEN 'ended-refused' \
     WHEN kind = 'egress.ended' THEN 'ended' \
     WHEN kind = 'egress.looked-up' THEN 'look-up' \
     WHEN kind = 'egress.repeated' AND coalesce(json_extract(body, '$.what'), '') \
     IN ('answered', 'no-such-name', 'refused', 'too-many-names') THEN 'look-up' \
     ELSE 'other' END WHERE kind >= 'egress.' AND kind < 'egress/'",
    "UPDATE events SET from_inside = 1 WHERE traffic IS NULL AND (kind = 'approval.asked' \
     OR CASE WHEN json_valid(body) THEN coalesce(json_extract(body, '$.by'), '') IN ('inside', 'approval') ELSE 0 END)",
];

/// The inner hashes of the tree over all events. `tree::adopt` migrates the chain of earlier releases.
const LEDGER: &[&str] = &["CREATE TABLE ledger_nodes (
        level BIGINT NOT NULL,
        place BIGINT NOT NULL,
        hash TEXT NOT NULL,
        PRIMARY KEY (level, place)
    )"];

/// Egress policies of the host, of projects and of single bays, and the grants of bays.
const POLICIES: &[&str] = &[
    "CREATE TABLE policies (
        scope TEXT PRIMARY KEY NOT NULL,
        name TEXT NOT NULL,
        text TEXT NOT NULL,
        places TEXT NOT NULL,
        set_at TEXT NOT NULL
    )",
    "CREATE TABLE grants (
        bay TEXT NOT NULL REFERENCES bays (id) ON DELETE CASCADE,
        id TEXT NOT NULL,
        text TEXT NOT NULL,
        expires TEXT NOT NULL,
        created_at TEXT NOT NULL,
        PRIMARY KEY (bay, id)
    )",
];

/// Approvals. They stay readable after their bay is removed.
const APPROVALS: &[&str] = &[
    "CREATE TABLE approvals (
        id TEXT PRIMARY KEY NOT NULL,
        bay TEXT NOT NULL,
        key TEXT NOT NULL,
        state TEXT NOT NULL,
        asked_at TEXT NOT NULL,
        expires TEXT NOT NULL,
        card TEXT NOT NULL,
        answer TEXT,
        uses_left BIGINT NOT NULL
    )",
    "CREATE INDEX approvals_live ON approvals (bay) WHERE state IN ('open', 'allowed')",
];

/// Settings that can change while a bay exists, and why the daemon stopped a bay.
const LIVE_SETTINGS: &[&str] =
    &["ALTER TABLE bays ADD COLUMN settings_wanted TEXT", "ALTER TABLE bays ADD COLUMN stop_why TEXT"];

/// Checkpoints. A number is used once, so the bay's row has the next number.
const CHECKPOINTS: &[&str] = &[
    "CREATE TABLE checkpoints (
        bay TEXT NOT NULL REFERENCES bays (id) ON DELETE CASCADE,
        number BIGINT NOT NULL,
        parent BIGINT,
        kind TEXT NOT NULL,
        message TEXT,
        author TEXT NOT NULL,
        automatic TEXT,
        after_exec TEXT,
        created_at TEXT NOT NULL,
        pause_us BIGINT NOT NULL,
        without_memory TEXT NOT NULL,
        open_execs TEXT NOT NULL,
        PRIMARY KEY (bay, number)
    )",
    "ALTER TABLE bays ADD COLUMN checkpoint BIGINT",
    "ALTER TABLE bays ADD COLUMN next_checkpoint BIGINT NOT NULL DEFAULT 1",
    "ALTER TABLE bays ADD COLUMN forked_from TEXT",
    "ALTER TABLE bays ADD COLUMN restore_wanted TEXT",
    "ALTER TABLE bays ADD COLUMN thaw_from TEXT",
    // An exec continues in forks of its bay, under the same id.
    "CREATE TABLE execs_of_bays (
        id TEXT NOT NULL,
        bay TEXT NOT NULL REFERENCES bays (id) ON DELETE CASCADE,
        number BIGINT NOT NULL,
        spec TEXT NOT NULL,
        spec_hash TEXT NOT NULL,
        started_at TEXT NOT NULL,
        ended_at TEXT,
        exit TEXT,
        usage TEXT NOT NULL,
        output_bytes BIGINT NOT NULL,
        limits_hit TEXT NOT NULL DEFAULT '[]',
        trace TEXT,
        PRIMARY KEY (bay, id),
        UNIQUE (bay, number)
    )",
    "INSERT INTO execs_of_bays (id, bay, number, spec, spec_hash, started_at, ended_at, exit, usage, output_bytes, \
     limits_hit, trace) SELECT id, bay, number, spec, spec_hash, started_at, ended_at, exit, usage, output_bytes, \
     limits_hit, trace FROM execs",
    "DROP TABLE execs",
    "ALTER TABLE execs_of_bays RENAME TO execs",
    "CREATE INDEX execs_open ON execs (bay) WHERE ended_at IS NULL",
];

const TRACES_AND_COSTS: &[&str] = &[
    "ALTER TABLE execs ADD COLUMN trace TEXT",
    "CREATE TABLE costs (
        bay TEXT PRIMARY KEY NOT NULL REFERENCES bays (id) ON DELETE CASCADE,
        cpu_us BIGINT NOT NULL,
        memory_gib_s DOUBLE PRECISION NOT NULL,
        disk_gib_s DOUBLE PRECISION NOT NULL,
        disk_bytes BIGINT,
        since TEXT NOT NULL,
        runtime TEXT,
        runtime_cpu_us BIGINT NOT NULL
    )",
];

const BAYS_EXECS_EVENTS: &[&str] = &[
    "CREATE TABLE meta (
        key TEXT PRIMARY KEY NOT NULL,
        value TEXT NOT NULL
    )",
    "CREATE TABLE bays (
        id TEXT PRIMARY KEY NOT NULL,
        name TEXT NOT NULL UNIQUE,
        spec TEXT NOT NULL,
        desired TEXT NOT NULL,
        state TEXT NOT NULL,
        reason TEXT NOT NULL,
        since TEXT NOT NULL,
        created_at TEXT NOT NULL,
        image_id TEXT NOT NULL,
        origin TEXT,
        id_base BIGINT NOT NULL UNIQUE,
        machine_id TEXT NOT NULL,
        runtime TEXT,
        disk_ready BIGINT NOT NULL,
        replace_with TEXT,
        keep_workspace BIGINT NOT NULL
    )",
    "CREATE TABLE execs (
        id TEXT PRIMARY KEY NOT NULL,
        bay TEXT NOT NULL REFERENCES bays (id) ON DELETE CASCADE,
        number BIGINT NOT NULL,
        spec TEXT NOT NULL,
        spec_hash TEXT NOT NULL,
        started_at TEXT NOT NULL,
        ended_at TEXT,
        exit TEXT,
        usage TEXT NOT NULL,
        output_bytes BIGINT NOT NULL,
        UNIQUE (bay, number)
    )",
    "CREATE INDEX execs_open ON execs (bay) WHERE ended_at IS NULL",
    "CREATE TABLE events (
        seq BIGINT PRIMARY KEY NOT NULL,
        at TEXT NOT NULL,
        bay TEXT,
        kind TEXT NOT NULL,
        body TEXT NOT NULL,
        hash TEXT NOT NULL
    )",
    "CREATE INDEX events_bay ON events (bay, seq)",
];

/// Migrates the database to the newest version, one transaction per migration.
pub(crate) async fn migrate(connection: &mut SqliteConnection, path: &Path) -> Result<()> {
    let failed = |source| StoreError::query(path, "bringing the database up to date", source);
    sqlx::query("CREATE TABLE IF NOT EXISTS schema_version (version BIGINT NOT NULL)")
        .execute(&mut *connection)
        .await
        .map_err(failed)?;
    let row = sqlx::query("SELECT COALESCE(MAX(version), 0) FROM schema_version")
        .fetch_one(&mut *connection)
        .await
        .map_err(failed)?;
    let found: i64 = row.try_get(0).map_err(failed)?;
    let known = i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX);
    if found > known {
        return Err(StoreError::Newer { path: path.to_owned(), found, known });
    }
    for (version, statements) in (1_i64..).zip(MIGRATIONS) {
        if version <= found {
            continue;
        }
        let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await.map_err(failed)?;
        for statement in *statements {
            sqlx::query(*statement).execute(&mut *transaction).await.map_err(failed)?;
        }
        sqlx::query("INSERT INTO schema_version (version) VALUES ($1)")
            .bind(version)
            .execute(&mut *transaction)
            .await
            .map_err(failed)?;
        transaction.commit().await.map_err(failed)?;
    }
    Ok(())
}
