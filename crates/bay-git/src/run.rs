//! Runs git so that neither a repository nor a caller decides what it does.
//!
//! There is no inherited environment, no configuration of the system, user or repository that could name a program, no
//! prompts, no hooks, and no transport but the wanted one. [`Confinement`] surrounds it: on a kernel with Landlock
//! it can change only the directories that the task names, and can read only those, the paths that the task adds,
//! and the system's programs and settings. Its messages may come from a hostile server. They are used to classify
//! failures, and are shown on one line without control characters.

use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use bay_text::foreign;
use bay_types::progress::Progress;
use rustix::io::Errno;

use crate::confinement::{Confinement, SYSTEM_PATH};
use crate::error::{GitError, Result};

/// Called with progress during long operations. It may be called often, so it must be cheap.
pub type Report<'a> = &'a mut dyn FnMut(Progress);

/// If git prints nothing for this long, it counts as stuck and is ended.
const SILENCE: Duration = Duration::from_secs(300);
/// How long git may be silent if the operation prints nothing until it is done.
pub const LONG_SILENCE: Duration = Duration::from_secs(4 * 3600);
/// Interval between the checks whether the operation may continue.
const TICK: Duration = Duration::from_millis(500);
/// Most bytes of its output that are kept.
const MAX_OUTPUT: u64 = 64 * 1024 * 1024;
/// Most bytes of its messages (standard error) that are kept.
const MAX_MESSAGES: usize = 16 * 1024;

/// Settings of every run. The command line has precedence over any file.
const SETTINGS: &[&str] = &[
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.untrackedCache=false",
    "core.sshCommand=ssh -F /dev/null -o BatchMode=yes -o IdentitiesOnly=yes -o IdentityFile=/dev/null -o ConnectTimeout=20 -o ServerAliveInterval=20",
    "core.gitProxy=",
    "credential.helper=",
    "protocol.allow=never",
    "protocol.ext.allow=never",
    "transfer.fsckObjects=true",
    "fetch.fsckObjects=true",
    // Old and harmless defects in the history of well-known repositories.
    "fetch.fsck.zeroPaddedFilemode=ignore",
    "fetch.fsck.missingSpaceBeforeDate=ignore",
    "fetch.fsck.badTimezone=ignore",
    "fetch.fsck.missingSpaceBeforeEmail=ignore",
    "transfer.unpackLimit=1",
    "fetch.unpackLimit=1",
    "fetch.recurseSubmodules=false",
    "submodule.recurse=false",
    "gc.auto=0",
    "core.bigFileThreshold=32m",
    "maintenance.auto=false",
    "http.lowSpeedLimit=100",
    "http.lowSpeedTime=60",
    "advice.detachedHead=false",
    "init.defaultBranch=main",
    "core.checkStat=default",
    "index.threads=true",
];

/// How `index-pack` checks the objects of a pack: strictly, except for the harmless defects above.
pub const STRICT: &str = "--strict=zeroPaddedFilemode=ignore,missingSpaceBeforeDate=ignore,badTimezone=ignore,missingSpaceBeforeEmail=ignore";

/// One run of git.
#[derive(Default)]
#[expect(missing_debug_implementations, reason = "its input is a reader of any kind")]
pub struct Git<'a> {
    pub repository: Option<PathBuf>,
    pub work_tree: Option<PathBuf>,
    pub arguments: Vec<&'a OsStr>,
    /// The only permitted transport, by its name in the settings `protocol.*.allow`.
    pub transport: Option<&'static str>,
    /// Variables in addition to those of every run.
    pub variables: &'a [(String, String)],
    /// Copied to its standard input.
    pub input: Option<Box<dyn Read + Send>>,
    pub read: Vec<PathBuf>,
    pub write: Vec<PathBuf>,
    /// Objects of another repository that count as this one's.
    pub lent: Option<PathBuf>,
    /// A directory without settings.
    pub home: PathBuf,
    pub sha256: bool,
    /// How long it may be silent. Absent: five minutes.
    pub patience: Option<Duration>,
    /// Called repeatedly during the run; `false` ends it.
    pub may_go_on: Option<&'a dyn Fn() -> bool>,
}

