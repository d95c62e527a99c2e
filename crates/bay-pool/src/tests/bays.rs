use std::fs;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bay_backend::files::RootFrom;
use bay_sys::btrfs;
use bay_types::checkpoint::Point;
use bay_types::guest::COPIED_ROOT;
use bay_types::{BayId, CheckpointName, ErrorCode, ImageId};

use super::{Lab, image_root, import_host};
use crate::subvolume::open_dir;
use crate::{BayUsage, Flush, PoolError, Window, WorkspaceFrom, file_clock};

#[test]
fn a_bay_is_made_of_snapshots_that_do_not_touch_their_image() {
    let Some(lab) = Lab::new() else { return };
    let pool = lab.open();
    let image = import_host(&pool);
    let bay = BayId::generate();
    let disk = pool.bay_create(bay, image.id, &WorkspaceFrom::Empty, None).unwrap();
    assert_eq!(disk, pool.bay_disk(bay));
    fs::write(disk.root.join("usr/bin/sh"), "changed").unwrap();
    fs::write(disk.workspace.join("work"), "x").unwrap();
    let root = image_root(&pool, &image);
    assert_eq!(fs::read_to_string(root.join("usr/bin/sh")).unwrap(), "#!");
    assert_eq!(
        fs::write(root.join("usr/bin/sh"), "").unwrap_err().kind(),
        std::io::ErrorKind::ReadOnlyFilesystem
    );
    // A repetition changes and loses nothing.
    pool.bay_create(bay, image.id, &WorkspaceFrom::Empty, None).unwrap();
    assert!(disk.workspace.join("work").exists());
}

#[test]
fn an_interrupted_creation_is_completed() {
    let Some(lab) = Lab::new() else { return };
    let pool = lab.open();
    let image = import_host(&pool);
    for left in ["", "state", "workspace", "root"] {
        let bay = BayId::generate();
        let disk = pool.bay_create(bay, image.id, &WorkspaceFrom::Empty, None).unwrap();
        for (part, path) in [("state", &disk.state), ("workspace", &disk.workspace), ("root", &disk.root)] {
            if part != left {
                crate::subvolume::remove_all(path).unwrap();
            }
        }
        assert!(pool.bay_list().unwrap().contains(&bay));
        pool.bay_create(bay, image.id, &WorkspaceFrom::Empty, None).unwrap();
        assert!(disk.state.is_dir() && disk.workspace.is_dir() && disk.root.join("usr").is_dir(), "{left}");
    }
}

#[test]
fn a_bay_can_begin_with_the_root_of_a_checkpoint_and_nothing_else_of_it() {
    let Some(lab) = Lab::new() else { return };
    let pool = lab.open();
    let image = import_host(&pool);
    let other = BayId::generate();
    let disk = pool.bay_create(other, image.id, &WorkspaceFrom::Empty, None).unwrap();
    assert!(!disk.state.join(COPIED_ROOT).exists());
    fs::write(disk.root.join("usr/tool"), "installed").unwrap();
    fs::write(disk.workspace.join("work"), "x").unwrap();
    fs::write(disk.state.join("kept"), "x").unwrap();
    let point = Point { bay: other, checkpoint: CheckpointName::FIRST };
    pool.checkpoint_prepare(other).unwrap();
    pool.checkpoint_take(other).unwrap();
    pool.checkpoint_keep(point).unwrap();
    fs::write(disk.root.join("usr/tool"), "changed later").unwrap();

    let bay = BayId::generate();
    let root = RootFrom::Checkpoint(point);
    // Interrupted after any part, it is completed.
    for left in ["", "state", "workspace", "root"] {
        let disk = pool.bay_create(bay, root, &WorkspaceFrom::Empty, None).unwrap();
        assert_eq!(fs::read_to_string(disk.root.join("usr/tool")).unwrap(), "installed");
        assert!(!disk.workspace.join("work").exists() && !disk.state.join("kept").exists());
        assert!(disk.state.join(COPIED_ROOT).exists(), "the guest is told");
        for (part, path) in [("workspace", &disk.workspace), ("root", &disk.root), ("state", &disk.state)] {
            if part != left {
                crate::subvolume::remove_all(path).unwrap();
            }
        }
    }
    pool.bay_create(bay, root, &WorkspaceFrom::Empty, None).unwrap();
    pool.checkpoint_remove(point).unwrap();
    let base = crate::Side::Base { root, workspace: WorkspaceFrom::Empty };
    let gone = pool.diff_side(bay, &base, bay_types::diff::Part::Root).unwrap_err();
    assert_eq!(gone.to_api().code, ErrorCode::CheckpointNotFound);
    let late = pool.bay_create(BayId::generate(), root, &WorkspaceFrom::Empty, None).unwrap_err();
    assert_eq!(late.to_api().code, ErrorCode::CheckpointNotFound);
}

