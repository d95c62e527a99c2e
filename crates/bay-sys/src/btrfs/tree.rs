//! Reads items of the filesystem's own trees.

use std::io;
use std::mem::size_of;
use std::os::fd::AsFd;

use super::{Qgroup, READ, SUBVOLUME_ROOT_INODE, WRITE, call, request, subvolume_info};

const ROOT_TREE: u64 = 1;
const QUOTA_TREE: u64 = 8;
const KEY_INODE_ITEM: u32 = 1;
/// The name of an inode in a directory. The item's offset is the number of the directory.
const KEY_INODE_REF: u32 = 12;
const KEY_EXTENT_DATA: u32 = 108;
const KEY_ROOT_ITEM: u32 = 132;
const KEY_ROOT_REF: u32 = 156;
const KEY_QGROUP_INFO: u32 = 242;

#[repr(C)]
struct SearchKey {
    tree_id: u64,
    min_objectid: u64,
    max_objectid: u64,
    min_offset: u64,
    max_offset: u64,
    min_transid: u64,
    max_transid: u64,
    min_type: u32,
    max_type: u32,
    nr_items: u32,
    unused: u32,
    unused_more: [u64; 4],
}

const SEARCH_BUFFER: usize = 64 * 1024;

#[repr(C)]
struct SearchArgs {
    key: SearchKey,
    buf_size: u64,
    buf: [u8; SEARCH_BUFFER],
}

/// The variable buffer after the header is not part of the encoded size.
const IOC_TREE_SEARCH_V2: u32 = request(READ | WRITE, 17, size_of::<SearchArgs>() - SEARCH_BUFFER);

/// One item of a tree, as the search returns it.
struct Item<'a> {
    objectid: u64,
    kind: u32,
    offset: u64,
    body: &'a [u8],
}

/// What to search in a tree.
struct Search {
    tree: u64,
    objectid: (u64, u64),
    kind: (u32, u32),
    offset: (u64, u64),
    min_transid: u64,
}

