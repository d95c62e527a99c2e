//! Changed lines per file and in total, as `git diff --stat` shows them.

use bay_types::diff::{Change, Content, DiffEntry, DiffSummary, Node};

use super::named;
use super::patch::{ADDED, REMOVED, painted};
use crate::failure::Failure;
use crate::output::count;
use bay_text::clip;

/// Most entries that are buffered to align them. Further ones are printed as they come.
const MAX_HELD: usize = 5000;
/// Widest name that is shown without clipping.
const MAX_NAME: usize = 60;
/// Most plus signs, and most minus signs, of a row.
const MAX_GRAPH: u64 = 40;

struct Row {
    name: String,
    /// Lines added and removed, or a text if lines do not apply.
    change: Result<(u64, u64), String>,
}

/// Buffered rows.
pub(super) struct Stat {
    held: Vec<Row>,
    width: usize,
    most: u64,
    colours: bool,
    flowing: bool,
}

impl Stat {
    pub(super) fn new(colours: bool) -> Self {
        Self { held: Vec::new(), width: 0, most: 1, colours, flowing: false }
    }

    pub(super) fn add(&mut self, entry: &DiffEntry) -> Result<(), Failure> {
        let row = row(entry);
        if self.flowing {
            return crate::output::data(&self.line(&row));
        }
        self.width = self.width.max(row.name.chars().count());
        if let Ok((added, removed)) = row.change {
            self.most = self.most.max(added.saturating_add(removed));
        }
        self.held.push(row);
        if self.held.len() >= MAX_HELD {
            self.flush()?;
            self.flowing = true;
        }
        Ok(())
    }

    pub(super) fn flush(&mut self) -> Result<(), Failure> {
        let rows = std::mem::take(&mut self.held);
        if rows.is_empty() {
            return Ok(());
        }
        let lines: Vec<String> = rows.iter().map(|row| self.line(row)).collect();
        crate::output::data(&lines.join("\n"))
    }

    fn line(&self, row: &Row) -> String {
        let width = self.width;
        match &row.change {
            Err(words) => format!(" {:width$} | {words}", row.name),
            Ok((added, removed)) => {
                let (plus, minus) = self.graph(*added, *removed);
                let graph = format!(
                    "{}{}",
                    painted(&"+".repeat(plus), ADDED, self.colours && plus > 0),
                    painted(&"-".repeat(minus), REMOVED, self.colours && minus > 0)
                );
                format!(" {:width$} | {:>4} {graph}", row.name, added + removed).trim_end().to_owned()
            }
        }
    }

    /// The number of plus and minus signs. At least one of each kind that occurs.
    fn graph(&self, added: u64, removed: u64) -> (usize, usize) {
        let scaled = |lines: u64| {
            let signs = if self.most <= MAX_GRAPH {
                lines
            } else {
                u64::try_from(u128::from(lines) * u128::from(MAX_GRAPH) / u128::from(self.most))
                    .unwrap_or(MAX_GRAPH)
            };
            usize::try_from(signs.max(u64::from(lines > 0)).min(MAX_GRAPH)).unwrap_or(0)
        };
        (scaled(added), scaled(removed))
    }
}

fn row(entry: &DiffEntry) -> Row {
    let to = named(&entry.path, entry.path_escaped.as_deref());
    let name = match &entry.from_path {
        Some(from) => format!("{} => {to}", named(from, entry.from_path_escaped.as_deref())),
        None => to,
    };
    let bytes = |node: &Option<Node>| node.as_ref().map_or(0, |node| node.size);
    let change = match &entry.content {
        Content::Text { added, removed, .. } => Ok((*added, *removed)),
        Content::Binary => Err(format!("Bin {} -> {} bytes", bytes(&entry.before), bytes(&entry.after))),
        Content::TooLarge => Err(format!("Large {} -> {} bytes", bytes(&entry.before), bytes(&entry.after))),
        Content::Unread { .. } => Err("not compared".to_owned()),
        Content::Same => Err(match (entry.change, &entry.before, &entry.after) {
            (Change::Renamed, _, _) => "renamed".to_owned(),
            (Change::Modified, Some(before), Some(after)) if before.target != after.target => {
                "link".to_owned()
            }
            (Change::Modified, Some(before), Some(after)) if before.mode != after.mode => {
                format!("mode {:03o} -> {:03o}", before.mode, after.mode)
            }
            (Change::Modified, _, _) => "owner".to_owned(),
            (change, _, Some(node)) | (change, Some(node), None) => format!("{change} {}", node.kind),
            (change, None, None) => change.to_string(),
        }),
    };
    Row { name: clip(&name, MAX_NAME), change }
}

/// One line with the totals.
pub(super) fn summed(summary: &DiffSummary) -> String {
    let mut text = format!(" {} changed", count(summary.changed(), "file"));
    for (lines, noun, sign) in
        [(summary.lines_added, "insertion", '+'), (summary.lines_removed, "deletion", '-')]
    {
        if lines > 0 {
            text.push_str(&format!(", {}({sign})", count(lines, noun)));
        }
    }
    let kinds = [
        (summary.added, "added"),
        (summary.deleted, "deleted"),
        (summary.modified, "modified"),
        (summary.renamed, "renamed"),
        (summary.replaced, "replaced"),
    ];
    let kinds: Vec<String> =
        kinds.iter().filter(|(n, _)| *n > 0).map(|(n, word)| format!("{n} {word}")).collect();
    if kinds.len() > 1 || summary.modified == 0 && !kinds.is_empty() {
        text.push_str(&format!(" ({})", kinds.join(", ")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use bay_types::diff::NodeKind;

    fn entry(path: &str, added: u64, removed: u64) -> DiffEntry {
        let file = Some(Node { kind: NodeKind::File, mode: 0o644, uid: 0, gid: 0, size: 3, target: None });
        let content = Content::Text { added, removed, patch: None, lossy: false };
        DiffEntry::new(Change::Modified, path.as_bytes(), file.clone(), file, content)
    }

    #[test]
    fn rows_are_aligned_and_scaled() {
        let mut stat = Stat::new(false);
        let binary = DiffEntry { content: Content::Binary, ..entry("a/b", 0, 0) };
        for entry in [entry("x", 1, 0), entry("longer", 60, 20), binary] {
            stat.add(&entry).unwrap();
        }
        let lines: Vec<String> = stat.held.iter().map(|row| stat.line(row)).collect();
        assert_eq!(lines[0], " x      |    1 +");
        assert_eq!(lines[1], format!(" longer |   80 {}{}", "+".repeat(30), "-".repeat(10)));
        assert_eq!(lines[2], " a/b    | Bin 3 -> 3 bytes");
    }

    #[test]
    fn the_totals_are_one_line() {
        let summary =
            DiffSummary { modified: 2, added: 1, lines_added: 1, lines_removed: 3, ..DiffSummary::default() };
        assert_eq!(
            summed(&summary),
            " 3 files changed, 1 insertion(+), 3 deletions(-) (1 added, 2 modified)"
        );
        assert_eq!(summed(&DiffSummary::default()), " 0 files changed");
    }
}
