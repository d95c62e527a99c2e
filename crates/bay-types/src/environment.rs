//! The environment of a bay: its root filesystem, with everything that was installed there. A new bay can begin with
//! that of an existing one.

use serde::{Deserialize, Serialize};

use crate::id::{BayId, BayName, CheckpointName};

/// Whose environment a new bay is to begin with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EnvironmentFrom {
    /// The name or id of a bay.
    pub bay: String,
    /// One of its checkpoints; when absent, one is made now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointName>,
}

/// The checkpoint of another bay whose root filesystem a bay began with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Environment {
    pub bay: BayId,
    /// The other bay's name at that time.
    pub name: BayName,
    pub checkpoint: CheckpointName,
}
