//! Unpacking an untrusted tar archive.
//!
//! The `tar` crate parses headers, and this module bounds every length. Every entry is made relative to a directory
//! that was opened without following a symbolic link, so no archive can write outside of the image. Entries that
//! cannot be unpacked (devices, paths that leave the image, sparse files) are counted and skipped. A sparse file in
//! the old GNU form whose header continues in further blocks ends the import.

use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;
use tar::{EntryType, Header};

use super::tree::{Tally, open_beneath, replacing, wanted_xattr};

mod header;

use header::{
    BLOCK, Entry, Extended, MAX_PATH, bounded, broken, checksum_fits, inside, is_extended, padded,
    read_block, skip, trimmed,
};

/// Most bytes of extended headers for one entry: enough for the largest extended attributes.
const MAX_EXTENDED: u64 = 1024 * 1024;
/// Memory for directories whose times are set at the end. In a larger archive the rest get the time of the import.
const MAX_TIMED_BYTES: usize = 64 * 1024 * 1024;
/// Disk space of an entry besides its contents, estimated generously, so that an archive of names alone cannot fill
/// the pool.
const ENTRY_BYTES: u64 = 4096;
const BUFFER: usize = 256 * 1024;

/// An unpacking in progress.
pub(crate) struct Unpack<'a> {
    pub(crate) target: &'a OwnedFd,
    pub(crate) tally: &'a Tally,
    /// Called with the disk space used since the last call. An error stops the unpacking.
    pub(crate) pace: &'a mut dyn FnMut(u64) -> io::Result<()>,
}

/// Directories whose times are set after everything in them is unpacked.
#[derive(Default)]
struct TimedDirectories {
    all: Vec<(PathBuf, Timespec)>,
    bytes: usize,
}

impl TimedDirectories {
    fn push(&mut self, path: PathBuf, mtime: Timespec) {
        let bytes = self.bytes + path.capacity() + size_of::<(PathBuf, Timespec)>();
        if bytes <= MAX_TIMED_BYTES {
            self.bytes = bytes;
            self.all.push((path, mtime));
        }
    }
}

impl Unpack<'_> {
    pub(crate) fn run(mut self, mut archive: impl Read) -> io::Result<()> {
        let mut extended = Extended::default();
        let mut directories = TimedDirectories::default();
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
                EntryType::XHeader => {
                    // Only the last one counts, so that a sequence of them cannot add up in memory.
                    extended = Extended { path: extended.path, link: extended.link, ..Extended::default() };
                    extended.read(&bounded(&mut archive, size, MAX_EXTENDED)?)?;
                }
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
        for (path, mtime) in directories.all.iter().rev() {
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
        directories: &mut TimedDirectories,
    ) -> io::Result<()> {
        let Some(name) = entry.path.file_name().map(|name| name.as_bytes().to_vec()) else {
            // This is the top directory, "./", which the image has already.
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
        let attributes: usize = entry.xattrs.iter().map(|(name, value)| name.len() + value.len()).sum();
        (self.pace)(ENTRY_BYTES + attributes as u64)?;
        match made {
            Ok(()) => {
                Tally::count(&self.tally.files, 1);
                if kind == EntryType::Directory {
                    directories.push(entry.path, entry.mtime);
                }
                Ok(())
            }
            // The path leads through a link, onto a directory, or is invalid: skip the entry.
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

    /// The directory of an entry, made if the archive did not have it before.
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
                // A directory may occur twice; a file in its place is replaced.
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
                // If an attribute is malformed, the file is still kept.
                Err(_) => {}
            }
        }
        rustix::fs::futimens(made, &both(entry.mtime))?;
        Ok(())
    }
}

fn both(time: Timespec) -> Timestamps {
    Timestamps { last_access: time, last_modification: time }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For any bytes, the unpacker ends, does not panic and stays inside the image.
    #[test]
    fn damaged_archives_do_no_harm() {
        if !bay_tests::suite::has_root("giving files away") {
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
            // Most damage would fail the checksum, so the checksum is corrected.
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

    /// Bytes that are generated while they are read.
    struct Generated<F> {
        next: F,
        ready: io::Cursor<Vec<u8>>,
    }

    impl<F: FnMut() -> Option<Vec<u8>>> Read for Generated<F> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            if self.ready.position() == self.ready.get_ref().len() as u64 {
                self.ready = io::Cursor::new((self.next)().unwrap_or_default());
            }
            self.ready.read(buffer)
        }
    }

    fn member(kind: EntryType, name: &str, contents: &[u8]) -> Vec<u8> {
        let mut header = Header::new_gnu();
        header.set_path(name).unwrap();
        header.set_entry_type(kind);
        header.set_mode(0o755);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_size(contents.len() as u64);
        header.set_cksum();
        let mut bytes = header.as_bytes().to_vec();
        bytes.extend_from_slice(contents);
        bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
        bytes
    }

    fn peak_mib() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() >> 10
    }

    #[test]
    fn endless_headers_and_names_do_not_fill_the_memory() {
        const HEADERS: usize = 300;
        const DIRECTORIES: usize = 40_000;
        if !bay_tests::suite::has_root("giving files away") {
            return;
        }
        let value = "x".repeat(1 << 20).into_bytes();
        let mut attribute = format!("{MAX_EXTENDED} SCHILY.xattr.user.a=").into_bytes();
        attribute.extend_from_slice(&value[..MAX_EXTENDED as usize - attribute.len() - 1]);
        attribute.push(b'\n');
        let attributes = member(EntryType::XHeader, "x", &attribute);
        // One directory, sixteen deep, named again and again: 4 KiB each time.
        let deep = [vec!["d".repeat(254); 16].join("/"), "d/".repeat(8)].join("/");
        let named = [
            member(EntryType::GNULongName, "x", &deep.as_bytes()[..4080]),
            member(EntryType::Directory, "x", b""),
        ]
        .concat();
        let mut made = 0;
        let archive = Generated {
            next: || {
                made += 1;
                let part = if made <= HEADERS { &attributes } else { &named };
                (made <= HEADERS + DIRECTORIES).then(|| part.clone())
            },
            ready: io::Cursor::default(),
        };
        let dir = tempfile::tempdir().unwrap();
        let target: OwnedFd = std::fs::File::open(dir.path()).unwrap().into();
        let (tally, mut taken) = (Tally::default(), 0);
        let mut pace = |bytes| {
            taken += bytes;
            Ok(())
        };
        let before = peak_mib();
        Unpack { target: &target, tally: &tally, pace: &mut pace }.run(archive).unwrap();
        let grown = peak_mib() - before;
        assert!(grown < 200, "{grown} MiB of memory");
        assert_eq!(Tally::get(&tally.files), DIRECTORIES as u64);
        assert!(taken >= DIRECTORIES as u64 * ENTRY_BYTES, "names take space too");
    }
}
