//! Clones the child that becomes the program of a spec.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use bay_sys::spawn::{self, Command, Failure, Spawned, Stage};
use bay_types::exec::{ExecSpec, TtySize};
use bay_types::guest::WORKSPACE;
use bay_types::{ApiError, ErrorCode};
use rustix::fs::Mode;
use rustix::pipe::PipeFlags;
use rustix::pty::OpenptFlags;
use tokio::net::unix::pipe::Sender;
use tokio::sync::Mutex;

use super::ExecContext;
use super::exec::{Input, winsize};
use super::exec_task::Source;
use super::process_tree::CgroupLeaf;
use crate::http::invalid;
use crate::users::{self, User};
use crate::{etc_environment, trust};

const DEFAULT_TERM: &str = "xterm-256color";
pub(super) const EXEC_ID_VARIABLE: &str = "BAY_EXEC_ID";
/// Size of the pipe for standard output. It is larger than the default, so that much output needs fewer reads.
const OUTPUT_PIPE: usize = 256 << 10;
/// Directories of `PATH` that are searched.
const MAX_PATH_ENTRIES: usize = 256;

/// A bay without network cannot install packages, so this advice names what always works.
const NOT_FOUND_NEXT: &str =
    "check the name; or put it into the workspace; or have it put into the bay's image";

/// A cloned child and the guest's ends of its input and output.
pub(super) struct Cloned {
    pub(super) spawned: Spawned,
    pub(super) leaf: Option<Arc<CgroupLeaf>>,
    pub(super) input: Input,
    pub(super) sources: Vec<Source>,
    pub(super) directory: String,
}

/// Clones the child of a spec. The child has not become its program yet: `spawned.report` tells whether it did.
pub(super) fn clone(context: &ExecContext, spec: &ExecSpec) -> Result<Cloned, ApiError> {
    let user = users::find(context.root.as_fd(), spec.user.as_deref()).map_err(|e| {
        ApiError::new(
            ErrorCode::ExecStart,
            e.to_string(),
            "use a name from the bay's /etc/passwd or a numeric id",
        )
    })?;
    let environment = environment(context, spec, &user);
    let path = environment.iter().rev().find(|(k, _)| k == "PATH").map_or("", |(_, v)| v.as_str());
    let directory = match &spec.cwd {
        Some(directory) => directory.clone(),
        None if Path::new(WORKSPACE).is_dir() => WORKSPACE.to_owned(),
        None => "/".to_owned(),
    };
    let programs = candidates(&spec.argv[0], path);
    let ends = Ends::make(context, spec, &user).map_err(|e| {
        failed(format!(
            "the {} for the command could not be made: {e}",
            if spec.tty.is_some() { "terminal" } else { "pipes" }
        ))
    })?;
    let leaf = context.cgroup.as_ref().and_then(|parent| match CgroupLeaf::create(parent, spec.id) {
        Ok(leaf) => Some(Arc::new(leaf)),
        Err(error) => {
            context.log.line("leaf.refused", format_args!("exec={} error={error}", spec.id));
            None
        }
    });
    if let Some(leaf) = leaf.as_ref().filter(|_| context.services) {
        leaf.mark_service(spec);
    }
    let argv = strings(spec.argv.iter().cloned())?;
    let env = strings(environment.iter().map(|(k, v)| format!("{k}={v}")))?;
    let programs = strings(programs.into_iter())?;
    let cwd = CString::new(directory.as_str()).map_err(|_| invalid("the directory contains a NUL"))?;
    // Only root can change the user. A guest that is not root (in tests) runs everything as its own user.
    let identity = rustix::process::geteuid().is_root().then_some(&user.identity);
    let group = leaf.as_ref().and_then(|leaf| leaf.dir());
    let command = Command {
        programs: &programs,
        argv: &argv,
        env: &env,
        directory: &cwd,
        stdio: ends.child.each_ref().map(AsFd::as_fd),
        terminal: spec.tty.is_some(),
        identity,
        cgroup: group.as_deref().map(AsFd::as_fd),
        open_files: context.open_files,
        filter: context.flushes.filter(),
    };
    let spawned = spawn::spawn(&command).map_err(|e| {
        if let Some(leaf) = &leaf {
            leaf.remove();
        }
        failed(format!("no process could be started: {}", bay_types::error::chain(&e)))
    })?;
    Ok(Cloned { spawned, leaf, input: ends.input, sources: ends.sources, directory })
}

