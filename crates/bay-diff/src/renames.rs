//! Finding renames: pairs of a deleted and an added path.
//!
//! First by identity: snapshots of one tree share inode numbers and birth times, so a moved file is recognised even
//! if its content changed. Then by equal content, for files that were copied and deleted.

use std::collections::HashMap;

use bay_types::diff::NodeKind;

use crate::content::fingerprint;
use crate::report::{Reporter, Result};
use crate::tree::Tree;
use crate::walk::Candidate;

/// Largest file that is compared by content.
const MAX_FILE_BYTES: u64 = 4 << 20;
/// Most bytes that are read for this in one comparison.
const MAX_BYTES: u64 = 256 << 20;

/// For the index of each added candidate: the index of the deleted one that it was.
pub(crate) fn pair(
    candidates: &[Candidate],
    before: Tree<'_>,
    after: Tree<'_>,
    reporter: &mut Reporter<'_>,
) -> Result<HashMap<usize, usize>> {
    let mut pairs = by_identity(candidates);
    by_content(candidates, before, after, &mut pairs, reporter)?;
    Ok(pairs)
}

fn is_deleted(candidate: &Candidate) -> bool {
    candidate.before.is_some() && candidate.after.is_none() && candidate.unread.is_none()
}

fn is_added(candidate: &Candidate) -> bool {
    candidate.before.is_none() && candidate.after.is_some() && candidate.unread.is_none()
}

fn by_identity(candidates: &[Candidate]) -> HashMap<usize, usize> {
    let mut left: HashMap<_, Vec<usize>> = HashMap::new();
    for (at, candidate) in candidates.iter().enumerate().filter(|(_, candidate)| is_deleted(candidate)) {
        if let Some(meta) = &candidate.before {
            left.entry(meta.identity()).or_default().push(at);
        }
    }
    let mut pairs = HashMap::new();
    for (at, candidate) in candidates.iter().enumerate().filter(|(_, candidate)| is_added(candidate)) {
        let Some(meta) = &candidate.after else { continue };
        // A file with several hard links may be on each side several times; any pair is right.
        if let Some(from) = left.get_mut(&meta.identity()).and_then(Vec::pop) {
            pairs.insert(at, from);
        }
    }
    pairs
}

fn by_content(
    candidates: &[Candidate],
    before: Tree<'_>,
    after: Tree<'_>,
    pairs: &mut HashMap<usize, usize>,
    reporter: &mut Reporter<'_>,
) -> Result<()> {
    let (Some(before), Some(after)) = (before, after) else { return Ok(()) };
    let taken: std::collections::HashSet<usize> = pairs.values().copied().collect();
    let small = |size: u64| size > 0 && size <= MAX_FILE_BYTES;
    let mut by_size: HashMap<u64, (Vec<usize>, Vec<usize>)> = HashMap::new();
    for (at, candidate) in candidates.iter().enumerate() {
        let file = candidate.before.as_ref().or(candidate.after.as_ref());
        let Some(file) = file.filter(|meta| meta.kind == NodeKind::File && small(meta.size)) else {
            continue;
        };
        let sizes = by_size.entry(file.size).or_default();
        if is_deleted(candidate) && !taken.contains(&at) {
            sizes.0.push(at);
        } else if is_added(candidate) && !pairs.contains_key(&at) {
            sizes.1.push(at);
        }
    }
    let mut by_size: Vec<_> =
        by_size.into_iter().filter(|(_, (gone, came))| !gone.is_empty() && !came.is_empty()).collect();
    by_size.sort_unstable();
    let mut left = MAX_BYTES;
    for (size, (gone, came)) in by_size {
        let cost = size.saturating_mul((gone.len() + came.len()) as u64);
        if cost > left {
            reporter.summary.renames_incomplete = true;
            continue;
        }
        left -= cost;
        let mut known: HashMap<[u8; 32], Vec<usize>> = HashMap::new();
        for at in gone {
            reporter.read(usize::try_from(size).unwrap_or(0))?;
            if let Ok(print) = fingerprint(before, &candidates[at].path, size) {
                known.entry(print).or_default().push(at);
            }
        }
        for at in came {
            reporter.read(usize::try_from(size).unwrap_or(0))?;
            let Ok(print) = fingerprint(after, &candidates[at].path, size) else { continue };
            let Some(matches) = known.get_mut(&print) else { continue };
            let named_alike =
                matches.iter().position(|from| base(&candidates[*from].path) == base(&candidates[at].path));
            if let Some(from) = named_alike.map(|i| matches.swap_remove(i)).or_else(|| matches.pop()) {
                pairs.insert(at, from);
            }
        }
    }
    Ok(())
}

fn base(path: &[u8]) -> &[u8] {
    memchr::memrchr(b'/', path).map_or(path, |slash| &path[slash + 1..])
}
