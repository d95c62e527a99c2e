//! Unified patches of bytes. A line ends with `\n` only, as in git.

use std::collections::HashMap;
use std::io::Write as _;
use std::ops::Range;
use std::time::Instant;

use similar::{Algorithm, DiffOp};

/// Unchanged lines shown around a change.
const CONTEXT: usize = 3;

/// The difference of two texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Patch {
    pub added: u64,
    pub removed: u64,
    /// The hunks; `None` if not wanted or too long.
    pub text: Option<Vec<u8>>,
}

/// Compares two texts; the hunks take at most `limit` bytes. The search for a short edit script ends at `deadline`.
#[must_use]
pub fn unified(old: &[u8], new: &[u8], limit: Option<usize>, deadline: Instant) -> Patch {
    let (old, new) = (lines(old), lines(new));
    let ops = script(&old, &new, deadline);
    let (mut added, mut removed) = (0, 0);
    for op in ops.iter().filter(|op| !matches!(op, DiffOp::Equal { .. })) {
        removed += op.old_range().len() as u64;
        added += op.new_range().len() as u64;
    }
    let text = limit.and_then(|limit| hunks(ops, &old, &new, limit));
    Patch { added, removed, text }
}

/// The edit script from the old lines to the new ones.
fn script(old: &[&[u8]], new: &[&[u8]], deadline: Instant) -> Vec<DiffOp> {
    // An added or deleted file needs no search.
    match (old.len(), new.len()) {
        (0, 0) => return Vec::new(),
        (0, new_len) => return vec![DiffOp::Insert { old_index: 0, new_index: 0, new_len }],
        (old_len, 0) => return vec![DiffOp::Delete { old_index: 0, old_len, new_index: 0 }],
        _ => {}
    }
    let mut numbers = HashMap::with_capacity(old.len());
    let (left, right) = (numbered(old, &mut numbers), numbered(new, &mut numbers));
    similar::capture_diff_slices_deadline(Algorithm::Myers, &left, &right, Some(deadline))
}

fn lines(text: &[u8]) -> Vec<&[u8]> {
    text.split_inclusive(|byte| *byte == b'\n').collect()
}

/// Numbers the lines: equal lines get equal numbers.
fn numbered<'a>(lines: &[&'a [u8]], numbers: &mut HashMap<&'a [u8], u32>) -> Vec<u32> {
    let number = |line: &&'a [u8]| {
        let next = u32::try_from(numbers.len()).unwrap_or(u32::MAX);
        *numbers.entry(line).or_insert(next)
    };
    lines.iter().map(number).collect()
}

fn hunks(ops: Vec<DiffOp>, old: &[&[u8]], new: &[&[u8]], limit: usize) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    for group in similar::group_diff_ops(ops, CONTEXT) {
        let (Some(first), Some(last)) = (group.first(), group.last()) else { continue };
        let whole = |first: Range<usize>, last: Range<usize>| first.start..last.end;
        let _ = writeln!(
            out,
            "@@ -{} +{} @@",
            place(whole(first.old_range(), last.old_range())),
            place(whole(first.new_range(), last.new_range()))
        );
        for op in &group {
            match op {
                DiffOp::Equal { .. } => push(&mut out, b' ', &old[op.old_range()]),
                _ => {
                    push(&mut out, b'-', &old[op.old_range()]);
                    push(&mut out, b'+', &new[op.new_range()]);
                }
            }
            if out.len() > limit {
                return None;
            }
        }
    }
    Some(out)
}

/// `start,length` as in a patch: counted from one; for an empty range, the line before it.
fn place(range: Range<usize>) -> String {
    match range.len() {
        0 => format!("{},0", range.start),
        1 => (range.start + 1).to_string(),
        len => format!("{},{len}", range.start + 1),
    }
}

fn push(out: &mut Vec<u8>, mark: u8, lines: &[&[u8]]) {
    for line in lines {
        out.push(mark);
        out.extend_from_slice(line);
        if !line.ends_with(b"\n") {
            out.extend_from_slice(b"\n\\ No newline at end of file\n");
        }
    }
}

/// The kind of a line in a patch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LineKind {
    Same,
    Added,
    Removed,
}

/// One line of a patch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PatchLine<'a> {
    pub kind: LineKind,
    /// Line number in the new file; for a removed line, in the old file.
    pub number: u64,
    pub text: &'a str,
}

