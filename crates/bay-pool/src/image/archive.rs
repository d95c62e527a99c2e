//! Unpacking a tar archive whose maker is not trusted.
//!
//! Headers are parsed by the `tar` crate, everything with a length is bounded here, and every entry is made relative
//! to a directory that was opened without following a link: whatever an archive says, it cannot reach outside the
//! image. What cannot be taken (devices, entries that try to leave, sparse files) is counted and skipped.

use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;
use tar::{EntryType, Header, PaxExtensions};

use super::tree::{Tally, mapped_id, open_beneath, replacing, wanted_xattr};

const BLOCK: usize = 512;
/// Longest path or link in an archive: the kernel takes no longer ones.
const MAX_PATH: u64 = 4096;
/// Most bytes of extended headers for one entry: room for the largest extended attributes.
const MAX_EXTENDED: u64 = 1024 * 1024;
/// Directories whose times are set at the end; in a larger archive the rest keep the time of the import.
const MAX_TIMED_DIRECTORIES: usize = 1_000_000;
const BUFFER: usize = 256 * 1024;

/// Where the bytes go, and who is told.
pub(crate) struct Unpack<'a> {
    pub(crate) target: &'a OwnedFd,
    pub(crate) tally: &'a Tally,
    /// Called with the bytes written since the last call; stops the work by an error.
    pub(crate) pace: &'a mut dyn FnMut(u64) -> io::Result<()>,
}

/// What extended headers said of the next entry.
#[derive(Default)]
struct Extended {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    uid: Option<u64>,
    gid: Option<u64>,
    mtime: Option<(i64, i64)>,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    sparse: bool,
}

/// An entry with everything applied.
struct Entry {
    path: PathBuf,
    link: Vec<u8>,
    size: u64,
    mode: u32,
    uid: u32,
    gid: u32,
    mtime: Timespec,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

fn broken(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.to_owned())
}