#[test]
fn a_kept_workspace_can_be_used_again_and_stays_until_it_is_removed_by_name() {
    let Some(lab) = Lab::new() else { return };
    let pool = lab.open();
    let image = import_host(&pool);
    let (bay, next) = (BayId::generate(), BayId::generate());
    let disk = pool.bay_create(bay, image.id, &WorkspaceFrom::Empty, None).unwrap();
    fs::write(disk.workspace.join("note"), "precious").unwrap();
    let path = pool.bay_remove(bay, Some("web")).unwrap().unwrap();
    let [kept] = &pool.kept_list().unwrap()[..] else { panic!("one is kept") };
    assert_eq!((&kept.path, kept.bay.as_str()), (&path, "web"));
    let from = WorkspaceFrom::Kept { workspace: kept.name.clone() };
    let disk = pool.bay_create(next, image.id, &from, None).unwrap();
    fs::write(disk.workspace.join("note"), "changed").unwrap();
    assert_eq!(fs::read_to_string(path.join("note")).unwrap(), "precious");
    for odd in ["web", "../bays", "..", "", "x-20260102T030405Z"] {
        assert_eq!(pool.kept_remove(odd).unwrap_err().to_api().code, ErrorCode::WorkspaceNotFound, "{odd}");
    }
    pool.kept_remove(&kept.name).unwrap();
    assert_eq!(pool.kept_list().unwrap(), []);
    // The bay made from it is unaffected, also by a repeated creation.
    pool.bay_create(next, image.id, &from, None).unwrap();
    assert_eq!(fs::read_to_string(disk.workspace.join("note")).unwrap(), "changed");
}

#[test]
fn a_bay_is_removed_with_subvolumes_that_should_not_be_in_it() {
    let Some(lab) = Lab::new() else { return };
    let pool = lab.open();
    let image = import_host(&pool);
    let bay = BayId::generate();
    let disk = pool.bay_create(bay, image.id, &WorkspaceFrom::Empty, None).unwrap();
    for dir in ["a", "a/b"] {
        fs::create_dir_all(disk.workspace.join(dir)).unwrap();
        btrfs::subvolume_create(open_dir(&disk.workspace.join(dir)).unwrap(), "nested".as_ref(), None)
            .unwrap();
    }
    let inner = open_dir(&disk.workspace.join("a/nested")).unwrap();
    btrfs::subvolume_create(&inner, "deeper".as_ref(), None).unwrap();
    drop(inner);
    pool.bay_remove(bay, None).unwrap();
    assert!(!disk.state.exists() && pool.bay_list().unwrap().is_empty());
    assert_eq!(fs::read_dir(lab.mount_point().join("corners/corner/trash")).unwrap().count(), 0);
    pool.bay_remove(bay, None).unwrap();
}

