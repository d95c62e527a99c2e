//! Whether single paths are ignored, asked for in any order.

use std::collections::HashMap;
use std::os::fd::BorrowedFd;

use super::{MAX_STACK_BYTES, Rules, Work, text_of};
use crate::tree::{Tree, kind_at};

/// Most directories that are remembered. What lies in others is not ignored.
const MAX_DIRECTORIES: usize = 20_000;

/// The rules of one tree, read when needed. Nothing below a directory `.git` is ignored.
#[derive(Debug, Default)]
pub struct IgnoredPaths {
    directories: HashMap<Vec<u8>, Directory>,
    /// Bytes of all rules.
    held: usize,
    work: Work,
}

#[derive(Debug)]
struct Directory {
    ignored: bool,
    rules: Option<Rules>,
}

impl IgnoredPaths {
    /// Whether the rules of the tree at `top` ignore a path in it that the tree `beginning` does not have. All calls
    /// have the same two trees.
    pub fn has(&mut self, top: BorrowedFd<'_>, beginning: Tree<'_>, path: &[u8], is_directory: bool) -> bool {
        if path.split(|byte| *byte == b'/').any(|part| part == b".git") {
            return false;
        }
        // From the top down: nothing below an ignored directory is included again.
        let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
        let mut ignored = false;
        for end in std::iter::once(0).chain(slashes) {
            let directory = &path[..end];
            let Some(known) = self.directories.get(directory) else {
                if self.directories.len() >= MAX_DIRECTORIES {
                    return false;
                }
                ignored = ignored || (end > 0 && self.verdict(directory, true));
                let rules = if ignored { None } else { self.read(top, directory) };
                self.directories.insert(directory.to_vec(), Directory { ignored, rules });
                continue;
            };
            ignored = known.ignored;
        }
        (ignored || self.verdict(path, is_directory))
            && beginning.is_none_or(|beginning| kind_at(beginning, path).is_none())
    }

    /// What the rules of the directories above a path say of it. They were read before.
    fn verdict(&mut self, path: &[u8], is_directory: bool) -> bool {
        let mut end = path.len();
        while end > 0 {
            end = memchr::memrchr(b'/', &path[..end]).unwrap_or(0);
            let rules = self.directories.get(&path[..end]).and_then(|directory| directory.rules.as_ref());
            if let Some(verdict) = rules.and_then(|rules| rules.verdict(path, is_directory, &mut self.work)) {
                return verdict;
            }
        }
        false
    }

    fn read(&mut self, top: BorrowedFd<'_>, directory: &[u8]) -> Option<Rules> {
        let text = text_of(top, directory).ok().flatten()?;
        let held = self.held + text.len();
        if held > MAX_STACK_BYTES {
            return None;
        }
        self.held = held;
        Some(Rules::parse(&text, directory.len()))
    }
}
