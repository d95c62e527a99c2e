//! Names and attributes of archive members, with every length bounded.
//!
//! The tar library would read long names and PAX records of any length into memory. So this module parses its raw
//! entries.

use std::io::{self, Read};

use bay_types::guest::ARCHIVE_BROKE_OFF;
use tar::{Archive, Entry, EntryType};

use super::{FileError, Result, Source};

/// Longest name or link target.
const MAX_NAME: u64 = 4096;
/// Longest set of PAX records before one member.
const MAX_PAX: u64 = 64 << 10;
/// Longest list of paths to delete.
const MAX_DELETE_LIST: u64 = 16 << 20;

/// What kind of file a member is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    File,
    Directory,
    Symlink(Vec<u8>),
    HardLink(Vec<u8>),
}

/// A member, as its headers describe it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) name: Vec<u8>,
    pub(super) kind: Kind,
    pub(super) size: u64,
    pub(super) mode: u32,
    pub(super) mtime: i64,
}

/// What the headers before a member say about it.
#[derive(Debug, Default)]
struct Pending {
    name: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    pax: Pax,
}

/// The records that the guest uses.
#[derive(Debug, Default, PartialEq, Eq)]
struct Pax {
    path: Option<Vec<u8>>,
    linkpath: Option<Vec<u8>>,
    size: Option<u64>,
    sparse: bool,
    /// Why the archive ends here.
    broke_off: Option<Vec<u8>>,
}

fn refused(why: impl Into<String>) -> FileError {
    FileError::Archive(why.into())
}

fn broken(error: &io::Error) -> FileError {
    match error.kind() {
        io::ErrorKind::ConnectionAborted => FileError::BrokeOff,
        io::ErrorKind::UnexpectedEof => refused("it ends in the middle of a member"),
        _ => refused(format!("it is not a tar archive: {error}")),
    }
}

/// Calls `each` for every member with its content.
pub(super) fn for_each(
    source: Source,
    mut each: impl FnMut(&Member, &mut dyn Read) -> Result<()>,
) -> Result<()> {
    let mut archive = Archive::new(source);
    let mut pending = Pending::default();
    for entry in archive.entries().map_err(|e| broken(&e))?.raw(true) {
        let mut entry = entry.map_err(|e| broken(&e))?;
        match entry.header().entry_type() {
            EntryType::GNULongName => pending.name = Some(long_name(&mut entry)?),
            EntryType::GNULongLink => pending.link = Some(long_name(&mut entry)?),
            EntryType::XHeader => {
                pending.pax = parse_pax(&read_bounded(&mut entry, MAX_PAX, "PAX records")?)?;
            }
            // Applies to all members. Nothing in it is used, except the reason for which another bay's guest ended the
            // archive.
            EntryType::XGlobalHeader => {
                let records = parse_pax(&read_bounded(&mut entry, MAX_PAX, "PAX records")?)?;
                if let Some(why) = records.broke_off {
                    return Err(refused(format!("its sender broke off: {}", super::shown(&why))));
                }
            }
            _ => {
                let member = describe(&entry, std::mem::take(&mut pending))?;
                each(&member, &mut entry)?;
            }
        }
    }
    // Reads what follows the end, so that the sender can finish.
    io::copy(&mut archive.into_inner(), &mut io::sink()).map_err(|e| broken(&e))?;
    Ok(())
}