#[test]
fn a_kept_workspace_outlives_its_bay_also_when_the_removal_is_repeated() {
    let Some(lab) = Lab::new() else { return };
    let pool = lab.open();
    let image = import_host(&pool);
    let bay = BayId::generate();
    let disk = pool.bay_create(bay, image.id, &WorkspaceFrom::Empty, None).unwrap();
    fs::write(disk.workspace.join("work"), "precious").unwrap();
    let aside = disk.root.parent().unwrap().to_owned();
    // Interrupted after the workspace was moved: the directory is still there.
    let kept = pool.bay_remove(bay, Some("../odd name")).unwrap().unwrap();
    fs::create_dir(&aside).unwrap();
    fs::write(aside.join("kept-as"), kept.file_name().unwrap().to_str().unwrap()).unwrap();
    assert_eq!(pool.bay_remove(bay, Some("../odd name")).unwrap(), Some(kept.clone()));
    assert_eq!(fs::read_to_string(kept.join("work")).unwrap(), "precious");
    assert!(kept.starts_with(lab.mount_point().join("corners/corner/kept")), "{}", kept.display());
    assert!(pool.bay_list().unwrap().is_empty());
    assert_eq!(pool.bay_remove(bay, Some("x")).unwrap(), None);
}

#[test]
fn a_replaced_root_is_fresh_and_the_workspace_stays() {
    let Some(lab) = Lab::new() else { return };
    let pool = lab.open();
    let image = import_host(&pool);
    let bay = BayId::generate();
    let disk = pool.bay_create(bay, image.id, &WorkspaceFrom::Empty, None).unwrap();
    fs::write(disk.root.join("litter"), "x").unwrap();
    fs::write(disk.workspace.join("work"), "x").unwrap();
    // The leftover of an interrupted exchange.
    btrfs::subvolume_create(open_dir(disk.root.parent().unwrap()).unwrap(), "root.new".as_ref(), None)
        .unwrap();
    pool.bay_replace_root(bay, image.id).unwrap();
    assert!(!disk.root.join("litter").exists() && disk.root.join("usr/bin/sh").exists());
    assert!(disk.workspace.join("work").exists() && !disk.root.with_file_name("root.new").exists());
    let unknown = pool.bay_replace_root(BayId::generate(), image.id).unwrap_err();
    assert_eq!(unknown.to_api().code, ErrorCode::BayFailed);
    let no_image = pool.bay_replace_root(bay, ImageId::generate()).unwrap_err();
    assert_eq!(no_image.to_api().code, ErrorCode::ImageNotFound);
    assert!(disk.root.join("usr/bin/sh").exists());
}

#[test]
fn the_sweep_empties_the_trash_and_removes_half_exchanged_roots() {
    let Some(lab) = Lab::new() else { return };
    let pool = lab.open();
    let image = import_host(&pool);
    let bay = BayId::generate();
    let disk = pool.bay_create(bay, image.id, &WorkspaceFrom::Empty, None).unwrap();
    let dir = disk.root.parent().unwrap();
    btrfs::subvolume_create(open_dir(dir).unwrap(), "root.new".as_ref(), None).unwrap();
    let gone = BayId::generate();
    let gone_disk = pool.bay_create(gone, image.id, &WorkspaceFrom::Empty, None).unwrap();
    let trash = lab.mount_point().join("corners/corner/trash");
    fs::rename(gone_disk.root.parent().unwrap(), trash.join("x")).unwrap();
    fs::write(lab.mount_point().join("corners/corner/tmp/left"), "x").unwrap();
    let pool = lab.open();
    assert!(!dir.join("root.new").exists() && disk.root.exists());
    assert_eq!(fs::read_dir(&trash).unwrap().count(), 0);
    assert!(!lab.mount_point().join("corners/corner/tmp/left").exists());
    assert_eq!(pool.bay_list().unwrap(), [bay]);
}

