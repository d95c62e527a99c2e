//! Files and archives.

use std::fs;
use std::io::{Cursor, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use bay_tests::suite;
use bay_text::percent::path_value;
use bay_types::ErrorCode;
use bay_types::guest::{ARCHIVE_BROKE_OFF, DELETE_LIST, FileKind, FileStat};
use http::Method;
use tar::{Builder, EntryType, Header};

use crate::harness::Guest;

fn uri(route: &str, path: &str, more: &str) -> String {
    format!("/v1/{route}?path={}{more}", path_value(path.as_bytes()))
}

fn fifo(path: &Path) {
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
}

/// New files must belong to root, which only root can do.
fn may_write() -> bool {
    suite::has_root("writing files for root")
}

#[tokio::test]
async fn an_uploaded_file_is_downloaded_unchanged() {
    if !may_write() {
        return;
    }
    let guest = Guest::start();
    let data: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 253) as u8).collect();
    let answer = guest.ok(Method::PUT, &uri("files", "/big file+%.bin", "&mode=640"), data.clone()).await;
    let stat: FileStat = serde_json::from_slice(&answer).unwrap();
    assert_eq!((stat.kind, stat.size, stat.mode), (FileKind::File, 3_000_000, 0o640));
    assert_eq!(guest.ok(Method::GET, &uri("files", "/big file+%.bin", ""), vec![]).await, data);
    assert_eq!(fs::read(guest.root().join("big file+%.bin")).unwrap(), data);
    guest.ok(Method::PUT, &uri("files", "/empty", ""), vec![]).await;
    assert!(guest.ok(Method::GET, &uri("files", "/empty", ""), vec![]).await.is_empty());
    assert_eq!(fs::read_dir(guest.root()).unwrap().count(), 2, "a temporary file was left");
}

#[tokio::test]
async fn a_replaced_file_keeps_its_mode_and_owner() {
    if !may_write() {
        return;
    }
    let guest = Guest::start();
    let file = guest.root().join("script");
    fs::write(&file, "old").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o751)).unwrap();
    std::os::unix::fs::chown(&file, Some(1000), Some(1001)).unwrap();
    guest.ok(Method::PUT, &uri("files", "/script", ""), b"new".to_vec()).await;
    let meta = fs::metadata(&file).unwrap();
    assert_eq!((meta.mode() & 0o7777, meta.uid(), meta.gid()), (0o751, 1000, 1001));
    guest.ok(Method::PUT, &uri("files", "/script", "&user=7:8"), b"new".to_vec()).await;
    let meta = fs::metadata(&file).unwrap();
    assert_eq!((meta.uid(), meta.gid()), (7, 8));
    assert_eq!(
        guest.refused(Method::PUT, &uri("files", "/script", "&user=nobody-here"), vec![]).await.code,
        ErrorCode::InvalidInput
    );
}

#[tokio::test]
async fn missing_directories_are_made_only_on_request() {
    if !may_write() {
        return;
    }
    let guest = Guest::start();
    let error = guest.refused(Method::PUT, &uri("files", "/a/b/c", ""), vec![]).await;
    assert_eq!(error.code, ErrorCode::PathNotFound);
    assert!(error.next.contains("parents"));
    guest.ok(Method::PUT, &uri("files", "/a/b/c", "&parents=true"), b"x".to_vec()).await;
    assert_eq!(fs::read(guest.root().join("a/b/c")).unwrap(), b"x");
    assert_eq!(
        guest.refused(Method::GET, &uri("files", "/a/none", ""), vec![]).await.code,
        ErrorCode::PathNotFound
    );
}

