use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use bay_sys::btrfs;
use bay_types::{BayId, ErrorCode};
use rustix::mount::MountFlags;

use super::{Lab, POOL_MIB, import_host};
use crate::backing::Space;
use crate::host_packages::HostTree;
use crate::{Pool, PoolError, PoolOptions, WorkspaceFrom};

fn code(error: &PoolError) -> ErrorCode {
    error.to_api().code
}

#[test]
fn a_new_pool_is_reserved_in_full_private_and_found_again() {
    let Some(lab) = Lab::new() else { return };
    let pool = lab.open();
    let usage = pool.usage().unwrap();
    assert_eq!(usage.total_bytes, POOL_MIB << 20);
    let file = fs::metadata(lab.pool_dir().join("pool.img")).unwrap();
    assert!(std::os::unix::fs::MetadataExt::blocks(&file) * 512 >= file.len(), "the file has no holes");
    for private in ["images", "corners", "corners/corner"] {
        let mode = fs::metadata(lab.mount_point().join(private)).unwrap().permissions();
        assert_eq!(std::os::unix::fs::PermissionsExt::mode(&mode) & 0o777, 0o700, "{private}");
    }
    fs::write(lab.mount_point().join("corners/corner/kept/mark"), "x").unwrap();
    drop(pool);
    lab.unmount();
    assert!(!lab.mount_point().join("corners").exists());
    lab.open();
    assert!(lab.mount_point().join("corners/corner/kept/mark").exists());
}

#[test]
fn the_pools_sysfs_directory_is_closed_to_everybody_but_root() {
    let Some(lab) = Lab::new() else { return };
    let mode = || {
        let id = btrfs::filesystem_id(File::open(lab.mount_point()).unwrap()).unwrap();
        let shown = fs::metadata(format!("/sys/fs/btrfs/{}", crate::sysfs::dashed(id))).unwrap();
        std::os::unix::fs::PermissionsExt::mode(&shown.permissions()) & 0o777
    };
    drop(lab.open());
    assert_eq!(mode(), 0o700);
    // The kernel makes the directory again with every mount.
    lab.unmount();
    lab.open();
    assert_eq!(mode(), 0o700);
}

#[test]
fn two_daemons_share_a_pool_and_its_images_but_no_bays() {
    let Some(lab) = Lab::new() else { return };
    let (one, two) = std::thread::scope(|scope| {
        let one = scope.spawn(|| lab.try_open("one").unwrap());
        let two = scope.spawn(|| lab.try_open("two").unwrap());
        (one.join().unwrap(), two.join().unwrap())
    });
    let image = import_host(&one);
    assert_eq!(two.image_find("host").unwrap().unwrap().id, image.id);
    let bay = BayId::generate();
    two.bay_create(bay, image.id, &WorkspaceFrom::Empty, None).unwrap();
    assert_eq!(two.bay_list().unwrap(), [bay]);
    assert_eq!(one.bay_list().unwrap(), []);
    assert_eq!(one.image_list().unwrap()[0].bays, 1, "bays of other daemons count");
    let refused = one.image_remove(image.id).unwrap_err();
    assert_eq!(code(&refused), ErrorCode::ImageInUse);
    two.bay_remove(bay, None).unwrap();
    one.image_remove(image.id).unwrap();
    assert!(two.image_list().unwrap().is_empty());
}

#[test]
fn an_interrupted_making_of_a_pool_is_started_again() {
    let Some(lab) = Lab::new() else { return };
    fs::create_dir_all(lab.pool_dir()).unwrap();
    fs::write(lab.pool_dir().join("pool.img.new"), "half").unwrap();
    lab.open();
    assert!(!lab.pool_dir().join("pool.img.new").exists());
}

#[test]
fn a_truncated_pool_file_is_reported_and_stays_unchanged() {
    let Some(lab) = Lab::new() else { return };
    lab.open();
    lab.unmount();
    let image = lab.pool_dir().join("pool.img");
    for length in [POOL_MIB << 19, 1000, 0] {
        OpenOptions::new().write(true).open(&image).unwrap().set_len(length).unwrap();
        let error = lab.try_open("corner").unwrap_err();
        assert_eq!(code(&error), ErrorCode::PoolDamaged, "{error}");
        assert_eq!(fs::metadata(&image).unwrap().len(), length);
    }
}

