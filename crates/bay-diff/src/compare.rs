//! Turning candidates into entries: candidates are held until renames are paired, then read and reported in the
//! order of paths.

use std::os::fd::BorrowedFd;

use bay_types::diff::{Change, Content, DiffEntry, DiffSummary, NodeKind};
use bay_types::inside;

use crate::content::{Contents, FileSide};
use crate::left_out::LeftOut;
use crate::options::Options;
use crate::renames;
use crate::report::{Hear, Reporter, Result, Told};
use crate::tree::{Meta, Tree, read_link};
use crate::walk::{Candidate, walk};

/// Most candidates that are held. Beyond that, each is reported as it is found, without looking for renames.
const MAX_HELD: usize = 200_000;
/// Most bytes of paths of held candidates.
const MAX_HELD_BYTES: usize = 64 << 20;
/// Entries between two reports of progress.
const PROGRESS_EVERY: u64 = 64;

/// Compares two trees and reports every difference. Returns the counts at the end.
///
/// # Errors
/// When the caller cancels, or when the top of a tree cannot be read. Errors further down become entries.
pub fn compare(before: Tree<'_>, after: Tree<'_>, options: &Options, hear: Hear<'_>) -> Result<DiffSummary> {
    compare_without(None, before, after, options, hear)
}

/// Compares two trees like [`compare`], but leaves out and counts what the repository ignores.
///
/// # Errors
/// Those of [`compare`].
pub fn compare_without(
    left_out: Option<LeftOut<'_>>,
    before: Tree<'_>,
    after: Tree<'_>,
    options: &Options,
    hear: Hear<'_>,
) -> Result<DiffSummary> {
    let mut reporter = Reporter::new(hear);
    let mut comparison = Comparison {
        before,
        after,
        contents: Contents::new(options),
        held: Some(Vec::new()),
        held_bytes: 0,
        reported: 0,
        owners: options.owners,
        ctl_link: options.ctl_link,
    };
    walk(before, after, left_out, options, &mut reporter, &mut |candidate, reporter| {
        comparison.take(candidate, reporter)
    })?;
    comparison.release(&mut reporter)?;
    Ok(reporter.summary)
}

struct Comparison<'a> {
    before: Tree<'a>,
    after: Tree<'a>,
    contents: Contents<'a>,
    /// `None` after there were too many to hold.
    held: Option<Vec<Candidate>>,
    held_bytes: usize,
    reported: u64,
    /// Whether another owner is a difference.
    owners: bool,
    /// See [`Options::ctl_link`].
    ctl_link: bool,
}

