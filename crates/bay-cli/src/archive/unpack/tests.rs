use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use tar::{Builder, Header};

use super::*;

/// Appends a member as a hostile program would write it, bypassing the checks of the `tar` crate.
fn member(
    builder: &mut Builder<Vec<u8>>,
    kind: EntryType,
    name: &[u8],
    link: &[u8],
    mode: u32,
    content: &[u8],
) {
    let mut header = Header::new_gnu();
    let gnu = header.as_gnu_mut().unwrap();
    gnu.name[..name.len()].copy_from_slice(name);
    gnu.linkname[..link.len()].copy_from_slice(link);
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(content.len() as u64);
    header.set_mtime(1_000_000);
    header.set_cksum();
    builder.append(&header, content).unwrap();
}

type Member<'a> = (EntryType, &'a [u8], &'a [u8], &'a [u8]);

/// A directory `in` to unpack into, and beside it a directory `out` with a file that attacks try to change.
fn directories() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("in")).unwrap();
    fs::create_dir(dir.path().join("out")).unwrap();
    fs::write(dir.path().join("out/victim"), b"untouched").unwrap();
    dir
}

/// Unpacks these members into `in` of new [`directories`].
fn attack(members: &[Member<'_>]) -> (tempfile::TempDir, io::Result<Unpacked>) {
    let dir = directories();
    let result = unpack_members(&dir.path().join("in"), members);
    (dir, result)
}

fn unpack_members(into: &Path, members: &[Member<'_>]) -> io::Result<Unpacked> {
    let mut builder = Builder::new(Vec::new());
    for (kind, name, link, content) in members {
        member(&mut builder, *kind, name, link, 0o6755, content);
    }
    unpack_bytes(into, &builder.into_inner().unwrap())
}

fn unpack_bytes(into: &Path, bytes: &[u8]) -> io::Result<Unpacked> {
    let root = rustix::fs::open(into, OFlags::DIRECTORY, Mode::empty()).unwrap();
    unpack_from(bytes, &root)
}

fn assert_outside_untouched(dir: &tempfile::TempDir) {
    let outside: Vec<_> = fs::read_dir(dir.path().join("out")).unwrap().collect();
    assert_eq!(outside.len(), 1);
    let victim = dir.path().join("out/victim");
    assert_eq!(fs::read(&victim).unwrap(), b"untouched");
    assert_eq!(fs::metadata(&victim).unwrap().nlink(), 1);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
}

const FILE: EntryType = EntryType::Regular;
const LINK: EntryType = EntryType::Symlink;
const HARD: EntryType = EntryType::Link;
const DIR: EntryType = EntryType::Directory;

#[test]
fn names_that_leave_the_tree_are_refused() {
    for name in [&b"../out/x"[..], b"/tmp/x", b"a/../../out/x", b".."] {
        let (dir, result) = attack(&[(FILE, name, b"", b"evil")]);
        assert!(result.is_err());
        assert_outside_untouched(&dir);
    }
}

#[test]
fn a_file_is_never_written_through_a_link_of_the_archive() {
    for target in [&b"../out"[..], b"/", b"."] {
        let (dir, result) = attack(&[(LINK, b"l", target, b""), (FILE, b"l/victim", b"", b"evil")]);
        assert!(result.is_err());
        assert_outside_untouched(&dir);
    }
    let (dir, result) = attack(&[(LINK, b"l", b"../out/victim", b""), (FILE, b"l", b"", b"mine")]);
    assert!(result.is_ok());
    assert_eq!(fs::read(dir.path().join("in/l")).unwrap(), b"mine");
    assert_outside_untouched(&dir);
}

#[test]
fn a_directory_is_never_made_through_a_link() {
    let (dir, result) = attack(&[(LINK, b"l", b"../out", b""), (DIR, b"l/new", b"", b"")]);
    assert!(result.is_err());
    assert_outside_untouched(&dir);
    let (dir, result) = attack(&[(LINK, b"l", b"../out", b""), (DIR, b"l", b"", b"")]);
    assert!(result.is_err());
    assert_outside_untouched(&dir);
}

#[test]
fn existing_links_are_not_followed_either() {
    let dir = directories();
    symlink("../out", dir.path().join("in/l")).unwrap();
    assert!(unpack_members(&dir.path().join("in"), &[(FILE, b"l/victim", b"", b"evil")]).is_err());
    assert_outside_untouched(&dir);
}

#[test]
fn hard_links_stay_within_the_tree() {
    for target in [&b"../out/victim"[..], b"/etc/passwd"] {
        let (dir, result) = attack(&[(HARD, b"h", target, b"")]);
        assert!(result.is_err());
        assert_outside_untouched(&dir);
    }
    let (dir, result) = attack(&[(LINK, b"l", b"../out/victim", b""), (HARD, b"h", b"l", b"")]);
    assert!(result.is_err());
    assert_outside_untouched(&dir);
    let (dir, result) = attack(&[(LINK, b"l", b"../out", b""), (HARD, b"h", b"l/victim", b"")]);
    assert!(result.is_err());
    assert_outside_untouched(&dir);
}

#[test]
fn a_hard_link_within_the_tree_works_and_a_later_file_does_not_write_through_it() {
    let members: [Member<'_>; 3] =
        [(FILE, b"a", b"", b"one"), (HARD, b"b", b"a", b""), (FILE, b"b", b"", b"two")];
    let (dir, result) = attack(&members);
    assert_eq!(result.unwrap().files, 3);
    assert_eq!(fs::read(dir.path().join("in/a")).unwrap(), b"one");
    assert_eq!(fs::read(dir.path().join("in/b")).unwrap(), b"two");
}

#[test]
fn devices_are_skipped_and_set_id_bits_dropped() {
    let members: [Member<'_>; 4] = [
        (EntryType::Block, b"disk", b"", b""),
        (EntryType::Char, b"mem", b"", b""),
        (FILE, b"sh", b"", b"x"),
        (DIR, b"d", b"", b""),
    ];
    let (dir, result) = attack(&members);
    assert_eq!(result.unwrap().skipped, 2);
    assert!(!dir.path().join("in/disk").exists());
    for name in ["sh", "d"] {
        let mode = fs::metadata(dir.path().join("in").join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o7000, 0, "{name}");
    }
}

#[test]
fn links_that_point_out_of_the_tree_are_made_and_counted() {
    let members: [Member<'_>; 3] =
        [(LINK, b"a", b"/etc/passwd", b""), (LINK, b"d/b", b"../ok", b""), (LINK, b"c", b"../x", b"")];
    let (dir, result) = attack(&members);
    assert_eq!(result.unwrap().links_out, 2);
    assert_eq!(fs::read_link(dir.path().join("in/a")).unwrap(), Path::new("/etc/passwd"));
}

#[test]
fn an_excessively_long_name_is_refused() {
    let mut builder = Builder::new(Vec::new());
    member(&mut builder, EntryType::GNULongName, b"././@LongLink", b"", 0, &vec![b'x'; 1 << 20]);
    member(&mut builder, FILE, b"x", b"", 0o644, b"");
    let dir = tempfile::tempdir().unwrap();
    assert!(unpack_bytes(dir.path(), &builder.into_inner().unwrap()).is_err());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn long_names_of_both_dialects_are_understood() {
    let long = [b"d/".to_vec(), vec![b'n'; 200]].concat();
    let mut builder = Builder::new(Vec::new());
    member(&mut builder, EntryType::GNULongName, b"././@LongLink", b"", 0, &[long.clone(), vec![0]].concat());
    member(&mut builder, FILE, b"short", b"", 0o644, b"gnu");
    let record = [b"path=p/".to_vec(), vec![b'n'; 200], b"\n".to_vec()].concat();
    let record = [format!("{} ", record.len() + 4).into_bytes(), record].concat();
    member(&mut builder, EntryType::XHeader, b"pax", b"", 0, &record);
    member(&mut builder, FILE, b"short", b"", 0o644, b"pax");
    let dir = tempfile::tempdir().unwrap();
    unpack_bytes(dir.path(), &builder.into_inner().unwrap()).unwrap();
    assert_eq!(fs::read(dir.path().join("d").join("n".repeat(200))).unwrap(), b"gnu");
    assert_eq!(fs::read(dir.path().join("p").join("n".repeat(200))).unwrap(), b"pax");
}

#[test]
fn pax_headers_cannot_make_a_member_leave_the_tree() {
    let record = b"17 path=../out/x\n";
    let mut builder = Builder::new(Vec::new());
    member(&mut builder, EntryType::XHeader, b"pax", b"", 0, record);
    member(&mut builder, FILE, b"x", b"", 0o644, b"evil");
    let dir = tempfile::tempdir().unwrap();
    assert!(unpack_bytes(dir.path(), &builder.into_inner().unwrap()).is_err());
}

#[test]
fn a_truncated_archive_is_an_error() {
    let mut builder = Builder::new(Vec::new());
    member(&mut builder, FILE, b"x", b"", 0o644, &[7; 5000]);
    let bytes = builder.into_inner().unwrap();
    let dir = tempfile::tempdir().unwrap();
    assert!(unpack_bytes(dir.path(), &bytes[..2000]).is_err());
}

#[test]
fn no_bytes_make_it_panic() {
    let dir = tempfile::tempdir().unwrap();
    let mut seed = 1_u64;
    for _ in 0..200 {
        let bytes: Vec<u8> = (0..1500)
            .map(|_| {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (seed >> 56) as u8
            })
            .collect();
        let _ = unpack_bytes(dir.path(), &bytes);
    }
}

/// Appends a pax header and a sparse member. `map` lists the stretches that have data.
fn sparse_member(builder: &mut Builder<Vec<u8>>, name: &str, size: u64, map: &[u8], data: &[u8]) {
    let mut records = Vec::new();
    for (key, value) in [("major", "1"), ("minor", "0"), ("name", name), ("realsize", &size.to_string())] {
        let rest = format!(" GNU.sparse.{key}={value}\n");
        let length =
            (1..4).map(|digits| rest.len() + digits).find(|all| all.to_string().len() + rest.len() == *all);
        records.extend(format!("{}{rest}", length.unwrap()).into_bytes());
    }
    member(builder, EntryType::XHeader, b"pax", b"", 0, &records);
    member(builder, FILE, b"GNUSparseFile.0/sparse", b"", 0o644, &[map, data].concat());
}

fn extent(offset: u64, length: u64) -> bay_types::sparse::Extent {
    bay_types::sparse::Extent { offset, length }
}

#[test]
fn holes_stay_holes_and_use_no_space() {
    let size = 1 << 40;
    let map = bay_types::sparse::map(&[extent(4096, 3), extent(size - 4096, 4096)]);
    let mut builder = Builder::new(Vec::new());
    sparse_member(&mut builder, "d/sparse", size, &map, &[b"abc".to_vec(), vec![7; 4096]].concat());
    sparse_member(&mut builder, "d/empty", size, &bay_types::sparse::map(&[]), b"");
    member(&mut builder, FILE, b"zeros", b"", 0o644, &vec![0; 1 << 20]);
    let dir = tempfile::tempdir().unwrap();
    let unpacked = unpack_bytes(dir.path(), &builder.into_inner().unwrap()).unwrap();
    assert_eq!((unpacked.files, unpacked.bytes), (3, 4099 + (1 << 20)));
    for (name, length) in [("d/sparse", size), ("d/empty", size), ("zeros", 1 << 20)] {
        let metadata = fs::metadata(dir.path().join(name)).unwrap();
        assert_eq!(metadata.len(), length, "{name}");
        assert!(metadata.blocks() * 512 <= 64 << 10, "{name} takes {} bytes", metadata.blocks() * 512);
    }
    let sparse = File::open(dir.path().join("d/sparse")).unwrap();
    let mut found = [1; 5];
    std::os::unix::fs::FileExt::read_exact_at(&sparse, &mut found, 4095).unwrap();
    assert_eq!(&found, b"\0abc\0");
}

#[test]
fn an_inconsistent_sparse_member_is_refused_and_no_part_of_it_stays() {
    let good = bay_types::sparse::map(&[extent(0, 10)]);
    let late = bay_types::sparse::map(&[extent(90, 20)]);
    let back = bay_types::sparse::map(&[extent(50, 10), extent(0, 10)]);
    for (name, map, data) in [
        ("x", &late, &[1; 20][..]),
        ("x", &back, &[1; 20]),
        ("x", &good, &[1; 5]),
        ("x", &b"\xff".repeat(512), &[1; 20]),
        ("../out/x", &good, &[1; 10]),
    ] {
        let mut builder = Builder::new(Vec::new());
        sparse_member(&mut builder, name, 100, map, data);
        let dir = directories();
        assert!(
            unpack_bytes(&dir.path().join("in"), &builder.into_inner().unwrap()).is_err(),
            "{name} {data:?}"
        );
        assert_eq!(fs::read_dir(dir.path().join("in")).unwrap().count(), 0);
        assert_outside_untouched(&dir);
    }
}

#[test]
fn a_truncated_file_is_deleted() {
    let mut builder = Builder::new(Vec::new());
    member(&mut builder, FILE, b"x", b"", 0o644, &[7; 5000]);
    let bytes = builder.into_inner().unwrap();
    let dir = tempfile::tempdir().unwrap();
    assert!(unpack_bytes(dir.path(), &bytes[..2000]).is_err());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn an_archive_of_one_file_is_unpacked_into_that_file() {
    let dir = tempfile::tempdir().unwrap();
    let unpacked = |builder: Builder<Vec<u8>>| {
        let file = File::create(dir.path().join("f")).unwrap();
        let mut space = DiskSpace::of(dir.path()).unwrap();
        unpack_one(&*builder.into_inner().unwrap(), &file, &mut space)
    };
    let mut one = Builder::new(Vec::new());
    sparse_member(&mut one, "f", 1 << 20, &bay_types::sparse::map(&[extent(0, 3)]), b"abc");
    assert_eq!(unpacked(one).unwrap(), 3);
    assert_eq!(fs::metadata(dir.path().join("f")).unwrap().len(), 1 << 20);
    let mut two = Builder::new(Vec::new());
    member(&mut two, FILE, b"a", b"", 0o644, b"x");
    member(&mut two, FILE, b"b", b"", 0o644, b"y");
    assert!(unpacked(two).is_err());
    let mut link = Builder::new(Vec::new());
    member(&mut link, LINK, b"a", b"/etc/passwd", 0o644, b"");
    assert!(unpacked(link).is_err());
    assert!(unpacked(Builder::new(Vec::new())).is_err());
}
