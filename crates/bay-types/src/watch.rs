//! The stream of `bay watch`: one JSON object per line.

use std::path::Path;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::text_enum::text_enum;
use bay_text::percent::path_value;

/// What happened to a path. A rename is [`WatchKind::Rename`] at the old name, then [`WatchKind::Create`] at the new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WatchKind {
    Create,
    Write,
    Remove,
    Rename,
    Chmod,
}

text_enum!(WatchKind {
    Create = "create",
    Write = "write",
    Remove = "remove",
    Rename = "rename",
    Chmod = "chmod",
});

/// One line of `GET /v1/watch`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum WatchLine {
    /// The watches are in place. From now on every change is reported, or [`Self::Dropped`].
    Hello,
    Change {
        at: Timestamp,
        kind: WatchKind,
        /// Relative to the watched directory; empty for that directory itself. Bytes that are not UTF-8 are
        /// replaced.
        path: String,
        /// The exact bytes, percent-encoded, where they are not UTF-8.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        path_escaped: Option<String>,
        is_dir: bool,
    },
    /// Changes at this point were lost.
    Dropped { at: Timestamp },
    /// The watched directory was removed, renamed or unmounted; nothing follows.
    Gone { at: Timestamp },
}

impl WatchLine {
    #[must_use]
    pub fn change(at: Timestamp, kind: WatchKind, path: &Path, is_dir: bool) -> Self {
        let bytes = path.as_os_str().as_encoded_bytes();
        let path_escaped = path.to_str().is_none().then(|| path_value(bytes));
        Self::Change { at, kind, path: String::from_utf8_lossy(bytes).into_owned(), path_escaped, is_dir }
    }
}
