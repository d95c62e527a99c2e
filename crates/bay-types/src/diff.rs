//! Differences between two moments of a bay's life, and the findings of a review.
//!
//! `GET /v1/bays/{bay}/diff` answers with lines of [`DiffLine`] (`application/x-ndjson`), in this order:
//!
//! ```text
//!  begin ── package… (root only) ── entry… ── done        progress anywhere before the end; failed instead of done
//! ```
//!
//! Entries are sorted by path. `GET /v1/bays/{bay}/review` answers like all long work: progress, then a [`Review`].

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::ApiError;
use crate::id::CheckpointName;
use crate::id::ParseIdError;
use crate::progress::Progress;
use crate::text_enum::text_enum;
use bay_text::percent::path_value;

/// One moment of a bay's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Moment {
    /// The bay's beginning: the checkout (or nothing), the image, or the checkpoint it was forked from.
    Base,
    /// Where the work began: the checkout with the uncommitted changes that came along. A fork has the beginning of
    /// its parent.
    Beginning,
    /// Its present state.
    Now,
    Checkpoint(CheckpointName),
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Moment::Base => f.write_str("base"),
            Moment::Beginning => f.write_str("beginning"),
            Moment::Now => f.write_str("now"),
            Moment::Checkpoint(name) => name.fmt(f),
        }
    }
}

impl FromStr for Moment {
    type Err = ParseIdError;

    fn from_str(given: &str) -> Result<Self, Self::Err> {
        match given {
            "base" => Ok(Moment::Base),
            "beginning" => Ok(Moment::Beginning),
            "now" => Ok(Moment::Now),
            _ => given.parse().map(Moment::Checkpoint).map_err(|_| ParseIdError {
                kind: "moment of a bay's life",
                given: given.chars().take(64).collect(),
                why: "it must be beginning, base, now, or a checkpoint such as v3",
            }),
        }
    }
}

impl TryFrom<String> for Moment {
    type Error = ParseIdError;
    fn try_from(given: String) -> Result<Self, Self::Error> {
        given.parse()
    }
}

impl From<Moment> for String {
    fn from(moment: Moment) -> Self {
        moment.to_string()
    }
}

/// Which of a bay's trees.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    #[default]
    Workspace,
    /// Everything outside the workspace.
    Root,
}

text_enum!(Part { Workspace = "workspace", Root = "root" });

/// `GET /v1/bays/{bay}/diff?from=&to=&part=&patch=&ignored=`
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiffAsk {
    /// [`Moment::Beginning`] when absent; [`Moment::Base`] for a bay from before beginnings were kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Moment>,
    /// [`Moment::Now`] when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<Moment>,
    #[serde(default)]
    pub part: Part,
    /// Whether entries have patches, or only counts of lines.
    #[serde(default = "yes")]
    pub patch: bool,
    /// Whether files of the workspace that the repository ignores are included.
    #[serde(default)]
    pub ignored: bool,
}

fn yes() -> bool {
    true
}

/// One line of the answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "line", rename_all = "kebab-case")]
pub enum DiffLine {
    /// The resolved request, with defaults filled in.
    Begin {
        bay: String,
        from: Moment,
        to: Moment,
        part: Part,
    },
    Progress(Progress),
    Package(PackageChange),
    Entry(Box<DiffEntry>),
    Done(DiffSummary),
    Failed {
        error: ApiError,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Change {
    Added,
    Deleted,
    /// Contents, permissions or owner.
    Modified,
    /// Another name, and perhaps modified as well.
    Renamed,
    /// Replaced by something of another kind: a file by a link.
    Replaced,
    /// It could not be compared; the content says why.
    Unread,
}

text_enum!(Change {
    Added = "added",
    Deleted = "deleted",
    Modified = "modified",
    Renamed = "renamed",
    Replaced = "replaced",
    Unread = "unread",
});

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NodeKind {
    File,
    Directory,
    Symlink,
    Fifo,
    Socket,
    CharDevice,
    BlockDevice,
}

text_enum!(NodeKind {
    File = "file",
    Directory = "directory",
    Symlink = "symlink",
    Fifo = "fifo",
    Socket = "socket",
    CharDevice = "char-device",
    BlockDevice = "block-device",
});

/// A file, directory or other node on one side.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    pub kind: NodeKind,
    /// Permission bits with setuid, setgid and sticky, as a number.
    pub mode: u32,
    /// Owner as the bay sees it.
    pub uid: u32,
    pub gid: u32,
    /// Bytes of a file; names in a directory.
    pub size: u64,
    /// The target of a symbolic link. Bytes that are not UTF-8 are replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
}

/// How the contents differ.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "kebab-case")]
pub enum Content {
    /// The contents are equal.
    Same,
    Text {
        /// Number of added lines.
        added: u64,
        removed: u64,
        /// Hunks of a unified diff, without its two header lines. Absent if not requested, or too long.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        patch: Option<String>,
        /// Bytes that are not UTF-8 were replaced: the patch can be read, but not applied.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        lossy: bool,
    },
    Binary,
    /// The file is too large for a text comparison; its bytes differ.
    TooLarge,
    Unread {
        why: String,
    },
}

/// One path that differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiffEntry {
    pub change: Change,
    /// Relative to the top of the tree. Bytes that are not UTF-8 are replaced.
    pub path: String,
    /// The exact bytes, percent-encoded, where they are not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_escaped: Option<String>,
    /// The name before a rename.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_path: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_path_escaped: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Node>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Node>,
    pub content: Content,
}

impl DiffEntry {
    #[must_use]
    pub fn new(
        change: Change,
        path: &[u8],
        before: Option<Node>,
        after: Option<Node>,
        content: Content,
    ) -> Self {
        let (path, path_escaped) = path_texts(path);
        Self { change, path, path_escaped, from_path: None, from_path_escaped: None, before, after, content }
    }