#[test]
fn a_disk_limit_stops_a_bay_and_only_that_bay() {
    let Some(lab) = Lab::new() else { return };
    let pool = lab.open();
    let image = import_host(&pool);
    let (small, other) = (BayId::generate(), BayId::generate());
    let disk = pool.bay_create(small, image.id, &WorkspaceFrom::Empty, Some(20)).unwrap();
    let free = pool.bay_create(other, image.id, &WorkspaceFrom::Empty, None).unwrap();
    let fill = |path: &std::path::Path| -> std::io::Result<()> {
        for part in 0..30_u8 {
            let file = path.join(format!("part{part}"));
            fs::write(&file, vec![part; 1 << 20])?;
            fs::File::open(&file)?.sync_all()?;
        }
        Ok(())
    };
    let refused = fill(&disk.workspace).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::QuotaExceeded, "{refused}");
    // The limit applies to the bay, not to a subvolume.
    let refused = fill(&disk.root).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::QuotaExceeded, "{refused}");
    fill(&free.workspace).unwrap();
    let used = pool.bay_usage(small).unwrap().own_bytes;
    assert!((10 << 20..=20 << 20).contains(&used), "{used}");
    pool.bay_replace_root(small, image.id).unwrap();
    assert!(fill(&disk.root).is_err(), "a fresh root is under the same limit");
    pool.bay_remove(small, None).unwrap();
    lab.open();
}

#[test]
fn a_disk_limit_set_later_counts_earlier_data_and_can_be_removed() {
    let Some(lab) = Lab::new() else { return };
    let pool = lab.open();
    let image = import_host(&pool);
    let bay = BayId::generate();
    let disk = pool.bay_create(bay, image.id, &WorkspaceFrom::Empty, None).unwrap();
    let write = |name: &str, mib: usize| -> std::io::Result<()> {
        fs::write(disk.workspace.join(name), vec![7; mib << 20])?;
        fs::File::open(disk.workspace.join(name))?.sync_all()
    };
    write("before", 10).unwrap();
    btrfs::sync(open_dir(&disk.root).unwrap()).unwrap();
    pool.bay_set_quota(bay, None).unwrap();
    let refused = pool.bay_set_quota(bay, Some(5)).unwrap_err().to_api();
    assert_eq!(refused.code, ErrorCode::BayState, "{refused}");
    assert!(refused.message.contains("holds 1"), "{refused}");
    pool.bay_set_quota(bay, Some(20)).unwrap();
    assert_eq!(write("large", 15).unwrap_err().kind(), std::io::ErrorKind::QuotaExceeded);
    fs::remove_file(disk.workspace.join("large")).unwrap();
    write("small", 5).unwrap();
    btrfs::sync(open_dir(&disk.root).unwrap()).unwrap();
    let used = pool.bay_usage(bay).unwrap().own_bytes;
    assert!((15 << 20..=20 << 20).contains(&used), "{used}");
    // Another limit for a bay that has one, then none.
    assert!(pool.bay_set_quota(bay, Some(12)).is_err());
    pool.bay_set_quota(bay, Some(60)).unwrap();
    write("large", 30).unwrap();
    pool.bay_set_quota(bay, None).unwrap();
    write("huge", 40).unwrap();
    let unknown = pool.bay_set_quota(BayId::generate(), Some(20)).unwrap_err();
    assert_eq!(unknown.to_api().code, ErrorCode::BayFailed);
}

#[test]
fn the_disk_below_a_pool_in_a_file_is_its_loop_device() {
    let Some(lab) = Lab::new() else { return };
    let devices = lab.open().devices().unwrap();
    assert!(matches!(devices.as_slice(), [one] if one.starts_with("7:")), "{devices:?}");
}

#[test]
fn usage_counts_what_the_bay_wrote_and_not_what_it_shares() {
    let Some(lab) = Lab::new() else { return };
    lab.host_file("usr/share/large", &"x".repeat(5 << 20), 0o644);
    let pool = lab.open();
    let image = import_host(&pool);
    let bay = BayId::generate();
    let disk = pool.bay_create(bay, image.id, &WorkspaceFrom::Empty, None).unwrap();
    btrfs::sync(open_dir(&disk.root).unwrap()).unwrap();
    assert_eq!(pool.bay_usage(bay).unwrap(), BayUsage { own_bytes: 0 });
    fs::write(disk.root.join("usr/share/more"), vec![1; 3 << 20]).unwrap();
    fs::write(disk.workspace.join("small"), "inline").unwrap();
    btrfs::sync(open_dir(&disk.root).unwrap()).unwrap();
    let used = pool.bay_usage(bay).unwrap().own_bytes;
    assert!((3 << 20..4 << 20).contains(&used), "{used}");
}