#[tokio::test]
async fn links_are_followed_as_inside_the_bay_and_never_out_of_it() {
    if !may_write() {
        return;
    }
    let guest = Guest::start();
    let outside = guest.dir().join("outside");
    fs::write(&outside, "host secret").unwrap();
    let root = guest.root();
    fs::create_dir(root.join("dir")).unwrap();
    symlink(&outside, root.join("escape")).unwrap();
    symlink("../../../../../../etc/hostname", root.join("dir/up")).unwrap();
    symlink("/dir/real", root.join("good")).unwrap();
    symlink("loop", root.join("loop")).unwrap();
    symlink("/proc/self/root", root.join("magic")).unwrap();
    fs::write(root.join("dir/real"), "inside").unwrap();

    assert_eq!(guest.ok(Method::GET, &uri("files", "/good", ""), vec![]).await, "inside");
    for path in ["/escape", "/dir/up", "/magic/etc/passwd", "/../outside", "/dir/../../outside"] {
        let error = guest.refused(Method::GET, &uri("files", path, ""), vec![]).await;
        assert_eq!(error.code, ErrorCode::PathNotFound, "{path}");
    }
    assert_eq!(
        guest.refused(Method::GET, &uri("files", "/loop", ""), vec![]).await.code,
        ErrorCode::PathRefused
    );
    assert_eq!(
        guest.refused(Method::PUT, &uri("files", "/loop", ""), vec![]).await.code,
        ErrorCode::PathRefused
    );

    guest.ok(Method::PUT, &uri("files", "/good", ""), b"through the link".to_vec()).await;
    assert_eq!(fs::read(root.join("dir/real")).unwrap(), b"through the link");
    assert!(fs::symlink_metadata(root.join("good")).unwrap().is_symlink());
    let into_nothing = guest.refused(Method::PUT, &uri("files", "/escape", ""), b"x".to_vec()).await;
    assert_eq!(into_nothing.code, ErrorCode::PathNotFound);
    assert_eq!(fs::read(&outside).unwrap(), b"host secret");

    let stat: FileStat =
        serde_json::from_slice(&guest.ok(Method::GET, &uri("stat", "/good", ""), vec![]).await).unwrap();
    assert_eq!(stat.kind, FileKind::Symlink);
    let followed: FileStat =
        serde_json::from_slice(&guest.ok(Method::GET, &uri("stat", "/good", "&follow=true"), vec![]).await)
            .unwrap();
    assert_eq!((followed.kind, followed.size), (FileKind::File, 16));
}

#[tokio::test]
async fn anything_but_a_regular_file_is_refused_and_never_blocks() {
    let guest = Guest::start();
    let root = guest.root();
    fifo(&root.join("fifo"));
    let _socket = std::os::unix::net::UnixListener::bind(root.join("socket")).unwrap();
    fs::create_dir(root.join("dir")).unwrap();
    for (path, word) in [("/fifo", "FIFO"), ("/socket", "socket"), ("/dir", "directory")] {
        for method in [Method::GET, Method::PUT] {
            let error = guest.refused(method.clone(), &uri("files", path, ""), vec![]).await;
            assert_eq!(error.code, ErrorCode::PathRefused, "{method} {path}");
            assert!(error.message.contains(word), "{}", error.message);
        }
    }
    assert_eq!(
        guest.refused(Method::GET, &uri("archive", "/fifo", ""), vec![]).await.code,
        ErrorCode::PathRefused
    );
    let stat: FileStat =
        serde_json::from_slice(&guest.ok(Method::GET, &uri("stat", "/fifo", ""), vec![]).await).unwrap();
    assert_eq!(stat.kind, FileKind::Other);
    for path in ["/v1/files", "/v1/files?path=", "/v1/files?path=a%00b", "/v1/stat?path=%zz"] {
        assert_eq!(guest.refused(Method::GET, path, vec![]).await.code, ErrorCode::InvalidInput, "{path}");
    }
    let long = "/x".repeat(3000);
    assert_eq!(
        guest.refused(Method::GET, &uri("files", &long, ""), vec![]).await.code,
        ErrorCode::InvalidInput
    );
    let name = format!("/{}", "n".repeat(300));
    assert_eq!(
        guest.refused(Method::GET, &uri("files", &name, ""), vec![]).await.code,
        ErrorCode::PathRefused
    );
}