/// The lines of a patch that [`unified`] made. Other lines are skipped.
pub fn patch_lines(patch: &str) -> impl Iterator<Item = PatchLine<'_>> {
    let (mut old, mut new) = (1_u64, 1_u64);
    patch.split('\n').filter_map(move |line| {
        let (mark, text) = line.split_at_checked(1)?;
        let (kind, number) = match mark {
            " " => (LineKind::Same, new),
            "+" => (LineKind::Added, new),
            "-" => (LineKind::Removed, old),
            "@" => {
                (old, new) = hunk_start(line).unwrap_or((old, new));
                return None;
            }
            _ => return None,
        };
        old = old.saturating_add(u64::from(kind != LineKind::Added));
        new = new.saturating_add(u64::from(kind != LineKind::Removed));
        Some(PatchLine { kind, number, text })
    })
}

fn hunk_start(line: &str) -> Option<(u64, u64)> {
    let mut words = line.strip_prefix("@@ -")?.split(' ');
    let first = |word: &str| {
        let (start, len) = word.split_once(',').unwrap_or((word, "1"));
        let start: u64 = start.parse().ok()?;
        Some(if len == "0" { start.saturating_add(1) } else { start })
    };
    Some((first(words.next()?)?, first(words.next()?.strip_prefix('+')?)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(5)
    }

    fn text(old: &str, new: &str) -> String {
        String::from_utf8(unified(old.as_bytes(), new.as_bytes(), Some(1 << 20), soon()).text.unwrap())
            .unwrap()
    }

    #[test]
    fn a_patch_looks_as_git_s_does() {
        assert_eq!(text("a\nb\nc\n", "a\nB\nc\n"), "@@ -1,3 +1,3 @@\n a\n-b\n+B\n c\n");
        assert_eq!(text("", "x\n"), "@@ -0,0 +1 @@\n+x\n");
        assert_eq!(text("x\n", ""), "@@ -1 +0,0 @@\n-x\n");
        assert_eq!(text("x", "x\n"), "@@ -1 +1 @@\n-x\n\\ No newline at end of file\n+x\n");
    }

    #[test]
    fn a_patch_that_is_too_long_still_has_its_numbers() {
        let patch = unified(b"", b"a\nb\n", Some(3), soon());
        assert_eq!(patch, Patch { added: 2, removed: 0, text: None });
    }

    #[test]
    fn lines_know_their_numbers() {
        let patch = text("1\n2\n3\n4\n5\n6\n7\n8\n9\n", "1\n2\n3\n4\n5\n6\n7\nnew\n9\n");
        let changed: Vec<_> = patch_lines(&patch).filter(|line| line.kind != LineKind::Same).collect();
        assert_eq!(
            changed,
            [
                PatchLine { kind: LineKind::Removed, number: 8, text: "8" },
                PatchLine { kind: LineKind::Added, number: 8, text: "new" }
            ]
        );
    }

    /// Applies hunks as `patch` does, using only their contents.
    fn apply(old: &[u8], patch: &[u8]) -> Vec<u8> {
        let old = lines(old);
        let (mut out, mut at) = (Vec::new(), 0);
        let mut rest = lines(patch).into_iter().peekable();
        while let Some(line) = rest.next() {
            let (mark, text) = (line[0], &line[1..]);
            let bare = rest.next_if(|next| next.starts_with(b"\\")).is_some();
            let text = if bare { &text[..text.len() - 1] } else { text };
            match mark {
                b'@' => {
                    let header = std::str::from_utf8(line).unwrap();
                    let start = usize::try_from(hunk_start(header).unwrap().0).unwrap() - 1;
                    out.extend(old[at..start].concat());
                    at = start;
                }
                b'+' => out.extend_from_slice(text),
                mark => {
                    assert_eq!(old[at], text, "context or removed line");
                    at += 1;
                    if mark == b' ' {
                        out.extend_from_slice(text);
                    }
                }
            }
        }
        out.extend(old[at..].concat());
        out
    }

    fn some_text() -> impl Strategy<Value = Vec<u8>> {
        let line = prop::sample::select(vec![&b"a"[..], b"b", b"", b"\r", b"+x", b"\xff"]);
        (prop::collection::vec(line, 0..40), any::<bool>()).prop_map(|(lines, end)| {
            let mut text = lines.join(&b'\n');
            if end && !text.is_empty() {
                text.push(b'\n');
            }
            text
        })
    }

    proptest! {
        #[test]
        fn a_patch_makes_the_new_text_of_the_old_one(old in some_text(), new in some_text()) {
            let patch = unified(&old, &new, Some(1 << 20), soon()).text.unwrap();
            prop_assert_eq!(apply(&old, &patch), new);
        }

        #[test]
        fn without_time_a_patch_is_longer_and_still_right(old in some_text(), new in some_text()) {
            let patch = unified(&old, &new, Some(1 << 20), Instant::now()).text.unwrap();
            prop_assert_eq!(apply(&old, &patch), new);
        }

        #[test]
        fn no_text_makes_the_reader_of_patches_panic(text in any::<String>()) {
            let _ = patch_lines(&text).count();
        }
    }
}
