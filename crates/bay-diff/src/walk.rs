//! Walking both trees side by side, in the order of names.
//!
//! Each open directory is a frame: the sorted names of both sides and a position in each. Frames are on an explicit
//! stack, so deep nesting uses heap memory and not the thread's stack. All listings on it together fit into
//! [`MAX_LISTED_BYTES`].

use std::cmp::Ordering;
use std::ffi::{CStr, CString};

use bay_types::diff::NodeKind;

use crate::ignored::RULES;
use crate::left_out::{Follower, LeftOut, Place};
use crate::options::{GitDirectories, Options};
use crate::report::{DiffError, Reporter, Result};
use crate::tree::{Listing, Meta, Tree, Unlisted};

/// Memory for the names in all open directories of both sides. A directory of two million names fits.
pub(crate) const MAX_LISTED_BYTES: usize = 256 << 20;
/// Deepest nesting of directories. Each open one holds two descriptors.
pub(crate) const MAX_DEPTH: usize = 512;

/// A path that may have changed. If both sides have the same kind, their contents may still be equal.
#[derive(Debug)]
pub(crate) struct Candidate {
    pub(crate) path: Vec<u8>,
    pub(crate) before: Option<Meta>,
    pub(crate) after: Option<Meta>,
    /// Why it could not be compared.
    pub(crate) unread: Option<String>,
}

#[derive(Debug)]
struct Frame {
    before: Option<Listing>,
    after: Option<Listing>,
    at: (usize, usize),
    /// Length of the path up to here, without a trailing slash.
    path: usize,
    /// What the ignore rules say of this directory, if they are applied.
    place: Option<Place>,
}

impl Frame {
    fn cost(&self) -> usize {
        self.before.as_ref().map_or(0, Listing::cost) + self.after.as_ref().map_or(0, Listing::cost)
    }

    /// The next name and which sides have it.
    fn next(&mut self) -> Option<(CString, bool, bool)> {
        let left = self.before.as_ref().and_then(|listing| listing.name(self.at.0));
        let right = self.after.as_ref().and_then(|listing| listing.name(self.at.1));
        let order = match (left, right) {
            (None, None) => return None,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(left), Some(right)) => left.to_bytes().cmp(right.to_bytes()),
        };
        let (in_left, in_right) = (order.is_le(), order.is_ge());
        let name = if in_left { left } else { right }.map(CStr::to_owned)?;
        self.at = (self.at.0 + usize::from(in_left), self.at.1 + usize::from(in_right));
        Some((name, in_left, in_right))
    }
}

/// Walks both trees and passes each candidate to `found`. Without `left_out` nothing is left out.
pub(crate) fn walk(
    before: Tree<'_>,
    after: Tree<'_>,
    left_out: Option<LeftOut<'_>>,
    options: &Options,
    reporter: &mut Reporter<'_>,
    found: &mut dyn FnMut(Candidate, &mut Reporter<'_>) -> Result<()>,
) -> Result<()> {
    let top = |tree: Tree<'_>| match tree.map(|top| Listing::top(top, MAX_LISTED_BYTES / 2)).transpose() {
        Ok(listing) => Ok(Ok(listing)),
        Err(Unlisted::TooLarge) => Ok(Err(too_large())),
        Err(Unlisted::Failed(error)) => Err(DiffError::Top(error)),
    };
    let ignored = left_out.map(|what| Follower::new(what, after));
    let (before, after) = match (top(before)?, top(after)?) {
        (Ok(before), Ok(after)) => (before, after),
        (Err(why), _) | (_, Err(why)) => {
            let candidate = Candidate { path: b".".to_vec(), before: None, after: None, unread: Some(why) };
            return found(candidate, reporter);
        }
    };
    let place = ignored.as_ref().map(Follower::top);
    let mut walk = Walk { options, path: Vec::new(), listed: 0, frames: Vec::new(), ignored };
    walk.push(Frame { before, after, at: (0, 0), path: 0, place }, reporter);
    while let Some(frame) = walk.frames.last_mut() {
        let Some((name, in_before, in_after)) = frame.next() else {
            walk.pop();
            continue;
        };
        walk.path.truncate(frame.path);
        if !walk.path.is_empty() {
            walk.path.push(b'/');
        }
        walk.path.extend_from_slice(name.to_bytes());
        walk.look(&name, in_before, in_after, reporter, found)?;
    }
    Ok(())
}

struct Walk<'a> {
    options: &'a Options,
    path: Vec<u8>,
    /// Memory of the listings on the stack.
    listed: usize,
    frames: Vec<Frame>,
    ignored: Option<Follower<'a>>,
}