    /// Sets the path before a rename.
    #[must_use]
    pub fn renamed_from(mut self, path: &[u8]) -> Self {
        let (path, escaped) = path_texts(path);
        (self.from_path, self.from_path_escaped) = (Some(path), escaped);
        self
    }
}

/// A path as text, and its percent-encoded bytes if they are not UTF-8.
#[must_use]
pub fn path_texts(path: &[u8]) -> (String, Option<String>) {
    match std::str::from_utf8(path) {
        Ok(text) => (text.to_owned(), None),
        Err(_) => (String::from_utf8_lossy(path).into_owned(), Some(path_value(path))),
    }
}

/// A package that was installed, removed, or changed its version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackageChange {
    /// With its architecture: `bash:amd64`.
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}

/// The last line of a complete comparison.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiffSummary {
    /// How many paths were compared.
    pub compared: u64,
    pub added: u64,
    pub deleted: u64,
    pub modified: u64,
    pub renamed: u64,
    pub replaced: u64,
    /// Directories that were added, deleted, moved or changed. The counts above exclude them.
    pub directories: u64,
    /// Paths that could not be compared. The other entries are correct.
    pub unread: u64,
    pub lines_added: u64,
    pub lines_removed: u64,
    /// Directories named `.git` whose contents were left out.
    pub git_left_out: u64,
    /// Too much changed to find all renames: some appear as a deletion and an addition.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub renames_incomplete: bool,
    /// Files that differ and were left out because the repository ignores them. No other count includes them.
    #[serde(default)]
    pub ignored: u64,
    /// How many of `ignored` the rules from the beginning of the work do not ignore.
    #[serde(default)]
    pub ignored_by_new_rules: u64,
    /// Files of ignore rules that were not used. What they ignore is not left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unused_rules: Vec<UnusedRules>,
}

/// A file of ignore rules that was not used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnusedRules {
    /// Relative to the top of the tree. Bytes that are not UTF-8 are replaced.
    pub path: String,
    pub why: String,
}

impl DiffSummary {
    /// Paths that differ, without directories and without those that could not be compared.
    #[must_use]
    pub fn changed(&self) -> u64 {
        self.added + self.deleted + self.modified + self.renamed + self.replaced
    }
}

/// How much a finding matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// Worth knowing.
    Note,
    /// A person should look at it before the change leaves the bay.
    Warn,
    /// The change should not leave the bay: it contains what looks like a secret.
    Stop,
}

text_enum!(Severity { Note = "note", Warn = "warn", Stop = "stop" });

/// Something that a person should know before a change leaves the bay. It does not quote a secret that it found: it
/// has at most the first four characters and the length.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    pub severity: Severity,
    /// A stable name of the rule; `docs/diff.md` lists them.
    pub rule: String,
    pub path: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_escaped: Option<String>,
    /// Line number in the new file; for a removed line, in the old file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u64>,
    /// One line for a person.
    pub why: String,
}

/// Findings in a set of changes, the worst first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Findings {
    pub findings: Vec<Finding>,
    /// How many less severe findings are not listed.
    pub not_listed: u64,
}

impl Findings {
    /// Whether a finding says that the change should not leave the bay.
    #[must_use]
    pub fn stop(&self) -> bool {
        self.findings.iter().any(|finding| finding.severity == Severity::Stop)
    }
}

/// `GET /v1/bays/{bay}/review?from=&to=`, and what `bay review --json` prints.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Review {
    pub bay: String,
    pub from: Moment,
    pub to: Moment,
    #[serde(flatten)]
    pub found: Findings,
    /// Files that the repository ignores. They do not leave with the work, and were not reviewed.
    #[serde(default)]
    pub ignored: u64,
    pub summary: DiffSummary,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_survives_printing_and_parsing_and_odd_ones_are_refused() {
        for moment in
            [Moment::Base, Moment::Beginning, Moment::Now, Moment::Checkpoint(CheckpointName::FIRST)]
        {
            assert_eq!(moment.to_string().parse(), Ok(moment));
        }
        for odd in ["", "v", "v0", "v-1", "v+1", "V3", "3", "now ", "v99999999999999999999", "v1/../v2"] {
            assert!(odd.parse::<Moment>().is_err(), "{odd:?}");
        }
    }

    #[test]
    fn a_path_that_is_no_text_keeps_its_bytes() {
        assert_eq!(path_texts(b"a b"), ("a b".to_owned(), None));
        assert_eq!(path_texts(b"a\xff\n"), ("a\u{fffd}\n".to_owned(), Some("a%FF%0A".to_owned())));
    }

    #[test]
    fn lines_survive_json() {
        let entry = DiffEntry::new(
            Change::Renamed,
            b"b",
            None,
            Some(Node {
                kind: NodeKind::Symlink,
                mode: 0o777,
                uid: 0,
                gid: 0,
                size: 3,
                target: Some("x".into()),
            }),
            Content::Text { added: 1, removed: 0, patch: Some("@@ -0,0 +1 @@\n+x\n".into()), lossy: false },
        );
        let lines = [
            DiffLine::Begin { bay: "web".into(), from: Moment::Base, to: Moment::Now, part: Part::Root },
            DiffLine::Entry(Box::new(entry.renamed_from(b"a\xff"))),
            DiffLine::Done(DiffSummary { compared: 3, ..DiffSummary::default() }),
        ];
        for line in lines {
            let json = serde_json::to_string(&line).unwrap();
            assert_eq!(serde_json::from_str::<DiffLine>(&json).unwrap(), line, "{json}");
        }
    }
}
