//! The refs of a bare repository, read without starting git.
//!
//! These repositories are the cache's own: only the confined git writes them.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use bay_git::{is_object_id, is_ref_name};

/// Nesting of directories below `refs/`.
const MAX_DEPTH: usize = 64;

/// What a ref points to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) object: String,
    /// For an annotated tag: the object it points to.
    pub(crate) peeled: Option<String>,
}

/// The refs of a bare repository.
#[derive(Debug, Default)]
pub(crate) struct Refs {
    pub(crate) all: BTreeMap<String, Target>,
    /// Some refs are in files of their own, which do not have the targets of tags.
    pub(crate) loose: bool,
    /// The branch of HEAD.
    pub(crate) head: Option<String>,
}

impl Refs {
    pub(crate) fn read(git: &Path) -> io::Result<Self> {
        let mut refs = Self::default();
        match std::fs::read_to_string(git.join("packed-refs")) {
            Ok(text) => refs.packed(&text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        refs.loose(&git.join("refs"), "refs", 0)?;
        let head = std::fs::read_to_string(git.join("HEAD"))?;
        refs.head = head.trim_end().strip_prefix("ref: refs/heads/").map(str::to_owned);
        Ok(refs)
    }

    fn packed(&mut self, text: &str) {
        let mut last: Option<String> = None;
        for line in text.lines() {
            if let Some(peeled) = line.strip_prefix('^') {
                if let Some(target) = last.as_ref().and_then(|name| self.all.get_mut(name)) {
                    target.peeled = Some(peeled.to_owned());
                }
            } else if let Some((object, name)) = line.split_once(' ')
                && is_object_id(object)
                && is_ref_name(name)
            {
                self.all.insert(name.to_owned(), Target { object: object.to_owned(), peeled: None });
                last = Some(name.to_owned());
            }
        }
    }

    fn loose(&mut self, dir: &Path, prefix: &str, depth: usize) -> io::Result<()> {
        if depth > MAX_DEPTH {
            return Ok(());
        }
        for entry in std::fs::read_dir(dir)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            let full = format!("{prefix}/{name}");
            if entry.file_type()?.is_dir() {
                self.loose(&entry.path(), &full, depth + 1)?;
            } else if is_ref_name(&full)
                && let Ok(text) = std::fs::read_to_string(entry.path())
                && is_object_id(text.trim_end())
            {
                self.loose = true;
                self.all.insert(full, Target { object: text.trim_end().to_owned(), peeled: None });
            }
        }
        Ok(())
    }

    pub(crate) fn branch(&self, name: &str) -> Option<&str> {
        self.all.get(&format!("refs/heads/{name}")).map(|target| target.object.as_str())
    }

    pub(crate) fn has_tip(&self, commit: &str) -> bool {
        self.all.values().any(|target| target.object == commit || target.peeled.as_deref() == Some(commit))
    }

    /// The contents of `packed-refs` for a clone of this repository: its branches are the remote's, its tags are
    /// the clone's own, and `branch` is at `commit`.
    pub(crate) fn packed_for_clone(&self, branch: Option<&str>, commit: &str) -> String {
        let mut clone = BTreeMap::new();
        for (name, target) in &self.all {
            if let Some(branch) = name.strip_prefix("refs/heads/") {
                clone.insert(format!("refs/remotes/origin/{branch}"), target.clone());
            } else if name.starts_with("refs/tags/") {
                clone.insert(name.clone(), target.clone());
            }
        }
        if let Some(branch) = branch {
            let target = Target { object: commit.to_owned(), peeled: None };
            clone.insert(format!("refs/heads/{branch}"), target);
        }
        let mut text = "# pack-refs with: peeled fully-peeled sorted \n".to_owned();
        for (name, target) in clone {
            text.push_str(&format!("{} {name}\n", target.object));
            if let Some(peeled) = target.peeled {
                text.push_str(&format!("^{peeled}\n"));
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_refs_are_read_and_turned_into_those_of_a_clone() {
        let (a, b, c) = ("a".repeat(40), "b".repeat(40), "c".repeat(40));
        let mut refs = Refs::default();
        refs.packed(&format!(
            "# x\n{a} refs/heads/main\n{b} refs/tags/v1\n^{c}\n{a} refs/bay/{a}\nnonsense\n"
        ));
        assert_eq!(refs.branch("main"), Some(a.as_str()));
        assert!(refs.has_tip(&c));
        let text = refs.packed_for_clone(Some("main"), &a);
        assert_eq!(
            text,
            format!(
                "# pack-refs with: peeled fully-peeled sorted \n{a} refs/heads/main\n{a} refs/remotes/origin/main\n{b} refs/tags/v1\n^{c}\n"
            )
        );
    }
}
