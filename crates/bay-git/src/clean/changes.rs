//! The changes of the work: as a list, and as plain files for readers that do not use git.
//!
//! Contents are read directly from the objects. A checkout would apply the work's own attributes, which can convert a
//! text to another encoding and hide its content.

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use super::{CleanRepo, make_private_dir};
use crate::error::{GitError, Result};
use crate::names::is_object_id;

/// The empty tree, which every git knows, in repositories with SHA-1.
const EMPTY_TREE: &str = "4b825dc642cb6eb9a060e54bf8d69288fbee4904";
/// The empty tree in repositories with SHA-256.
const EMPTY_TREE_SHA256: &str = "6ef19b41225c5369f1c104d45d8d85efa9b057b53b14b4b9b939dd74decc5321";
/// Most contents that are requested together.
const BATCH_BYTES: u64 = 16 << 20;
/// Larger files are written as sparse files of their size that contain only the object's id at the beginning.
const MAX_LAID_OUT_BYTES: u64 = 16 << 20;
/// Longest target of a symbolic link.
const MAX_TARGET: u64 = 4095;

/// One side of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub mode: u32,
    pub id: String,
}

impl Entry {
    const KIND: u32 = 0o170_000;

    /// A commit of another repository, which has no content.
    #[must_use]
    pub fn is_repository(&self) -> bool {
        self.mode & Self::KIND == 0o160_000
    }

    fn is_link(&self) -> bool {
        self.mode & Self::KIND == 0o120_000
    }
}

/// A path that differs between two trees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changed {
    /// Relative; may contain any bytes.
    pub path: Vec<u8>,
    pub before: Option<Entry>,
    pub after: Option<Entry>,
}

/// Directories that contain only the changed files.
#[derive(Debug)]
pub struct LaidOut {
    pub before: PathBuf,
    pub after: PathBuf,
    /// Versions of files that only intermediate commits contain, each below a numbered directory of its own: they leave
    /// with their commits.
    pub on_the_way: PathBuf,
}

impl CleanRepo {
    /// The changes between the base, or nothing, and `tip`.
    pub fn changes(&self, tip: &str, base: Option<&str>) -> Result<Vec<Changed>> {
        let empty = if tip.len() == EMPTY_TREE_SHA256.len() { EMPTY_TREE_SHA256 } else { EMPTY_TREE };
        let arguments =
            ["diff-tree", "-r", "-z", "--raw", "--no-abbrev", "--no-renames", base.unwrap_or(empty), tip];
        parse(&self.ask(&arguments)?).ok_or_else(not_told)
    }

    /// The changes of the commits between the base and `tip`, one after the other.
    fn changes_on_the_way(&self, tip: &str, base: Option<&str>) -> Result<Vec<Changed>> {
        let exclude = base.map(|base| format!("^{base}"));
        let mut arguments = vec!["rev-list", tip];
        arguments.extend(exclude.as_deref());
        let commits = self.ask(&arguments)?;
        let arguments = ["diff-tree", "--stdin", "--no-commit-id", "--root", "-m", "-r", "-z", "--raw"];
        let raw = self.ask_about(&[&arguments[..], &["--no-abbrev", "--no-renames"]].concat(), commits)?;
        parse(&raw).ok_or_else(not_told)
    }