impl Walk<'_> {
    /// Begins with a directory, whose path is the present one.
    fn push(&mut self, frame: Frame, reporter: &mut Reporter<'_>) {
        self.listed += frame.cost();
        if let (Some(ignored), Some(place)) = (&mut self.ignored, frame.place) {
            let listed = frame.after.as_ref().is_some_and(|listing| listing.contains(RULES.as_bytes()));
            ignored.enter(place, &self.path, listed, &mut reporter.summary);
        }
        self.frames.push(frame);
    }

    fn pop(&mut self) {
        if let Some(frame) = self.frames.pop() {
            self.listed -= frame.cost();
            if let (Some(ignored), Some(place)) = (&mut self.ignored, frame.place) {
                ignored.leave(place);
            }
        }
    }

    fn look(
        &mut self,
        name: &CStr,
        in_before: bool,
        in_after: bool,
        reporter: &mut Reporter<'_>,
        found: &mut dyn FnMut(Candidate, &mut Reporter<'_>) -> Result<()>,
    ) -> Result<()> {
        reporter.compared()?;
        let Some(frame) = self.frames.last() else { return Ok(()) };
        let meta = |listing: &Option<Listing>, there: bool| match listing.as_ref().filter(|_| there) {
            None => Ok(None),
            Some(listing) => match listing.meta(name) {
                Ok(meta) => Ok(Some(meta)),
                // Removed after it was listed, which cannot happen in a snapshot.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
                Err(error) => Err(error),
            },
        };
        let (mut before, mut after) = match (meta(&frame.before, in_before), meta(&frame.after, in_after)) {
            (Ok(before), Ok(after)) => (before, after),
            (Err(error), _) | (_, Err(error)) => {
                let unread = Some(format!("it cannot be looked at: {error}"));
                return found(
                    Candidate { path: self.path.clone(), before: None, after: None, unread },
                    reporter,
                );
            }
        };
        let directory = |meta: &Option<Meta>| meta.is_some_and(|meta| meta.kind == NodeKind::Directory);
        let is_git = name.to_bytes() == b".git" && (directory(&before) || directory(&after));
        if is_git && self.options.git == GitDirectories::LeftOut {
            reporter.summary.git_left_out += 1;
            before = before.filter(|meta| meta.kind != NodeKind::Directory);
            after = after.filter(|meta| meta.kind != NodeKind::Directory);
        }
        let parent = frame.place;
        let kind = after.or(before).map(|meta| meta.kind);
        let verdict = self.ignored.as_mut().zip(parent).map(|(ignored, parent)| {
            ignored.judge(parent, &self.path, name.to_bytes(), kind, &mut reporter.summary)
        });
        let place = verdict.map(|verdict| verdict.below());
        let below = match (directory(&before), directory(&after)) {
            (false, false) => None,
            sides => Some(self.descend(name, sides, is_git, place)),
        };
        let unread = match &below {
            Some(Err(why)) => Some(why.clone()),
            _ => None,
        };
        if let Some(Ok(frame)) = &below {
            let names = |listing: &Option<Listing>| listing.as_ref().map_or(0, Listing::len) as u64;
            if let Some(meta) = before.as_mut().filter(|meta| meta.kind == NodeKind::Directory) {
                meta.size = names(&frame.before);
            }
            if let Some(meta) = after.as_mut().filter(|meta| meta.kind == NodeKind::Directory) {
                meta.size = names(&frame.after);
            }
        }
        if unread.is_some() || self.looks_changed(before.as_ref(), after.as_ref()) {
            match verdict.filter(|verdict| verdict.left_out && unread.is_none()) {
                Some(verdict) => {
                    // Contents are not read only to count. Files that may have changed within a tick of the clock are
                    // left out of the count.
                    let counts = kind != Some(NodeKind::Directory) && before != after;
                    reporter.summary.ignored += u64::from(counts);
                    reporter.summary.ignored_by_new_rules += u64::from(counts && verdict.by_new_rules);
                }
                None => found(Candidate { path: self.path.clone(), before, after, unread }, reporter)?,
            }
        }
        if let Some(Ok(frame)) = below {
            self.push(frame, reporter);
        }
        Ok(())
    }

    fn looks_changed(&self, before: Option<&Meta>, after: Option<&Meta>) -> bool {
        match (before, after) {
            (None, None) => false,
            (Some(before), Some(after)) if before.kind == after.kind => match before.kind {
                NodeKind::Directory => !before.same_rights(after, self.options.owners),
                NodeKind::File | NodeKind::Symlink => !before.untouched(after, self.options.settled_before),
                _ => !before.same_rights(after, self.options.owners) || before.device != after.device,
            },
            _ => true,
        }
    }

    /// The frame of a directory, or why it cannot be listed.
    fn descend(
        &self,
        name: &CStr,
        (before, after): (bool, bool),
        is_git: bool,
        place: Option<Place>,
    ) -> std::result::Result<Frame, String> {
        if self.frames.len() >= MAX_DEPTH {
            return Err(format!("it is nested deeper than {MAX_DEPTH} directories"));
        }
        let Some(parent) = self.frames.last() else { return Err(String::new()) };
        let what_runs = is_git && self.options.git == GitDirectories::WhatRuns;
        let wanted = |name: &[u8]| {
            !what_runs || [&b"config"[..], b"config.worktree", b"hooks", b"info"].contains(&name)
        };
        let mut left = MAX_LISTED_BYTES.saturating_sub(self.listed);
        let mut list = |parent: &Option<Listing>, there: bool| {
            let Some(parent) = parent.as_ref().filter(|_| there) else { return Ok(None) };
            match parent.below(name, left, wanted) {
                Ok(listing) => {
                    left = left.saturating_sub(listing.cost());
                    Ok(Some(listing))
                }
                Err(Unlisted::TooLarge) => Err(too_large()),
                Err(Unlisted::Failed(error)) => Err(format!("it cannot be listed: {error}")),
            }
        };
        let (before, after) = (list(&parent.before, before)?, list(&parent.after, after)?);
        Ok(Frame { before, after, at: (0, 0), path: self.path.len(), place })
    }
}

fn too_large() -> String {
    format!("its names do not fit into the {} MiB there are for them", MAX_LISTED_BYTES >> 20)
}
