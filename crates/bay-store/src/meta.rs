//! The table `meta`: one value per key.

use sqlx::Row;
use sqlx::sqlite::SqliteConnection;

pub(crate) async fn get(connection: &mut SqliteConnection, key: &str) -> sqlx::Result<Option<String>> {
    sqlx::query("SELECT value FROM meta WHERE key = $1")
        .bind(key)
        .fetch_optional(connection)
        .await?
        .map(|row| row.try_get(0))
        .transpose()
}

pub(crate) async fn remove(connection: &mut SqliteConnection, key: &str) -> sqlx::Result<()> {
    sqlx::query("DELETE FROM meta WHERE key = $1").bind(key).execute(connection).await.map(drop)
}

pub(crate) async fn set(connection: &mut SqliteConnection, key: &str, value: &str) -> sqlx::Result<()> {
    sqlx::query("INSERT INTO meta (key, value) VALUES ($1, $2) ON CONFLICT (key) DO UPDATE SET value = excluded.value")
        .bind(key)
        .bind(value)
        .execute(connection)
        .await
        .map(drop)
}