    /// Writes the files that changed between the base, or nothing, and `tip`.
    pub fn lay_out(&self, tip: &str, base: Option<&str>) -> Result<LaidOut> {
        let at = |name: &str| self.place.join(name);
        let laid_out = LaidOut { before: at("before"), after: at("after"), on_the_way: at("on-the-way") };
        let changes = self.changes(tip, base)?;
        let side = |entry: fn(&Changed) -> &Option<Entry>| {
            changes.iter().filter_map(move |change| {
                Some((change.path.clone(), entry(change).clone().filter(|entry| !entry.is_repository())?))
            })
        };
        self.lay(&laid_out.before, side(|change| &change.before).collect())?;
        self.lay(&laid_out.after, side(|change| &change.after).collect())?;
        let arrived: HashSet<&str> =
            changes.iter().filter_map(|change| Some(change.after.as_ref()?.id.as_str())).collect();
        let mut seen = HashSet::new();
        let mut passing = Vec::new();
        for change in self.changes_on_the_way(tip, base)? {
            let Some(entry) = change.after.filter(|entry| !entry.is_repository()) else { continue };
            if !arrived.contains(entry.id.as_str()) && seen.insert(entry.id.clone()) {
                let path = [format!("{}/", passing.len() + 1).as_bytes(), &change.path].concat();
                passing.push((path, entry));
            }
        }
        self.lay(&laid_out.on_the_way, passing)?;
        Ok(laid_out)
    }

    fn lay(&self, dir: &Path, files: Vec<(Vec<u8>, Entry)>) -> Result<()> {
        make_private_dir(dir)?;
        let mut by_id: BTreeMap<String, Vec<(PathBuf, Entry)>> = BTreeMap::new();
        for (path, entry) in files {
            let path = PathBuf::from(OsStr::from_bytes(&path));
            // The checks of the pack exclude such paths. A path that leaves the directory would be a defect of this
            // program.
            if !path.components().all(|part| matches!(part, Component::Normal(_))) {
                return Err(GitError::Refused { why: "a path leads out of the tree".to_owned() });
            }
            by_id.entry(entry.id.clone()).or_default().push((dir.join(path), entry));
        }
        let sizes = self.sizes(by_id.keys())?;
        // Links last, so that nothing is written through one.
        let mut links = Vec::new();
        for batch in batches(&sizes) {
            for (id, content) in self.contents(&batch)? {
                for (path, entry) in by_id.get(&id).into_iter().flatten() {
                    if entry.is_link() && content.len() as u64 <= MAX_TARGET {
                        links.push((path.clone(), content.clone()));
                    } else {
                        written(write(path, |file| file.write_all(&content)))?;
                    }
                }
            }
        }
        for (id, size) in sizes.iter().filter(|(_, size)| **size > MAX_LAID_OUT_BYTES) {
            for (path, _) in by_id.get(id).into_iter().flatten() {
                written(write(path, |file| {
                    file.write_all(id.as_bytes())?;
                    file.set_len(*size)
                }))?;
            }
        }
        for (path, target) in links {
            let make = || {
                parents(&path)?;
                std::os::unix::fs::symlink(OsStr::from_bytes(&target), &path)
            };
            written(make())?;
        }
        Ok(())
    }

    fn sizes<'a>(&self, ids: impl Iterator<Item = &'a String>) -> Result<BTreeMap<String, u64>> {
        let questions: String = ids.map(|id| format!("{id}\n")).collect();
        let check = ["cat-file", "--buffer", "--batch-check=%(objectname) %(objecttype) %(objectsize)"];
        let answer = self.ask_about(&check, questions.into_bytes())?;
        let text = String::from_utf8_lossy(&answer);
        let size = |line: &str| {
            let (id, rest) = line.split_once(' ')?;
            Some((id.to_owned(), rest.strip_prefix("blob ")?.parse().ok()?))
        };
        text.lines().map(|line| size(line).ok_or_else(not_told)).collect()
    }

    fn contents(&self, ids: &[&str]) -> Result<Vec<(String, Vec<u8>)>> {
        let questions: String = ids.iter().map(|id| format!("{id}\n")).collect();
        let answer = self.ask_about(&["cat-file", "--buffer", "--batch"], questions.into_bytes())?;
        let mut rest = &answer[..];
        let mut next = |id: &str| {
            let end = rest.iter().position(|b| *b == b'\n')?;
            let head = std::str::from_utf8(&rest[..end]).ok()?;
            let size: usize = head.strip_prefix(id)?.strip_prefix(" blob ")?.parse().ok()?;
            let content = rest.get(end + 1..end + 1 + size)?.to_vec();
            rest = rest.get(end + 2 + size..)?;
            Some((id.to_owned(), content))
        };
        ids.iter().map(|id| next(id).ok_or_else(not_told)).collect()
    }
}

