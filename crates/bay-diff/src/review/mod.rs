//! Reviews the changes that would leave a bay, and reports what a person should know before they do. It is pure: it
//! reads only entries, runs nothing and opens nothing. A finding shows at most four characters of a secret.
//!
//! | module     | finds                                                                                     |
//! |------------|-------------------------------------------------------------------------------------------|
//! | `secrets`  | tokens of known formats, private keys, assignments of random text                         |
//! | `test_changes` | removed tests and assertions, skipped tests                                         |
//! | `sensitive_paths` | files whose change always matters: CI, hooks, lock files, files that editors and agents run |
//!
//! The rules for secrets read only added lines, so they do not report a secret that was there before. All rules are
//! simple on purpose: people turn off a rule that reports too much.

use bay_text::invisible::{is_invisible, misleads};
use bay_types::diff::{Change, Content, DiffEntry, Finding, Findings, NodeKind, Severity};

use crate::patch::{LineKind, patch_lines};

mod secrets;
mod sensitive_paths;
mod test_changes;

/// Most findings that are listed.
pub const MAX_FINDINGS: usize = 1000;
/// After this many findings, only those of the highest severity are still held, up to as many again; the others are
/// only counted.
const MAX_KEPT: usize = 20_000;
/// Deleted files in a whole comparison that are reported as a mass deletion.
const MASS_DELETION_FILES: u64 = 50;
/// Net deleted lines in a whole comparison that are reported as a mass deletion.
const MASS_DELETION_LINES: u64 = 5000;
/// Invisible characters that are common in ordinary text: soft hyphens, joiners and variation selectors of scripts
/// and emoji, and the byte order mark.
const ORDINARY: [char; 6] = ['\u{ad}', '\u{200c}', '\u{200d}', '\u{fe0e}', '\u{fe0f}', '\u{feff}'];

/// Reviews all entries of a comparison made with [`crate::Options::reviewed`].
#[must_use]
pub fn review<'a>(entries: impl IntoIterator<Item = &'a DiffEntry>) -> Findings {
    let mut reviewer = Reviewer::default();
    for entry in entries {
        reviewer.look(entry);
    }
    reviewer.finish()
}

/// Reviews entries one by one, without holding them.
#[derive(Debug, Default)]
pub struct Reviewer {
    kept: Vec<Finding>,
    not_kept: u64,
    tests: test_changes::Names,
    deleted: u64,
    removed: u64,
    added: u64,
}

/// A match of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Hit {
    severity: Severity,
    rule: &'static str,
    line: Option<u64>,
    why: String,
}

impl Hit {
    fn new(severity: Severity, rule: &'static str, why: impl Into<String>) -> Self {
        Self { severity, rule, line: None, why: why.into() }
    }

    fn at(mut self, line: u64) -> Self {
        self.line = Some(line);
        self
    }
}

impl Reviewer {
    pub fn look(&mut self, entry: &DiffEntry) {
        let mut hits = Vec::new();
        about_the_path(entry, &mut hits);
        about_the_node(entry, &mut hits);
        about_the_content(entry, &mut hits);
        if let Content::Text { added, removed, .. } = entry.content {
            self.added += added;
            self.removed += removed;
        }
        let was_file = entry.before.as_ref().is_some_and(|node| node.kind == NodeKind::File);
        self.deleted += u64::from(entry.change == Change::Deleted && was_file);
        if let Content::Text { patch: Some(patch), .. } = &entry.content {
            sensitive_paths::lines(&entry.path, patch, &mut hits);
            secrets::patch(&entry.path, patch, &mut hits);
            hidden_characters(patch, &mut hits);
            self.tests.read(entry, patch, &mut hits);
        } else if entry.change == Change::Deleted && was_file {
            self.tests.file_went(entry);
        }
        for hit in hits {
            self.keep(&entry.path, entry.path_escaped.as_deref(), hit);
        }
    }

    fn keep(&mut self, path: &str, path_escaped: Option<&str>, hit: Hit) {
        if self.kept.len() >= MAX_KEPT && hit.severity != Severity::Stop {
            self.not_kept += 1;
            return;
        }
        self.kept.push(Finding {
            severity: hit.severity,
            rule: hit.rule.to_owned(),
            path: path.to_owned(),
            path_escaped: path_escaped.map(str::to_owned),
            line: hit.line,
            why: hit.why,
        });
        if self.kept.len() > 2 * MAX_KEPT {
            self.thin(MAX_KEPT);
        }
    }

    /// Sorts the worst first, otherwise in the order of arrival, and keeps `left` of them.
    fn thin(&mut self, left: usize) {
        self.kept.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        self.not_kept += self.kept.len().saturating_sub(left) as u64;
        self.kept.truncate(left);
    }