fn failed(message: String) -> ApiError {
    ApiError::new(
        ErrorCode::ExecStart,
        message,
        "the bay may have reached its limit of processes, memory or open files",
    )
}

/// The error for the caller when the child failed to become its program.
pub(super) fn explain(failure: Failure, spec: &ExecSpec, directory: &str) -> ApiError {
    let reason = io::Error::from_raw_os_error(failure.errno);
    let errno = rustix::io::Errno::from_raw_os_error(failure.errno);
    let program = &spec.argv[0];
    if (failure.stage, errno) == (Stage::Exec, rustix::io::Errno::NOENT) {
        return ApiError::new(
            ErrorCode::CommandNotFound,
            format!("{program:?}: command not found in the bay"),
            NOT_FOUND_NEXT,
        );
    }
    let (message, next) = match (failure.stage, errno) {
        (Stage::Exec, rustix::io::Errno::ACCESS) => (
            format!("{program:?} may not be executed by this user: it is not executable, or a directory"),
            "`chmod +x` it, or run it through its interpreter",
        ),
        (Stage::Exec, rustix::io::Errno::TOOBIG) => (
            format!("{program:?}: the arguments and environment are too long for the kernel"),
            "put long input into a file or send it to standard input",
        ),
        (Stage::Exec, _) => (
            format!("{program:?} could not be executed: {reason}"),
            "check the file in the bay: its format, its interpreter and its permissions",
        ),
        (Stage::Interpreter, _) => (
            format!("{program:?} exists, but the interpreter or loader it names does not"),
            "check its first line, or that it was built for this system",
        ),
        (Stage::Directory, _) => (
            format!("the working directory {directory:?} cannot be entered: {reason}"),
            "create it, or choose another with --cwd",
        ),
        (Stage::Filter, _) => (
            format!("the filter that lets flushes return at once could not be set: {reason}"),
            "have the bay set to `--durability strict`",
        ),
        (Stage::Groups | Stage::Gid | Stage::Uid, _) => (
            format!("the command cannot run as {:?}: {reason}", spec.user.as_deref().unwrap_or("root")),
            "the ids of a bay go from 0 to 65535",
        ),
        (stage, _) => (
            format!("the command could not be started ({stage:?}): {reason}"),
            "stopping and starting the bay gives it a new guest",
        ),
    };
    ApiError::new(ErrorCode::ExecStart, message, next)
}

fn strings(texts: impl Iterator<Item = String>) -> Result<Vec<CString>, ApiError> {
    texts.map(|t| CString::new(t).map_err(|_| invalid("an argument contains a NUL"))).collect()
}

/// The environment of a command. Each of these replaces variables of the same name: what clients trust, the sentinels of
/// secrets, `/etc/environment`, the spec.
fn environment(context: &ExecContext, spec: &ExecSpec, user: &User) -> Vec<(String, String)> {
    let (bay_id, hostname) = context.identity.current();
    let mut all: Vec<(String, String)> = [
        ("PATH", etc_environment::DEFAULT_PATH),
        ("HOME", &user.home),
        ("USER", &user.name),
        ("LOGNAME", &user.name),
        ("SHELL", &user.shell),
        ("LANG", "C.UTF-8"),
        ("BAY_ID", &bay_id),
        ("BAY_NAME", &hostname),
    ]
    .map(|(k, v)| (k.to_owned(), v.replace('\0', "")))
    .into();
    let trusted = trust::variables(context.root.as_fd());
    for (key, value) in trusted.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())) {
        replace(&mut all, key, value);
    }
    for (key, value) in context.sentinels.variables() {
        replace(&mut all, key, value);
    }
    etc_environment::apply(&mut all, context.root.as_fd());
    all.push((EXEC_ID_VARIABLE.to_owned(), spec.id.to_string()));
    if spec.tty.is_some() {
        all.push(("TERM".to_owned(), DEFAULT_TERM.to_owned()));
    }
    for (key, value) in &spec.env {
        replace(&mut all, key.clone(), value.clone());
    }
    all
}