/// A time by the kernel's file clock that is later than all earlier timestamps.
fn next_tick() -> jiff::Timestamp {
    let before = jiff::Timestamp::now();
    while file_clock() <= before {}
    file_clock()
}

#[test]
fn changes_in_a_workspace_are_found_by_their_time() {
    let Some(lab) = Lab::new() else { return };
    let pool = lab.open();
    let image = import_host(&pool);
    let bay = BayId::generate();
    let disk = pool.bay_create(bay, image.id, &WorkspaceFrom::Empty, None).unwrap();
    let file = |name: &str| disk.workspace.join(name);
    fs::create_dir(file("dir")).unwrap();
    for name in ["old", "grown", "dir/gone"] {
        fs::write(file(name), "x").unwrap();
    }
    pool.flush(Flush::All).unwrap();
    let since = pool.workspace_generation(bay).unwrap();
    let from = next_tick();
    fs::write(file("new"), "x").unwrap();
    std::io::Write::write_all(&mut fs::OpenOptions::new().append(true).open(file("grown")).unwrap(), b"y")
        .unwrap();
    fs::remove_file(file("dir/gone")).unwrap();
    fs::create_dir_all(file(".git/objects/ab")).unwrap();
    fs::write(file(".git/objects/ab/cd"), "x").unwrap();
    fs::write(file(".gitignore"), "target").unwrap();
    let window = Window { from, to: jiff::Timestamp::now() };
    assert!(pool.unwritten_bytes().unwrap() > 0);
    pool.flush(Flush::All).unwrap();
    assert_eq!(pool.unwritten_bytes().unwrap(), 0);
    let tick = std::time::Duration::from_millis(20);
    let empty = Window { from: window.to + tick, to: window.to + 2 * tick };
    let found = pool.workspace_changes(bay, since, &[window, empty], &mut |_, _, _| false).unwrap();
    assert!(found[1].is_empty(), "{:?}", found[1]);
    let changes = &found[0];
    // The top directory gained a name, and `dir` lost one.
    assert_eq!((changes.created, changes.changed, changes.directories), (2, 1, 2), "{changes:?}");
    // `.git` with two directories and a file. A file whose name only begins like that is the agent's.
    assert_eq!(changes.git, 4, "{changes:?}");
    let mut names = changes.names.clone();
    names.sort();
    assert_eq!(names, [".gitignore", "grown", "new"]);
    assert!(!changes.at_least);
    // Without a start generation the result is the same, but costs more.
    assert_eq!(pool.workspace_changes(bay, 0, &[window], &mut |_, _, _| false).unwrap()[0], *changes);
    // The cheap flush does not show appended data, but it shows names.
    let from = next_tick();
    fs::rename(file("new"), file("newer")).unwrap();
    let window = Window { from, to: jiff::Timestamp::now() };
    pool.flush(Flush::Names).unwrap();
    let found = pool.workspace_changes(bay, since, &[window], &mut |_, _, _| false).unwrap();
    assert_eq!(found[0].names, ["newer"], "{found:?}");
    // What the caller says is ignored is counted apart.
    let is_ignored = &mut |_: std::os::fd::BorrowedFd<'_>, path: &[u8], _: bool| path == b"newer";
    let found = pool.workspace_changes(bay, since, &[window], is_ignored).unwrap();
    assert_eq!((found[0].ignored, found[0].created + found[0].changed), (1, 0), "{found:?}");
}

