//! The sentinels of one bay, kept for its life: what its processes remember must go on meaning the same.
//!
//! ```text
//!   data directory/egress/<bay>/sentinels.age
//! ```
//! A fork begins with its parent's as *inherited* ones, which are honoured as its own, and gets its own besides.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use bay_types::{BayId, CoreError, ErrorCode};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::sentinel;
use crate::keyring::Keyring;

const FILE: &str = "sentinels.age";
/// Most sentinels of ancestors that are honoured for one secret, the nearest ones.
const MAX_INHERITED: usize = 16;
/// Most ancestors that are known.
const MAX_ANCESTORS: usize = 64;
/// How often chance is asked for one that no other is like.
const TRIES: usize = 16;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Book {
    /// The nearest first.
    pub(crate) ancestors: Vec<BayId>,
    /// By the name of the secret; also of those that are gone.
    pub(crate) own: BTreeMap<String, String>,
    /// The nearest first.
    pub(crate) inherited: BTreeMap<String, Vec<String>>,
}

fn path(data_dir: &Path, bay: BayId) -> PathBuf {
    crate::gateway_files::dir(data_dir, bay).join(FILE)
}

fn broken(path: &Path, error: &dyn std::fmt::Display) -> CoreError {
    CoreError::new(
        ErrorCode::Internal,
        format!("{} could not be used: {error}", path.display()),
        "check the disk of the data directory",
    )
}

impl Book {
    /// The bay's book; that of a fork is begun with its parent's.
    pub(crate) fn open(
        data_dir: &Path,
        bay: BayId,
        parent: Option<BayId>,
        keys: &Keyring,
    ) -> Result<Self, CoreError> {
        if let Some(book) = Self::read(data_dir, bay, keys)? {
            return Ok(book);
        }
        let Some(parent) = parent else { return Ok(Self::default()) };
        let begun = match Self::read(data_dir, parent, keys)? {
            Some(book) => book.child_of(parent),
            None => Self::default().child_of(parent),
        };
        begun.keep(data_dir, bay, keys)?;
        Ok(begun)
    }

    fn read(data_dir: &Path, bay: BayId, keys: &Keyring) -> Result<Option<Self>, CoreError> {
        let path = path(data_dir, bay);
        match keys.read(&path)? {
            None => Ok(None),
            Some(text) => serde_json::from_slice(&text).map(Some).map_err(|e| broken(&path, &e)),
        }
    }

    pub(crate) fn keep(&self, data_dir: &Path, bay: BayId, keys: &Keyring) -> Result<(), CoreError> {
        let path = path(data_dir, bay);
        if let Some(dir) = path.parent() {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(|e| broken(dir, &e))?;
        }
        let text = Zeroizing::new(serde_json::to_vec(self).map_err(|e| broken(&path, &e))?);
        keys.write(&path, &text)
    }

    /// What a child of this bay begins with.
    fn child_of(self, parent: BayId) -> Self {
        let mut ancestors = vec![parent];
        ancestors.extend(self.ancestors);
        ancestors.truncate(MAX_ANCESTORS);
        let mut inherited = self.inherited;
        for (name, sentinel) in self.own {
            inherited.entry(name).or_default().insert(0, sentinel);
        }
        inherited.values_mut().for_each(|all| all.truncate(MAX_INHERITED));
        Self { ancestors, own: BTreeMap::new(), inherited }
    }

    /// Whether the bay has a sentinel of its own for this secret; makes one for a value where it has none. Says whether the
    /// book has to be kept.
    pub(crate) fn add(&mut self, name: &str, value: &str) -> std::io::Result<bool> {
        if self.own.contains_key(name) {
            return Ok(false);
        }
        for _ in 0..TRIES {
            let made = sentinel::make(value)?;
            let known = self.own.values().chain(self.inherited.values().flatten());
            if made != value && known.into_iter().all(|other| *other != made) {
                self.own.insert(name.to_owned(), made);
                return Ok(true);
            }
        }
        Err(std::io::Error::other("chance makes the same again and again"))
    }

    /// All that stand for this secret in the bay, its own first.
    pub(crate) fn all(&self, name: &str) -> Vec<String> {
        let own = self.own.get(name).into_iter();
        own.chain(self.inherited.get(name).into_iter().flatten()).cloned().collect()
    }

    /// Every secret that the bay ever had a sentinel of.
    pub(crate) fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.own.keys().chain(self.inherited.keys()).cloned().collect();
        names.sort();
        names.dedup();
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fork_honours_its_ancestors_sentinels_and_has_its_own() {
        let mut parent = Book::default();
        let (first, second) = (BayId::generate(), BayId::generate());
        assert!(parent.add("TOKEN", "ghp_0123456789abcdefABCDEF0123456789abcd").unwrap());
        assert!(
            !parent.add("TOKEN", "another-value-altogether").unwrap(),
            "it stays for the life of the bay"
        );
        let of_parent = parent.all("TOKEN");
        let mut child = parent.clone().child_of(first);
        assert!(child.own.is_empty());
        child.add("TOKEN", "ghp_0123456789abcdefABCDEF0123456789abcd").unwrap();
        let of_child = child.all("TOKEN");
        assert_eq!(of_child.len(), 2);
        assert_eq!(of_child[1], of_parent[0]);
        assert_ne!(of_child[0], of_parent[0]);
        let grandchild = child.child_of(second);
        assert_eq!(grandchild.ancestors, [second, first]);
        assert_eq!(grandchild.all("TOKEN"), of_child);
    }
}
