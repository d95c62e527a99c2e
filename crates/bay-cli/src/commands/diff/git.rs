//! Entries of a workspace as patches for `git apply`.
//!
//! If the owner of a file or link changed, or the permissions of a file beyond the executable bit, a line before the
//! patch says so, which git skips. Of a new file, only the setuid, setgid and sticky bits are noted. Directories and
//! special files, which git does not store, have neither a patch nor such a note.

use bay_types::diff::{Content, DiffEntry, Node, NodeKind};

use super::named;
use super::patch::{ADDED, BOLD, PLACE, REMOVED, hunk_line, painted, sizes};
use bay_text::escape::visible;

/// The patch of an entry, without a line break at its end. `None` if git stores no difference and there is nothing to
/// note.
pub(super) fn render(entry: &DiffEntry, colours: bool) -> Option<String> {
    let to = named(&entry.path, entry.path_escaped.as_deref());
    let from = match &entry.from_path {
        Some(from) => named(from, entry.from_path_escaped.as_deref()),
        None => to.clone(),
    };
    let before = entry.before.as_ref().filter(|node| carried(node));
    let after = entry.after.as_ref().filter(|node| carried(node));
    let mut lines: Vec<String> = notes(entry).into_iter().map(|note| format!("# {to}: {note}")).collect();
    match (before, after) {
        (None, None) => {}
        (Some(old), Some(new)) if old.kind == new.kind => {
            let mut head = Vec::new();
            if mode(old) != mode(new) {
                head.push(format!("old mode {}", mode(old)));
                head.push(format!("new mode {}", mode(new)));
            }
            if from != to {
                head.push(format!("rename from {from}"));
                head.push(format!("rename to {to}"));
            }
            let body = body(entry, Some(old), Some(new), [&format!("a/{from}"), &format!("b/{to}")], colours);
            if !head.is_empty() || !body.is_empty() {
                lines.push(painted(&format!("diff --git a/{from} b/{to}"), BOLD, colours));
                lines.extend(head.iter().map(|line| painted(line, BOLD, colours)));
                lines.extend(body);
            }
        }
        // Git represents a change of kind as a deletion and a creation.
        (old, new) => {
            if let Some(old) = old {
                lines.push(painted(&format!("diff --git a/{from} b/{from}"), BOLD, colours));
                lines.push(painted(&format!("deleted file mode {}", mode(old)), BOLD, colours));
                lines.extend(body(entry, Some(old), None, [&format!("a/{from}"), "/dev/null"], colours));
            }
            if let Some(new) = new {
                lines.push(painted(&format!("diff --git a/{to} b/{to}"), BOLD, colours));
                lines.push(painted(&format!("new file mode {}", mode(new)), BOLD, colours));
                lines.extend(body(entry, None, Some(new), ["/dev/null", &format!("b/{to}")], colours));
            }
        }
    }
    (!lines.is_empty()).then(|| lines.join("\n"))
}

fn carried(node: &Node) -> bool {
    matches!(node.kind, NodeKind::File | NodeKind::Symlink)
}

/// Git distinguishes three kinds of files.
fn mode(node: &Node) -> &'static str {
    const OWNER_RUNS: u32 = 0o100;
    match node.kind {
        NodeKind::Symlink => "120000",
        _ if node.mode & OWNER_RUNS != 0 => "100755",
        _ => "100644",
    }
}

/// Differences that git does not store.
fn notes(entry: &DiffEntry) -> Vec<String> {
    let mut notes = Vec::new();
    if let Content::Unread { why } = &entry.content {
        notes.push(format!("not compared: {}", visible(why)));
    }
    if let Content::Text { lossy: true, .. } = &entry.content {
        notes.push("not UTF-8: some characters are replaced".to_owned());
    }
    let (Some(before), Some(after)) = (&entry.before, &entry.after) else {
        const BEYOND: u32 = 0o7000;
        let added =
            entry.after.as_ref().filter(|node| node.kind == NodeKind::File && node.mode & BEYOND != 0);
        notes.extend(added.map(|node| format!("mode {:04o}", node.mode)));
        return notes;
    };
    if before.kind != after.kind {
        return notes;
    }
    let files = before.kind != NodeKind::Symlink && carried(before);
    if files && before.mode != after.mode && (before.mode ^ after.mode) & !0o111 != 0 {
        notes.push(format!("mode {:03o} -> {:03o}", before.mode, after.mode));
    }
    if carried(before) && (before.uid, before.gid) != (after.uid, after.gid) {
        notes.push(format!("owner {}:{} -> {}:{}", before.uid, before.gid, after.uid, after.gid));
    }
    notes
}

