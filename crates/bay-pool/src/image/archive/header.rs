//! Tar headers. Every length is bounded, and no path leads out of the image.

use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::Timespec;
use tar::{Header, PaxExtensions};

use crate::image::tree::mapped_id;

pub(super) const BLOCK: usize = 512;
/// Longest path or link in an archive, which is the kernel's limit.
pub(super) const MAX_PATH: u64 = 4096;

/// Extended headers for the next entry.
#[derive(Default)]
pub(super) struct Extended {
    pub(super) path: Option<Vec<u8>>,
    pub(super) link: Option<Vec<u8>>,
    pub(super) size: Option<u64>,
    pub(super) uid: Option<u64>,
    pub(super) gid: Option<u64>,
    pub(super) mtime: Option<(i64, i64)>,
    pub(super) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    pub(super) sparse: bool,
}

/// An entry with its extended headers applied.
pub(super) struct Entry {
    pub(super) path: PathBuf,
    pub(super) link: Vec<u8>,
    pub(super) size: u64,
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) mtime: Timespec,
    pub(super) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

pub(super) fn broken(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.to_owned())
}

impl Extended {
    pub(super) fn read(&mut self, records: &[u8]) -> io::Result<()> {
        for record in PaxExtensions::new(records) {
            let record = record.map_err(|_| broken("it has a bad extended header"))?;
            let value = record.value_bytes();
            let number = || std::str::from_utf8(value).ok()?.parse().ok();
            match record.key_bytes() {
                b"path" => self.path = Some(value.to_vec()),
                b"linkpath" => self.link = Some(value.to_vec()),
                b"size" => self.size = Some(number().ok_or_else(|| broken("it has a bad size"))?),
                b"uid" => self.uid = number(),
                b"gid" => self.gid = number(),
                b"mtime" => self.mtime = std::str::from_utf8(value).ok().and_then(seconds),
                key if key.starts_with(b"GNU.sparse.") => self.sparse = true,
                key => {
                    if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
                        self.xattrs.push((name.to_vec(), value.to_vec()));
                    }
                }
            }
        }
        Ok(())
    }

    /// `None` for an entry whose path leads out of the image.
    pub(super) fn finish(self, header: &Header, size: u64) -> Option<Entry> {
        let path = inside(&self.path.unwrap_or_else(|| header.path_bytes().into_owned()))?;
        let link =
            self.link.unwrap_or_else(|| header.link_name_bytes().map(|l| l.into_owned()).unwrap_or_default());
        let id = |said: Option<u64>, field: io::Result<u64>| {
            let id = said.or_else(|| field.ok()).unwrap_or(0);
            u32::try_from(id).map_or(bay_sys::identity::NOBODY, mapped_id)
        };
        let (tv_sec, tv_nsec) = self
            .mtime
            .unwrap_or_else(|| (header.mtime().ok().and_then(|t| i64::try_from(t).ok()).unwrap_or(0), 0));
        Some(Entry {
            path,
            link,
            size,
            mode: header.mode().unwrap_or(0o644),
            uid: id(self.uid, header.uid()),
            gid: id(self.gid, header.gid()),
            mtime: Timespec { tv_sec, tv_nsec },
            xattrs: self.xattrs,
        })
    }
}

/// `1700000000.25` as seconds and nanoseconds.
pub(super) fn seconds(text: &str) -> Option<(i64, i64)> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let nanoseconds: String = part.chars().chain(std::iter::repeat('0')).take(9).collect();
    let whole = whole.parse::<i64>().ok()?;
    Some(if whole < 0 { (whole, 0) } else { (whole, nanoseconds.parse().ok()?) })
}

/// Makes a path of an archive relative to the image; `None` if it leads out or is invalid.
pub(super) fn inside(path: &[u8]) -> Option<PathBuf> {
    if path.len() as u64 > MAX_PATH || path.contains(&0) {
        return None;
    }
    let mut clean = PathBuf::new();
    for part in Path::new(OsStr::from_bytes(path)).components() {
        match part {
            Component::Normal(part) => clean.push(part),
            Component::CurDir | Component::RootDir => {}
            Component::ParentDir | Component::Prefix(_) => return None,
        }
    }
    Some(clean)
}

pub(super) fn checksum_fits(block: &[u8; BLOCK]) -> bool {
    let sum: u32 = block
        .iter()
        .enumerate()
        .map(|(at, byte)| if (148..156).contains(&at) { u32::from(b' ') } else { u32::from(*byte) })
        .sum();
    Header::from_byte_slice(block).cksum().is_ok_and(|said| said == sum)
}

/// Whether an old GNU sparse header continues in further blocks.
pub(super) fn is_extended(block: &[u8; BLOCK]) -> bool {
    Header::from_byte_slice(block).as_gnu().is_some_and(tar::GnuHeader::is_extended)
}

/// `false` at the end of the archive.
pub(super) fn read_block(archive: &mut impl Read, block: &mut [u8; BLOCK]) -> io::Result<bool> {
    let mut filled = 0;
    while filled < BLOCK {
        match archive.read(&mut block[filled..]) {
            Ok(0) if filled == 0 => return Ok(false),
            Ok(0) => return Err(broken("it ends in the middle of a header")),
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

pub(super) fn padded(size: u64) -> io::Result<u64> {
    size.checked_next_multiple_of(BLOCK as u64).ok_or_else(|| broken("it has an impossible size"))
}

/// The body of a header entry, refused if it is too long.
pub(super) fn bounded(archive: &mut impl Read, size: u64, most: u64) -> io::Result<Vec<u8>> {
    if size > most {
        return Err(broken("it has an endless name or header"));
    }
    let padded = usize::try_from(padded(size)?).map_err(|_| broken("it has an impossible size"))?;
    let mut body = vec![0_u8; padded];
    archive.read_exact(&mut body)?;
    body.truncate(usize::try_from(size).unwrap_or(padded));
    Ok(body)
}

pub(super) fn trimmed(mut name: Vec<u8>) -> Vec<u8> {
    while name.last() == Some(&0) {
        name.pop();
    }
    name
}

pub(super) fn skip(archive: &mut impl Read, count: u64) -> io::Result<()> {
    let skipped = io::copy(&mut archive.take(count), &mut io::sink())?;
    if skipped < count { Err(broken("it ends too early")) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_leaves_is_none() {
        assert_eq!(inside(b"./a//b/"), Some(PathBuf::from("a/b")));
        assert_eq!(inside(b"/etc/passwd"), Some(PathBuf::from("etc/passwd")));
        for path in [&b"../x"[..], b"a/../../x", b"a\0b", &[b'x'; 5000]] {
            assert_eq!(inside(path), None);
        }
    }

    #[test]
    fn times_with_fractions_are_read() {
        assert_eq!(seconds("12.5"), Some((12, 500_000_000)));
        assert_eq!(seconds("12"), Some((12, 0)));
        assert_eq!(seconds("-3.5"), Some((-3, 0)));
        assert_eq!(seconds("x"), None);
    }
}