/// The output of a run.
#[derive(Debug)]
pub struct Said {
    pub status: ExitStatus,
    pub output: Vec<u8>,
    /// The end of its messages, without progress.
    pub messages: String,
    pub stuck: bool,
    /// It was ended because `may_go_on` returned false.
    pub cut_off: bool,
}

/// Characters of a message that an error quotes.
const MAX_REASON: usize = 300;

fn shown(message: &str) -> String {
    foreign::one_line(message, MAX_REASON)
}

/// Lines that git prints for any failure.
const UNTOLD: &str = "Could not read from remote repository";

impl Said {
    /// The line that best explains the failure.
    #[must_use]
    pub fn why(&self) -> String {
        if self.stuck {
            return "git made no progress for too long".to_owned();
        }
        // The first message is the cause; later ones are consequences.
        let complaints: Vec<&str> = self
            .messages
            .lines()
            .filter_map(|line| line.strip_prefix("error: ").or_else(|| line.strip_prefix("fatal: ")))
            .take(2)
            .collect();
        if complaints.first().is_some_and(|first| first.starts_with(UNTOLD)) {
            // ssh and the server have already printed the reason, in the lines before.
            let before = self.messages.lines().take_while(|line| !line.contains(UNTOLD));
            if let Some(cause) = before.filter(|line| !line.trim().is_empty()).last() {
                return shown(cause);
            }
        }
        if !complaints.is_empty() {
            return shown(&complaints.join("; "));
        }
        let last = self.messages.lines().next_back();
        last.map_or_else(|| format!("git ended with {}", self.status), shown)
    }
}

enum News {
    Output(io::Result<Vec<u8>>),
    Messages(Vec<u8>),
}

impl<'a> Git<'a> {
    #[must_use]
    pub fn new(home: PathBuf, arguments: &[&'a str]) -> Self {
        Self {
            home,
            arguments: arguments.iter().map(|argument| OsStr::new(*argument)).collect(),
            ..Self::default()
        }
    }

    fn command(&self) -> Command {
        let mut command = Command::new("git");
        command
            .env_clear()
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .env("PATH", SYSTEM_PATH)
            .env("LC_ALL", "C")
            .env("HOME", &self.home)
            .env("XDG_CONFIG_HOME", &self.home)
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_CONFIG_SYSTEM", "/dev/null")
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_ATTR_NOSYSTEM", "1")
            .env("GIT_TERMINAL_PROMPT", "0")
            .env("GIT_ASKPASS", "/bin/false")
            .env("SSH_ASKPASS", "/bin/false")
            .env("GIT_NO_REPLACE_OBJECTS", "1")
            .env("GIT_NO_LAZY_FETCH", "1")
            .env("GIT_DEFAULT_REF_FORMAT", "files")
            .env("GIT_DEFAULT_HASH", if self.sha256 { "sha256" } else { "sha1" })
            .env("GIT_ADVICE", "0")
            .env("GIT_PROTOCOL_FROM_USER", "0")
            .current_dir(&self.home)
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        for setting in SETTINGS {
            command.arg("-c").arg(setting);
        }
        if let Some(transport) = self.transport {
            command.arg("-c").arg(format!("protocol.{transport}.allow=always"));
        }
        if let Some(lent) = &self.lent {
            command.env("GIT_ALTERNATE_OBJECT_DIRECTORIES", lent);
        }
        if let Some(repository) = &self.repository {
            command.arg("--git-dir").arg(repository);
        }
        if let Some(work_tree) = &self.work_tree {
            command.arg("--work-tree").arg(work_tree).current_dir(work_tree);
        }
        command.args(&self.arguments);
        command
    }

    /// Runs to the end, successful or not, and reports progress to `news`.
    pub fn run(&mut self, news: Report<'_>) -> Result<Said> {
        let confinement = Confinement {
            read: self.read.iter().chain([&self.home]).cloned().collect(),
            write: self.write.clone(),
        };
        let mut command = self.command();
        let input = std::mem::take(&mut self.input);
        let limits = Limits { patience: self.patience.unwrap_or(SILENCE), may_go_on: self.may_go_on };
        let ran = confinement.run(&mut command, |child| converse(child, input, &limits, news));
        match ran {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(GitError::Missing),
            other => other.and_then(|said| said).map_err(|error| GitError::system("run git", error)),
        }
    }

    /// Runs git and returns the output, or an error with git's messages.
    pub fn output(&mut self, location: &str) -> Result<Vec<u8>> {
        let said = self.run(&mut |_| {})?;
        if said.status.success() {
            return Ok(said.output);
        }
        Err(failed(location, &said))
    }
}

/// The error of a run. A full disk and a read-only one are errors of the system. A run that the caller ended counts
/// as a full disk: that is why the pool ends one.
#[must_use]
pub fn failed(location: &str, said: &Said) -> GitError {
    let refused = |errno: Errno| GitError::system(format!("work on the repository {location}"), errno);
    if said.cut_off
        || said.messages.contains("No space left on device")
        || said.messages.contains("Disk quota exceeded")
    {
        return refused(Errno::NOSPC);
    }
    if said.messages.contains("Read-only file system") {
        return refused(Errno::ROFS);
    }
    GitError::Failed { location: location.to_owned(), why: said.why() }
}

struct Limits<'a> {
    patience: Duration,
    may_go_on: Option<&'a dyn Fn() -> bool>,
}