/// Sets a variable once: programs read the first of two.
fn replace(all: &mut Vec<(String, String)>, key: String, value: String) {
    match all.iter_mut().find(|(known, _)| *known == key) {
        Some(slot) => slot.1 = value,
        None => all.push((key, value)),
    }
}

/// The paths at which a program may be: the program itself if it is a path, otherwise one in each directory of `PATH`.
fn candidates(program: &str, path: &str) -> Vec<String> {
    if program.contains('/') {
        return vec![program.to_owned()];
    }
    path.split(':')
        .take(MAX_PATH_ENTRIES)
        .map(|dir| if dir.is_empty() { program.to_owned() } else { format!("{dir}/{program}") })
        .collect()
}

/// Both ends of the pipes or the terminal between the guest and a command.
struct Ends {
    child: [OwnedFd; 3],
    input: Input,
    sources: Vec<Source>,
}

impl Ends {
    fn make(context: &ExecContext, spec: &ExecSpec, user: &User) -> io::Result<Self> {
        match spec.tty {
            Some(size) => Self::terminal(context, size, user),
            None => Self::pipes(context, spec.stdin),
        }
    }

    fn terminal(context: &ExecContext, size: TtySize, user: &User) -> io::Result<Self> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = rustix::pty::openpt(flags)?;
        rustix::pty::unlockpt(&master)?;
        // Not opened by name: root in the bay controls /dev.
        let slave = rustix::pty::ioctl_tiocgptpeer(&master, flags)?;
        rustix::termios::tcsetwinsize(&slave, winsize(size))?;
        let group = users::tty_group(context.root.as_fd()).unwrap_or(user.identity.gid);
        // The user can then open the terminal again by name. Most programs never do, so an error is ignored.
        let _ = rustix::fs::fchown(
            &slave,
            Some(rustix::fs::Uid::from_raw(user.identity.uid)),
            Some(rustix::fs::Gid::from_raw(group)),
        );
        let _ = rustix::fs::fchmod(&slave, Mode::from_raw_mode(0o620));
        rustix::io::ioctl_fionbio(&master, true)?;
        let writer = Sender::from_owned_fd_unchecked(master.try_clone()?)?;
        Ok(Self {
            child: [slave.try_clone()?, slave.try_clone()?, slave],
            input: Input::Terminal { master: writer, typed: Mutex::default() },
            sources: vec![Source::terminal(master)?],
        })
    }

    fn pipes(context: &ExecContext, with_input: bool) -> io::Result<Self> {
        let (out, child_out) = output_pipe(OUTPUT_PIPE)?;
        let (err, child_err) = output_pipe(0)?;
        let (child_in, input) = if with_input {
            let (child_in, ours) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
            (child_in, Input::Pipe(Mutex::new(Some(Sender::from_owned_fd(ours)?))))
        } else {
            (context.null.try_clone()?, Input::None)
        };
        Ok(Self {
            child: [child_in, child_out, child_err],
            input,
            sources: vec![Source::pipe(out, false)?, Source::pipe(err, true)?],
        })
    }
}

fn output_pipe(size: usize) -> io::Result<(OwnedFd, OwnedFd)> {
    let (ours, childs) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    if size > 0 {
        // The kernel refuses this if the user has many large pipes. The default size works too, only slower.
        let _ = rustix::pipe::fcntl_setpipe_size(&ours, size);
    }
    Ok((ours, childs))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_searched_in_the_directories_of_path() {
        assert_eq!(candidates("ls", "/a:/b"), ["/a/ls", "/b/ls"]);
        assert_eq!(candidates("./ls", "/a:/b"), ["./ls"]);
        assert_eq!(candidates("ls", ":/b"), ["ls", "/b/ls"]);
        assert_eq!(candidates("ls", &"/x:".repeat(10_000)).len(), MAX_PATH_ENTRIES);
    }
}