fn little_endian(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

/// Visits the items of a tree in key order until `visit` returns false.
fn search(
    filesystem: impl AsFd,
    wanted: &Search,
    visit: &mut dyn FnMut(&Item<'_>) -> bool,
) -> io::Result<()> {
    const HEADER: usize = 32;
    let filesystem = filesystem.as_fd();
    let mut arguments = Box::new(SearchArgs {
        key: SearchKey {
            tree_id: wanted.tree,
            min_objectid: wanted.objectid.0,
            max_objectid: wanted.objectid.1,
            min_offset: wanted.offset.0,
            max_offset: wanted.offset.1,
            min_transid: wanted.min_transid,
            max_transid: u64::MAX,
            min_type: wanted.kind.0,
            max_type: wanted.kind.1,
            nr_items: 0,
            unused: 0,
            unused_more: [0; 4],
        },
        buf_size: SEARCH_BUFFER as u64,
        buf: [0; SEARCH_BUFFER],
    });
    loop {
        arguments.key.nr_items = u32::MAX;
        arguments.buf_size = SEARCH_BUFFER as u64;
        call(filesystem, IOC_TREE_SEARCH_V2, &mut *arguments)?;
        let found = arguments.key.nr_items;
        if found == 0 {
            return Ok(());
        }
        let mut at = 0_usize;
        let mut last = (0, 0, 0);
        for _ in 0..found {
            let Some(header) = arguments.buf.get(at..at + HEADER) else { return Ok(()) };
            // Headers are in the machine's own byte order, bodies in little-endian.
            let word =
                |from: usize| header[from..from + 8].try_into().map(u64::from_ne_bytes).unwrap_or_default();
            let half =
                |from: usize| header[from..from + 4].try_into().map(u32::from_ne_bytes).unwrap_or_default();
            let (objectid, offset, kind, length) = (word(8), word(16), half(24), half(28) as usize);
            let Some(body) = arguments.buf.get(at + HEADER..at + HEADER + length) else { return Ok(()) };
            // Keys between the bounds may have other types, because the bounds apply to the whole key.
            let fits = (wanted.kind.0..=wanted.kind.1).contains(&kind)
                && (wanted.objectid.0..=wanted.objectid.1).contains(&objectid)
                && (wanted.offset.0..=wanted.offset.1).contains(&offset);
            if fits && !visit(&Item { objectid, kind, offset, body }) {
                return Ok(());
            }
            last = (objectid, kind, offset);
            at += HEADER + length;
        }
        let key = &mut arguments.key;
        (key.min_objectid, key.min_type, key.min_offset) = match last {
            (objectid, kind, offset) if offset < u64::MAX => (objectid, kind, offset + 1),
            (objectid, kind, _) if kind < u32::from(u8::MAX) => (objectid, kind + 1, 0),
            (objectid, ..) if objectid < u64::MAX => (objectid + 1, 0, 0),
            _ => return Ok(()),
        };
        if key.min_objectid > wanted.objectid.1 {
            return Ok(());
        }
    }
}

/// Ids of the subvolumes directly in the subvolume `id`.
pub fn subvolume_children(filesystem: impl AsFd, id: u64) -> io::Result<Vec<u64>> {
    let mut children = Vec::new();
    let wanted = Search {
        tree: ROOT_TREE,
        objectid: (id, id),
        kind: (KEY_ROOT_REF, KEY_ROOT_REF),
        offset: (0, u64::MAX),
        min_transid: 0,
    };
    search(filesystem, &wanted, &mut |item| {
        children.push(item.offset);
        true
    })?;
    Ok(children)
}

/// Whether a subvolume with this id exists, even if it is being deleted.
pub fn subvolume_exists(filesystem: impl AsFd, id: u64) -> io::Result<bool> {
    let mut exists = false;
    let wanted = Search {
        tree: ROOT_TREE,
        objectid: (id, id),
        kind: (KEY_ROOT_ITEM, KEY_ROOT_ITEM),
        offset: (0, u64::MAX),
        min_transid: 0,
    };
    search(filesystem, &wanted, &mut |_| {
        exists = true;
        false
    })?;
    Ok(exists)
}

/// Bytes that only this group has. None if the group does not exist or quotas are off.
pub fn qgroup_usage(filesystem: impl AsFd, group: Qgroup) -> io::Result<Option<u64>> {
    let mut usage = None;
    let wanted = Search {
        tree: QUOTA_TREE,
        objectid: (0, 0),
        kind: (KEY_QGROUP_INFO, KEY_QGROUP_INFO),
        offset: (group.0, group.0),
        min_transid: 0,
    };
    let found = search(filesystem, &wanted, &mut |item| {
        // generation, referenced, referenced compressed, exclusive, exclusive compressed
        usage = little_endian(item.body, 24);
        false
    });
    absent_tree(found)?;
    Ok(usage)
}

/// Every quota group. Empty if quotas are off.
pub fn qgroup_list(filesystem: impl AsFd) -> io::Result<Vec<Qgroup>> {
    let mut groups = Vec::new();
    let wanted = Search {
        tree: QUOTA_TREE,
        objectid: (0, 0),
        kind: (KEY_QGROUP_INFO, KEY_QGROUP_INFO),
        offset: (0, u64::MAX),
        min_transid: 0,
    };
    let found = search(filesystem, &wanted, &mut |item| {
        groups.push(Qgroup(item.offset));
        true
    });
    absent_tree(found)?;
    Ok(groups)
}

/// Without quotas there is no quota tree, which is no error.
fn absent_tree(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        other => other,
    }
}

/// Bytes of the file data in the subvolume that was written since it was made. Examines at most `max_items` extents.
/// Takes time in proportion to what changed, not to what exists.
pub fn bytes_written_since_birth(top: impl AsFd, max_items: u64) -> io::Result<u64> {
    const INLINE: u8 = 0;
    const HEADER_OF_INLINE: usize = 21;
    let top = top.as_fd();
    let info = subvolume_info(top)?;
    // Everything in a subvolume that was made empty was written to it. A snapshot shares what is older than itself.
    let shared_until = if info.parent_uuid == [0; 16] { 0 } else { info.born };
    let mut bytes = 0_u64;
    let mut seen = 0_u64;
    let wanted = Search {
        tree: info.id,
        objectid: (SUBVOLUME_ROOT_INODE, u64::MAX),
        kind: (KEY_EXTENT_DATA, KEY_EXTENT_DATA),
        offset: (0, u64::MAX),
        min_transid: shared_until,
    };
    search(top, &wanted, &mut |item| {
        seen += 1;
        let young = little_endian(item.body, 0).is_some_and(|generation| generation > shared_until);
        if young && item.kind == KEY_EXTENT_DATA && item.objectid >= SUBVOLUME_ROOT_INODE {
            bytes = bytes.saturating_add(match item.body.get(20) {
                Some(&INLINE) => (item.body.len() - HEADER_OF_INLINE.min(item.body.len())) as u64,
                Some(_) if little_endian(item.body, 21).is_some_and(|place| place != 0) => {
                    little_endian(item.body, 45).unwrap_or(0)
                }
                _ => 0,
            });
        }
        seen < max_items
    })?;
    Ok(bytes)
}

/// A stretch of the disk that holds data of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Where it is on the disk; the same for every snapshot that shares it. `None` for data in the tree itself, which
    /// is not shared.
    pub place: Option<u64>,
    pub disk_bytes: u64,
}

