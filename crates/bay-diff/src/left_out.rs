//! What a comparison leaves out because the repository ignores it. It follows the walk, directory by directory.
//!
//! A path is left out if the rules ignore it and the tree where the work began does not have it: a file that was there
//! from the beginning is the repository's, whatever pattern matches it.

use std::os::fd::BorrowedFd;

use bay_types::diff::{DiffSummary, NodeKind, UnusedRules};

use crate::ignored::{RULES, RuleStack};
use crate::tree::{Tree, kind_at};

/// Most entries of [`DiffSummary::unused_rules`]. Further ones are not reported.
const MAX_UNUSED: usize = 8;

/// How ignored paths are found.
#[derive(Debug, Clone, Copy)]
pub struct LeftOut<'a> {
    /// The tree where the work began.
    pub beginning: Tree<'a>,
    pub rules: RulesOf,
}

/// Whose rules apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RulesOf {
    /// The newer tree's, as git would apply them there. An agent may have written them, so the summary says how many
    /// paths the rules of the beginning do not ignore.
    Newer,
    /// Those of the tree where the work began: rules that an agent adds hide nothing.
    Beginning,
}

/// What is known of a directory that the walk is in.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    /// The rules that apply ignore it, so also everything below it.
    ignored: bool,
    /// The same by the rules of the beginning.
    ignored_at_the_beginning: bool,
    /// The tree where the work began has this directory.
    began_with_it: bool,
    /// A `.git` directory, or below one: git applies no rules there.
    git: bool,
    /// The numbers of files of rules above it, to go back to.
    depths: (usize, usize),
}

/// What the rules say of one path.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Verdict {
    /// The rules ignore it, and the tree where the work began does not have it.
    pub(crate) left_out: bool,
    /// The rules of the beginning do not ignore it.
    pub(crate) by_new_rules: bool,
    below: Place,
}

/// The rules on both sides, along the walk.
#[derive(Debug)]
pub(crate) struct Follower<'a> {
    what: LeftOut<'a>,
    after: Tree<'a>,
    newer: RuleStack,
    beginning: RuleStack,
}

impl<'a> Follower<'a> {
    pub(crate) fn new(what: LeftOut<'a>, after: Tree<'a>) -> Self {
        Self { what, after, newer: RuleStack::default(), beginning: RuleStack::default() }
    }

    /// The place above the top of the trees. Enter it with the empty path.
    pub(crate) fn top(&self) -> Place {
        Place {
            ignored: false,
            ignored_at_the_beginning: false,
            began_with_it: self.what.beginning.is_some(),
            git: false,
            depths: (0, 0),
        }
    }

    /// Reads the rules of a directory. `listed` says whether the newer tree lists a file of rules there.
    pub(crate) fn enter(&mut self, place: Place, path: &[u8], listed: bool, summary: &mut DiffSummary) {
        if place.git || place.ignored {
            return;
        }
        let newer = self.what.rules == RulesOf::Newer;
        if let Some(top) = self.after.filter(|_| newer && listed) {
            read(&mut self.newer, top, path, Some(summary));
        }
        if let Some(top) = self.what.beginning.filter(|_| place.began_with_it) {
            // In a comparison by the newer rules, these only serve to tell who added a rule.
            let told = (!newer).then_some(summary);
            read(&mut self.beginning, top, path, told);
        }
    }

    /// Forgets the rules of a directory.
    pub(crate) fn leave(&mut self, place: Place) {
        self.newer.leave(place.depths.0);
        self.beginning.leave(place.depths.1);
    }

    /// What the rules say of a path in the directory `parent`.
    pub(crate) fn judge(
        &mut self,
        parent: Place,
        path: &[u8],
        name: &[u8],
        kind: Option<NodeKind>,
        summary: &mut DiffSummary,
    ) -> Verdict {
        let is_directory = kind == Some(NodeKind::Directory);
        let git = parent.git || name == b".git";
        let at_the_beginning =
            !git && (parent.ignored_at_the_beginning || self.beginning.ignores(path, is_directory));
        let ignored = match self.what.rules {
            _ if git => false,
            RulesOf::Newer => parent.ignored || self.newer.ignores(path, is_directory),
            RulesOf::Beginning => at_the_beginning,
        };
        let applied = match self.what.rules {
            RulesOf::Newer => &mut self.newer,
            RulesOf::Beginning => &mut self.beginning,
        };
        if applied.gave_up() {
            note(
                summary,
                path,
                "matching rules took too long: from this path on nothing is left out".to_owned(),
            );
        }
        let began_with_it = (parent.began_with_it && (ignored || is_directory))
            .then(|| kind_at(self.what.beginning?, path))
            .flatten();
        Verdict {
            left_out: ignored && began_with_it.is_none(),
            by_new_rules: !at_the_beginning,
            below: Place {
                ignored,
                ignored_at_the_beginning: at_the_beginning,
                began_with_it: began_with_it == Some(NodeKind::Directory),
                git,
                depths: (self.newer.depth(), self.beginning.depth()),
            },
        }
    }
}

impl Verdict {
    /// The place below it, if it is a directory.
    pub(crate) fn below(&self) -> Place {
        self.below
    }
}

fn read(rules: &mut RuleStack, top: BorrowedFd<'_>, directory: &[u8], told: Option<&mut DiffSummary>) {
    if let (Err(why), Some(summary)) = (rules.enter(top, directory), told) {
        let slash = if directory.is_empty() { "" } else { "/" };
        let mut path = directory.to_vec();
        path.extend_from_slice(slash.as_bytes());
        path.extend_from_slice(RULES.as_bytes());
        note(summary, &path, why);
    }
}

fn note(summary: &mut DiffSummary, path: &[u8], why: String) {
    if summary.unused_rules.len() < MAX_UNUSED {
        let path = String::from_utf8_lossy(path).into_owned();
        summary.unused_rules.push(UnusedRules { path, why });
    }
}