    #[must_use]
    pub fn finish(mut self) -> Findings {
        for (path, hit) in std::mem::take(&mut self.tests).finish() {
            self.keep(&path, None, hit);
        }
        let lines = self.removed.saturating_sub(self.added);
        if self.deleted >= MASS_DELETION_FILES || lines >= MASS_DELETION_LINES {
            let files = match self.deleted {
                1 => "1 file is".to_owned(),
                n => format!("{n} files are"),
            };
            let why = format!("{files} deleted, and {lines} more lines go than come");
            self.keep("", None, Hit::new(Severity::Warn, "mass-deletion", why));
        }
        self.thin(MAX_FINDINGS);
        Findings { findings: self.kept, not_listed: self.not_kept }
    }
}

fn about_the_path(entry: &DiffEntry, hits: &mut Vec<Hit>) {
    if entry.path.chars().any(misleads) {
        hits.push(Hit::new(
            Severity::Warn,
            "odd-name",
            "its name holds characters that are not shown as they are",
        ));
    }
    let directory = |node: &Option<bay_types::diff::Node>| {
        node.as_ref().is_some_and(|node| node.kind == NodeKind::Directory)
    };
    if !directory(&entry.before) && !directory(&entry.after) {
        sensitive_paths::path(entry, hits);
    }
}

fn about_the_node(entry: &DiffEntry, hits: &mut Vec<Hit>) {
    let Some(after) = &entry.after else { return };
    let before = entry.before.as_ref();
    let special = |mode: u32| mode & 0o6000 != 0;
    if after.kind == NodeKind::File && special(after.mode) && !before.is_some_and(|node| special(node.mode)) {
        hits.push(Hit::new(
            Severity::Warn,
            "setuid",
            "it runs with the rights of its owner, no matter who starts it",
        ));
    }
    if let (NodeKind::Symlink, Some(target)) = (after.kind, &after.target)
        && before.and_then(|node| node.target.as_ref()) != Some(target)
        && leads_out(&entry.path, target)
    {
        hits.push(Hit::new(Severity::Warn, "link-outside", "a link that leads out of the workspace"));
    }
    if !matches!(after.kind, NodeKind::File | NodeKind::Directory | NodeKind::Symlink)
        && before.is_none_or(|node| node.kind != after.kind)
    {
        hits.push(Hit::new(
            Severity::Warn,
            "special-file",
            format!("a {} among the files", after.kind.as_str().replace('-', " ")),
        ));
    }
}

/// Whether a link at `path` to `target` leads out of the tree, judged by the text alone.
fn leads_out(path: &str, target: &str) -> bool {
    if target.starts_with('/') {
        // The absolute path of the workspace is inside.
        let rest = target.strip_prefix(bay_types::guest::WORKSPACE);
        return !rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    }
    let mut depth = path.matches('/').count();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." if depth == 0 => return true,
            ".." => depth -= 1,
            _ => depth += 1,
        }
    }
    false
}

/// Extensions of binary files that are usual in repositories.
const USUAL_BINARIES: &[&str] = &[
    ".png", ".jpg", ".jpeg", ".gif", ".webp", ".ico", ".bmp", ".pdf", ".woff", ".woff2", ".ttf", ".otf",
    ".mp3", ".mp4", ".webm", ".ogg", ".wav",
];

fn about_the_content(entry: &DiffEntry, hits: &mut Vec<Hit>) {
    let (severity, rule, why) = match &entry.content {
        _ if entry.change == Change::Deleted => return,
        Content::Binary => {
            let lower = entry.path.to_ascii_lowercase();
            let usual = USUAL_BINARIES.iter().any(|ending| lower.ends_with(ending));
            let severity = if usual { Severity::Note } else { Severity::Warn };
            (severity, "binary", "a binary that nobody can read in a review".to_owned())
        }
        Content::TooLarge => {
            (Severity::Warn, "too-large", "too large to be read; it was not searched for secrets".to_owned())
        }
        Content::Text { patch: None, .. } => {
            (Severity::Warn, "too-large", "its patch is too long; it was not searched for secrets".to_owned())
        }
        Content::Unread { why } => (Severity::Warn, "unread", format!("it was not searched: {why}")),
        Content::Same | Content::Text { .. } => return,
    };
    hits.push(Hit::new(severity, rule, why));
}

fn hidden_characters(patch: &str, hits: &mut Vec<Hit>) {
    let hidden = |text: &str| text.chars().any(|c| is_invisible(c) && !ORDINARY.contains(&c));
    if !hidden(patch) {
        return;
    }
    let line = patch_lines(patch).find(|line| line.kind == LineKind::Added && hidden(line.text));
    if let Some(line) = line {
        let why = "characters that are invisible or reorder the line: it does not read as it runs";
        hits.push(Hit::new(Severity::Warn, "hidden-characters", why).at(line.number));
    }
}

#[cfg(test)]
mod tests;
