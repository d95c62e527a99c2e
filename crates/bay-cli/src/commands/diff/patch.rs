//! One entry of the system (`--root`), in the style of `git diff`. Names and contents come from a bay, so terminal
//! sequences are escaped.

use std::fmt::Write as _;

use bay_types::diff::{Change, Content, DiffEntry, Node, NodeKind};

use super::named;
use crate::output::size;
use bay_text::escape::{file_line, visible};

pub(super) const BOLD: &str = "1";
pub(super) const ADDED: &str = "32";
pub(super) const REMOVED: &str = "31";
pub(super) const PLACE: &str = "36";

pub(super) fn painted(text: &str, colour: &str, colours: bool) -> String {
    if colours { format!("\u{1b}[{colour}m{text}\u{1b}[0m") } else { text.to_owned() }
}

/// Everything about one entry, without a line break at its end.
pub(super) fn render(entry: &DiffEntry, colours: bool) -> String {
    let to = named(&entry.path, entry.path_escaped.as_deref());
    let from = match &entry.from_path {
        Some(from) => named(from, entry.from_path_escaped.as_deref()),
        None => to.clone(),
    };
    let mut lines = vec![format!("diff --git a/{from} b/{to}")];
    lines.extend(changes(entry));
    if entry.change == Change::Renamed {
        lines.push(format!("rename from {from}"));
        lines.push(format!("rename to {to}"));
    }
    let old = if entry.before.is_some() { format!("a/{from}") } else { "/dev/null".to_owned() };
    let new = if entry.after.is_some() { format!("b/{to}") } else { "/dev/null".to_owned() };
    let mut body = Vec::new();
    match &entry.content {
        Content::Same => {}
        Content::Text { patch: Some(patch), lossy, .. } => {
            if *lossy {
                lines.push("not UTF-8: some characters are replaced".to_owned());
            }
            lines.push(format!("--- {old}"));
            lines.push(format!("+++ {new}"));
            body.extend(
                patch.split('\n').filter(|line| !line.is_empty()).map(|line| hunk_line(line, colours)),
            );
        }
        Content::Text { patch: None, added, removed, .. } => {
            lines.push(format!("too long to show: {added} lines added, {removed} removed"));
        }
        Content::Binary => lines.push(format!("Binary files {old} and {new} differ{}", sizes(entry))),
        Content::TooLarge => {
            lines.push(format!("Large files {old} and {new} differ, too large to show{}", sizes(entry)));
        }
        Content::Unread { why } => lines.push(format!("not compared: {}", visible(why))),
    }
    body.extend(targets(entry, colours));
    let mut text = String::new();
    for line in lines {
        let _ = writeln!(text, "{}", painted(&line, BOLD, colours));
    }
    for line in body {
        text.push_str(&line);
        text.push('\n');
    }
    text.pop();
    text
}

pub(super) fn sizes(entry: &DiffEntry) -> String {
    let of = |node: &Option<Node>| {
        let file = node.as_ref().filter(|node| node.kind == NodeKind::File);
        file.map_or_else(|| "nothing".to_owned(), |node| size(node.size))
    };
    format!(" ({} -> {})", of(&entry.before), of(&entry.after))
}

/// The mode as git writes it, or a word for a kind that git does not store.
fn mode(node: &Node) -> String {
    let kind = match node.kind {
        NodeKind::File => "100",
        NodeKind::Symlink => "120",
        NodeKind::Directory => "040",
        NodeKind::Fifo => "010",
        NodeKind::Socket => "140",
        NodeKind::CharDevice => "020",
        NodeKind::BlockDevice => "060",
    };
    format!("{kind}{:03o}", if node.kind == NodeKind::Symlink { 0 } else { node.mode })
}

fn noun(node: &Node) -> &'static str {
    match node.kind {
        NodeKind::File => "file",
        NodeKind::Directory => "directory",
        NodeKind::Symlink => "link",
        NodeKind::Fifo => "fifo",
        NodeKind::Socket => "socket",
        NodeKind::CharDevice | NodeKind::BlockDevice => "device",
    }
}

