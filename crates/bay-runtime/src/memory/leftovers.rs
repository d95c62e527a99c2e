//! Removes what a killed CRIU left in processes. CRIU overwrites a few bytes of a process's code so that the process
//! maps more of CRIU's code, which does the work. If CRIU is killed, that code returns to where the process was, but
//! stays mapped, and later CRIUs fail because of it; or the overwritten bytes stay. This module undoes both.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{Timespec, poll};
use rustix::fs::{CWD, Mode, OFlags, openat};

/// The name of CRIU's code in the list of mappings. A process that gives one of its own mappings this name loses it.
const NAME: &str = "/memfd:CRIUMFD";
const VDSO: &str = "[vdso]";
/// How long CRIU's code may take to return.
const DEADLINE: Duration = Duration::from_secs(2);
/// The time that each process has at least, even if others have used up the rest.
const LEAST: Duration = Duration::from_millis(2);
/// A system call and breakpoints: what CRIU writes over the beginning of the first mapped code.
const OVERWRITTEN: [u8; 8] = [0x0f, 0x05, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc];
const ROUND: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// Cleans up the given processes. A process that does not stop in time is left alone, and the next capture reports it.
/// A process that is not in the given group is skipped: it has the reused pid of one that was.
pub(super) fn undo(processes: &[i32], group: &Path) {
    let until = Instant::now() + DEADLINE;
    for process in processes.iter().filter_map(|&pid| Process::of(pid, group)) {
        if let Err(error) = process.undo(until) {
            eprintln!("what CRIU left in process {} stays there: {error}", process.pid);
        }
    }
}

/// A process, held so that it cannot be confused with a later one with the same pid.
struct Process {
    pid: i32,
    /// Its directory below `/proc`, which is empty when the process has ended.
    dir: OwnedFd,
}

impl Process {
    fn of(pid: i32, group: &Path) -> Option<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let process = Self { pid, dir: openat(CWD, format!("/proc/{pid}"), flags, Mode::empty()).ok()? };
        let groups = process.read("cgroup").ok()?;
        let own = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
        Path::new(own).starts_with(group).then_some(process)
    }

    fn undo(&self, until: Instant) -> io::Result<()> {
        loop {
            let maps = self.read("maps").unwrap_or_default();
            if let Err(error) = self.restore_code(&maps) {
                eprintln!("what CRIU wrote over the code of process {} stays there: {error}", self.pid);
            }
            let left = ranges(&maps, NAME);
            if left.is_empty() {
                return Ok(());
            }
            let is_it = || self.read("stat").is_ok();
            let stops = until.max(Instant::now() + LEAST);
            match bay_sys::remote_calls::unmap(self.pid, is_it, stops, &left, ranges(&maps, VDSO).pop()) {
                Err(error) if error.kind() != io::ErrorKind::TimedOut && Instant::now() < until => {
                    let _ = poll(&mut [], Some(&ROUND));
                }
                done => return done,
            }
        }
    }

    /// Restores the overwritten bytes from the file that is mapped.
    fn restore_code(&self, maps: &str) -> io::Result<()> {
        let Some(code) = maps.lines().find_map(Code::of) else { return Ok(()) };
        let memory = self.open("mem", OFlags::RDWR)?;
        let mut bytes = OVERWRITTEN;
        memory.read_exact_at(&mut bytes, code.start)?;
        if bytes != OVERWRITTEN {
            return Ok(());
        }
        let mapped = self.open(&format!("map_files/{}", code.range), OFlags::RDONLY)?;
        mapped.read_exact_at(&mut bytes, code.offset)?;
        memory.write_all_at(&bytes, code.start)
    }

    fn read(&self, name: &str) -> io::Result<String> {
        io::read_to_string(self.open(name, OFlags::RDONLY)?)
    }

    fn open(&self, name: &str, flags: OFlags) -> io::Result<File> {
        Ok(openat(&self.dir, name, flags | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?.into())
    }
}

/// Code that is mapped from a file.
struct Code<'a> {
    range: &'a str,
    start: u64,
    offset: u64,
}

impl<'a> Code<'a> {
    /// Parses a line of the list of mappings.
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

/// The addresses of the mappings with this name.
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
    use bay_tests::suite::{self, Lack};
    use std::fs;
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    use super::*;

    /// Has a mapping with the name, and a child that waits for ever in a call that stopping does not interrupt.
    const NEVER_STOPS: &str = r#"
import ctypes, mmap, os, sys
libc = ctypes.CDLL(None)
named = os.memfd_create("CRIUMFD", 0)
os.ftruncate(named, 4096)
kept = mmap.mmap(named, 4096)
print("ready", flush=True)
CLONE, CLONE_VFORK, SIGCHLD = 56, 0x4000, 17
libc.syscall(CLONE, CLONE_VFORK | SIGCHLD, 0, 0, 0, 0)
sys.stdin.read()
"#;

    #[test]
    fn a_process_that_never_stops_delays_nobody_and_another_group_is_left_alone() {
        let Ok(mut hostile) = Command::new("python3")
            .args(["-c", NEVER_STOPS])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
        else {
            return suite::skip(Lack::Installable, "there is no python3");
        };
        let pid = i32::try_from(hostile.id()).unwrap();
        let mut said = String::new();
        BufReader::new(hostile.stdout.as_mut().unwrap()).read_line(&mut said).unwrap();
        let status = || fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        while !status().contains("State:\tD") {
            std::thread::yield_now();
        }
        let named = || fs::read_to_string(format!("/proc/{pid}/maps")).unwrap().contains(NAME);
        let begun = Instant::now();
        undo(&[pid], Path::new("no/such/group"));
        assert!(Process::of(pid, Path::new("no/such/group")).is_none());
        undo(&[pid; 20], Path::new(""));
        assert!(begun.elapsed() < DEADLINE * 3, "{:?}", begun.elapsed());
        assert!(named(), "it was not stopped: {}", status());
        let process = Process::of(pid, Path::new("")).unwrap();
        hostile.kill().unwrap();
        // The child gets the end of its input.
        drop(hostile.stdin.take());
        hostile.wait().unwrap();
        assert!(process.read("stat").is_err(), "whoever has the number now is another");
    }

    #[test]
    fn only_mappings_with_the_name_are_found() {
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
    fn code_is_distinguished_from_other_mappings() {
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
