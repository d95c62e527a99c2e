//! Reads what the kernel reports about itself.

use std::fs;
use std::path::PathBuf;

/// A small file's text without surrounding blanks.
pub(super) fn read(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// The value of a `Name:\tvalue` line.
pub(super) fn field(text: &str, name: &str) -> Option<String> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(line.trim().to_owned())
}

/// One mounted filesystem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mounted {
    pub(super) kind: String,
    pub(super) point: PathBuf,
    pub(super) options: String,
}

pub(super) fn mounts() -> Vec<Mounted> {
    parse_mounts(&fs::read_to_string("/proc/self/mountinfo").unwrap_or_default())
}

pub(super) fn parse_mounts(table: &str) -> Vec<Mounted> {
    let parse = |line: &str| {
        let (mount, filesystem) = line.split_once(" - ")?;
        let mut words = filesystem.split(' ');
        Some(Mounted {
            kind: words.next()?.to_owned(),
            point: mount.split(' ').nth(4)?.into(),
            options: words.nth(1).unwrap_or_default().to_owned(),
        })
    };
    table.lines().filter_map(parse).collect()
}

/// Major and minor version of the running kernel.
pub(super) fn kernel_version() -> Option<(u32, u32)> {
    parse_version(&read("/proc/sys/kernel/osrelease")?)
}

/// The first two numbers of a text like `6.18.44-x` or `v4.2.1`.
pub(super) fn parse_version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.trim_start_matches('v').split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_parsed_with_any_suffix() {
        assert_eq!(parse_version("6.18.44-fc"), Some((6, 18)));
        assert_eq!(parse_version("5.15-generic"), Some((5, 15)));
        assert_eq!(parse_version("v4.2.1"), Some((4, 2)));
        assert_eq!(parse_version("x"), None);
    }

    #[test]
    fn the_mount_table_gives_kind_point_and_options() {
        let table = "36 35 0:31 / /sys/fs/cgroup/unified rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\nnonsense\n";
        let expected = Mounted {
            kind: "cgroup2".into(),
            point: "/sys/fs/cgroup/unified".into(),
            options: "rw,nsdelegate".into(),
        };
        assert_eq!(parse_mounts(table), [expected]);
    }

    #[test]
    fn fields_are_found_by_their_whole_name() {
        assert_eq!(field("CapEffX:\t1\nCapEff:\t00ff\n", "CapEff").as_deref(), Some("00ff"));
    }
}