fn changes(entry: &DiffEntry) -> Vec<String> {
    match (&entry.before, &entry.after) {
        (None, Some(after)) => vec![format!("new {} mode {}", noun(after), mode(after))],
        (Some(before), None) => vec![format!("deleted {} mode {}", noun(before), mode(before))],
        (Some(before), Some(after)) => {
            let mut lines = Vec::new();
            if before.kind != after.kind {
                lines.push(format!("a {} became a {}", noun(before), noun(after)));
            }
            if mode(before) != mode(after) {
                lines.push(format!("old mode {}", mode(before)));
                lines.push(format!("new mode {}", mode(after)));
            }
            if (before.uid, before.gid) != (after.uid, after.gid) {
                lines.push(format!("old owner {}:{}", before.uid, before.gid));
                lines.push(format!("new owner {}:{}", after.uid, after.gid));
            }
            lines
        }
        (None, None) => Vec::new(),
    }
}

/// The targets of links, and the numbers of devices.
fn targets(entry: &DiffEntry, colours: bool) -> Vec<String> {
    let target = |node: &Option<Node>| node.as_ref().and_then(|node| node.target.as_deref()).map(visible);
    let (before, after) = (target(&entry.before), target(&entry.after));
    if before == after {
        return Vec::new();
    }
    let line = |mark: &str, target: Option<String>, colour| {
        target.map(|target| painted(&format!("{mark}-> {target}"), colour, colours))
    };
    [line("-", before, REMOVED), line("+", after, ADDED)].into_iter().flatten().collect()
}

pub(super) fn hunk_line(line: &str, colours: bool) -> String {
    let colour = match line.as_bytes().first() {
        Some(b'+') => ADDED,
        Some(b'-') => REMOVED,
        Some(b'@') => PLACE,
        _ => return file_line(line),
    };
    painted(&file_line(line), colour, colours)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(kind: NodeKind, mode: u32) -> Node {
        Node { kind, mode, uid: 0, gid: 0, size: 2048, target: None }
    }

    fn text(patch: &str) -> Content {
        Content::Text { added: 1, removed: 1, patch: Some(patch.to_owned()), lossy: false }
    }

    #[test]
    fn an_entry_looks_as_in_git() {
        let file = Some(node(NodeKind::File, 0o644));
        let entry = DiffEntry::new(
            Change::Modified,
            b"src/a.rs",
            file.clone(),
            file,
            text("@@ -1 +1 @@\n-a\n+\tb\n"),
        );
        let shown = render(&entry, false);
        assert_eq!(
            shown,
            "diff --git a/src/a.rs b/src/a.rs\n--- a/src/a.rs\n+++ b/src/a.rs\n@@ -1 +1 @@\n-a\n+\tb"
        );
        assert!(render(&entry, true).ends_with("\n\u{1b}[31m-a\u{1b}[0m\n\u{1b}[32m+\tb\u{1b}[0m"));
    }

    #[test]
    fn no_text_of_a_bay_controls_the_terminal() {
        let mut link = node(NodeKind::Symlink, 0o777);
        link.target = Some("\u{1b}]0;x\u{7}".to_owned());
        let patch = text("@@ -0,0 +1 @@\n+\u{1b}[2J\u{9b}1m\r\u{202e}\n");
        for (after, content) in [(node(NodeKind::File, 0o644), patch), (link, Content::Same)] {
            let entry = DiffEntry::new(Change::Added, b"a\x1b[31m\nb", None, Some(after), content);
            let shown = render(&entry, false);
            assert!(!shown.chars().any(|c| c.is_control() && c != '\n' && c != '\t'), "{shown:?}");
            assert!(!shown.contains('\u{202e}'), "{shown:?}");
            assert!(shown.starts_with("diff --git a/a\\x1b[31m\\nb "), "{shown}");
        }
    }

    #[test]
    fn modes_kinds_renames_and_binaries_have_their_lines() {
        let (plain, tool) = (node(NodeKind::File, 0o644), node(NodeKind::File, 0o4755));
        let entry = DiffEntry::new(Change::Renamed, b"b", Some(plain.clone()), Some(tool), Content::Same);
        assert_eq!(
            render(&entry.renamed_from(b"a\xff"), false),
            "diff --git a/a%FF b/b\nold mode 100644\nnew mode 1004755\nrename from a%FF\nrename to b"
        );
        let gone = DiffEntry::new(Change::Deleted, b"x", Some(plain), None, Content::Binary);
        assert_eq!(
            render(&gone, false),
            "diff --git a/x b/x\ndeleted file mode 100644\nBinary files a/x and /dev/null differ (2.0 KiB -> nothing)"
        );
    }
}
