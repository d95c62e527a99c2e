//! Progress of long work. An answer with `Content-Type: application/x-ndjson` has one [`News`] per line, the last
//! one [`News::Done`] or [`News::Failed`].

use serde::{Deserialize, Serialize};

use crate::error::ApiError;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "news", rename_all = "kebab-case")]
pub enum News<T> {
    /// How far the work is. `total` is absent while unknown.
    Progress(Progress),
    Done {
        result: T,
    },
    Failed {
        error: ApiError,
    },
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// The present stage: `importing the host's tools`.
    pub stage: String,
    pub done: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
    /// `bytes`, `files`, `objects`; empty when the stage cannot be counted.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub unit: String,
}

/// Receives progress during long work. It may be called often, so it must be cheap.
pub type Report<'a> = &'a mut dyn FnMut(Progress);