#[tokio::test]
async fn an_upload_that_breaks_off_changes_nothing() {
    use tokio::io::AsyncWriteExt;
    if !may_write() {
        return;
    }
    let guest = Guest::start();
    let file = guest.root().join("precious");
    fs::write(&file, "old").unwrap();
    let mut stream = tokio::net::UnixStream::connect(guest.dir().join("sock")).await.unwrap();
    let head = format!(
        "PUT {} HTTP/1.1\r\nhost: guest\r\ncontent-length: 1000000\r\n\r\nnew",
        uri("files", "/precious", "")
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let root = guest.root();
    guest.eventually(async || (fs::read_dir(&root).unwrap().count() == 2).then_some(())).await;
    drop(stream);
    guest.eventually(async || (fs::read_dir(&root).unwrap().count() == 1).then_some(())).await;
    assert_eq!(fs::read(&file).unwrap(), b"old");
}

/// A tree with one file of each kind.
fn sample(dir: &Path) {
    fs::create_dir_all(dir.join("sub/deep")).unwrap();
    fs::write(dir.join("plain"), vec![7; 700_000]).unwrap();
    fs::write(dir.join("sub/script"), "#!/bin/sh\n").unwrap();
    fs::set_permissions(dir.join("sub/script"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(dir.join("sub/deep").join("n".repeat(200)), "long name").unwrap();
    fs::hard_link(dir.join("plain"), dir.join("sub/same")).unwrap();
    symlink("sub/script", dir.join("link")).unwrap();
    symlink("/nowhere/at/all", dir.join("dangling")).unwrap();
    fifo(&dir.join("fifo"));
    fs::File::create(dir.join("sparse")).unwrap().set_len(5_000_000).unwrap();
}

#[tokio::test]
async fn an_archived_directory_is_extracted_unchanged() {
    if !may_write() {
        return;
    }
    let guest = Guest::start();
    let root = guest.root();
    sample(&root.join("from"));
    let archive = guest.ok(Method::GET, &uri("archive", "/from", ""), vec![]).await;
    fs::create_dir(root.join("to")).unwrap();
    guest.ok(Method::PUT, &uri("archive", "/to", ""), archive.to_vec()).await;
    let to = root.join("to");
    assert_eq!(fs::read(to.join("plain")).unwrap(), vec![7; 700_000]);
    assert_eq!(fs::read(to.join("sub/same")).unwrap().len(), 700_000);
    assert_eq!(fs::metadata(to.join("sub/script")).unwrap().mode() & 0o7777, 0o755);
    assert_eq!(fs::read_link(to.join("link")).unwrap(), Path::new("sub/script"));
    assert_eq!(fs::read_link(to.join("dangling")).unwrap(), Path::new("/nowhere/at/all"));
    assert_eq!(fs::read(to.join("sub/deep").join("n".repeat(200))).unwrap(), b"long name");
    assert_eq!(fs::metadata(to.join("sparse")).unwrap().len(), 5_000_000);
    assert!(!to.join("fifo").exists());
    let time = |name: &str| fs::metadata(root.join(name)).unwrap().mtime();
    assert_eq!(time("from/plain"), time("to/plain"));
    // Again over the existing tree, as another user.
    guest.ok(Method::PUT, &uri("archive", "/to", "&user=1000:1000"), archive.to_vec()).await;
    assert_eq!(fs::metadata(to.join("plain")).unwrap().uid(), 1000);
    assert_eq!(fs::symlink_metadata(to.join("link")).unwrap().uid(), 1000);
}

#[tokio::test]
async fn one_file_is_archived_under_its_own_name() {
    let guest = Guest::start();
    fs::write(guest.root().join("one"), "content").unwrap();
    let bytes = guest.ok(Method::GET, &uri("archive", "/one", ""), vec![]).await;
    let mut archive = tar::Archive::new(Cursor::new(bytes));
    let mut entries = archive.entries().unwrap();
    let mut entry = entries.next().unwrap().unwrap();
    let mut text = String::new();
    entry.read_to_string(&mut text).unwrap();
    assert_eq!((entry.path().unwrap().to_str().unwrap(), text.as_str()), ("one", "content"));
}

#[tokio::test]
async fn a_tree_that_is_too_deep_or_a_file_that_is_too_long_cuts_the_archive() {
    let guest = Guest::start();
    let mut deep = guest.root().join("deep");
    for _ in 0..300 {
        deep.push("d");
    }
    fs::create_dir_all(&deep).unwrap();
    fs::create_dir(guest.root().join("huge")).unwrap();
    let huge = fs::File::create(guest.root().join("huge/file")).unwrap();
    let huge_fits = huge.set_len(1 << 40).is_ok();
    for path in ["/deep", "/huge"] {
        if path == "/huge" && !huge_fits {
            continue;
        }
        // The stream contains the reason, and no reader takes the part for the whole.
        let bytes = guest.ok(Method::GET, &uri("archive", path, ""), vec![]).await;
        let told = format!(" {ARCHIVE_BROKE_OFF}=");
        assert!(bytes.windows(told.len()).any(|part| part == told.as_bytes()), "{path}: it does not say why");
        let whole = tar::Archive::new(Cursor::new(bytes)).entries().unwrap().all(|entry| entry.is_ok());
        assert!(!whole, "{path}: the end looks like a whole archive");
    }
}

fn member(builder: &mut Builder<Vec<u8>>, kind: EntryType, name: &[u8], link: &[u8], data: &[u8]) {
    let mut header = Header::new_gnu();
    header.as_old_mut().name[..name.len()].copy_from_slice(name);
    header.as_old_mut().linkname[..link.len()].copy_from_slice(link);
    header.set_entry_type(kind);
    header.set_size(data.len() as u64);
    header.set_mode(0o644);
    header.set_mtime(1);
    header.set_cksum();
    builder.append(&header, data).unwrap();
}

/// Kind, name, link target, content.
type TestMember<'a> = (EntryType, &'a [u8], &'a [u8], &'a [u8]);

fn archive(members: &[TestMember<'_>]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for (kind, name, link, data) in members {
        member(&mut builder, *kind, name, link, data);
    }
    builder.into_inner().unwrap()
}

#[tokio::test]
async fn a_hostile_archive_stays_in_its_directory() {
    if !may_write() {
        return;
    }
    use EntryType as E;
    let guest = Guest::start();
    let root = guest.root();
    fs::create_dir(root.join("target")).unwrap();
    fs::create_dir(root.join("other")).unwrap();
    fs::write(root.join("other/file"), "untouched").unwrap();
    let hostile: Vec<Vec<u8>> = vec![
        archive(&[(E::Regular, b"../other/file", b"", b"bad")]),
        archive(&[(E::Regular, b"/other/file", b"", b"bad")]),
        archive(&[(E::Regular, b"a/../../other/file", b"", b"bad")]),
        archive(&[(E::Symlink, b"l", b"../other", b""), (E::Regular, b"l/file", b"", b"bad")]),
        archive(&[(E::Symlink, b"m", b"/other", b""), (E::Regular, b"m/new", b"", b"bad")]),
        archive(&[(E::Symlink, b"n", b"../other/file", b""), (E::Link, b"o", b"n", b"")]),
        archive(&[(E::Link, b"p", b"../other/file", b"")]),
        archive(&[(E::Symlink, b"q", b"../other", b""), (E::Link, b"r", b"q/file", b"")]),
        archive(&[(E::Char, b"device", b"", b"")]),
        archive(&[(E::Fifo, b"fifo", b"", b"")]),
        archive(&[(E::Regular, DELETE_LIST.as_bytes(), b"", b"../other/file\0")]),
        archive(&[(E::Regular, DELETE_LIST.as_bytes(), b"", b".\0")]),
        archive(&[(E::Symlink, b"s", b"../other", b""), (E::Regular, b"x", b"", b"")]),
        archive(&[(E::Regular, DELETE_LIST.as_bytes(), b"", b"s/file\0")]),
        archive(&[(E::XHeader, b"x", b"", b"20 path=../other/file\n"), (E::Regular, b"y", b"", b"bad")]),
        archive(&[(E::XHeader, b"x", b"", &[b'9'; 100_000]), (E::Regular, b"y", b"", b"bad")]),
        archive(&[(E::GNULongName, b"x", b"", &[b'n'; 100_000]), (E::Regular, b"y", b"", b"bad")]),
        b"this is no archive at all, not even nearly".repeat(100),
        archive(&[(E::Regular, b"cut", b"", &[b'x'; 5000])])[..2000].to_vec(),
    ];
    for (n, bytes) in hostile.into_iter().enumerate() {
        let (status, body) = guest.call(Method::PUT, &uri("archive", "/target", ""), bytes).await;
        assert_eq!(fs::read(root.join("other/file")).unwrap(), b"untouched", "archive {n}");
        assert_eq!(fs::read_dir(root.join("other")).unwrap().count(), 1, "archive {n}");
        let harmless = n == 12;
        assert_eq!(status.is_success(), harmless, "archive {n}: {status} {}", String::from_utf8_lossy(&body));
    }
    // A member replaces a link of its name and does not write through it.
    symlink("../other/file", root.join("target/z")).unwrap();
    guest.ok(Method::PUT, &uri("archive", "/target", ""), archive(&[(E::Regular, b"z", b"", b"fine")])).await;
    assert_eq!(fs::read(root.join("target/z")).unwrap(), b"fine");
    assert_eq!(fs::read(root.join("other/file")).unwrap(), b"untouched");
    // A directory is not replaced by a file, and links inside the target are followed.
    fs::create_dir(root.join("target/dir")).unwrap();
    let error = guest
        .refused(Method::PUT, &uri("archive", "/target", ""), archive(&[(E::Regular, b"dir", b"", b"")]))
        .await;
    assert_eq!(error.code, ErrorCode::PathRefused);
    symlink("dir", root.join("target/alias")).unwrap();
    guest
        .ok(Method::PUT, &uri("archive", "/target", ""), archive(&[(E::Regular, b"alias/in", b"", b"in")]))
        .await;
    assert_eq!(fs::read(root.join("target/dir/in")).unwrap(), b"in");
}

#[tokio::test]
async fn a_list_of_paths_is_deleted_before_the_rest_is_written() {
    if !may_write() {
        return;
    }
    let guest = Guest::start();
    let root = guest.root();
    fs::create_dir_all(root.join("w/old/dir")).unwrap();
    fs::write(root.join("w/old/dir/file"), "").unwrap();
    fs::write(root.join("w/gone"), "").unwrap();
    fs::write(root.join("w/kept"), "").unwrap();
    let bytes = archive(&[
        (EntryType::Regular, DELETE_LIST.as_bytes(), b"", b"gone\0old\0never/was\0"),
        (EntryType::Regular, b"old", b"", b"now a file"),
    ]);
    guest.ok(Method::PUT, &uri("archive", "/w", ""), bytes).await;
    assert!(!root.join("w/gone").exists() && root.join("w/kept").exists());
    assert_eq!(fs::read(root.join("w/old")).unwrap(), b"now a file");
    assert!(!root.join("w").join(DELETE_LIST).exists());
    let empty = archive(&[]);
    assert_eq!(
        guest.refused(Method::PUT, &uri("archive", "/none", ""), empty.clone()).await.code,
        ErrorCode::PathNotFound
    );
    guest.ok(Method::PUT, &uri("archive", "/none/at/all", "&parents=true"), empty).await;
    assert!(root.join("none/at/all").is_dir());
}