impl Unpack<'_> {
    pub(crate) fn run(mut self, mut archive: impl Read) -> io::Result<()> {
        let mut extended = Extended::default();
        let mut directories: Vec<(PathBuf, Timespec)> = Vec::new();
        let mut block = [0_u8; BLOCK];
        let mut first = true;
        while read_block(&mut archive, &mut block)? {
            if block == [0; BLOCK] {
                break;
            }
            if !checksum_fits(&block) {
                return Err(broken(if first { "it is not a tar archive" } else { "it is damaged" }));
            }
            first = false;
            let header = Header::from_byte_slice(&block);
            let size = header.entry_size().map_err(|_| broken("it has a bad size"))?;
            match header.entry_type() {
                EntryType::GNULongName => {
                    extended.path = Some(trimmed(bounded(&mut archive, size, MAX_PATH + 1)?));
                }
                EntryType::GNULongLink => {
                    extended.link = Some(trimmed(bounded(&mut archive, size, MAX_PATH + 1)?));
                }
                EntryType::XHeader => extended.read(&bounded(&mut archive, size, MAX_EXTENDED)?)?,
                EntryType::XGlobalHeader => skip(&mut archive, padded(size)?)?,
                kind => {
                    let taken = std::mem::take(&mut extended);
                    let sparse = taken.sparse || kind == EntryType::GNUSparse;
                    let size = taken.size.unwrap_or(size);
                    let mut body = (&mut archive).take(padded(size)?);
                    match taken.finish(header, size) {
                        Some(entry) if !sparse => self.entry(kind, entry, &mut body, &mut directories)?,
                        _ if kind == EntryType::GNUSparse && is_extended(&block) => {
                            return Err(broken("it holds sparse files; make it without --sparse"));
                        }
                        _ => Tally::count(&self.tally.unreadable, 1),
                    }
                    let left = body.limit();
                    skip(&mut archive, left)?;
                }
            }
        }
        if first {
            return Err(broken("it is empty"));
        }
        for (path, mtime) in directories.iter().rev() {
            if let Ok(directory) = open_beneath(self.target, path, OFlags::RDONLY | OFlags::DIRECTORY) {
                let _ = rustix::fs::futimens(&directory, &both(*mtime));
            }
        }
        Ok(())
    }

    fn entry(
        &mut self,
        kind: EntryType,
        entry: Entry,
        body: &mut dyn Read,
        directories: &mut Vec<(PathBuf, Timespec)>,
    ) -> io::Result<()> {
        let Some(name) = entry.path.file_name().map(|name| name.as_bytes().to_vec()) else {
            // The top itself, "./": the image has its own.
            return Ok(());
        };
        let made = match kind {
            EntryType::Directory => self.directory(&entry, &name),
            EntryType::Symlink => self.symlink(&entry, &name),
            EntryType::Link => self.hard_link(&entry, &name),
            EntryType::Regular | EntryType::Continuous => self.file(&entry, &name, body),
            _ => {
                Tally::count(&self.tally.special, 1);
                return Ok(());
            }
        };
        match made {
            Ok(()) => {
                Tally::count(&self.tally.files, 1);
                if kind == EntryType::Directory && directories.len() < MAX_TIMED_DIRECTORIES {
                    directories.push((entry.path, entry.mtime));
                }
                Ok(())
            }
            // Through a link, onto a directory, of an impossible name: refused, and on to the next.
            Err(error)
                if matches!(
                    Errno::from_io_error(&error),
                    Some(
                        Errno::LOOP
                            | Errno::XDEV
                            | Errno::NOTDIR
                            | Errno::ISDIR
                            | Errno::NOENT
                            | Errno::EXIST
                            | Errno::NOTEMPTY
                            | Errno::NAMETOOLONG
                            | Errno::INVAL
                            | Errno::PERM
                            | Errno::MLINK
                    )
                ) =>
            {
                Tally::count(&self.tally.unreadable, 1);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// The directory an entry goes into, made if the archive did not name it before.
    fn parent(&self, path: &Path) -> io::Result<OwnedFd> {
        let parent = path.parent().unwrap_or(Path::new(""));
        match open_beneath(self.target, parent, OFlags::RDONLY | OFlags::DIRECTORY) {
            Err(Errno::NOENT) => {}
            other => return other.map_err(io::Error::from),
        }
        let mut made = PathBuf::new();
        let mut directory = open_beneath(self.target, &made, OFlags::RDONLY | OFlags::DIRECTORY)?;
        for part in parent.components() {
            made.push(part);
            match rustix::fs::mkdirat(&directory, part.as_os_str(), Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
            directory = open_beneath(self.target, &made, OFlags::RDONLY | OFlags::DIRECTORY)?;
        }
        Ok(directory)
    }

    fn directory(&self, entry: &Entry, name: &[u8]) -> io::Result<()> {
        let parent = self.parent(&entry.path)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::mkdirat(&parent, name, Mode::RWXU) {
            Ok(()) => {}
            Err(Errno::EXIST) => {
                // A directory may be named twice; anything else in its place makes way.
                if rustix::fs::openat(&parent, name, flags, Mode::empty()).is_err() {
                    rustix::fs::unlinkat(&parent, name, AtFlags::empty())?;
                    rustix::fs::mkdirat(&parent, name, Mode::RWXU)?;
                }
            }
            Err(error) => return Err(error.into()),
        }
        let made = rustix::fs::openat(&parent, name, flags, Mode::empty())?;
        self.finish(&made, entry)
    }

    fn symlink(&self, entry: &Entry, name: &[u8]) -> io::Result<()> {
        let parent = self.parent(&entry.path)?;
        replacing(&parent, name, || rustix::fs::symlinkat(entry.link.as_slice(), &parent, name))?;
        let (uid, gid) = (Uid::from_raw(entry.uid), Gid::from_raw(entry.gid));
        rustix::fs::chownat(&parent, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
        rustix::fs::utimensat(&parent, name, &both(entry.mtime), AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(())
    }

    fn hard_link(&self, entry: &Entry, name: &[u8]) -> io::Result<()> {
        let linked = inside(&entry.link).ok_or(Errno::XDEV)?;
        let linked_name = linked.file_name().ok_or(Errno::INVAL)?;
        let from = open_beneath(
            self.target,
            linked.parent().unwrap_or(Path::new("")),
            OFlags::RDONLY | OFlags::DIRECTORY,
        )?;
        if linked == entry.path {
            return Ok(());
        }
        let parent = self.parent(&entry.path)?;
        replacing(&parent, name, || rustix::fs::linkat(&from, linked_name, &parent, name, AtFlags::empty()))?;
        Ok(())
    }

    fn file(&mut self, entry: &Entry, name: &[u8], body: &mut dyn Read) -> io::Result<()> {
        let parent = self.parent(&entry.path)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made =
            replacing(&parent, name, || rustix::fs::openat(&parent, name, flags, Mode::RUSR | Mode::WUSR))?;
        let mut file = std::fs::File::from(made);
        let mut buffer = vec![0_u8; BUFFER.min(usize::try_from(entry.size).unwrap_or(BUFFER).max(1))];
        let mut left = entry.size;
        while left > 0 {
            let want = usize::try_from(left).unwrap_or(BUFFER).min(buffer.len());
            let got = body.read(&mut buffer[..want])?;
            if got == 0 {
                return Err(broken("it ends in the middle of a file"));
            }
            io::Write::write_all(&mut file, &buffer[..got])?;
            left -= got as u64;
            Tally::count(&self.tally.bytes, got as u64);
            (self.pace)(got as u64)?;
        }
        self.finish(&file.into(), entry)
    }

    fn finish(&self, made: &OwnedFd, entry: &Entry) -> io::Result<()> {
        rustix::fs::fchown(made, Some(Uid::from_raw(entry.uid)), Some(Gid::from_raw(entry.gid)))?;
        rustix::fs::fchmod(made, Mode::from_raw_mode(entry.mode & 0o7777))?;
        for (name, value) in entry.xattrs.iter().filter(|(name, _)| wanted_xattr(name)) {
            match rustix::fs::fsetxattr(made, name.as_slice(), value, XattrFlags::empty()) {
                Ok(()) => {}
                Err(Errno::NOSPC) => return Err(Errno::NOSPC.into()),
                // A malformed attribute is no reason to lose the file.
                Err(_) => {}
            }
        }
        rustix::fs::futimens(made, &both(entry.mtime))?;
        Ok(())
    }
}

impl Extended {
    fn read(&mut self, records: &[u8]) -> io::Result<()> {
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

    /// `None` for an entry that tries to leave the image.
    fn finish(self, header: &Header, size: u64) -> Option<Entry> {
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
fn seconds(text: &str) -> Option<(i64, i64)> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let nanoseconds: String = part.chars().chain(std::iter::repeat('0')).take(9).collect();
    let whole = whole.parse::<i64>().ok()?;
    Some(if whole < 0 { (whole, 0) } else { (whole, nanoseconds.parse().ok()?) })
}

/// A path of an archive as a path below the image's top; `None` when it tries to leave or cannot exist.
fn inside(path: &[u8]) -> Option<PathBuf> {
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

fn both(time: Timespec) -> Timestamps {
    Timestamps { last_access: time, last_modification: time }
}

fn checksum_fits(block: &[u8; BLOCK]) -> bool {
    let sum: u32 = block
        .iter()
        .enumerate()
        .map(|(at, byte)| if (148..156).contains(&at) { u32::from(b' ') } else { u32::from(*byte) })
        .sum();
    Header::from_byte_slice(block).cksum().is_ok_and(|said| said == sum)
}

/// An old GNU sparse header that goes on in further blocks.
fn is_extended(block: &[u8; BLOCK]) -> bool {
    Header::from_byte_slice(block).as_gnu().is_some_and(tar::GnuHeader::is_extended)
}

/// `false` at the end of the archive.
fn read_block(archive: &mut impl Read, block: &mut [u8; BLOCK]) -> io::Result<bool> {
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

fn padded(size: u64) -> io::Result<u64> {
    size.checked_next_multiple_of(BLOCK as u64).ok_or_else(|| broken("it has an impossible size"))
}

/// The body of a header entry, refused when it is longer than anything sensible.
fn bounded(archive: &mut impl Read, size: u64, most: u64) -> io::Result<Vec<u8>> {
    if size > most {
        return Err(broken("it has an endless name or header"));
    }
    let padded = usize::try_from(padded(size)?).map_err(|_| broken("it has an impossible size"))?;
    let mut body = vec![0_u8; padded];
    archive.read_exact(&mut body)?;
    body.truncate(usize::try_from(size).unwrap_or(padded));
    Ok(body)
}

fn trimmed(mut name: Vec<u8>) -> Vec<u8> {
    while name.last() == Some(&0) {
        name.pop();
    }
    name
}

fn skip(archive: &mut impl Read, count: u64) -> io::Result<()> {
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

    /// Whatever bytes come, the unpacker ends, does not panic and stays inside.
    #[test]
    fn spoiled_archives_are_survived() {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: needs root to give files away");
            return;
        }
        let mut builder = tar::Builder::new(Vec::new());
        for (name, kind) in [
            ("a", EntryType::Directory),
            ("a/file", EntryType::Regular),
            ("a/link", EntryType::Symlink),
            ("a/hard", EntryType::Link),
            ("long", EntryType::GNULongName),
            ("extended", EntryType::XHeader),
            ("last", EntryType::Regular),
        ] {
            let contents: &[u8] = if kind == EntryType::XHeader {
                b"30 SCHILY.xattr.user.a=12345678\n"
            } else {
                b"../../escaped"
            };
            let mut header = Header::new_gnu();
            header.set_path(name).unwrap();
            header.set_link_name("file").unwrap();
            header.set_entry_type(kind);
            header.set_mode(0o755);
            header.set_size(contents.len() as u64);
            header.set_cksum();
            builder.append(&header, contents).unwrap();
        }
        let whole = builder.into_inner().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let mut random = 1_u32;
        let mut next = |below: usize| {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (random >> 8) as usize % below
        };
        for round in 0..400 {
            let mut bytes = whole.clone();
            for _ in 0..=next(6) {
                let at = next(bytes.len());
                bytes[at] = next(256) as u8;
            }
            // Most damage would end at the checksum: put it right.
            for block in bytes.chunks_exact_mut(BLOCK) {
                if block.iter().any(|byte| *byte != 0) && block[257..262] == *b"ustar" {
                    let mut header = Header::from_byte_slice(block).clone();
                    header.set_cksum();
                    block.copy_from_slice(header.as_bytes());
                }
            }
            let inner = dir.path().join(format!("{round}"));
            std::fs::create_dir(&inner).unwrap();
            let target: OwnedFd = std::fs::File::open(&inner).unwrap().into();
            let tally = Tally::default();
            let unpack = Unpack { target: &target, tally: &tally, pace: &mut |_| Ok(()) };
            let _ = unpack.run(&bytes[..]);
            std::fs::remove_dir_all(&inner).unwrap();
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
