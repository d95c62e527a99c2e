use std::collections::BTreeMap;
use std::os::unix::fs::{PermissionsExt, symlink};

use proptest::prelude::*;

use super::*;

#[test]
fn added_deleted_and_modified_files_come_in_the_order_of_their_paths() {
    let pair = Pair::new();
    pair.put("same", Some("s\n"), Some("s\n"));
    pair.put("b/deleted", Some("x\n"), None);
    pair.put("b/modified", Some("1\n2\n"), Some("1\n3\n"));
    pair.put("a.txt", None, Some("new\n"));
    pair.put("b.txt", Some("old\n"), Some("new\n"));
    let (entries, summary) = pair.diff();
    assert_eq!(
        brief(&entries),
        [
            (Change::Added, "a.txt"),
            (Change::Deleted, "b/deleted"),
            (Change::Modified, "b/modified"),
            (Change::Modified, "b.txt"),
        ]
    );
    let patch = "@@ -1,2 +1,2 @@\n 1\n-2\n+3\n".to_owned();
    assert_eq!(entries[2].content, Content::Text { added: 1, removed: 1, patch: Some(patch), lossy: false });
    assert_eq!((summary.added, summary.deleted, summary.modified, summary.compared), (1, 1, 2, 6));
    assert_eq!((summary.lines_added, summary.lines_removed), (3, 3));
}

#[test]
fn another_owner_is_a_difference_unless_owners_are_left_out() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can give files away");
        return;
    }
    let pair = Pair::new();
    pair.put("given", Some("x\n"), Some("x\n"));
    pair.put("edited", Some("x\n"), Some("y\n"));
    for path in ["given", "edited"] {
        std::os::unix::fs::chown(pair.b().join(path), Some(1000), Some(1000)).unwrap();
    }
    let (entries, _) = diff(&pair.a(), &pair.b(), &Options::shown(true));
    assert_eq!(brief(&entries), [(Change::Modified, "edited"), (Change::Modified, "given")]);
    let options = Options { owners: false, ..Options::shown(true) };
    assert_eq!(brief(&diff(&pair.a(), &pair.b(), &options).0), [(Change::Modified, "edited")]);
}

#[test]
fn binary_large_and_unreadable_files_are_distinguished() {
    let pair = Pair::new();
    pair.put("binary", Some("a\0b"), Some("a\0c"));
    write(&pair.b().join("latin1"), b"gr\xfc\xdfe\n");
    write(&pair.a().join("latin1"), b"x\n");
    let options = Options { max_file_bytes: 10, max_patch_bytes: 18, ..Options::shown(true) };
    pair.put("large-same", Some("0123456789ab"), Some("0123456789ab"));
    pair.put("large", Some("0123456789ab"), Some("0123456789aX"));
    pair.put("long-patch", None, Some("1\n2\n3\n4\n5\n"));
    let (entries, _) = diff(&pair.a(), &pair.b(), &options);
    let contents: BTreeMap<_, _> =
        entries.iter().map(|entry| (entry.path.as_str(), entry.content.clone())).collect();
    assert_eq!(contents["binary"], Content::Binary);
    assert_eq!(contents["large"], Content::TooLarge);
    assert!(!contents.contains_key("large-same"));
    assert_eq!(contents["long-patch"], Content::Text { added: 5, removed: 0, patch: None, lossy: false });
    let (entries, _) = pair.diff();
    assert!(matches!(&entries[2].content, Content::Text { lossy: true, patch: Some(_), .. }), "{entries:?}");
}

#[test]
fn a_moved_file_is_renamed_by_its_inode_or_its_contents() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    for side in [&a, &b] {
        fs::create_dir(side).unwrap();
    }
    // One inode with two names, as in two snapshots.
    fs::write(a.join("old"), "1\n2\n").unwrap();
    fs::hard_link(a.join("old"), b.join("new")).unwrap();
    // Copied and deleted.
    fs::write(a.join("copied"), "the same words\n").unwrap();
    write(&b.join("deep/copied"), b"the same words\n");
    // Equal empty files do not count as renamed.
    fs::write(a.join("empty"), "").unwrap();
    fs::write(b.join("void"), "").unwrap();
    let (entries, summary) = diff(&a, &b, &Options::shown(true));
    let renamed: Vec<_> = entries
        .iter()
        .filter_map(|entry| Some((entry.from_path.as_deref()?, entry.path.as_str(), &entry.content)))
        .collect();
    assert_eq!(renamed, [("copied", "deep/copied", &Content::Same), ("old", "new", &Content::Same)]);
    assert_eq!((summary.renamed, summary.added, summary.deleted, summary.directories), (2, 1, 1, 1));
}

