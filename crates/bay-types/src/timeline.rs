//! A bay's life as one ordered stream of lines, each made from one event of the record.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::id::ExecId;

/// One line. Fields may be added; none is taken away.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TimelineLine {
    /// Number of the event in the daemon's record: grows along a timeline, with gaps where other bays have theirs.
    pub seq: u64,
    pub at: Timestamp,
    /// The event's kind: `bay.running`, `exec.end`.
    pub kind: String,
    /// For a person: one line of plain text.
    pub what: String,
    #[serde(default)]
    pub exec: Option<ExecId>,
    /// The checkpoint that one can fork from to come to this point.
    #[serde(default)]
    pub checkpoint: Option<String>,
    /// The event's body, as it was recorded.
    #[serde(default)]
    pub details: serde_json::Value,
}

/// What is said on a timeline's stream besides its lines, so that a reader can tell an end from a break.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum TimelineNews {
    Line(Box<TimelineLine>),
    End(TimelineEnd),
}

/// The last thing said on a stream that was not cut off.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimelineEnd {
    pub end: EndOfTimeline,
    /// Lines there are before the first one that was told, because fewer were asked for.
    #[serde(default)]
    pub older: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EndOfTimeline {
    /// All there is so far.
    UpToDate,
    /// The bay is gone: nothing more can come.
    BayRemoved,
}

/// How many files changed in a workspace while an exec ran, by anybody.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FileChanges {
    /// Files that came into being, also those that replaced one of the same name.
    pub created: u64,
    /// Files that existed before.
    pub changed: u64,
    /// Directories that are new, or got or lost entries.
    pub directories: u64,
    /// There may have been more.
    pub at_least: bool,
    /// Paths of some of them, from the top of the workspace.
    pub names: Vec<String>,
}

impl FileChanges {
    /// Names that are told.
    pub const NAMES: usize = 5;

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.created == 0 && self.changed == 0 && self.directories == 0
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
