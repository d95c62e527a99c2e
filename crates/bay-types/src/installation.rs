//! What a daemon made on the host, written where it can be read without the daemon and its database.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The record's name in the data directory.
pub const FILE: &str = "installation.json";
/// The directory of keys, one for each daemon of the host.
pub const KEYS: &str = "/etc/workbay/keys";
/// The group whose members may use the socket, unless the operator names another.
pub const GROUP: &str = "workbay";

/// `DATA/installation.json`: what `bay uninstall` needs to know if no daemon can start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataRecord {
    /// The daemon's id, part of the names of its control groups, its corner of the pool and its key.
    pub daemon: String,
    pub pool: PathBuf,
    pub socket: PathBuf,
    /// The key, if the daemon made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
}

impl DataRecord {
    /// Whether a text can be the id of a daemon. A path is made of it, so nothing else may pass.
    #[must_use]
    pub fn is_daemon_id(text: &str) -> bool {
        text.len() == 16 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_id_passes_as_a_part_of_a_path() {
        assert!(DataRecord::is_daemon_id("0123456789abcdef"));
        for odd in ["", "..", "0123456789abcde", "0123456789abcdeg", "0123456789ABCDEF", "../../../../../et"]
        {
            assert!(!DataRecord::is_daemon_id(odd), "{odd}");
        }
    }
}
