//! Tests with real directories and real notifications. Every test ends its writing with a file named [`LAST`] and reads
//! up to that.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;
use tokio::sync::mpsc::Receiver;

use super::{Change, Kind, Watch, open};

const LAST: &str = "the-last-one";
const PATIENCE: Duration = Duration::from_secs(60);
/// When to make an awaited change again, because it may have been dropped.
const AGAIN: Duration = Duration::from_millis(500);

struct Scene {
    dir: TempDir,
    _watch: Watch,
    changes: Receiver<Change>,
}

impl Scene {
    /// Watches a directory that `fill` has filled.
    fn new(recursive: bool, fill: impl FnOnce(&Path)) -> Self {
        let dir = TempDir::new().unwrap();
        fill(dir.path());
        let (watch, changes) = open(dir.path(), recursive).unwrap();
        Self { dir, _watch: watch, changes }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    /// Everything up to the last file, which this makes, and makes again if its own change was dropped.
    async fn all(&mut self) -> Vec<Change> {
        let mut all = Vec::new();
        let reading = async {
            loop {
                fs::write(self.dir.path().join(LAST), "").unwrap();
                while let Ok(change) = tokio::time::timeout(AGAIN, self.changes.recv()).await {
                    match change.expect("the watch goes on") {
                        Change::Event { path, .. } if path == Path::new(LAST) => return,
                        change => all.push(change),
                    }
                }
            }
        };
        tokio::time::timeout(PATIENCE, reading).await.expect("a change in time");
        all
    }

    /// Reads until all of these changes were reported, in any order and among others.
    async fn until(&mut self, mut expected: BTreeSet<(Kind, String)>) {
        let reading = async {
            while !expected.is_empty() {
                let change = self.changes.recv().await.expect("the watch goes on");
                expected.remove(&short(&change));
            }
        };
        let outcome = tokio::time::timeout(PATIENCE, reading).await;
        assert!(outcome.is_ok(), "never reported: {expected:?}");
    }

    async fn reported(&mut self) -> Vec<(Kind, String)> {
        self.all().await.iter().map(short).collect()
    }
}

fn short(change: &Change) -> (Kind, String) {
    match change {
        Change::Event { kind, path, .. } => (*kind, path.to_string_lossy().into_owned()),
        Change::Dropped => panic!("changes were dropped"),
    }
}

fn reported(all: &[(Kind, &str)]) -> Vec<(Kind, String)> {
    all.iter().map(|(kind, path)| (*kind, (*path).to_owned())).collect()
}

#[tokio::test]
async fn creation_writing_renaming_chmod_and_removal_are_reported_in_order() {
    let mut scene = Scene::new(true, |dir| fs::create_dir(dir.join("d")).unwrap());
    fs::write(scene.at("d/f"), "text").unwrap();
    fs::set_permissions(scene.at("d/f"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::rename(scene.at("d/f"), scene.at("g")).unwrap();
    fs::remove_file(scene.at("g")).unwrap();
    fs::remove_dir(scene.at("d")).unwrap();
    let expected = reported(&[
        (Kind::Create, "d/f"),
        (Kind::Write, "d/f"),
        (Kind::Chmod, "d/f"),
        (Kind::Rename, "d/f"),
        (Kind::Create, "g"),
        (Kind::Remove, "g"),
        (Kind::Remove, "d"),
    ]);
    assert_eq!(scene.reported().await, expected);
}

#[tokio::test]
async fn an_editors_atomic_save_is_reported() {
    let mut scene = Scene::new(true, |dir| fs::write(dir.join("main.rs"), "old").unwrap());
    fs::write(scene.at(".main.rs.swp"), "new").unwrap();
    fs::rename(scene.at(".main.rs.swp"), scene.at("main.rs")).unwrap();
    let expected = reported(&[
        (Kind::Create, ".main.rs.swp"),
        (Kind::Write, ".main.rs.swp"),
        (Kind::Rename, ".main.rs.swp"),
        (Kind::Create, "main.rs"),
    ]);
    assert_eq!(scene.reported().await, expected);
}

#[tokio::test]
async fn a_directory_filled_before_its_watch_is_reported_whole_and_once() {
    let mut scene = Scene::new(true, |_| {});
    for n in 0..200 {
        fs::create_dir_all(scene.at(&format!("{n}/deep/er"))).unwrap();
        fs::write(scene.at(&format!("{n}/deep/er/file")), "text").unwrap();
    }
    let reported = scene.reported().await;
    let mut created: BTreeMap<&str, usize> = BTreeMap::new();
    for (kind, path) in &reported {
        if *kind == Kind::Create {
            *created.entry(path).or_default() += 1;
        }
    }
    for n in 0..200 {
        for path in [format!("{n}"), format!("{n}/deep"), format!("{n}/deep/er"), format!("{n}/deep/er/file")]
        {
            assert_eq!(created.get(path.as_str()), Some(&1), "{path}");
        }
        assert!(reported.contains(&(Kind::Write, format!("{n}/deep/er/file"))), "{n}");
    }
}

#[tokio::test]
async fn a_tree_moved_within_keeps_being_watched_under_its_new_name() {
    let mut scene = Scene::new(true, |dir| {
        fs::create_dir_all(dir.join("a/b/c")).unwrap();
        fs::create_dir(dir.join("z")).unwrap();
    });
    fs::rename(scene.at("a/b"), scene.at("z/new")).unwrap();
    fs::write(scene.at("z/new/c/f"), "").unwrap();
    let expected = reported(&[(Kind::Rename, "a/b"), (Kind::Create, "z/new"), (Kind::Create, "z/new/c/f")]);
    assert_eq!(scene.reported().await, expected);
}

/// As package managers do: fill a directory under a temporary name and rename it when it is complete.
#[tokio::test]
async fn directories_filled_and_renamed_at_once_lose_nothing() {
    let mut scene = Scene::new(true, |_| {});
    for n in 0..300 {
        fs::create_dir_all(scene.at(&format!("tmp{n}/sub"))).unwrap();
        fs::write(scene.at(&format!("tmp{n}/sub/early")), "x").unwrap();
        fs::rename(scene.at(&format!("tmp{n}")), scene.at(&format!("final{n}"))).unwrap();
    }
    scene.reported().await;
    for n in 0..300 {
        fs::write(scene.at(&format!("final{n}/sub/late")), "x").unwrap();
    }
    scene.until((0..300).map(|n| (Kind::Create, format!("final{n}/sub/late"))).collect()).await;
}

#[tokio::test]
async fn a_tree_moved_out_is_watched_no_longer_and_one_moved_in_is_reported_whole() {
    let outside = TempDir::new().unwrap();
    fs::create_dir_all(outside.path().join("in/sub")).unwrap();
    fs::write(outside.path().join("in/sub/f"), "").unwrap();
    let mut scene = Scene::new(true, |dir| fs::create_dir_all(dir.join("out/sub")).unwrap());
    fs::rename(scene.at("out"), outside.path().join("out")).unwrap();
    assert_eq!(scene.reported().await, reported(&[(Kind::Rename, "out")]));
    fs::write(outside.path().join("out/sub/f"), "").unwrap();
    fs::rename(outside.path().join("in"), scene.at("in")).unwrap();
    let expected = reported(&[(Kind::Create, "in"), (Kind::Create, "in/sub"), (Kind::Create, "in/sub/f")]);
    assert_eq!(scene.reported().await.into_iter().filter(|(_, p)| p != LAST).collect::<Vec<_>>(), expected);
}

#[tokio::test]
async fn directories_that_exchange_names_are_reported_under_their_new_names() {
    let mut scene = Scene::new(true, |dir| {
        fs::create_dir_all(dir.join("one/sub")).unwrap();
        fs::create_dir_all(dir.join("two/sub")).unwrap();
        fs::write(dir.join("one/sub/was-one"), "").unwrap();
    });
    let exchange = rustix::fs::RenameFlags::EXCHANGE;
    let cwd = rustix::fs::CWD;
    rustix::fs::renameat_with(cwd, scene.at("one"), cwd, scene.at("two"), exchange).unwrap();
    scene.reported().await;
    fs::remove_file(scene.at("two/sub/was-one")).unwrap();
    fs::write(scene.at("one/sub/new"), "").unwrap();
    let expected = [(Kind::Remove, "two/sub/was-one".to_owned()), (Kind::Create, "one/sub/new".to_owned())];
    scene.until(expected.into()).await;
}

#[tokio::test]
async fn names_are_bytes_and_links_are_not_followed() {
    let outside = TempDir::new().unwrap();
    let mut scene = Scene::new(true, |dir| symlink(outside.path(), dir.join("link")).unwrap());
    fs::write(outside.path().join("unseen"), "").unwrap();
    let odd = OsStr::from_bytes(b"new\nline \xff\xfe");
    fs::create_dir(scene.dir.path().join(odd)).unwrap();
    let inner = Path::new(odd).join("f");
    fs::write(scene.dir.path().join(&inner), "").unwrap();
    let expected = [
        Change::Event { kind: Kind::Create, path: odd.into(), is_dir: true },
        Change::Event { kind: Kind::Create, path: inner, is_dir: false },
    ];
    assert_eq!(scene.all().await, expected);
}

#[tokio::test]
async fn a_watch_that_is_not_recursive_reports_the_directory_only() {
    let mut scene = Scene::new(false, |dir| fs::create_dir(dir.join("old")).unwrap());
    fs::write(scene.at("old/unseen"), "").unwrap();
    fs::create_dir(scene.at("new")).unwrap();
    fs::write(scene.at("new/unseen"), "").unwrap();
    assert_eq!(scene.reported().await, reported(&[(Kind::Create, "new")]));
}

#[tokio::test]
async fn the_end_of_the_directory_ends_the_watch_even_while_a_process_uses_it() {
    for how in [Kind::Remove, Kind::Rename] {
        let parent = TempDir::new().unwrap();
        let dir = parent.path().join("d");
        fs::create_dir(&dir).unwrap();
        let held = fs::File::open(&dir).unwrap();
        let (_watch, mut changes) = open(&dir, true).unwrap();
        match how {
            Kind::Remove => fs::remove_dir(&dir).unwrap(),
            _ => fs::rename(&dir, parent.path().join("e")).unwrap(),
        }
        let mut all = Vec::new();
        while let Some(change) = tokio::time::timeout(PATIENCE, changes.recv()).await.unwrap() {
            all.push(change);
        }
        assert_eq!(all.last(), Some(&Change::Event { kind: how, path: PathBuf::new(), is_dir: true }));
        drop(held);
    }
}

#[tokio::test]
async fn a_dropped_watch_ends_its_channel() {
    let dir = TempDir::new().unwrap();
    let (watch, mut changes) = open(dir.path(), true).unwrap();
    drop(watch);
    assert_eq!(tokio::time::timeout(PATIENCE, changes.recv()).await.unwrap(), None);
}

#[tokio::test]
async fn a_directory_that_cannot_be_watched_is_refused_with_its_name() {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("file"), "").unwrap();
    for (name, kind) in
        [("missing", std::io::ErrorKind::NotFound), ("file", std::io::ErrorKind::NotADirectory)]
    {
        let error = open(&dir.path().join(name), true).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(name), "{error}");
    }
}

fn make_tree(top: &Path) -> Vec<String> {
    let mut all = Vec::new();
    for a in 0..50 {
        for b in 0..99 {
            all.push(format!("d{a}/e{b}"));
            fs::create_dir_all(top.join(format!("d{a}/e{b}"))).unwrap();
        }
        all.push(format!("d{a}"));
    }
    assert_eq!(all.len(), 5000);
    all
}

/// No event may be lost without a report that some were dropped.
async fn expect_all_or_dropped(scene: &mut Scene, mut missing: BTreeSet<(Kind, PathBuf)>) {
    let mut dropped = false;
    for change in scene.all().await {
        match change {
            Change::Dropped => dropped = true,
            Change::Event { kind, path, .. } => drop(missing.remove(&(kind, path))),
        }
    }
    let some: Vec<_> = missing.iter().take(5).collect();
    assert!(dropped || missing.is_empty(), "{} were lost in silence, such as {some:?}", missing.len());
    println!("lost: {}, said so: {dropped}", missing.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_changes_in_five_thousand_directories_are_reported() {
    let mut directories = Vec::new();
    let mut scene = Scene::new(true, |dir| directories = make_tree(dir));
    let mut expected = BTreeSet::new();
    for n in 0..2500 {
        let dir = &directories[n * 2];
        let (made, renamed) = (format!("{dir}/made"), format!("{dir}/renamed"));
        fs::write(scene.at(&made), "x").unwrap();
        fs::rename(scene.at(&made), scene.at(&renamed)).unwrap();
        fs::remove_file(scene.at(&renamed)).unwrap();
        expected.insert((Kind::Create, made.clone().into()));
        expected.insert((Kind::Rename, made.into()));
        expected.insert((Kind::Create, renamed.clone().into()));
        expected.insert((Kind::Remove, renamed.into()));
    }
    assert_eq!(expected.len(), 10_000);
    expect_all_or_dropped(&mut scene, expected).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tree_of_five_thousand_directories_made_under_the_watch_is_reported() {
    let mut scene = Scene::new(true, |_| {});
    let mut expected = BTreeSet::new();
    let directories = make_tree(scene.dir.path());
    for dir in directories {
        fs::write(scene.at(&dir).join("file"), "x").unwrap();
        expected.insert((Kind::Create, Path::new(&dir).join("file")));
        expected.insert((Kind::Create, dir.into()));
    }
    assert_eq!(expected.len(), 10_000);
    expect_all_or_dropped(&mut scene, expected).await;
}

/// A reader pauses while more happens than the queues hold. It must get a report of that, and later changes.
#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_pauses_gets_a_report_of_dropped_changes_and_goes_on() {
    let mut scene = Scene::new(true, |_| {});
    let long = "n".repeat(250);
    for n in 0..40_000 {
        let path = scene.at(&format!("{long}{n:05}"));
        fs::write(&path, "").unwrap();
        fs::remove_file(&path).unwrap();
    }
    fs::create_dir_all(scene.at("after/wards")).unwrap();
    assert!(scene.all().await.contains(&Change::Dropped));
    fs::write(scene.at("after/wards/file"), "").unwrap();
    scene.until([(Kind::Create, "after/wards/file".to_owned())].into()).await;
}
