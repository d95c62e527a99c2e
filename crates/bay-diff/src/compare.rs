//! From what looks changed to entries: held back until renames are paired, then read and told in the order of paths.

use std::os::fd::BorrowedFd;

use bay_types::diff::{Change, Content, DiffEntry, DiffSummary, NodeKind};

use crate::content::{Contents, FileSide};
use crate::tree::{Meta, read_link};
use crate::walk::{Suspect, walk};
use crate::{Hear, Options, Result, Talk, Told, Tree, renames};

/// Changes that are held back. Beyond that they are told as they are found, without looking for renames.
const MAX_HELD: usize = 200_000;
/// Bytes of paths that are held back.
const MAX_HELD_BYTES: usize = 64 << 20;
/// Entries between two pieces of news.
const NEWS_EVERY: u64 = 64;

/// Compares two trees and tells every difference. What was counted is returned at the end.
///
/// # Errors
/// When the listener wants no more, or the top of a tree cannot be read. Trouble further down is told as an entry.
pub fn compare(before: Tree<'_>, after: Tree<'_>, options: &Options, hear: Hear<'_>) -> Result<DiffSummary> {
    let mut talk = Talk::new(hear);
    let mut teller = Teller {
        before,
        after,
        contents: Contents::new(options),
        held: Some(Vec::new()),
        held_bytes: 0,
        told: 0,
    };
    walk(before, after, options, &mut talk, &mut |suspect, talk| teller.take(suspect, talk))?;
    teller.release(&mut talk)?;
    Ok(talk.summary)
}

struct Teller<'a> {
    before: Tree<'a>,
    after: Tree<'a>,
    contents: Contents<'a>,
    /// Nothing once there was too much to hold.
    held: Option<Vec<Suspect>>,
    held_bytes: usize,
    told: u64,
}

impl Teller<'_> {
    fn take(&mut self, suspect: Suspect, talk: &mut Talk<'_>) -> Result<()> {
        let Some(held) = &mut self.held else { return self.tell(&suspect, None, talk) };
        self.held_bytes += suspect.path.len();
        held.push(suspect);
        if held.len() >= MAX_HELD || self.held_bytes >= MAX_HELD_BYTES {
            talk.summary.renames_incomplete = true;
            self.release(talk)?;
        }
        Ok(())
    }

    fn release(&mut self, talk: &mut Talk<'_>) -> Result<()> {
        let Some(held) = self.held.take() else { return Ok(()) };
        let pairs = renames::pair(&held, self.before, self.after, talk)?;
        let moved: std::collections::HashSet<usize> = pairs.values().copied().collect();
        for (at, suspect) in held.iter().enumerate() {
            if !moved.contains(&at) {
                self.tell(suspect, pairs.get(&at).map(|from| &held[*from]), talk)?;
            }
        }
        Ok(())
    }

    /// Tells one suspect, unless its contents turn out to be the same. `from` is the other half of a rename.
    fn tell(&mut self, suspect: &Suspect, from: Option<&Suspect>, talk: &mut Talk<'_>) -> Result<()> {
        self.told += 1;
        if self.told.is_multiple_of(NEWS_EVERY) {
            talk.progress("reading what changed", self.told, None, "files")?;
        }
        let Some(entry) = self.entry(suspect, from, talk)? else { return Ok(()) };
        count(&mut talk.summary, &entry);
        talk.tell(Told::Entry(Box::new(entry)))
    }

    fn entry(
        &mut self,
        suspect: &Suspect,
        from: Option<&Suspect>,
        talk: &mut Talk<'_>,
    ) -> Result<Option<DiffEntry>> {
        if let Some(why) = &suspect.unread {
            let content = Content::Unread { why: why.clone() };
            return Ok(Some(self.made(Change::Unread, suspect, from, content)));
        }
        let old = from.unwrap_or(suspect);
        let (before, after) = (old.before.as_ref(), suspect.after.as_ref());
        let change = match (from, before, after) {
            (Some(_), _, _) => Change::Renamed,
            (None, Some(_), None) => Change::Deleted,
            (None, None, _) => Change::Added,
            (None, Some(before), Some(after)) if before.kind == after.kind => Change::Modified,
            (None, Some(_), Some(_)) => Change::Replaced,
        };
        let content = self.content(old, suspect, talk)?;
        let same_rights = match (before, after) {
            (Some(before), Some(after)) => before.same_rights(after),
            _ => false,
        };
        let same_device = before.map(|meta| meta.device) == after.map(|meta| meta.device);
        if change == Change::Modified && content == Content::Same && same_rights && same_device {
            let same_target = || {
                let target = |top, suspect: &Suspect, meta| link(top, &suspect.path, meta);
                target(self.before, old, before) == target(self.after, suspect, after)
            };
            if after.is_none_or(|meta| meta.kind != NodeKind::Symlink) || same_target() {
                return Ok(None);
            }
        }
        Ok(Some(self.made(change, suspect, from, content)))
    }

    fn content(&mut self, old: &Suspect, new: &Suspect, talk: &mut Talk<'_>) -> Result<Content> {
        fn file<'a>(top: Tree<'a>, suspect: &'a Suspect, meta: Option<&'a Meta>) -> FileSide<'a> {
            let meta = meta.filter(|meta| meta.kind == NodeKind::File)?;
            Some((top?, &suspect.path, meta))
        }
        let before = file(self.before, old, old.before.as_ref());
        let after = file(self.after, new, new.after.as_ref());
        let moved_only = match (&before, &after) {
            (None, None) => true,
            // One thing that nobody touched but for its name. Equal times alone do not say so: see `settled_before`.
            (Some((_, _, before)), Some((_, _, after))) => {
                before.untouched(after, self.contents.settled_before())
            }
            _ => false,
        };
        if moved_only {
            return Ok(Content::Same);
        }
        self.contents.compare(before, after, talk)
    }

    fn made(&self, change: Change, suspect: &Suspect, from: Option<&Suspect>, content: Content) -> DiffEntry {
        let old = from.unwrap_or(suspect);
        let node = |top: Tree<'_>, path: &[u8], meta: Option<&Meta>| {
            let target = link(top, path, meta);
            meta.map(|meta| meta.node(target.as_deref()))
        };
        let before = node(self.before, &old.path, old.before.as_ref());
        let after = node(self.after, &suspect.path, suspect.after.as_ref());
        let entry = DiffEntry::new(change, &suspect.path, before, after, content);
        match from {
            Some(from) => entry.renamed_from(&from.path),
            None => entry,
        }
    }
}

