//! Reads commits from the beginning of a git pack. The bay chose the content, and only the beginning of the pack is
//! available. At the first object that cannot be inflated, reading ends. The result is only shown, never used to
//! allow a push.

use std::io::Read;

use bay_text::hex;
use bay_types::approval::PushedCommit;
use flate2::bufread::ZlibDecoder;
use sha1::{Digest, Sha1};

/// The most commits that are shown.
const MAX_COMMITS: usize = 20;
/// The most objects that are read.
const MAX_OBJECTS: usize = 200;
/// Bytes kept of each object. A longer commit is left out, because its id cannot be computed.
const MAX_COMMIT_BYTES: u64 = 64 * 1024;
/// Magic, version and number of objects.
const HEADER: usize = 12;
const COMMIT: u8 = 1;
/// A delta against an object at an offset. Deltas are skipped, also those that make a commit.
const OFFSET_DELTA: u8 = 6;
/// A delta against an object with a given id.
const REF_DELTA: u8 = 7;
const ID_BYTES: usize = 20;

/// The commits at the beginning of a pack, at most [`MAX_COMMITS`], and the number of objects that it claims to
/// have. Commits that are stored as deltas are not found.
pub(super) fn read(pack: &[u8]) -> (Vec<PushedCommit>, Option<u64>) {
    let Some(header) = pack.get(..HEADER).filter(|header| header.starts_with(b"PACK")) else {
        return (Vec::new(), None);
    };
    let objects = u32::from_be_bytes([header[8], header[9], header[10], header[11]]);
    let mut commits = Vec::new();
    let mut rest = &pack[HEADER..];
    for _ in 0..MAX_OBJECTS.min(objects as usize) {
        let Some(Object { kind, body, is_whole }) = object(&mut rest) else { break };
        if kind == COMMIT && is_whole {
            commits.extend(commit(&body));
        }
        if commits.len() == MAX_COMMITS {
            break;
        }
    }
    (commits, Some(u64::from(objects)))
}

/// The beginning of an object.
#[derive(Debug)]
struct Object {
    kind: u8,
    /// At most [`MAX_COMMIT_BYTES`].
    body: Vec<u8>,
    /// Whether nothing follows `body`.
    is_whole: bool,
}

/// Parses the next object, and advances `rest` past it.
fn object(rest: &mut &[u8]) -> Option<Object> {
    let mut at = 0;
    let first = *rest.get(at)?;
    let kind = first >> 4 & 7;
    let mut byte = first;
    while byte & 0x80 != 0 {
        at += 1;
        byte = *rest.get(at)?;
    }
    at += 1;
    match kind {
        REF_DELTA => at += ID_BYTES,
        OFFSET_DELTA => {
            while *rest.get(at)? & 0x80 != 0 {
                at += 1;
            }
            at += 1;
        }
        _ => {}
    }
    let mut inflating = ZlibDecoder::new(rest.get(at..)?);
    let mut body = Vec::new();
    inflating.by_ref().take(MAX_COMMIT_BYTES).read_to_end(&mut body).ok()?;
    // If the object is longer, skip up to 4 MiB more of it, to find the next object.
    let mut past = [0; 4096];
    let mut left = MAX_COMMIT_BYTES * 64;
    while left > 0 {
        match inflating.read(&mut past).ok()? {
            0 => break,
            read => left = left.saturating_sub(read as u64),
        }
    }
    let taken = usize::try_from(inflating.total_in()).ok()?;
    let is_whole = inflating.total_out() == body.len() as u64;
    *rest = rest.get(at + taken..)?;
    Some(Object { kind, body, is_whole })
}

fn commit(body: &[u8]) -> Option<PushedCommit> {
    let text = String::from_utf8_lossy(body);
    let (head, message) = text.split_once("\n\n")?;
    let author = head.lines().find_map(|line| line.strip_prefix("author "))?;
    let author = author.split_once('>').map_or(author, |(name, _)| name).replace('<', "");
    let mut hash = Sha1::new();
    hash.update(format!("commit {}\0", body.len()));
    hash.update(body);
    Some(PushedCommit {
        id: hex::encode(hash.finalize()),
        author: super::card::shown(author.trim()),
        subject: super::card::shown(message.lines().next().unwrap_or_default()),
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn deflated(bytes: &[u8]) -> Vec<u8> {
        let mut out = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
        out.write_all(bytes).unwrap();
        out.finish().unwrap()
    }

    fn entry(kind: u8, body: &[u8]) -> Vec<u8> {
        let (mut size, mut head) = (body.len(), Vec::new());
        let mut byte = kind << 4 | (size & 15) as u8;
        size >>= 4;
        while size > 0 {
            head.push(byte | 0x80);
            byte = (size & 0x7f) as u8;
            size >>= 7;
        }
        head.push(byte);
        [head, deflated(body)].concat()
    }

    #[test]
    fn commits_are_read_as_far_as_the_pack_goes() {
        let one = b"tree 4b825dc642cb6eb9a060e54bf8d69288fbee4904\nauthor A U Thor <a@example.org> 1 +0000\ncommitter C <c> 1 +0000\n\nFirst \x1b[31mline\nmore\n";
        let pack = [b"PACK\0\0\0\x02\0\0\0\x03".to_vec(), entry(1, one), entry(3, b"a blob"), entry(1, one)]
            .concat();
        let (commits, objects) = read(&pack);
        assert_eq!((commits.len(), objects), (2, Some(3)));
        assert_eq!((commits[0].author.as_str(), commits[0].id.len()), ("A U Thor a@example.org", 40));
        assert_eq!(commits[0].subject, "First \\u{1b}[31mline");
        for end in 0..pack.len() {
            read(&pack[..end]);
        }
        assert_eq!(read(b"not a pack at all"), (Vec::new(), None));
    }

    #[test]
    fn a_commit_of_which_only_a_part_is_read_is_left_out() {
        let of_bytes = |bytes: usize| {
            let mut body = b"author A <a@example.org> 1 +0000\n\nLong\n".to_vec();
            body.resize(bytes, b'x');
            body
        };
        let longest = usize::try_from(MAX_COMMIT_BYTES).unwrap();
        let (fits, longer) = (of_bytes(longest), of_bytes(longest + 1));
        let pack = [
            b"PACK\0\0\0\x02\0\0\0\x03".to_vec(),
            entry(1, &longer),
            entry(1, &fits),
            entry(1, &of_bytes(200)),
        ]
        .concat();
        let (commits, objects) = read(&pack);
        assert_eq!((commits.len(), objects), (2, Some(3)));
        assert_eq!(Some(&commits[0]), commit(&fits).as_ref());
        assert_eq!(read(&pack[..pack.len() - 12]).0, commits[..1]);
    }
}
