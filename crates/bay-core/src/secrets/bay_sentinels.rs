//! The sentinels of one bay. They stay the same for the life of the bay, because its processes remember them.
//!
//! ```text
//!   data directory/egress/<bay>/sentinels.age
//! ```
//! A fork starts with its parent's sentinels as *inherited* ones, which count as its own, and gets new ones in
//! addition.

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
/// The most inherited sentinels of one secret. The nearest ancestors win.
const MAX_INHERITED: usize = 16;
/// The most ancestors that are stored.
const MAX_ANCESTORS: usize = 64;
/// How often a random sentinel is made until it equals no other.
const TRIES: usize = 16;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BaySentinels {
    /// The nearest first.
    pub(crate) ancestors: Vec<BayId>,
    /// By the name of the secret, also for secrets that were removed.
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

impl BaySentinels {
    /// The sentinels of a bay. A fork starts with its parent's.
    pub(crate) fn open(
        data_dir: &Path,
        bay: BayId,
        parent: Option<BayId>,
        keys: &Keyring,
    ) -> Result<Self, CoreError> {
        if let Some(bay_sentinels) = Self::read(data_dir, bay, keys)? {
            return Ok(bay_sentinels);
        }
        let Some(parent) = parent else { return Ok(Self::default()) };
        let begun = match Self::read(data_dir, parent, keys)? {
            Some(bay_sentinels) => bay_sentinels.child_of(parent),
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

    /// The sentinels with which a child of this bay starts.
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

    /// Makes a sentinel of the bay's own for this secret, if there is none. Returns whether the sentinels must be
    /// stored.
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

    /// All sentinels of this secret in the bay, the bay's own first.
    pub(crate) fn all(&self, name: &str) -> Vec<String> {
        let own = self.own.get(name).into_iter();
        own.chain(self.inherited.get(name).into_iter().flatten()).cloned().collect()
    }

    /// Every secret of which the bay ever had a sentinel.
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
        let mut parent = BaySentinels::default();
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