/// The target of what is a link.
fn link(top: Option<BorrowedFd<'_>>, path: &[u8], meta: Option<&Meta>) -> Option<Vec<u8>> {
    meta.filter(|meta| meta.kind == NodeKind::Symlink)?;
    read_link(top?, path).ok()
}

fn count(summary: &mut DiffSummary, entry: &DiffEntry) {
    if let Content::Text { added, removed, .. } = entry.content {
        summary.lines_added += added;
        summary.lines_removed += removed;
    }
    if matches!(entry.content, Content::Unread { .. }) {
        summary.unread += 1;
    }
    let directory =
        [&entry.before, &entry.after].into_iter().flatten().all(|node| node.kind == NodeKind::Directory);
    let counter = match entry.change {
        Change::Unread => return,
        _ if directory => &mut summary.directories,
        Change::Added => &mut summary.added,
        Change::Deleted => &mut summary.deleted,
        Change::Modified => &mut summary.modified,
        Change::Renamed => &mut summary.renamed,
        Change::Replaced => &mut summary.replaced,
    };
    *counter += 1;
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::ops::ControlFlow;
    use std::os::fd::AsFd;

    use super::*;

    /// The entries of one file of which both sides have the same inode and times, as a snapshot and a write within one
    /// tick of the filesystem's clock make it.
    fn same_times(before: &str, after: &str, settled_before: Option<(i64, u32)>) -> Vec<DiffEntry> {
        let tops = [before, after].map(|text| {
            let top = tempfile::tempdir().unwrap();
            fs::write(top.path().join("f"), text).unwrap();
            top
        });
        let [before, after] = tops.each_ref().map(|top| fs::File::open(top.path()).unwrap());
        let meta = Meta::at(before.as_fd(), c"f").unwrap();
        let suspect =
            |path: &[u8], before, after| Suspect { path: path.to_vec(), before, after, unread: None };
        let options = Options { settled_before, ..Options::shown(true) };
        let mut entries = Vec::new();
        let mut hear = |told| {
            if let Told::Entry(entry) = told {
                entries.push(*entry);
            }
            ControlFlow::Continue(())
        };
        let mut talk = Talk::new(&mut hear);
        let mut teller = Teller {
            before: Some(before.as_fd()),
            after: Some(after.as_fd()),
            contents: Contents::new(&options),
            held: None,
            held_bytes: 0,
            told: 0,
        };
        teller.tell(&suspect(b"f", Some(meta), Some(meta)), None, &mut talk).unwrap();
        let (new, old) = (suspect(b"f", None, Some(meta)), suspect(b"f", Some(meta), None));
        teller.tell(&new, Some(&old), &mut talk).unwrap();
        entries
    }

    #[test]
    fn a_file_that_changed_within_a_tick_of_the_clock_is_read_also_if_it_was_moved() {
        let unsettled = Some((0, 0));
        let entries = same_times("1\n", "2\n", unsettled);
        let changes: Vec<Change> = entries.iter().map(|entry| entry.change).collect();
        assert_eq!(changes, [Change::Modified, Change::Renamed]);
        for entry in &entries {
            assert!(matches!(entry.content, Content::Text { added: 1, removed: 1, .. }), "{entry:?}");
        }
        let entries = same_times("1\n", "1\n", unsettled);
        assert_eq!(entries.len(), 1, "only the rename: {entries:?}");
        assert_eq!(entries[0].content, Content::Same);
    }

    #[test]
    fn a_file_that_settled_before_the_snapshot_is_not_read() {
        let entries = same_times("1\n", "2\n", Some((i64::MAX, 0)));
        assert_eq!(entries.len(), 1, "only the rename: {entries:?}");
        assert_eq!(entries[0].content, Content::Same);
    }
}
