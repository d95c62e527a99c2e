//! The disks below the pool, for limits on reading and writing.

use std::fs;
use std::path::Path;

use crate::error::{Doing, Result};
use crate::pool::Pool;

/// The kernel's list of the disks of each btrfs.
const FILESYSTEMS: &str = "/sys/fs/btrfs";

impl Pool {
    /// The disks of the pool's filesystem, each as `major:minor`; empty if they cannot be determined. They are
    /// whole disks, because the kernel cannot limit partitions.
    pub fn devices(&self) -> Result<Vec<String>> {
        let table = fs::read_to_string("/proc/self/mountinfo").doing(|| "read the mount table".to_owned())?;
        let Some(source) = source_of(&table, self.base()) else { return Ok(Vec::new()) };
        let name = Path::new(&source).canonicalize().ok().and_then(|path| Some(path.file_name()?.to_owned()));
        let Some(name) = name else { return Ok(Vec::new()) };
        let filesystems = fs::read_dir(FILESYSTEMS).doing(|| format!("list {FILESYSTEMS}"))?;
        for filesystem in filesystems.flatten() {
            let devices = filesystem.path().join("devices");
            if devices.join(&name).exists() {
                let all = fs::read_dir(&devices).doing(|| format!("list {}", devices.display()))?;
                return Ok(all.flatten().filter_map(|device| whole_disk(&device.path())).collect());
            }
        }
        Ok(Vec::new())
    }
}

/// The source of the nearest btrfs mount above `path`; of several, the last listed.
fn source_of(table: &str, path: &Path) -> Option<String> {
    let mut best: Option<(usize, String)> = None;
    for line in table.lines() {
        let Some((mount, filesystem)) = line.split_once(" - ") else { continue };
        let Some(point) = mount.split(' ').nth(4).map(unescape) else { continue };
        let mut words = filesystem.split(' ');
        let (Some("btrfs"), Some(source)) = (words.next(), words.next()) else { continue };
        if path.starts_with(&point) && best.as_ref().is_none_or(|(length, _)| point.len() >= *length) {
            best = Some((point.len(), unescape(source)));
        }
    }
    best.map(|(_, source)| source)
}

/// Decodes special characters, which are written as three octal digits.
pub(crate) fn unescape(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let digits = after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(code) if byte == b'\\' => {
                out.push(code);
                rest = &after[3..];
            }
            _ => {
                out.push(byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// `major:minor` of a block device in sysfs, or of the disk that it is a partition of.
fn whole_disk(device: &Path) -> Option<String> {
    let device = device.canonicalize().ok()?;
    let disk = if device.join("partition").exists() { device.parent()? } else { &device };
    let number = fs::read_to_string(disk.join("dev")).ok()?;
    Some(number.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_mount_above_the_pool_counts() {
        let table = "\
1 0 0:1 / / rw - btrfs /dev/sda2 rw
2 1 0:2 / /pool rw - btrfs /dev/loop7 rw
3 1 0:3 / /pool/with\\040space/mnt rw shared:1 - btrfs /dev/loop8 rw
4 1 0:4 / /pool/other rw - ext4 /dev/sdb rw";
        let source = |path: &str| source_of(table, Path::new(path));
        assert_eq!(source("/pool/mnt").as_deref(), Some("/dev/loop7"));
        assert_eq!(source("/pool/with space/mnt").as_deref(), Some("/dev/loop8"));
        assert_eq!(source("/poolish").as_deref(), Some("/dev/sda2"));
        assert_eq!(source_of("odd\n", Path::new("/")), None);
    }
}
