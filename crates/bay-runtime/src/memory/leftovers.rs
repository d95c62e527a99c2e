//! CRIU works from within: it overwrites a few bytes of a process's code to have it map more code of CRIU's, which does
//! the work. When CRIU is killed that code finds its way back to where the process was, but stays mapped, and no later
//! CRIU gets by it; or the few bytes stay as they are. This undoes both.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use rustix::event::{Timespec, poll};

/// How CRIU's code is called in the list of what is mapped. A process that gives something of its own this name loses it.
const NAME: &str = "/memfd:CRIUMFD";
const VDSO: &str = "[vdso]";
/// How long CRIU's code may take to find its way back.
const DEADLINE: Duration = Duration::from_secs(2);
/// A system call and breakpoints: what CRIU writes over the beginning of the first code that is mapped.
const OVERWRITTEN: [u8; 8] = [0x0f, 0x05, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc];
const ROUND: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// A process that does not let go of it in time is left alone: the next capture says what it is.
pub(super) fn undo(processes: &[i32]) {
    let until = Instant::now() + DEADLINE;
    for &pid in processes {
        loop {
            let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
            if let Err(error) = restore_code(pid, &maps) {
                eprintln!("what CRIU wrote over the code of process {pid} stays there: {error}");
            }
            let left = ranges(&maps, NAME);
            if left.is_empty() {
                break;
            }
            match bay_sys::borrowed::unmap(pid, &left, ranges(&maps, VDSO).pop()) {
                Ok(()) => break,
                Err(_) if Instant::now() < until => {
                    let _ = poll(&mut [], Some(&ROUND));
                }
                Err(error) => {
                    eprintln!("what CRIU left in process {pid} stays there: {error}");
                    break;
                }
            }
        }
    }
}

/// Puts back what was overwritten, from the file it is mapped from.
fn restore_code(pid: i32, maps: &str) -> io::Result<()> {
    let Some(code) = maps.lines().find_map(Code::of) else { return Ok(()) };
    let memory = File::options().read(true).write(true).open(format!("/proc/{pid}/mem"))?;
    let mut bytes = OVERWRITTEN;
    memory.read_exact_at(&mut bytes, code.start)?;
    if bytes != OVERWRITTEN {
        return Ok(());
    }
    File::open(format!("/proc/{pid}/map_files/{}", code.range))?.read_exact_at(&mut bytes, code.offset)?;
    memory.write_all_at(&bytes, code.start)
}

/// Code that is mapped from a file.
struct Code<'a> {
    range: &'a str,
    start: u64,
    offset: u64,
}

impl<'a> Code<'a> {
    /// A line of the list of what is mapped.
    fn of(line: &'a str) -> Option<Self> {
        let mut parts = line.split_ascii_whitespace();
        let range = parts.next()?;
        let kept = parts.next()? == "r-xp";
        let offset = parts.next()?;
        let from_file = parts.nth(2)?.starts_with('/');
        if !kept || !from_file {
            return None;
        }
        let number = |text| u64::from_str_radix(text, 16).ok();
        Some(Self { range, start: number(range.split_once('-')?.0)?, offset: number(offset)? })
    }
}

/// Where something of this name is mapped.
fn ranges(maps: &str, name: &str) -> Vec<Range<u64>> {
    maps.lines()
        .filter(|line| line.split_ascii_whitespace().nth(5) == Some(name))
        .filter_map(|line| {
            let (from, to) = line.split_once(' ')?.0.split_once('-')?;
            Some(u64::from_str_radix(from, 16).ok()?..u64::from_str_radix(to, 16).ok()?)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_has_the_name_is_found() {
        let maps = "\
7f3712047000-7f371204c000 r-xs 00000000 00:01 9117                       /memfd:CRIUMFD (deleted)
7f371204c000-7f37120ff000 rw-s 00005000 00:01 9117                       /memfd:CRIUMFD (deleted)
7f37120ff000-7f3712100000 ---p 00000000 00:00 0
7f3712200000-7f3712c07000 r--p 00000000 00:65 273                        /srv/memfd:CRIUMFD
7f371495c000-7f371495e000 r-xp 00000000 00:00 0                          [vdso]
";
        assert_eq!(
            ranges(maps, NAME),
            [0x7f37_1204_7000..0x7f37_1204_c000, 0x7f37_1204_c000..0x7f37_120f_f000]
        );
        assert_eq!(ranges(maps, VDSO).len(), 1);
    }

    #[test]
    fn code_is_told_from_everything_else() {
        let code = "7f37-7f38 r-xp 00a06000 00:65 273                        /.bay/bin/bay-ctl";
        let found = Code::of(code).unwrap();
        assert_eq!((found.range, found.start, found.offset), ("7f37-7f38", 0x7f37, 0x00a0_6000));
        for other in [
            "7f37-7f38 r--p 00a06000 00:65 273     /.bay/bin/bay-ctl",
            "7f37-7f38 r-xs 00000000 00:01 9117    /memfd:CRIUMFD (deleted)",
            "7f37-7f38 r-xp 00000000 00:00 0       [vdso]",
            "7f37-7f38 r-xp 00000000 00:00 0",
            "",
        ] {
            assert!(Code::of(other).is_none(), "{other}");
        }
    }
}