#[test]
fn the_present_tree_for_a_comparison_does_not_change_and_leaves_nothing() {
    let Some(lab) = Lab::new() else { return };
    let pool = lab.open();
    let image = import_host(&pool);
    let bay = BayId::generate();
    let disk = pool.bay_create(bay, image.id, &WorkspaceFrom::Empty, None).unwrap();
    fs::write(disk.workspace.join("f"), "then").unwrap();
    let passing = || fs::read_dir(pool.tmp()).unwrap().count();
    let before = passing();
    let side = pool.diff_side(bay, &crate::Side::Now, bay_types::diff::Part::Workspace).unwrap();
    assert_eq!(passing(), before + 1);
    fs::write(disk.workspace.join("f"), "later").unwrap();
    let file =
        rustix::fs::openat(side.top().unwrap(), "f", rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty());
    assert_eq!(std::io::read_to_string(fs::File::from(file.unwrap())).unwrap(), "then");
    assert!(side.is_whole());
    drop(side);
    assert_eq!(passing(), before);
    let base = crate::Side::Base { root: image.id.into(), workspace: WorkspaceFrom::Empty };
    assert!(pool.diff_side(bay, &base, bay_types::diff::Part::Workspace).unwrap().top().is_none());
    assert!(pool.diff_side(bay, &base, bay_types::diff::Part::Root).unwrap().top().is_some());
    // The sweep removes the leftover of a killed daemon.
    crate::checkpoint::read_only(&disk.root, &pool.tmp().join("diff-left"), None).unwrap();
    assert_eq!(passing(), before + 1);
    pool.sweep().unwrap();
    assert_eq!(passing(), before);
}