#[test]
fn a_pool_without_a_superblock_is_reported_and_stays_unchanged() {
    let Some(lab) = Lab::new() else { return };
    lab.open();
    lab.unmount();
    let mut image = OpenOptions::new().write(true).open(lab.pool_dir().join("pool.img")).unwrap();
    let mut spoil = |at: u64, bytes: &[u8]| {
        image.seek(SeekFrom::Start(at)).unwrap();
        image.write_all(bytes).unwrap();
    };
    // First a field under the checksum, which only the kernel checks, then the signature.
    spoil(64 * 1024 + 0x48, &[0xff; 8]);
    let error = lab.try_open("corner").unwrap_err();
    assert_eq!(code(&error), ErrorCode::PoolDamaged, "{error}");
    spoil(64 * 1024, &[0; 4096]);
    let error = lab.try_open("corner").unwrap_err();
    assert_eq!(code(&error), ErrorCode::PoolDamaged, "{error}");
    assert!(!error.to_api().hint.is_empty());
}

#[test]
fn a_pool_that_becomes_read_only_is_reported() {
    let Some(lab) = Lab::new() else { return };
    let pool = lab.open();
    let image = import_host(&pool);
    rustix::mount::mount_remount(lab.mount_point(), MountFlags::RDONLY, c"").unwrap();
    let bay = BayId::generate();
    for error in [
        pool.bay_create(bay, image.id, &WorkspaceFrom::Empty, None).unwrap_err(),
        pool.image_remove(image.id).unwrap_err(),
        pool.repo_for("/some/where").unwrap_err(),
        lab.try_open("corner").unwrap_err(),
    ] {
        assert_eq!(code(&error), ErrorCode::PoolReadOnly, "{error}");
    }
    assert!(pool.image_find("host").unwrap().is_some(), "what is there can still be looked at");
}

#[test]
fn a_full_pool_is_reported_can_be_opened_and_works_again_after_a_removal() {
    let Some(lab) = Lab::new() else { return };
    lab.open();
    // A pool in a directory on btrfs cannot grow.
    let dir = lab.mount_point().join("inner");
    let open = || {
        let host = HostTree { root: lab.host() };
        Pool::open_with_host(&dir, "corner", &PoolOptions::default(), host, &mut |_| {}).unwrap()
    };
    let pool = open();
    let image = import_host(&pool);
    let bay = BayId::generate();
    let disk = pool.bay_create(bay, image.id, &WorkspaceFrom::Empty, None).unwrap();
    let mut hog = File::create(disk.workspace.join("hog")).unwrap();
    let noise: Vec<u8> = (0..1_000_003_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let full = loop {
        if let Err(error) = hog.write_all(&noise).and_then(|()| hog.sync_data()) {
            break error;
        }
    };
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
    drop(hog);
    let big = lab.path().join("big");
    fs::create_dir(&big).unwrap();
    fs::write(big.join("data"), &noise).unwrap();
    let import = super::import(&format!("dir:{}", big.display()));
    let refused = pool.image_import(&import, 0, &mut |_| {}).unwrap_err();
    assert_eq!(code(&refused), ErrorCode::PoolFull, "{refused}");
    let bundle = pool.repo_for("/x").and_then(|repo| pool.repo_unbundle(repo, &mut &noise[..])).unwrap_err();
    assert_eq!(code(&bundle), ErrorCode::PoolFull, "{bundle}");
    drop(pool);
    let pool = open();
    assert!(pool.image_find("host").unwrap().is_some());
    pool.bay_remove(bay, None).unwrap();
    btrfs::sync(pool.top().unwrap()).unwrap();
    pool.bay_create(BayId::generate(), image.id, &WorkspaceFrom::Empty, None).unwrap();
}

#[test]
fn a_pool_grows_on_request_and_keeps_its_contents() {
    let Some(lab) = Lab::new() else { return };
    let pool = lab.open();
    let before = pool.usage().unwrap();
    pool.make_room(before.free_bytes + (100 << 20)).unwrap();
    let after = pool.usage().unwrap();
    assert!(after.total_bytes > before.total_bytes && after.free_bytes > before.free_bytes + (100 << 20));
    let refused = pool.make_room(u64::MAX / 4).unwrap_err();
    assert_eq!(code(&refused), ErrorCode::PoolFull);
}

#[test]
fn the_next_open_finishes_an_interrupted_growth() {
    let Some(lab) = Lab::new() else { return };
    let pool = lab.open();
    let before = pool.usage().unwrap().total_bytes;
    let file = OpenOptions::new().write(true).open(lab.pool_dir().join("pool.img")).unwrap();
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), before, 64 << 20).unwrap();
    assert_eq!(lab.open().usage().unwrap().total_bytes, before + (64 << 20), "while it is mounted");
    drop(pool);
    lab.unmount();
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), before + (64 << 20), 64 << 20).unwrap();
    assert_eq!(lab.open().usage().unwrap().total_bytes, before + (128 << 20), "after a reboot");
}