fn converse(
    child: &mut Child,
    input: Option<Box<dyn Read + Send>>,
    limits: &Limits<'_>,
    news: Report<'_>,
) -> io::Result<Said> {
    let missing = || io::Error::from(io::ErrorKind::BrokenPipe);
    let mut stdin = child.stdin.take().ok_or_else(missing)?;
    let stdout = child.stdout.take().ok_or_else(missing)?;
    let mut stderr = child.stderr.take().ok_or_else(missing)?;
    let (sender, receiver) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if let Some(mut input) = input {
                // If git stops reading its input, its messages say why.
                let _ = io::copy(&mut input, &mut stdin);
            }
        });
        let output = sender.clone();
        scope.spawn(move || {
            let mut bytes = Vec::new();
            let read = stdout.take(MAX_OUTPUT).read_to_end(&mut bytes);
            let _ = output.send(News::Output(read.map(|_| bytes)));
        });
        scope.spawn(move || {
            let mut buffer = [0_u8; 8192];
            while let Ok(count @ 1..) = stderr.read(&mut buffer) {
                if sender.send(News::Messages(buffer[..count].to_vec())).is_err() {
                    return;
                }
            }
        });
        let mut messages = Messages::default();
        let mut output = Ok(Vec::new());
        let (mut stuck, mut cut_off) = (false, false);
        let mut heard = Instant::now();
        let mut asked = Instant::now();
        loop {
            match receiver.recv_timeout(TICK) {
                Ok(said) => {
                    heard = Instant::now();
                    match said {
                        News::Output(read) => output = read,
                        News::Messages(bytes) => messages.take(&bytes, news),
                    }
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
                Err(mpsc::RecvTimeoutError::Timeout) => {}
            }
            stuck = stuck || heard.elapsed() > limits.patience;
            if asked.elapsed() > TICK {
                asked = Instant::now();
                cut_off = cut_off || limits.may_go_on.is_some_and(|may| !may());
            }
            if stuck || cut_off {
                // Git and its children are a process group.
                if let Some(group) = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw) {
                    let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
                }
            }
        }
        let status = child.wait()?;
        Ok(Said { status, output: output?, messages: messages.text(), stuck, cut_off })
    })
}