/// The lines below the header. Each side is absent, a file or a link.
fn body(
    entry: &DiffEntry,
    before: Option<&Node>,
    after: Option<&Node>,
    [old, new]: [&str; 2],
    colours: bool,
) -> Vec<String> {
    let names = || [format!("--- {old}"), format!("+++ {new}")].map(|line| painted(&line, BOLD, colours));
    let links = |node: Option<&Node>| node.is_none_or(|node| node.kind == NodeKind::Symlink);
    if links(before) && links(after) {
        let target =
            |node: Option<&Node>| node.map(|node| visible(node.target.as_deref().unwrap_or_default()));
        let (was, is) = (target(before), target(after));
        if was == is {
            return Vec::new();
        }
        let mut lines: Vec<String> = names().into();
        let place = match (&was, &is) {
            (None, _) => "@@ -0,0 +1 @@",
            (_, None) => "@@ -1 +0,0 @@",
            _ => "@@ -1 +1 @@",
        };
        lines.push(painted(place, PLACE, colours));
        for (mark, target, colour) in [("-", was, REMOVED), ("+", is, ADDED)] {
            if let Some(target) = target {
                lines.push(painted(&format!("{mark}{target}"), colour, colours));
                lines.push("\\ No newline at end of file".to_owned());
            }
        }
        return lines;
    }
    match &entry.content {
        Content::Same | Content::Unread { .. } => Vec::new(),
        Content::Text { patch: Some(patch), .. } if patch.is_empty() => Vec::new(),
        Content::Text { patch: Some(patch), .. } => {
            let hunks =
                patch.split('\n').filter(|line| !line.is_empty()).map(|line| hunk_line(line, colours));
            names().into_iter().chain(hunks).collect()
        }
        Content::Text { patch: None, added, removed, .. } => {
            vec![painted(&format!("too long to show: {added} lines added, {removed} removed"), BOLD, colours)]
        }
        Content::Binary => {
            vec![painted(&format!("Binary files {old} and {new} differ{}", sizes(entry)), BOLD, colours)]
        }
        Content::TooLarge => vec![painted(
            &format!("Large files {old} and {new} differ, too large to show{}", sizes(entry)),
            BOLD,
            colours,
        )],
    }
}

#[cfg(test)]
mod tests {
    use bay_types::diff::Change;

    use super::*;

    fn node(kind: NodeKind, mode: u32, target: Option<&str>) -> Node {
        Node { kind, mode, uid: 0, gid: 0, size: 3, target: target.map(str::to_owned) }
    }

    fn shown(change: Change, before: Option<Node>, after: Option<Node>, content: Content) -> Option<String> {
        render(&DiffEntry::new(change, b"x", before, after, content), false)
    }

    #[test]
    fn a_link_is_a_file_with_its_target_as_content() {
        let link = |target| Some(node(NodeKind::Symlink, 0o777, Some(target)));
        assert_eq!(
            shown(Change::Added, None, link("a"), Content::Same).unwrap(),
            "diff --git a/x b/x\nnew file mode 120000\n--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+a\n\\ No newline at end of file"
        );
        assert_eq!(
            shown(Change::Modified, link("a"), link("b"), Content::Same).unwrap(),
            "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+b\n\\ No newline at end of file"
        );
        let file = Some(node(NodeKind::File, 0o644, None));
        let went =
            Content::Text { added: 0, removed: 1, patch: Some("@@ -1 +0,0 @@\n-t\n".into()), lossy: false };
        let both = shown(Change::Replaced, file, link("\u{1b}"), went).unwrap();
        assert!(
            both.contains("deleted file mode 100644\n--- a/x\n+++ /dev/null\n@@ -1 +0,0 @@\n-t\n"),
            "{both}"
        );
        assert!(both.contains("new file mode 120000") && !both.contains('\u{1b}'), "{both}");
    }

    #[test]
    fn properties_that_git_does_not_store_are_noted_or_omitted() {
        let dir = || Some(node(NodeKind::Directory, 0o755, None));
        assert_eq!(shown(Change::Added, None, dir(), Content::Same), None);
        let file = |mode| Some(node(NodeKind::File, mode, None));
        assert_eq!(
            shown(Change::Modified, file(0o644), file(0o4755), Content::Same).unwrap(),
            "# x: mode 644 -> 4755\ndiff --git a/x b/x\nold mode 100644\nnew mode 100755"
        );
        assert_eq!(
            shown(Change::Modified, file(0o644), file(0o600), Content::Same).unwrap(),
            "# x: mode 644 -> 600"
        );
        let empty = Content::Text { added: 0, removed: 0, patch: Some(String::new()), lossy: false };
        assert_eq!(
            shown(Change::Added, None, file(0o644), empty).unwrap(),
            "diff --git a/x b/x\nnew file mode 100644"
        );
    }
}
