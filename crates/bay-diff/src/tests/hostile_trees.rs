//! Trees made by an attacker.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;

use bay_types::diff::NodeKind;
use rustix::fs::{CWD, Mode, OFlags};

use super::*;
use crate::walk::MAX_DEPTH;

#[test]
fn names_of_any_bytes_are_reported_exactly() {
    let pair = Pair::new();
    for name in [&b"new\nline"[..], b"\xff\xfe", b"-rf", b"\x1b[31m", &[b'x'; 255]] {
        write(&pair.b().join(OsStr::from_bytes(name)), b"x\n");
    }
    let (entries, _) = pair.diff();
    assert_eq!(entries.len(), 5);
    let odd = entries.iter().find(|entry| entry.path_escaped.is_some()).unwrap();
    assert_eq!(odd.path_escaped.as_deref(), Some("%FF%FE"));
    assert!(entries.iter().any(|entry| entry.path == "new\nline"));
}

#[test]
fn pipes_sockets_and_links_are_compared_and_never_opened() {
    let pair = Pair::new();
    let fifo = |path: &Path| {
        rustix::fs::mknodat(CWD, path, rustix::fs::FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    };
    // Opening one for reading would wait forever.
    fifo(&pair.b().join("pipe"));
    pair.put("was-a-file", Some("x\n"), None);
    fifo(&pair.b().join("was-a-file"));
    let _socket = std::os::unix::net::UnixListener::bind(pair.b().join("socket")).unwrap();
    symlink("..", pair.b().join("up")).unwrap();
    symlink("up/up/up", pair.b().join("further")).unwrap();
    let (entries, _) = pair.diff();
    let kinds: Vec<_> =
        entries.iter().map(|entry| (entry.path.as_str(), entry.after.as_ref().unwrap().kind)).collect();
    assert_eq!(
        kinds,
        [
            ("further", NodeKind::Symlink),
            ("pipe", NodeKind::Fifo),
            ("socket", NodeKind::Socket),
            ("up", NodeKind::Symlink),
            ("was-a-file", NodeKind::Fifo),
        ]
    );
}

#[test]
fn a_link_in_place_of_a_directory_leads_nowhere() {
    let pair = Pair::new();
    let outside = tempfile::tempdir().unwrap();
    write(&outside.path().join("secret"), b"outside\n");
    pair.put("d/secret", Some("x\n"), None);
    symlink(outside.path(), pair.b().join("d")).unwrap();
    let (entries, _) = pair.diff();
    assert_eq!(brief(&entries), [(Change::Replaced, "d"), (Change::Deleted, "d/secret")]);
    let b = fs::File::open(pair.b()).unwrap();
    let through = crate::tree::open_file(b.as_fd(), b"d/secret");
    assert!(through.is_err(), "{through:?}");
}

#[test]
fn endless_sparse_files_take_no_time() {
    const EXBIBYTE: u64 = 1 << 60;
    let pair = Pair::new();
    let make = |top: &Path, size: u64, byte: u8| {
        let file = fs::File::create(top.join("sparse")).unwrap();
        // The filesystem of the test may have a lower limit than btrfs.
        let size = [size, 1 << 42].into_iter().find(|size| file.set_len(*size).is_ok()).unwrap();
        std::os::unix::fs::FileExt::write_at(&file, &[byte], size - 1).unwrap();
        size
    };
    let size = make(&pair.a(), EXBIBYTE, b'x');
    make(&pair.b(), EXBIBYTE, b'x');
    assert_eq!(pair.diff().0, [], "same data behind the hole");
    make(&pair.b(), EXBIBYTE, b'y');
    let (entries, _) = pair.diff();
    assert_eq!(entries[0].content, Content::TooLarge);
    assert_eq!(entries[0].after.as_ref().unwrap().size, size);
}

#[test]
fn an_endless_tree_is_reported_as_unread() {
    let pair = Pair::new();
    let mut at: std::os::fd::OwnedFd = fs::File::open(pair.b()).unwrap().into();
    // Deeper than the longest path.
    for _ in 0..MAX_DEPTH + 600 {
        rustix::fs::mkdirat(&at, "directory", Mode::RWXU).unwrap();
        at = rustix::fs::openat(&at, "directory", OFlags::PATH, Mode::empty()).unwrap();
    }
    let (entries, summary) = pair.diff();
    assert_eq!(summary.unread, 1);
    let last = entries.last().unwrap();
    assert_eq!(last.change, Change::Unread);
    assert_eq!(last.path.split('/').count(), MAX_DEPTH);
    assert!(last.path.len() > 4096, "{}", last.path.len());
}

#[test]
fn files_below_paths_beyond_the_kernels_limit_are_compared() {
    let pair = Pair::new();
    for (top, text) in [(pair.a(), "1\n"), (pair.b(), "2\n")] {
        let mut at: std::os::fd::OwnedFd = fs::File::open(top).unwrap().into();
        for _ in 0..40 {
            let name = "n".repeat(200);
            rustix::fs::mkdirat(&at, &*name, Mode::RWXU).unwrap();
            at = rustix::fs::openat(&at, &*name, OFlags::PATH, Mode::empty()).unwrap();
        }
        let flags = OFlags::CREATE | OFlags::WRONLY;
        let file = rustix::fs::openat(&at, "f", flags, Mode::RUSR).unwrap();
        rustix::io::write(file, text.as_bytes()).unwrap();
    }
    let (entries, _) = pair.diff();
    assert_eq!(entries.len(), 1);
    assert!(
        matches!(entries[0].content, Content::Text { added: 1, removed: 1, .. }),
        "{:?}",
        entries[0].content
    );
}

/// Directories are replaced by links to the outside during the walk. Everything that is reported comes from inside.
#[test]
fn nothing_outside_is_read_while_names_are_replaced() {
    let pair = Pair::new();
    let outside = tempfile::tempdir().unwrap();
    write(&outside.path().join("f"), b"outside\n");
    for n in 0..50 {
        write(&pair.b().join(format!("d{n}/f")), b"inside\n");
    }
    symlink(outside.path(), pair.dir.path().join("trap")).unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                for n in 0..50 {
                    let (trap, real) = (pair.dir.path().join("trap"), pair.b().join(format!("d{n}")));
                    let exchange = rustix::fs::RenameFlags::EXCHANGE;
                    rustix::fs::renameat_with(CWD, &trap, CWD, &real, exchange).unwrap();
                    rustix::fs::renameat_with(CWD, &trap, CWD, &real, exchange).unwrap();
                }
            }
        });
        for _ in 0..200 {
            for entry in pair.diff().0 {
                let text = format!("{:?}", entry.content);
                assert!(!text.contains("outside"), "{entry:?}");
            }
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}
