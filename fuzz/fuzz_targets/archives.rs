//! Archives of any content, into a bay and out of one: nothing appears beside the directory they are meant for, nothing
//! that was there is changed through a link, and neither reader panics.
#![no_main]

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use libfuzzer_sys::fuzz_target;

const BLOCK: usize = 512;
/// Longer inputs only take longer.
const MOST: usize = 32 * BLOCK;

/// Gives every header the checksum it should have: otherwise nothing behind the first would ever be read.
fn with_checksums(bytes: &[u8]) -> Vec<u8> {
    let mut archive = bytes.to_vec();
    archive.resize(bytes.len().div_ceil(BLOCK) * BLOCK, 0);
    let mut at = 0;
    while let Some(header) = archive.get_mut(at..at + BLOCK) {
        header[148..156].fill(b' ');
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        if sum > 8 * u32::from(b' ') {
            header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        } else {
            header[148..156].fill(0);
        }
        let size = header[124..136].iter().filter(|byte| (b'0'..=b'7').contains(byte));
        let size = size.fold(0_usize, |size, byte| (size * 8 + usize::from(byte - b'0')).min(MOST));
        at += BLOCK + size.div_ceil(BLOCK) * BLOCK;
    }
    archive
}

fn check(place: &Path) {
    let names: Vec<_> = fs::read_dir(place).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
    assert_eq!(fs::read(place.join("beside")).unwrap(), b"untouched");
}

fuzz_target!(|bytes: &[u8]| {
    if bytes.len() > MOST {
        return;
    }
    let archive = with_checksums(bytes);
    for into_a_bay in [true, false] {
        let place = tempfile::tempdir_in("/dev/shm").unwrap();
        fs::create_dir(place.path().join("in")).unwrap();
        fs::write(place.path().join("beside"), "untouched").unwrap();
        std::os::unix::fs::symlink("../beside", place.path().join("in/link")).unwrap();
        std::os::unix::fs::symlink("..", place.path().join("in/up")).unwrap();
        if into_a_bay {
            let root = OwnedFd::from(fs::File::open(place.path()).unwrap());
            bay_guest::fuzz::extract(root.as_fd(), "/in", &archive);
        } else {
            let root = OwnedFd::from(fs::File::open(place.path().join("in")).unwrap());
            bay_cli::fuzz::unpack(&archive, &root);
        }
        check(place.path());
    }
});