#[test]
fn a_pool_that_is_too_small_or_too_large_is_refused() {
    let Some(lab) = Lab::new() else { return };
    let open = |mib| {
        let options = PoolOptions { initial_mib: Some(mib), ..PoolOptions::default() };
        Pool::open(&lab.pool_dir(), "corner", &options, &mut |_| {}).unwrap_err()
    };
    assert_eq!(code(&open(1)), ErrorCode::InvalidInput);
    assert_eq!(code(&open(1 << 40)), ErrorCode::PoolFull);
    assert!(!lab.pool_dir().join("pool.img").exists());
    assert!(!lab.pool_dir().join("pool.img.new").exists());
}

#[test]
fn a_corner_is_a_plain_name() {
    let Some(lab) = Lab::new() else { return };
    for corner in ["", "..", ".hidden", "a/b", "a\0b", "a b", &"x".repeat(200)] {
        assert_eq!(code(&lab.try_open(corner).unwrap_err()), ErrorCode::InvalidInput, "{corner:?}");
    }
}

#[test]
fn a_directory_on_btrfs_is_used_without_a_pool_file() {
    let Some(lab) = Lab::new() else { return };
    lab.open();
    let inner = lab.mount_point().join("inner");
    let pool = Pool::open(&inner, "corner", &PoolOptions::default(), &mut |_| {}).unwrap();
    assert!(inner.join("corners/corner/bays").is_dir());
    assert!(!pool.grow_if_needed().unwrap());
}