/// While a program overwrites a page that is still dirty, the kernel may briefly omit the file from the flush for a
/// snapshot. The snapshot then lacks all writes since the last flush, although the file has new times.
#[test]
fn the_present_tree_for_a_comparison_has_every_finished_write() {
    /// Without our flush, about one in fifty snapshots would lack writes.
    const SNAPSHOTS: usize = 300;
    let Some(lab) = Lab::new() else { return };
    let pool = lab.open();
    let image = import_host(&pool);
    let bay = BayId::generate();
    let disk = pool.bay_create(bay, image.id, &WorkspaceFrom::Empty, None).unwrap();
    let file = fs::File::create(disk.workspace.join("n")).unwrap();
    let (written, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let number_now = || -> Result<u64, Box<dyn std::error::Error>> {
        let side = pool.diff_side(bay, &crate::Side::Now, bay_types::diff::Part::Workspace)?;
        let (top, flags) = (side.top().ok_or("the workspace is empty")?, rustix::fs::OFlags::RDONLY);
        let mut number = [0; 8];
        fs::File::from(rustix::fs::openat(top, "n", flags, rustix::fs::Mode::empty())?)
            .read_exact_at(&mut number, 0)?;
        Ok(u64::from_le_bytes(number))
    };
    let wrong = std::thread::scope(|scope| {
        let _writer = scope.spawn(|| {
            let mut number = 0_u64;
            while !stop.load(Ordering::SeqCst) {
                number += 1;
                file.write_all_at(&number.to_le_bytes(), 0).unwrap();
                written.store(number, Ordering::SeqCst);
            }
        });
        let wrong = (0..SNAPSHOTS).find_map(|_| {
            let before = written.load(Ordering::SeqCst);
            while written.load(Ordering::SeqCst) == before {
                std::thread::yield_now();
            }
            let returned = written.load(Ordering::SeqCst);
            match number_now() {
                Ok(found) if found >= returned => None,
                Ok(found) => Some(format!("the snapshot has {found}, but {returned} was written before it")),
                Err(error) => Some(error.to_string()),
            }
        });
        stop.store(true, Ordering::SeqCst);
        wrong
    });
    assert_eq!(wrong, None);
}

#[test]
fn a_checkpoint_that_is_removed_while_it_is_read_is_noticed() {
    let Some(lab) = Lab::new() else { return };
    let pool = lab.open();
    let image = import_host(&pool);
    let bay = BayId::generate();
    let disk = pool.bay_create(bay, image.id, &WorkspaceFrom::Empty, None).unwrap();
    fs::write(disk.workspace.join("f"), "x").unwrap();
    let point = Point { bay, checkpoint: CheckpointName::FIRST };
    pool.checkpoint_prepare(bay).unwrap();
    pool.checkpoint_take(bay).unwrap();
    pool.checkpoint_keep(point).unwrap();
    let side = crate::Side::Checkpoint(point.checkpoint);
    let part = bay_types::diff::Part::Workspace;
    let open = pool.diff_side(bay, &side, part).unwrap();
    let changed = fs::metadata(disk.workspace.join("f")).unwrap();
    let (settled, _) = open.settled_before().unwrap();
    assert!((settled - std::os::unix::fs::MetadataExt::ctime(&changed)).abs() < 60, "{settled}");
    assert!(open.is_whole());
    pool.checkpoint_remove(point).unwrap();
    assert!(!open.is_whole());
    assert!(matches!(pool.diff_side(bay, &side, part), Err(PoolError::CheckpointNotFound { .. })));
}

#[test]
fn the_beginning_of_a_bay_stays_through_restores_forks_and_the_end_of_its_parent() {
    let Some(lab) = Lab::new() else { return };
    let pool = lab.open();
    let image = import_host(&pool);
    let names = |bay| {
        let side = crate::Side::Beginning { root: image.id.into() };
        let side = pool.diff_side(bay, &side, bay_types::diff::Part::Workspace).unwrap();
        let listed = rustix::fs::Dir::read_from(side.top().unwrap()).unwrap();
        let mut names: Vec<String> =
            listed.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.retain(|name| !name.starts_with('.'));
        names.sort();
        names
    };
    let bay = BayId::generate();
    let disk = pool.bay_create(bay, image.id, &WorkspaceFrom::Empty, Some(1024)).unwrap();
    assert_eq!((pool.has_beginning(bay), names(bay)), (true, vec![]));
    fs::write(disk.workspace.join("draft"), "x").unwrap();
    // A killed call leaves something, and the next one begins anew.
    let left = pool.beginning_dir(bay).with_extension("new");
    fs::create_dir(&left).unwrap();
    crate::checkpoint::read_only(&disk.workspace, &left.join("workspace"), None).unwrap();
    pool.beginning_keep(bay).unwrap();
    assert_eq!(names(bay), ["draft"]);
    fs::write(disk.workspace.join("work"), "x").unwrap();
    let point = Point { bay, checkpoint: CheckpointName::FIRST };
    pool.checkpoint_prepare(bay).unwrap();
    pool.checkpoint_take(bay).unwrap();
    pool.checkpoint_keep(point).unwrap();
    pool.bay_restore(bay, point, false).unwrap();
    assert_eq!(names(bay), ["draft"]);
    let fork = BayId::generate();
    let from = WorkspaceFrom::Checkpoint { point, state: false };
    let forked = pool.bay_create(fork, image.id, &from, None).unwrap();
    assert!(forked.workspace.join("work").exists());
    pool.checkpoint_remove(point).unwrap();
    pool.bay_remove(bay, None).unwrap();
    fs::create_dir(pool.beginning_dir(fork).with_extension("new")).unwrap();
    pool.sweep().unwrap();
    assert!(!pool.beginning_dir(fork).with_extension("new").exists());
    assert_eq!(names(fork), ["draft"], "the fork has its parent's beginning");
    // Nothing in a bay can change it, and it counts as space of the workspace.
    assert!(fs::write(pool.beginning(fork).unwrap().path().join("draft"), "y").is_err());
    assert!(pool.disk_usage().unwrap().bays.iter().any(|space| space.id == fork));
}

#[test]
fn a_bay_without_a_beginning_and_its_forks_have_none() {
    let Some(lab) = Lab::new() else { return };
    let pool = lab.open();
    let image = import_host(&pool);
    let bay = BayId::generate();
    pool.bay_create(bay, image.id, &WorkspaceFrom::Empty, None).unwrap();
    pool.trash().remove(&pool.beginning_dir(bay)).unwrap();
    let point = Point { bay, checkpoint: CheckpointName::FIRST };
    pool.checkpoint_prepare(bay).unwrap();
    pool.checkpoint_take(bay).unwrap();
    pool.checkpoint_keep(point).unwrap();
    let fork = BayId::generate();
    pool.bay_create(fork, image.id, &WorkspaceFrom::Checkpoint { point, state: false }, None).unwrap();
    assert!(!pool.has_beginning(bay) && !pool.has_beginning(fork));
}