impl Comparison<'_> {
    fn take(&mut self, candidate: Candidate, reporter: &mut Reporter<'_>) -> Result<()> {
        let Some(held) = &mut self.held else { return self.report(&candidate, None, reporter) };
        self.held_bytes += candidate.path.len();
        held.push(candidate);
        if held.len() >= MAX_HELD || self.held_bytes >= MAX_HELD_BYTES {
            reporter.summary.renames_incomplete = true;
            self.release(reporter)?;
        }
        Ok(())
    }

    fn release(&mut self, reporter: &mut Reporter<'_>) -> Result<()> {
        let Some(held) = self.held.take() else { return Ok(()) };
        let pairs = renames::pair(&held, self.before, self.after, reporter)?;
        let moved: std::collections::HashSet<usize> = pairs.values().copied().collect();
        for (at, candidate) in held.iter().enumerate() {
            if !moved.contains(&at) {
                self.report(candidate, pairs.get(&at).map(|from| &held[*from]), reporter)?;
            }
        }
        Ok(())
    }

    /// Reports one candidate, unless its contents are equal. `from` is the other half of a rename.
    fn report(
        &mut self,
        candidate: &Candidate,
        from: Option<&Candidate>,
        reporter: &mut Reporter<'_>,
    ) -> Result<()> {
        self.reported += 1;
        if self.reported.is_multiple_of(PROGRESS_EVERY) {
            reporter.progress("reading what changed", self.reported, None, "files")?;
        }
        let Some(entry) = self.entry(candidate, from, reporter)? else { return Ok(()) };
        count(&mut reporter.summary, &entry);
        reporter.report(Told::Entry(Box::new(entry)))
    }

    fn entry(
        &mut self,
        candidate: &Candidate,
        from: Option<&Candidate>,
        reporter: &mut Reporter<'_>,
    ) -> Result<Option<DiffEntry>> {
        if let Some(why) = &candidate.unread {
            let content = Content::Unread { why: why.clone() };
            return Ok(Some(self.made(Change::Unread, candidate, from, content)));
        }
        let old = from.unwrap_or(candidate);
        let (before, after) = (old.before.as_ref(), candidate.after.as_ref());
        let change = match (from, before, after) {
            (Some(_), _, _) => Change::Renamed,
            (None, Some(_), None) => Change::Deleted,
            (None, None, _) => Change::Added,
            (None, Some(before), Some(after)) if before.kind == after.kind => Change::Modified,
            (None, Some(_), Some(_)) => Change::Replaced,
        };
        if change == Change::Added && !self.ctl_link && self.is_ctl_link(candidate) {
            return Ok(None);
        }
        let content = self.content(old, candidate, reporter)?;
        let same_rights = match (before, after) {
            (Some(before), Some(after)) => before.same_rights(after, self.owners),
            _ => false,
        };
        let same_device = before.map(|meta| meta.device) == after.map(|meta| meta.device);
        if change == Change::Modified && content == Content::Same && same_rights && same_device {
            let same_target = || {
                let target = |top, candidate: &Candidate, meta| link(top, &candidate.path, meta);
                target(self.before, old, before) == target(self.after, candidate, after)
            };
            if after.is_none_or(|meta| meta.kind != NodeKind::Symlink) || same_target() {
                return Ok(None);
            }
        }
        Ok(Some(self.made(change, candidate, from, content)))
    }

    /// Whether this is the guest's own link to `bay-ctl`. A link elsewhere, or a file, is somebody else's.
    fn is_ctl_link(&self, candidate: &Candidate) -> bool {
        inside::CTL_LINKS.iter().any(|path| path.as_bytes() == candidate.path)
            && link(self.after, &candidate.path, candidate.after.as_ref())
                .is_some_and(|target| target == inside::CTL.as_bytes())
    }

    fn content(&mut self, old: &Candidate, new: &Candidate, reporter: &mut Reporter<'_>) -> Result<Content> {
        fn file<'a>(top: Tree<'a>, candidate: &'a Candidate, meta: Option<&'a Meta>) -> FileSide<'a> {
            let meta = meta.filter(|meta| meta.kind == NodeKind::File)?;
            Some((top?, &candidate.path, meta))
        }
        let before = file(self.before, old, old.before.as_ref());
        let after = file(self.after, new, new.after.as_ref());
        let moved_only = match (&before, &after) {
            (None, None) => true,
            // The same file under another name. Equal times alone do not prove that: see `settled_before`.
            (Some((_, _, before)), Some((_, _, after))) => {
                before.untouched(after, self.contents.settled_before())
            }
            _ => false,
        };
        if moved_only {
            return Ok(Content::Same);
        }
        self.contents.compare(before, after, reporter)
    }

    fn made(
        &self,
        change: Change,
        candidate: &Candidate,
        from: Option<&Candidate>,
        content: Content,
    ) -> DiffEntry {
        let old = from.unwrap_or(candidate);
        let node = |top: Tree<'_>, path: &[u8], meta: Option<&Meta>| {
            let target = link(top, path, meta);
            meta.map(|meta| meta.node(target.as_deref()))
        };
        let before = node(self.before, &old.path, old.before.as_ref());
        let after = node(self.after, &candidate.path, candidate.after.as_ref());
        let entry = DiffEntry::new(change, &candidate.path, before, after, content);
        match from {
            Some(from) => entry.renamed_from(&from.path),
            None => entry,
        }
    }
}

/// The target of a symbolic link.
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

    /// The entries of a file that has the same inode and times on both sides, as after a snapshot and a write
    /// within one tick of the filesystem's clock.
    fn same_times(before: &str, after: &str, settled_before: Option<(i64, u32)>) -> Vec<DiffEntry> {
        let tops = [before, after].map(|text| {
            let top = tempfile::tempdir().unwrap();
            fs::write(top.path().join("f"), text).unwrap();
            top
        });
        let [before, after] = tops.each_ref().map(|top| fs::File::open(top.path()).unwrap());
        let meta = Meta::at(before.as_fd(), c"f").unwrap();
        let candidate =
            |path: &[u8], before, after| Candidate { path: path.to_vec(), before, after, unread: None };
        let options = Options { settled_before, ..Options::shown(true) };
        let mut entries = Vec::new();
        let mut hear = |told| {
            if let Told::Entry(entry) = told {
                entries.push(*entry);
            }
            ControlFlow::Continue(())
        };
        let mut reporter = Reporter::new(&mut hear);
        let mut comparison = Comparison {
            before: Some(before.as_fd()),
            after: Some(after.as_fd()),
            contents: Contents::new(&options),
            owners: options.owners,
            ctl_link: options.ctl_link,
            held: None,
            held_bytes: 0,
            reported: 0,
        };
        comparison.report(&candidate(b"f", Some(meta), Some(meta)), None, &mut reporter).unwrap();
        let (new, old) = (candidate(b"f", None, Some(meta)), candidate(b"f", Some(meta), None));
        comparison.report(&new, Some(&old), &mut reporter).unwrap();
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