#[test]
fn a_pool_that_grew_gives_the_space_back_when_it_is_free_again() {
    let Some(lab) = Lab::new() else { return };
    let pool = lab.open();
    let first = pool.usage().unwrap();
    let file = || {
        let found = fs::metadata(lab.pool_dir().join("pool.img")).unwrap();
        (found.len(), std::os::unix::fs::MetadataExt::blocks(&found) * 512)
    };
    fs::write(lab.mount_point().join("corners/corner/kept/mark"), "x").unwrap();
    assert!(!pool.shrink_if_roomy().unwrap(), "a pool keeps the size that it was made with");
    pool.make_room(first.free_bytes + (300 << 20)).unwrap();
    let grown = file();
    // Data that lies at the end of the file must be moved to its beginning.
    let hog = lab.mount_point().join("corners/corner/kept/hog");
    let noise: Vec<u8> = (0..1_000_003_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let mut written = File::create(&hog).unwrap();
    for _ in 0..500 {
        written.write_all(&noise).unwrap();
    }
    written.sync_all().unwrap();
    let late = lab.mount_point().join("corners/corner/kept/late");
    fs::write(&late, &noise).unwrap();
    fs::remove_file(&hog).unwrap();
    drop(written);
    btrfs::sync(pool.top().unwrap()).unwrap();
    btrfs::commit(pool.top().unwrap()).unwrap();
    let began = std::time::Instant::now();
    let mut steps = 0;
    while pool.shrink_if_roomy().unwrap() {
        steps += 1;
    }
    println!("{steps} steps in {:?}", began.elapsed());
    let shrunk = file();
    assert!(steps > 0 && shrunk.0 < grown.0, "{grown:?} {shrunk:?}");
    assert!(shrunk.0 >= first.total_bytes, "never below the first size: {shrunk:?}");
    assert!(shrunk.1 >= shrunk.0 && shrunk.1 < grown.1, "the rest has no holes: {shrunk:?}");
    assert_eq!(pool.usage().unwrap().total_bytes, shrunk.0);
    assert_eq!(fs::read(&late).unwrap(), noise);
    drop(pool);
    lab.unmount();
    let pool = lab.open();
    assert_eq!(fs::read(&late).unwrap(), noise);
    // It can grow again.
    let free = pool.usage().unwrap().free_bytes;
    pool.make_room(free + (200 << 20)).unwrap();
}

#[test]
fn a_shrink_that_was_interrupted_before_the_file_was_cut_is_undone_by_the_next_open() {
    let Some(lab) = Lab::new() else { return };
    let pool = lab.open();
    pool.make_room(pool.usage().unwrap().free_bytes + (300 << 20)).unwrap();
    let grown = pool.usage().unwrap().total_bytes;
    btrfs::resize_to(pool.top().unwrap(), grown - (200 << 20)).unwrap();
    drop(pool);
    lab.unmount();
    assert_eq!(lab.open().usage().unwrap().total_bytes, grown);
}

#[test]
fn an_error_of_a_full_disk_names_the_reserve_and_what_may_be_freed() {
    let Some(lab) = Lab::new() else { return };
    let pool = lab.open();
    // What would not be enough is not taken from the host, not even for a moment: others write to that disk.
    let free = || Space::of(&lab.pool_dir()).unwrap().free;
    let (before, over) = (free(), AtomicBool::new(false));
    let (refused, lowest) = std::thread::scope(|scope| {
        let watching = scope.spawn(|| {
            let mut lowest = free();
            while !over.load(Ordering::Relaxed) {
                lowest = lowest.min(free());
            }
            lowest
        });
        let refused = pool.make_room(u64::MAX / 4).unwrap_err();
        over.store(true, Ordering::Relaxed);
        (refused, watching.join().unwrap())
    });
    assert!(lowest > before / 4, "{lowest} of {before} bytes were left");
    assert!(refused.to_string().contains("(512 MiB of it are reserved for the host)"), "{refused}");
    let named = refused.to_api().hint.worded(|action| Some(format!("{action:?}")));
    for what in ["ShowDisk", "PruneImages", "RemoveRepo", "RemoveAnyBay", "SetDiskReserve"] {
        assert!(named.contains(what), "{named}");
    }
}

#[test]
fn a_pool_that_another_program_has_mounted_is_named_and_goes_when_that_ends() {
    let Some(lab) = Lab::new() else { return };
    drop(lab.open());
    // A mount namespace of its own has a copy of the mount, which unmounting here does not end.
    let mut holder = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c", "echo held; exec sleep 100"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut held = [0; 5];
    holder.stdout.take().unwrap().read_exact(&mut held).unwrap();
    let refused = Pool::remove_file(&lab.pool_dir()).unwrap_err();
    assert!(matches!(refused, PoolError::StillMounted { .. }), "{refused:?}");
    assert_eq!(code(&refused), ErrorCode::DataDirBusy);
    assert!(lab.pool_dir().join("pool.img").exists());
    holder.kill().unwrap();
    holder.wait().unwrap();
    assert_eq!(Pool::remove_file(&lab.pool_dir()).unwrap(), None);
    assert!(!lab.pool_dir().exists());
}

#[test]
fn a_pool_directory_with_a_file_of_somebody_else_stays_and_the_file_is_named() {
    let Some(lab) = Lab::new() else { return };
    drop(lab.open());
    fs::write(lab.pool_dir().join("notes"), "mine").unwrap();
    let (dir, why) = Pool::remove_file(&lab.pool_dir()).unwrap().unwrap();
    assert_eq!(dir, lab.pool_dir().canonicalize().unwrap());
    assert!(why.contains("notes"), "{why}");
    assert_eq!(fs::read_dir(lab.pool_dir()).unwrap().count(), 1);
}
