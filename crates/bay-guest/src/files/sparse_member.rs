//! A file with holes as a member of an archive: a map of the parts with data, and that data. See [`bay_types::sparse`].

use std::fs::File;
use std::io::{self, Read};

use bay_types::sparse::{ARCHIVE_BLOCK, Extent, MAX_EXTENTS, PAX_MAJOR, PAX_MINOR, PAX_NAME, PAX_REAL_SIZE};
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use tar::{EntryType, Header};

/// The parts of the file with data. None if the file has no holes, or its filesystem does not report holes.
pub(super) fn extents(file: &File, size: u64) -> Option<Vec<Extent>> {
    let mut extents = Vec::new();
    let mut at = 0;
    while at < size {
        let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(start) => start.min(size),
            // Only a hole until the end.
            Err(Errno::NXIO) => break,
            Err(_) => return None,
        };
        let last = extents.len() + 1 == MAX_EXTENTS;
        let end = match rustix::fs::seek(file, SeekFrom::Hole(start)) {
            Ok(end) if !last => end.min(size),
            _ => size,
        };
        if end <= start {
            break;
        }
        extents.push(Extent { offset: start, length: end - start });
        at = end;
    }
    (extents != [Extent { offset: 0, length: size }] && size > 0).then_some(extents)
}

/// The header before the member and its content: the real name of the member and its length.
pub(super) fn records(name: &[u8], size: u64) -> io::Result<(Header, Vec<u8>)> {
    let mut records = Vec::new();
    for (key, value) in [
        (PAX_MAJOR, &b"1"[..]),
        (PAX_MINOR, b"0"),
        (PAX_NAME, name),
        (PAX_REAL_SIZE, size.to_string().as_bytes()),
    ] {
        records.extend(record(key, value));
    }
    let mut header = Header::new_ustar();
    header.set_path("PaxHeaders.0/sparse")?;
    header.set_entry_type(EntryType::XHeader);
    header.set_size(records.len() as u64);
    header.set_mode(0o644);
    header.set_cksum();
    Ok((header, records))
}

/// A record `LENGTH KEY=VALUE\n`. The length includes its own digits.
fn record(key: &str, value: &[u8]) -> Vec<u8> {
    let rest = [b" ", key.as_bytes(), b"=", value, b"\n"].concat();
    let mut length = rest.len();
    while length.to_string().len() + rest.len() != length {
        length = length.to_string().len() + rest.len();
    }
    [length.to_string().as_bytes(), &rest].concat()
}

/// Length of the content: the map and all extents.
pub(super) fn length(map: &[u8], extents: &[Extent]) -> u64 {
    debug_assert!(map.len().is_multiple_of(ARCHIVE_BLOCK));
    extents.iter().fold(map.len() as u64, |sum, extent| sum.saturating_add(extent.length))
}

/// The bytes of the extents, as many as the map says. If the file shrinks, the rest is zeros.
pub(super) struct Data<'a> {
    pub(super) file: &'a File,
    pub(super) extents: std::slice::Iter<'a, Extent>,
    pub(super) now: Extent,
}

impl<'a> Data<'a> {
    pub(super) fn new(file: &'a File, extents: &'a [Extent]) -> Self {
        Self { file, extents: extents.iter(), now: Extent { offset: 0, length: 0 } }
    }
}

impl Read for Data<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.now.length == 0 {
            match self.extents.next() {
                Some(next) => self.now = *next,
                None => return Ok(0),
            }
        }
        let most = buffer.len().min(usize::try_from(self.now.length).unwrap_or(usize::MAX));
        if most == 0 {
            return Ok(0);
        }
        let got = match rustix::io::retry_on_intr(|| {
            rustix::io::pread(self.file, &mut buffer[..most], self.now.offset)
        })? {
            0 => {
                buffer[..most].fill(0);
                most
            }
            got => got,
        };
        self.now.offset += got as u64;
        self.now.length -= got as u64;
        Ok(got)
    }
}