/// Visits the extents of the subvolume that were written after this generation, until `visit` returns false. An extent
/// may be visited several times. Takes time in proportion to what was written, not to what exists.
pub fn extents_since(
    top: impl AsFd,
    generation: u64,
    visit: &mut dyn FnMut(Extent) -> bool,
) -> io::Result<()> {
    const INLINE: u8 = 0;
    const HEADER_OF_INLINE: usize = 21;
    let top = top.as_fd();
    let wanted = Search {
        tree: subvolume_info(top)?.id,
        objectid: (SUBVOLUME_ROOT_INODE, LAST_INODE),
        kind: (KEY_EXTENT_DATA, KEY_EXTENT_DATA),
        offset: (0, u64::MAX),
        min_transid: generation,
    };
    search(top, &wanted, &mut |item| {
        let young =
            little_endian(item.body, 0).is_some_and(|written| generation == 0 || written > generation);
        let place = little_endian(item.body, 21);
        let extent = match item.body.get(20) {
            Some(&INLINE) => {
                let bytes = item.body.len().saturating_sub(HEADER_OF_INLINE) as u64;
                Some(Extent { place: None, disk_bytes: bytes })
            }
            // A place of 0 is a hole.
            Some(_) if place.is_some_and(|place| place != 0) => {
                Some(Extent { place, disk_bytes: little_endian(item.body, 29).unwrap_or(0) })
            }
            _ => None,
        };
        match extent {
            Some(extent) if young => visit(extent),
            _ => true,
        }
    })
}

/// The generation in which this file or directory was made. Whatever was written to the filesystem before is older.
pub fn made_in_generation(file: impl AsFd) -> io::Result<u64> {
    let file = file.as_fd();
    let number = rustix::fs::fstat(file)?.st_ino;
    let wanted = Search {
        tree: subvolume_info(file)?.id,
        objectid: (number, number),
        kind: (KEY_INODE_ITEM, KEY_INODE_ITEM),
        offset: (0, u64::MAX),
        min_transid: 0,
    };
    let mut made = None;
    search(file, &wanted, &mut |item| {
        made = little_endian(item.body, 0);
        false
    })?;
    made.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
}

/// A file or directory that changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Inode {
    pub number: u64,
    pub is_dir: bool,
    /// The directory that it is in, if the search met its name.
    pub parent: Option<u64>,
    /// When it was made and when it last changed, in nanoseconds since 1970. Only the kernel sets both.
    pub made_ns: i128,
    pub changed_ns: i128,
}

/// Visits the inodes of the subvolume that changed since this generation, and some others, in order of inode numbers.
/// Examines at most `max_items` items, and returns whether that was all. Takes time in proportion to what changed.
pub fn inodes_changed_since(
    top: impl AsFd,
    generation: u64,
    max_items: u64,
    visit: &mut dyn FnMut(Inode),
) -> io::Result<bool> {
    let top = top.as_fd();
    let wanted = Search {
        tree: subvolume_info(top)?.id,
        objectid: (SUBVOLUME_ROOT_INODE, LAST_INODE),
        // Items of all kinds, so that `max_items` bounds the examined items and not only the matching ones.
        kind: (0, u32::from(u8::MAX)),
        offset: (0, u64::MAX),
        min_transid: generation,
    };
    let mut seen = 0_u64;
    // The names of an inode come after it.
    let mut last: Option<Inode> = None;
    search(top, &wanted, &mut |item| {
        seen += 1;
        match item.kind {
            KEY_INODE_ITEM => {
                if let Some(whole) = std::mem::replace(&mut last, inode(item)) {
                    visit(whole);
                }
            }
            KEY_INODE_REF => {
                if let Some(last) = last.as_mut().filter(|last| last.number == item.objectid) {
                    last.parent.get_or_insert(item.offset);
                }
            }
            _ => {}
        }
        seen < max_items
    })?;
    if let Some(whole) = last {
        visit(whole);
    }
    Ok(seen < max_items)
}

/// Higher numbers are the filesystem's own.
const LAST_INODE: u64 = u64::MAX - 256;

/// The parts of an inode item that are used here.
fn inode(item: &Item<'_>) -> Option<Inode> {
    const MODE: usize = 52;
    const CHANGED: usize = 124;
    const MADE: usize = 148;
    const FILE_TYPE: u32 = 0o170_000;
    const DIRECTORY: u32 = 0o040_000;
    let half = |at: usize| Some(u32::from_le_bytes(item.body.get(at..at + 4)?.try_into().ok()?));
    let time = |at: usize| {
        let seconds = i128::from(little_endian(item.body, at)?.cast_signed());
        Some(seconds * 1_000_000_000 + i128::from(half(at + 8)?))
    };
    Some(Inode {
        number: item.objectid,
        is_dir: half(MODE)? & FILE_TYPE == DIRECTORY,
        parent: None,
        made_ns: time(MADE)?,
        changed_ns: time(CHANGED)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_search_has_the_layout_of_the_kernel_header() {
        assert_eq!(size_of::<SearchKey>(), 104);
        assert_eq!(IOC_TREE_SEARCH_V2, 0xC070_9411);
    }
}
