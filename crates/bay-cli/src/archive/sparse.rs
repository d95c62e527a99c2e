//! Sparse members of an archive, in the format of [`bay_types::sparse`]. All input is hostile.

use std::io::{self, Read};

use bay_types::sparse::{ARCHIVE_BLOCK, Extent, MAX_EXTENTS, PAX_MAJOR, PAX_MINOR, PAX_NAME, PAX_REAL_SIZE};

/// Most digits of a number in a map.
const MAX_DIGITS: usize = 20;
/// The kernel supports no longer file.
const MAX_SIZE: u64 = i64::MAX as u64;

/// What the extended records before a member state about its holes.
#[derive(Debug, Default)]
pub(super) struct Sparse {
    major: Option<Vec<u8>>,
    minor: Option<Vec<u8>>,
    pub(super) name: Option<Vec<u8>>,
    size: Option<u64>,
}

impl Sparse {
    /// Takes the record if it is about holes.
    pub(super) fn record(&mut self, key: &[u8], value: &[u8]) -> Result<(), &'static str> {
        match key {
            key if key == PAX_MAJOR.as_bytes() => self.major = Some(value.to_vec()),
            key if key == PAX_MINOR.as_bytes() => self.minor = Some(value.to_vec()),
            key if key == PAX_NAME.as_bytes() => self.name = Some(value.to_vec()),
            key if key == PAX_REAL_SIZE.as_bytes() => {
                self.size = Some(number(value).ok_or("its length is not a number")?);
            }
            key if key.starts_with(b"GNU.sparse.") => {
                return Err("its holes are described in an unknown way");
            }
            _ => {}
        }
        Ok(())
    }

    /// The length of the file including its holes. `None` if it has none.
    pub(super) fn real_size(&self) -> Result<Option<u64>, &'static str> {
        match (self.major.as_deref(), self.minor.as_deref(), self.size) {
            (None, None, None) => Ok(None),
            (Some(b"1"), Some(b"0"), Some(size)) => Ok(Some(size)),
            _ => Err("its holes are described in an unknown way"),
        }
    }
}

fn number(digits: &[u8]) -> Option<u64> {
    let short = !digits.is_empty() && digits.len() <= MAX_DIGITS && digits.iter().all(u8::is_ascii_digit);
    let text = std::str::from_utf8(digits).ok().filter(|_| short)?;
    text.parse().ok().filter(|number| *number <= MAX_SIZE)
}

/// Parses the map at the beginning of a member's content: extents in order, none beyond the end of the file.
pub(super) fn map(from: &mut impl Read, real_size: u64) -> io::Result<Vec<Extent>> {
    let mut numbers = Numbers { from, block: [0; ARCHIVE_BLOCK], at: ARCHIVE_BLOCK };
    let count = usize::try_from(numbers.next()?).unwrap_or(usize::MAX);
    if count > MAX_EXTENTS {
        return Err(odd("it has too many holes"));
    }
    let mut extents = Vec::new();
    let mut end = 0;
    for _ in 0..count {
        let extent = Extent { offset: numbers.next()?, length: numbers.next()? };
        let next = extent.offset.checked_add(extent.length).filter(|next| *next <= real_size);
        match next {
            Some(next) if extent.offset >= end => end = next,
            _ => return Err(odd("its map of holes is out of order")),
        }
        extents.push(extent);
    }
    Ok(extents)
}

fn odd(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.to_owned())
}

/// Numbers, each followed by a line break, in whole blocks.
struct Numbers<'a, R> {
    from: &'a mut R,
    block: [u8; ARCHIVE_BLOCK],
    at: usize,
}

impl<R: Read> Numbers<'_, R> {
    fn next(&mut self) -> io::Result<u64> {
        let mut digits = Vec::with_capacity(MAX_DIGITS);
        loop {
            if self.at == ARCHIVE_BLOCK {
                self.from.read_exact(&mut self.block)?;
                self.at = 0;
            }
            let byte = self.block[self.at];
            self.at += 1;
            match byte {
                b'\n' => return number(&digits).ok_or_else(|| odd("its map of holes is malformed")),
                _ if digits.len() == MAX_DIGITS => return Err(odd("its map of holes is malformed")),
                byte => digits.push(byte),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use bay_types::sparse;

    use super::*;

    #[test]
    fn a_written_map_parses_to_the_same_map() {
        for count in [0, 1, 100, 1000] {
            let extents: Vec<Extent> =
                (0..count).map(|at| Extent { offset: at * 10_000, length: at + 1 }).collect();
            let mut bytes = sparse::map(&extents);
            bytes.extend(b"data");
            let mut rest = &*bytes;
            assert_eq!(map(&mut rest, 1 << 40).unwrap(), extents);
            assert_eq!(rest, b"data");
        }
    }

    #[test]
    fn an_inconsistent_map_is_refused() {
        let padded = |text: &str| {
            let mut bytes = text.as_bytes().to_vec();
            bytes.resize(bytes.len().next_multiple_of(ARCHIVE_BLOCK), 0);
            bytes
        };
        for text in [
            "",
            "x\n",
            "-1\n",
            "2\n0\n10\n5\n10\n",
            "1\n0\n101\n",
            "1\n18446744073709551615\n2\n",
            "99999999\n",
            "111111111111111111111111\n",
            "1\n5\n",
        ] {
            assert!(map(&mut &*padded(text), 100).is_err(), "{text:?}");
        }
        assert!(map(&mut &b"1\n0"[..], 100).is_err());
    }

    #[test]
    fn only_one_format_of_holes_is_accepted() {
        let mut sparse = Sparse::default();
        assert_eq!(sparse.real_size(), Ok(None));
        sparse.record(b"GNU.sparse.major", b"0").unwrap();
        assert!(sparse.real_size().is_err());
        assert!(Sparse::default().record(b"GNU.sparse.map", b"0,1").is_err());
        assert!(Sparse::default().record(b"GNU.sparse.realsize", b"99999999999999999999").is_err());
    }
}