/// Groups of the contents that are written whole, each small enough for memory.
fn batches(sizes: &BTreeMap<String, u64>) -> Vec<Vec<&str>> {
    let mut batches: Vec<Vec<&str>> = Vec::new();
    let mut room = 0;
    for (id, size) in sizes.iter().filter(|(_, size)| **size <= MAX_LAID_OUT_BYTES) {
        // The lines that git prints around each content count too.
        let bytes = size + 128;
        if bytes > room {
            batches.push(Vec::new());
            room = BATCH_BYTES.max(bytes);
        }
        room -= bytes;
        if let Some(batch) = batches.last_mut() {
            batch.push(id);
        }
    }
    batches
}

fn parents(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)
}

fn write(path: &Path, fill: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    parents(path)?;
    fill(&mut File::create_new(path)?)
}

/// If git accepts a name and this disk does not, the work is at fault.
fn written(result: io::Result<()>) -> Result<()> {
    result.map_err(|source| match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            GitError::system("lay out the work", source)
        }
        _ => GitError::Refused { why: format!("a file of it cannot be written ({source})") },
    })
}

fn not_told() -> GitError {
    GitError::Refused { why: "git does not tell what is in it".to_owned() }
}

/// Parses the output of `git diff-tree --raw -z`.
fn parse(raw: &[u8]) -> Option<Vec<Changed>> {
    let mut fields = raw.split(|b| *b == 0);
    let mut changes = Vec::new();
    loop {
        let entry = fields.next()?;
        if entry.is_empty() {
            return Some(changes);
        }
        let words: Vec<&str> = std::str::from_utf8(entry.strip_prefix(b":")?).ok()?.split(' ').collect();
        let [before_mode, after_mode, before, after, _] = words[..] else { return None };
        let side = |mode: &str, id: &str| {
            let mode = u32::from_str_radix(mode, 8).ok()?;
            is_object_id(id).then(|| (mode != 0).then(|| Entry { mode, id: id.to_owned() }))
        };
        changes.push(Changed {
            before: side(before_mode, before)?,
            after: side(after_mode, after)?,
            path: fields.next().filter(|path| !path.is_empty())?.to_vec(),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_parsed_with_any_paths() {
        let (a, b, none) = ("a".repeat(40), "b".repeat(40), "0".repeat(40));
        let raw = format!(
            ":100644 100755 {a} {b} M\0a\n:b\0:000000 160000 {none} {b} A\0sub\0:100644 000000 {a} {none} D\0x\0"
        );
        let changes = parse(raw.as_bytes()).unwrap();
        let at = |mode, id: &str| Some(Entry { mode, id: id.to_owned() });
        assert_eq!(
            changes[0],
            Changed { path: b"a\n:b".to_vec(), before: at(0o100_644, &a), after: at(0o100_755, &b) }
        );
        assert!(changes[1].before.is_none() && changes[1].after.as_ref().unwrap().is_repository());
        assert!(changes[2].after.is_none());
        assert_eq!(parse(b""), Some(vec![]));
        for odd in [&raw.as_bytes()[..raw.len() - 2], b"nonsense\0x\0", b":1 2 3\0x\0"] {
            assert_eq!(parse(odd), None);
        }
    }

    #[test]
    fn contents_are_requested_in_groups_that_fit_into_memory() {
        let sizes: BTreeMap<String, u64> =
            [("a", 1), ("b", 10 << 20), ("c", 10 << 20), ("d", 16 << 20), ("e", 17 << 20), ("f", 1)]
                .map(|(id, size)| (id.to_owned(), size))
                .into();
        assert_eq!(batches(&sizes), [vec!["a", "b"], vec!["c"], vec!["d"], vec!["f"]]);
    }
}
