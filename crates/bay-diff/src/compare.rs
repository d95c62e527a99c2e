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
            // One thing that nobody touched but for its name.
            (Some((_, _, before)), Some((_, _, after))) => before == after,
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
