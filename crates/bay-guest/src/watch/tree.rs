//! The tree of watched directories. A watch stays with its directory when the directory moves; a path does not.

use std::collections::{HashMap, HashSet};

/// The kernel's number of a watched directory. An inotify instance never uses a number twice.
pub(super) type Wd = i32;

#[derive(Debug)]
pub(super) struct Tree {
    nodes: HashMap<Wd, Node>,
    root: Wd,
}

#[derive(Debug, Default)]
struct Node {
    /// None for the root, and for a directory whose name another directory has taken: a notification of its end will
    /// follow.
    parent: Option<(Wd, Vec<u8>)>,
    children: HashMap<Vec<u8>, Wd>,
    /// Names that were reported because they were found. The kernel may report them again as made.
    reported: HashSet<Vec<u8>>,
}

impl Tree {
    pub(super) fn new(root: Wd) -> Self {
        Self { nodes: HashMap::from([(root, Node::default())]), root }
    }

    pub(super) fn root(&self) -> Wd {
        self.root
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    pub(super) fn knows(&self, wd: Wd) -> bool {
        self.nodes.contains_key(&wd)
    }

    pub(super) fn watches(&self) -> impl Iterator<Item = Wd> + '_ {
        self.nodes.keys().copied()
    }

    pub(super) fn child(&self, parent: Wd, name: &[u8]) -> Option<Wd> {
        self.nodes.get(&parent)?.children.get(name).copied()
    }

    /// The path relative to the root. None if the directory is not in the tree (any more).
    pub(super) fn path(&self, wd: Wd) -> Option<Vec<u8>> {
        let mut names = Vec::new();
        let mut at = wd;
        while at != self.root {
            let (parent, name) = self.nodes.get(&at)?.parent.as_ref()?;
            names.push(name.as_slice());
            at = *parent;
        }
        names.reverse();
        Some(names.join(&b'/'))
    }

    fn is_below(&self, mut wd: Wd, top: Wd) -> bool {
        loop {
            if wd == top {
                return true;
            }
            match self.nodes.get(&wd).and_then(|node| node.parent.as_ref()) {
                Some((parent, _)) => wd = *parent,
                None => return false,
            }
        }
    }

    /// Gives a new or known directory a name. Returns the directory that had the name, if it is another one. `Err` if
    /// the parent is not in the tree, or is below the directory itself.
    pub(super) fn place(&mut self, wd: Wd, parent: Wd, name: &[u8]) -> Result<Option<Wd>, ()> {
        if wd == self.root || !self.nodes.contains_key(&parent) || self.is_below(parent, wd) {
            return Err(());
        }
        self.detach(wd);
        self.nodes.entry(wd).or_default().parent = Some((parent, name.to_vec()));
        let displaced = self.nodes.get_mut(&parent).and_then(|node| node.children.insert(name.to_vec(), wd));
        if let Some(node) = displaced.and_then(|other| self.nodes.get_mut(&other)) {
            node.parent = None;
        }
        Ok(displaced)
    }

    /// Takes the name from a directory, if it still has it.
    fn detach(&mut self, wd: Wd) {
        let Some((parent, name)) = self.nodes.get_mut(&wd).and_then(|node| node.parent.take()) else {
            return;
        };
        if let Some(node) = self.nodes.get_mut(&parent)
            && node.children.get(&name) == Some(&wd)
        {
            node.children.remove(&name);
        }
    }

    /// Removes a directory and everything below it. Returns their watches.
    pub(super) fn forget(&mut self, wd: Wd) -> Vec<Wd> {
        self.detach(wd);
        let mut gone = vec![wd];
        let mut at = 0;
        while let Some(node) = gone.get(at).and_then(|wd| self.nodes.remove(wd)) {
            gone.extend(node.children.into_values());
            at += 1;
        }
        gone
    }

    /// Records that a name was reported because it was found. Returns false if it was recorded already.
    pub(super) fn report_found(&mut self, wd: Wd, name: &[u8]) -> bool {
        self.nodes.get_mut(&wd).is_some_and(|node| node.reported.insert(name.to_vec()))
    }

    /// Removes the record that a name was reported because it was found. Returns whether there was one.
    pub(super) fn was_found(&mut self, wd: Wd, name: &[u8]) -> bool {
        self.nodes.get_mut(&wd).is_some_and(|node| node.reported.remove(name))
    }

    pub(super) fn forget_found(&mut self, wd: Wd) {
        if let Some(node) = self.nodes.get_mut(&wd) {
            node.reported = HashSet::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> Tree {
        let mut tree = Tree::new(1);
        for (wd, parent, name) in [(2, 1, "a"), (3, 2, "b"), (4, 3, "c"), (5, 1, "z")] {
            assert_eq!(tree.place(wd, parent, name.as_bytes()), Ok(None));
        }
        tree
    }

    #[test]
    fn a_moved_directory_keeps_its_subdirectories() {
        let mut tree = tree();
        assert_eq!(tree.place(3, 5, b"new"), Ok(None));
        assert_eq!(tree.path(4).unwrap(), b"z/new/c");
        assert_eq!(tree.child(2, b"b"), None);
    }

    #[test]
    fn a_directory_cannot_be_below_itself() {
        let mut tree = tree();
        assert_eq!(tree.place(2, 4, b"loop"), Err(()));
        assert_eq!(tree.place(1, 4, b"loop"), Err(()));
        assert_eq!(tree.path(4).unwrap(), b"a/b/c");
    }

    #[test]
    fn a_directory_that_lost_its_name_has_no_path_and_its_end_removes_nothing_else() {
        let mut tree = tree();
        assert_eq!(tree.place(5, 1, b"a"), Ok(Some(2)));
        assert_eq!(tree.path(4), None);
        let mut gone = tree.forget(2);
        gone.sort_unstable();
        assert_eq!(gone, [2, 3, 4]);
        assert_eq!(tree.child(1, b"a"), Some(5));
        assert_eq!(tree.len(), 2);
    }
}
