//! Which process has a socket open.
//!
//! A process's arguments are read from its own memory, which it may have mapped from a file whose reading never ends.
//! So a thread of its own reads them, and callers wait only briefly for it.

use std::ffi::CStr;
use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use bay_types::egress::{MAX_ARGV_BYTES, MAX_EXE_BYTES, Process};
use rustix::fs::{CWD, Dir, Mode, OFlags, openat, readlinkat};

/// Processes and open files that are examined for one socket.
const MAX_PROCESSES: usize = 256;
const MAX_DESCRIPTORS: usize = 4096;
/// Groups below an exec's own that are searched.
const MAX_GROUPS: usize = 64;
/// Longest list of processes that is read.
const MAX_LIST_BYTES: u64 = 64 << 10;
/// Longest status of a process that is read.
const MAX_STATUS_BYTES: u64 = 8 << 10;
/// How long a caller waits for an answer.
const ANSWER_WITHIN: Duration = Duration::from_millis(50);
/// How many callers may wait.
const WAITING: usize = 64;

struct Question {
    /// The group whose processes may have the socket, with those below.
    group: PathBuf,
    inode: u64,
    answer: SyncSender<Option<Process>>,
}

/// The thread that searches for processes. It starts with the first request and ends when this is dropped.
#[derive(Debug, Default)]
pub(super) struct Processes {
    questions: OnceLock<Option<SyncSender<Question>>>,
}

impl Processes {
    /// Best effort: None if the process is not found, or not in time.
    pub(super) fn find(&self, group: PathBuf, inode: u64) -> Option<Process> {
        let questions = self.questions.get_or_init(|| {
            let (questions, asked) = sync_channel(WAITING);
            let thread = std::thread::Builder::new().name("bay-processes".to_owned());
            thread.spawn(move || answer(&asked)).ok().map(|_| questions)
        });
        let (answer, answered) = sync_channel(1);
        questions.as_ref()?.try_send(Question { group, inode, answer }).ok()?;
        answered.recv_timeout(ANSWER_WITHIN).ok().flatten()
    }
}

fn answer(asked: &Receiver<Question>) {
    while let Ok(question) = asked.recv() {
        // The caller may have given up.
        let _ = question.answer.try_send(search(&question.group, question.inode));
    }
}

fn search(group: &Path, inode: u64) -> Option<Process> {
    let socket = format!("socket:[{inode}]");
    let mut groups = vec![group.to_owned()];
    let (mut at, mut processes, mut descriptors) = (0, 0, 0);
    while let Some(group) = groups.get(at).cloned() {
        at += 1;
        for pid in members(&group) {
            processes += 1;
            if processes > MAX_PROCESSES || descriptors > MAX_DESCRIPTORS {
                return None;
            }
            // One descriptor for everything: a pid that is reused must not lead to another process.
            let path = format!("/proc/{pid}");
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let Ok(process) = openat(CWD, path, flags, Mode::empty()) else { continue };
            if has_open(process.as_fd(), socket.as_bytes(), &mut descriptors) {
                return describe(process.as_fd(), pid);
            }
        }
        let below = fs::read_dir(&group).into_iter().flatten().flatten();
        let below = below.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        groups.extend(below.map(|entry| entry.path()).take(MAX_GROUPS.saturating_sub(groups.len())));
    }
    None
}

fn members(group: &Path) -> Vec<i32> {
    let mut list = String::new();
    let read = fs::File::open(group.join("cgroup.procs"))
        .and_then(|file| file.take(MAX_LIST_BYTES).read_to_string(&mut list));
    // The process has ended, or a group has threaded processes.
    if read.is_err() {
        return Vec::new();
    }
    list.lines().filter_map(|line| line.parse().ok()).filter(|pid| *pid > 0).collect()
}

fn has_open(process: BorrowedFd<'_>, socket: &[u8], descriptors: &mut usize) -> bool {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(dir) = openat(process, "fd", flags, Mode::empty()) else { return false };
    let Ok(entries) = Dir::read_from(&dir) else { return false };
    let mut buffer = Vec::new();
    for entry in entries.flatten() {
        *descriptors += 1;
        if *descriptors > MAX_DESCRIPTORS {
            return false;
        }
        match link(&dir, entry.file_name(), std::mem::take(&mut buffer)) {
            Some(target) if target == socket => return true,
            target => buffer = target.unwrap_or_default(),
        }
    }
    false
}

fn link(dir: &OwnedFd, name: &CStr, buffer: Vec<u8>) -> Option<Vec<u8>> {
    readlinkat(dir, name, buffer).ok().map(|target| target.into_bytes())
}

fn describe(process: BorrowedFd<'_>, host_pid: i32) -> Option<Process> {
    let status = read(process, "status", MAX_STATUS_BYTES).ok()?;
    let status = String::from_utf8_lossy(&status);
    // Its pid here, in the bay, and in namespaces that the bay has made.
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    let pid = numbers.split_ascii_whitespace().nth(1)?.parse().ok()?;
    let exe = readlinkat(process, "exe", Vec::new()).map(|path| path.into_bytes()).unwrap_or_default();
    let exe = &exe[..exe.len().min(MAX_EXE_BYTES)];
    let argv = read(process, "cmdline", MAX_ARGV_BYTES as u64).unwrap_or_default();
    Some(Process { pid, host_pid, exe: String::from_utf8_lossy(exe).into_owned(), argv: arguments(&argv) })
}

fn read(process: BorrowedFd<'_>, name: &str, most: u64) -> io::Result<Vec<u8>> {
    let file = openat(process, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut bytes = Vec::new();
    fs::File::from(file).take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn arguments(argv: &[u8]) -> Vec<String> {
    let argv = argv.strip_suffix(&[0]).unwrap_or(argv);
    if argv.is_empty() {
        return Vec::new();
    }
    argv.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_reported_as_they_were_given() {
        assert_eq!(arguments(b"curl\0-s\0\0https://x\0"), ["curl", "-s", "", "https://x"]);
        assert_eq!(arguments(b""), Vec::<String>::new());
        assert_eq!(arguments(b"caf\xe9"), ["caf\u{fffd}"]);
    }
}