/// Messages as they arrive: progress is reported, and a bounded part of the rest is kept.
#[derive(Default)]
struct Messages {
    line: Vec<u8>,
    kept: String,
}

impl Messages {
    fn take(&mut self, bytes: &[u8], news: Report<'_>) {
        for &byte in bytes {
            if matches!(byte, b'\n' | b'\r') {
                self.end_line(news);
            } else if self.line.len() < MAX_MESSAGES {
                self.line.push(byte);
            }
        }
    }

    fn end_line(&mut self, news: Report<'_>) {
        let line = String::from_utf8_lossy(&std::mem::take(&mut self.line)).into_owned();
        if let Some(progress) = progress(&line) {
            news(progress);
            return;
        }
        if line.trim().is_empty() {
            return;
        }
        self.kept.push_str(&line);
        self.kept.push('\n');
        if self.kept.len() > MAX_MESSAGES {
            let cut = self.kept.len() - MAX_MESSAGES;
            let at = (cut..self.kept.len()).find(|at| self.kept.is_char_boundary(*at)).unwrap_or(cut);
            self.kept.drain(..at);
        }
    }

    fn text(mut self) -> String {
        self.end_line(&mut |_| {});
        self.kept
    }
}

/// Parses `Receiving objects:  45% (123/273), 1.20 MiB | 2.00 MiB/s` and similar lines.
fn progress(line: &str) -> Option<Progress> {
    const STAGES: &[(&str, &str, &str)] = &[
        ("Receiving objects", "fetching the repository", "objects"),
        ("Indexing objects", "indexing the repository", "objects"),
        ("Resolving deltas", "unpacking the repository", "deltas"),
        ("Checking connectivity", "checking the repository", "objects"),
        ("Updating files", "checking out files", "files"),
    ];
    let line = line.trim_start();
    let (title, rest) = line.strip_prefix("remote: ").unwrap_or(line).split_once(':')?;
    let (_, stage, unit) = STAGES.iter().find(|(name, ..)| *name == title)?;
    let (done, total) = rest.split_once('(')?.1.split_once(')')?.0.split_once('/')?;
    Some(Progress {
        stage: (*stage).to_owned(),
        done: done.parse().ok()?,
        total: Some(total.parse().ok()?),
        unit: (*unit).to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_lines_are_parsed_and_others_kept() {
        let mut seen = Vec::new();
        let mut messages = Messages::default();
        messages.take(
            b"Receiving objects:  45% (123/273), 1.20 MiB | 2.00 MiB/s\rremote: hello\nfatal: no\n",
            &mut |progress| seen.push((progress.done, progress.total)),
        );
        assert_eq!(seen, [(123, Some(273))]);
        assert_eq!(messages.text(), "remote: hello\nfatal: no\n");
    }

    #[test]
    fn the_reason_is_the_most_specific_message() {
        use std::os::unix::process::ExitStatusExt;
        let why = |messages: &str| {
            let status = ExitStatus::from_raw(128 << 8);
            Said { status, output: vec![], messages: messages.to_owned(), stuck: false, cut_off: false }.why()
        };
        let untold = "fatal: Could not read from remote repository.\n\nPlease make sure you have the correct access rights\n";
        let ssh = "ssh: Could not resolve hostname nowhere: Name or service not known";
        assert_eq!(why(&format!("{ssh}\n\n{untold}")), ssh);
        assert_eq!(why(untold), "Could not read from remote repository.");
        assert_eq!(why("noise\nerror: one\nfatal: two\nfatal: three\n"), "one; two");
    }

    #[test]
    fn endless_messages_are_cut() {
        let mut messages = Messages::default();
        for _ in 0..10_000 {
            messages.take("ü and more and more\n".as_bytes(), &mut |_| {});
        }
        messages.take(&[b'x'; 100_000], &mut |_| {});
        assert!(messages.text().len() <= MAX_MESSAGES + 1);
    }
}