fn describe(entry: &Entry<'_, Source>, pending: Pending) -> Result<Member> {
    let header = entry.header();
    let name = pending.pax.path.or(pending.name).unwrap_or_else(|| entry.header().path_bytes().into_owned());
    let link = || {
        let plain = || header.link_name_bytes().map(std::borrow::Cow::into_owned);
        let target = pending.pax.linkpath.clone().or(pending.link.clone()).or_else(plain).unwrap_or_default();
        if target.is_empty() || target.contains(&0) {
            return Err(refused(format!("the link {} has no target", super::shown(&name))));
        }
        Ok(target)
    };
    let size = header.entry_size().map_err(|e| broken(&e))?;
    if pending.pax.size.is_some_and(|s| s != size) || pending.pax.sparse {
        return Err(refused(format!("{} is sparse or longer than its header can say", super::shown(&name))));
    }
    let kind = match header.entry_type() {
        EntryType::Regular | EntryType::Continuous if name.ends_with(b"/") => Kind::Directory,
        EntryType::Regular | EntryType::Continuous => Kind::File,
        EntryType::Directory => Kind::Directory,
        EntryType::Symlink => Kind::Symlink(link()?),
        EntryType::Link => Kind::HardLink(link()?),
        other => {
            let what = match other {
                EntryType::Char | EntryType::Block => "a device",
                EntryType::Fifo => "a FIFO",
                EntryType::GNUSparse => "a sparse file",
                _ => "of a kind that is not known",
            };
            return Err(refused(format!("{} is {what}", super::shown(&name))));
        }
    };
    let mode = header.mode().unwrap_or(0o644) & 0o7777;
    let mtime = header.mtime().ok().and_then(|t| i64::try_from(t).ok()).unwrap_or(0);
    Ok(Member { name, kind, size, mode, mtime })
}

fn read_bounded(entry: &mut impl Read, most: u64, what: &str) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    entry.take(most + 1).read_to_end(&mut bytes).map_err(|e| broken(&e))?;
    if bytes.len() as u64 > most {
        return Err(refused(format!("the {what} are longer than {most} bytes")));
    }
    Ok(bytes)
}

fn long_name(entry: &mut impl Read) -> Result<Vec<u8>> {
    let mut name = read_bounded(entry, MAX_NAME, "bytes of a name")?;
    while name.last() == Some(&0) {
        name.pop();
    }
    Ok(name)
}

/// Relative paths separated by NUL.
pub(super) fn delete_list(content: &mut dyn Read) -> Result<Vec<Vec<u8>>> {
    let mut content = content;
    let bytes = read_bounded(&mut content, MAX_DELETE_LIST, "bytes of paths to delete")?;
    Ok(bytes.split(|b| *b == 0).filter(|p| !p.is_empty()).map(<[u8]>::to_vec).collect())
}

/// Parses records of the form `LENGTH KEY=VALUE\n`, where the length includes itself.
fn parse_pax(mut bytes: &[u8]) -> Result<Pax> {
    let malformed = || refused("its PAX records are malformed");
    let mut pax = Pax::default();
    while !bytes.is_empty() {
        let space = bytes.iter().position(|b| *b == b' ').ok_or_else(malformed)?;
        let length: usize =
            std::str::from_utf8(&bytes[..space]).ok().and_then(|t| t.parse().ok()).ok_or_else(malformed)?;
        let record =
            bytes.get(space + 1..length).and_then(|r| r.strip_suffix(b"\n")).ok_or_else(malformed)?;
        let equals = record.iter().position(|b| *b == b'=').ok_or_else(malformed)?;
        let (key, value) = (&record[..equals], &record[equals + 1..]);
        match key {
            b"path" => pax.path = Some(value.to_vec()),
            b"linkpath" => pax.linkpath = Some(value.to_vec()),
            b"size" => {
                pax.size =
                    Some(std::str::from_utf8(value).ok().and_then(|t| t.parse().ok()).ok_or_else(malformed)?);
            }
            key if key == ARCHIVE_BROKE_OFF.as_bytes() => pax.broke_off = Some(value.to_vec()),
            key if key.starts_with(b"GNU.sparse.") => pax.sparse = true,
            _ => {}
        }
        bytes = &bytes[length..];
    }
    Ok(pax)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pax_records_are_understood_and_garbage_is_refused() {
        let good = b"14 path=a\nb/c\n9 size=7\n";
        let pax = parse_pax(good).unwrap();
        assert_eq!(pax.path.as_deref(), Some(&b"a\nb/c"[..]));
        assert_eq!(pax.size, Some(7));
        for bad in
            ["x", "5 a", "99 path=x\n", "0 path=x\n", "3 \n", "8 nokey\n", "18446744073709551615 a=b\n"]
        {
            assert!(parse_pax(bad.as_bytes()).is_err(), "{bad:?}");
        }
    }
}
