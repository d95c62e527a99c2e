//! Which of what went and what came are one thing under another name.
//!
//! First by identity: snapshots of one tree share inode numbers and births, so a moved file is known however much of it
//! changed. Then by exact contents, for what was copied and deleted.

use std::collections::HashMap;

use bay_types::diff::NodeKind;

use crate::content::fingerprint;
use crate::walk::Suspect;
use crate::{Result, Talk, Tree};

/// Largest file whose contents are looked at for this.
const MAX_FILE_BYTES: u64 = 4 << 20;
/// Contents looked at for this in one comparison.
const MAX_BYTES: u64 = 256 << 20;

/// For each suspect that came under a new name, the place of the one that went.
pub(crate) fn pair(
    suspects: &[Suspect],
    before: Tree<'_>,
    after: Tree<'_>,
    talk: &mut Talk<'_>,
) -> Result<HashMap<usize, usize>> {
    let mut pairs = by_identity(suspects);
    by_content(suspects, before, after, &mut pairs, talk)?;
    Ok(pairs)
}

fn gone(suspect: &Suspect) -> bool {
    suspect.before.is_some() && suspect.after.is_none() && suspect.unread.is_none()
}

fn came(suspect: &Suspect) -> bool {
    suspect.before.is_none() && suspect.after.is_some() && suspect.unread.is_none()
}

fn by_identity(suspects: &[Suspect]) -> HashMap<usize, usize> {
    let mut left: HashMap<_, Vec<usize>> = HashMap::new();
    for (at, suspect) in suspects.iter().enumerate().filter(|(_, suspect)| gone(suspect)) {
        if let Some(meta) = &suspect.before {
            left.entry(meta.identity()).or_default().push(at);
        }
    }
    let mut pairs = HashMap::new();
    for (at, suspect) in suspects.iter().enumerate().filter(|(_, suspect)| came(suspect)) {
        let Some(meta) = &suspect.after else { continue };
        // A file with several names may have several on each side; any of them will do.
        if let Some(from) = left.get_mut(&meta.identity()).and_then(Vec::pop) {
            pairs.insert(at, from);
        }
    }
    pairs
}

fn by_content(
    suspects: &[Suspect],
    before: Tree<'_>,
    after: Tree<'_>,
    pairs: &mut HashMap<usize, usize>,
    talk: &mut Talk<'_>,
) -> Result<()> {
    let (Some(before), Some(after)) = (before, after) else { return Ok(()) };
    let taken: std::collections::HashSet<usize> = pairs.values().copied().collect();
    let small = |size: u64| size > 0 && size <= MAX_FILE_BYTES;
    let mut by_size: HashMap<u64, (Vec<usize>, Vec<usize>)> = HashMap::new();
    for (at, suspect) in suspects.iter().enumerate() {
        let file = suspect.before.as_ref().or(suspect.after.as_ref());
        let Some(file) = file.filter(|meta| meta.kind == NodeKind::File && small(meta.size)) else {
            continue;
        };
        let sizes = by_size.entry(file.size).or_default();
        if gone(suspect) && !taken.contains(&at) {
            sizes.0.push(at);
        } else if came(suspect) && !pairs.contains_key(&at) {
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
            talk.summary.renames_incomplete = true;
            continue;
        }
        left -= cost;
        let mut known: HashMap<[u8; 32], Vec<usize>> = HashMap::new();
        for at in gone {
            talk.read(usize::try_from(size).unwrap_or(0))?;
            if let Ok(print) = fingerprint(before, &suspects[at].path, size) {
                known.entry(print).or_default().push(at);
            }
        }
        for at in came {
            talk.read(usize::try_from(size).unwrap_or(0))?;
            let Ok(print) = fingerprint(after, &suspects[at].path, size) else { continue };
            let Some(candidates) = known.get_mut(&print) else { continue };
            let named_alike =
                candidates.iter().position(|from| base(&suspects[*from].path) == base(&suspects[at].path));
            if let Some(from) = named_alike.map(|i| candidates.swap_remove(i)).or_else(|| candidates.pop()) {
                pairs.insert(at, from);
            }
        }
    }
    Ok(())
}

fn base(path: &[u8]) -> &[u8] {
    memchr::memrchr(b'/', path).map_or(path, |slash| &path[slash + 1..])
}
