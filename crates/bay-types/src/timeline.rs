//! A bay's timeline: one line per event of the record, or per run of like events if the reader asks for that.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::id::ExecId;

/// A line of a timeline. New releases may add fields and remove none.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TimelineLine {
    /// Number of the event in the daemon's record. It grows along a timeline. The gaps are events of other bays or
    /// of the daemon, and events that this reader did not ask for.
    pub seq: u64,
    pub at: Timestamp,
    /// The event's kind: `bay.running`, `exec.end`.
    pub kind: String,
    /// One line of plain text for a person.
    pub what: String,
    #[serde(default)]
    pub exec: Option<ExecId>,
    /// The checkpoint to fork from to return to this point.
    #[serde(default)]
    pub checkpoint: Option<String>,
    /// The event's body, as it was recorded.
    #[serde(default)]
    pub details: serde_json::Value,
    /// The line stands for several events; absent if it stands for one. Only a reader that asked for it gets such lines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folded: Option<Folded>,
}

/// The events that one line stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Folded {
    /// Number of the first of them. The line has the number of the last one.
    pub first: u64,
    /// How many there are.
    pub events: u64,
}

/// An item of a timeline's stream. The last one marks a complete stream.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum TimelineNews {
    Line(Box<TimelineLine>),
    End(TimelineEnd),
}

/// The last item of a complete stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimelineEnd {
    pub end: EndOfTimeline,
    /// Whether earlier lines were left out because of the requested limit.
    #[serde(default)]
    pub older: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EndOfTimeline {
    /// The stream reached the newest line.
    UpToDate,
    /// The bay is removed: no more lines will follow.
    BayRemoved,
}

/// How many files changed in a workspace while an exec ran, whoever changed them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FileChanges {
    /// New files, including those that replaced a file of the same name.
    pub created: u64,
    /// Files that existed before.
    pub changed: u64,
    /// Directories that are new, or whose entries changed.
    pub directories: u64,
    /// Files and directories of git's own: those in a directory `.git`. No other count includes them.
    pub git: u64,
    /// Files and directories that the repository ignores. No other count includes them.
    pub ignored: u64,
    /// The counts are lower bounds.
    pub at_least: bool,
    /// Paths of some of them, from the top of the workspace.
    pub names: Vec<String>,
}

impl FileChanges {
    /// Most paths in `names`.
    pub const NAMES: usize = 5;

    /// Whether nothing changed, except what git keeps for itself.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.created == 0 && self.changed == 0 && self.directories == 0 && self.ignored == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_and_an_end_are_told_apart() {
        let line = r#"{"seq":3,"at":"2026-01-01T00:00:00Z","kind":"bay.stop","what":"x","exec":null,"checkpoint":null,"details":{}}"#;
        assert!(matches!(serde_json::from_str(line).unwrap(), TimelineNews::Line(line) if line.seq == 3));
        let end = TimelineNews::End(TimelineEnd { end: EndOfTimeline::BayRemoved, older: false });
        let text = serde_json::to_string(&end).unwrap();
        assert_eq!(text, r#"{"end":"bay-removed","older":false}"#);
        assert_eq!(serde_json::from_str::<TimelineNews>(&text).unwrap(), end);
    }
}