#[test]
fn modes_links_and_kinds_are_changes_too() {
    let pair = Pair::new();
    pair.put("run.sh", Some("x"), Some("x"));
    fs::set_permissions(pair.b().join("run.sh"), fs::Permissions::from_mode(0o4755)).unwrap();
    symlink("one", pair.a().join("link")).unwrap();
    symlink("two", pair.b().join("link")).unwrap();
    symlink("loop", pair.a().join("loop")).unwrap();
    symlink("loop", pair.b().join("loop")).unwrap();
    pair.put("kind", Some("text\n"), None);
    symlink("/etc/shadow", pair.b().join("kind")).unwrap();
    pair.put("tree/inside", Some("x\n"), None);
    pair.put("tree", None, Some("now a file\n"));
    let (entries, _) = pair.diff();
    assert_eq!(
        brief(&entries),
        [
            (Change::Replaced, "kind"),
            (Change::Modified, "link"),
            (Change::Modified, "run.sh"),
            (Change::Replaced, "tree"),
            (Change::Deleted, "tree/inside"),
        ]
    );
    assert_eq!(entries[0].after.as_ref().unwrap().target.as_deref(), Some("/etc/shadow"));
    assert!(matches!(entries[0].content, Content::Text { added: 0, removed: 1, .. }));
    assert_eq!(entries[1].before.as_ref().unwrap().target.as_deref(), Some("one"));
    assert_eq!((&entries[2].content, entries[2].after.as_ref().unwrap().mode), (&Content::Same, 0o4755));
}

#[test]
fn a_touched_file_with_the_same_contents_is_no_change() {
    let pair = Pair::new();
    pair.put("f", Some("x\n"), Some("x\n"));
    let past = fs::FileTimes::new().set_modified(std::time::SystemTime::UNIX_EPOCH);
    fs::File::options().write(true).open(pair.b().join("f")).unwrap().set_times(past).unwrap();
    assert_eq!(pair.diff().0, []);
}

#[test]
fn files_that_changed_close_to_a_snapshot_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    for side in [&a, &b] {
        fs::create_dir(side).unwrap();
    }
    fs::write(a.join("f"), "x").unwrap();
    fs::hard_link(a.join("f"), b.join("f")).unwrap();
    // The same inode with the same times: only the content could differ, and it does not.
    for settled_before in [None, Some((0, 0)), Some((i64::MAX, 0))] {
        let options = Options { settled_before, ..Options::shown(true) };
        assert_eq!(diff(&a, &b, &options).0, [], "{settled_before:?}");
    }
}

/// Names that collide; some are directories on one side and files on the other.
fn tree() -> impl Strategy<Value = BTreeMap<String, String>> {
    let name = prop_oneof!["[ab]", "[ab]/[ab]", "[ab]/[ab]/[ab.]x"];
    prop::collection::btree_map(name, "([xy]\n){0,4}", 0..10)
}

/// Writes every file whose path is possible: none lies below a file.
fn build(top: &Path, files: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut made = BTreeMap::new();
    for (path, text) in files {
        let whole = top.join(path);
        if fs::create_dir_all(whole.parent().unwrap()).is_ok() && fs::write(&whole, text).is_ok() {
            made.insert(path.clone(), text.clone());
        }
    }
    made
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Every path that differs is reported once, and the reverse comparison reports the same paths.
    #[test]
    fn every_difference_is_reported_and_the_walk_is_symmetric(a in tree(), b in tree()) {
        let pair = Pair::new();
        let (a, b) = (build(&pair.a(), &a), build(&pair.b(), &b));
        let touched = |entries: &[DiffEntry]| -> Vec<String> {
            let is_file = |node: &Option<bay_types::diff::Node>| {
                node.as_ref().is_some_and(|node| node.kind == bay_types::diff::NodeKind::File)
            };
            let mut paths: Vec<String> = entries
                .iter()
                .flat_map(|entry| {
                    let from = entry.from_path.clone();
                    let to = (is_file(&entry.before) || is_file(&entry.after)).then(|| entry.path.clone());
                    [from.filter(|_| is_file(&entry.before)), to].into_iter().flatten()
                })
                .collect();
            paths.sort();
            paths
        };
        let mut wanted: Vec<String> =
            a.keys().chain(b.keys()).filter(|path| a.get(*path) != b.get(*path)).cloned().collect();
        wanted.sort();
        wanted.dedup();
        let (there, _) = pair.diff();
        let (back, _) = diff(&pair.b(), &pair.a(), &Options::shown(true));
        prop_assert_eq!(touched(&there), wanted.clone());
        prop_assert_eq!(touched(&back), wanted);
    }
}

#[test]
fn the_guests_own_link_to_bay_ctl_is_no_change_of_the_agents() {
    let options = Options { ctl_link: false, ..Options::shown(true) };
    for (target, options, changes) in [
        ("/.bay/bin/bay-ctl", &options, 0),
        ("/.bay/bin/bay-ctl", &Options::shown(true), 1),
        ("/tmp/evil", &options, 1),
    ] {
        let pair = Pair::new();
        pair.put("usr/bin/ls", Some("x"), Some("x"));
        symlink(target, pair.b().join("usr/bin/bay-ctl")).unwrap();
        let (entries, summary) = diff(&pair.a(), &pair.b(), options);
        assert_eq!((entries.len(), summary.added), (changes, changes as u64), "{target}");
    }
}
