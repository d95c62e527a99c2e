//! A new repository for the work that leaves a bay.
//!
//! ```text
//!  bay ── a pack and a commit's id ──► incoming ── take_in ──► taken ── bundle ──► a file anybody may have
//!                                         │ a broken object, a missing one, a name such as `.git` or `..`
//!                                         ▼
//!                                       refused; the caller deletes the directory
//! ```
//!
//! A bay sends only a pack of objects and a commit's id: no refs, no settings, no hooks. Git's own strict checks
//! read every object of it, independent of git's version (older ones do not check what they fetch from a bundle). What
//! leaves is written from here.
//!
//! If another repository of the caller lends its objects, a pack may omit what the commit that the bay began from
//! already has. A hostile pack could then name objects of that repository that were never in the bay, and export them.
//! So every object between that commit and the work must be in the pack. A pack must also be complete (no deltas
//! against other objects).

mod changes;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io::Cursor;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{GitError, Result};
use crate::names::is_object_id;
use crate::run::{Git, LONG_SILENCE, Report, STRICT, Said, failed};
pub use changes::{Changed, Entry, LaidOut};

/// The name of the repository in messages.
const NAME: &str = "of what leaves the bay";

/// Objects that another repository of the caller lends, and a commit that it has with all of its history.
#[derive(Debug, Clone)]
pub struct Lender {
    pub objects: PathBuf,
    pub commit: String,
}

impl Lender {
    /// Whether git accepts the path: the list of such paths is a text with separators.
    #[must_use]
    pub fn can_be_named(&self) -> bool {
        let path = self.objects.as_os_str().as_bytes();
        path.starts_with(b"/") && !path.iter().any(|b| matches!(b, b':' | b'"' | b'\\' | b'\n'))
    }
}

/// The imported work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    Work,
    /// The commit existed already.
    Nothing,
}

/// A bare repository in a directory of its own.
#[derive(Debug)]
pub struct CleanRepo {
    place: PathBuf,
    lender: Option<Lender>,
    go_on: Arc<AtomicBool>,
}

impl CleanRepo {
    /// Makes one in an empty directory. If `go_on` becomes false, any running git is ended.
    pub fn create(
        place: &Path,
        sha256: bool,
        lender: Option<Lender>,
        go_on: Arc<AtomicBool>,
    ) -> Result<Self> {
        let this = Self { place: place.to_owned(), lender, go_on };
        make_private_dir(&this.home())?;
        make_private_dir(&this.git_dir())?;
        let mut git = this.git(&["init", "--quiet", "--bare", "--template="]);
        git.sha256 = sha256;
        this.finish(git)?;
        std::fs::create_dir_all(this.packs())
            .map_err(|error| GitError::system("make a clean repository", error))?;
        Ok(this)
    }

    fn home(&self) -> PathBuf {
        self.place.join("home")
    }

    #[must_use]
    pub fn git_dir(&self) -> PathBuf {
        self.place.join("clean.git")
    }

    fn packs(&self) -> PathBuf {
        self.git_dir().join("objects/pack")
    }

    /// The path at which the pack must be before [`Self::take_in`].
    #[must_use]
    pub fn incoming(&self) -> PathBuf {
        self.packs().join("pack-work.pack")
    }

    /// The environment variable with which another git finds the lent objects.
    #[must_use]
    pub fn lent(&self) -> Option<(&'static str, &OsStr)> {
        self.lender.as_ref().map(|lender| ("GIT_ALTERNATE_OBJECT_DIRECTORIES", lender.objects.as_os_str()))
    }

    /// Checks the pack, and that it contains every object of `tip` that did not exist before.
    pub fn take_in(&self, tip: &str, base: Option<&str>, report: Report<'_>) -> Result<Taken> {
        let refuse = |why: &str| Err(GitError::Refused { why: why.to_owned() });
        if !is_object_id(tip) {
            return refuse("the commit's id is not one");
        }
        let pack = self.incoming();
        let said = self.run(
            self.git_os(&[OsStr::new("index-pack"), OsStr::new("-v"), OsStr::new(STRICT), pack.as_os_str()]),
            report,
        )?;
        if !said.status.success() {
            return Err(refused(&said));
        }
        if let Some(base) = base.filter(|base| is_object_id(base))
            && self.run(self.git(&["merge-base", "--is-ancestor", tip, base]), &mut |_| {})?.status.success()
        {
            return Ok(Taken::Nothing);
        }
        let mut kind = self.git(&["cat-file", "-t", tip]);
        kind.lent = None;
        let kind = self.run(kind, &mut |_| {})?;
        if !kind.status.success() || kind.output != b"commit\n" {
            return refuse("the commit that it is about is not in it");
        }
        match &self.lender {
            Some(lender) => self.all_was_sent(tip, &lender.commit)?,
            None => {
                let said = self.run(self.git(&["rev-list", "--objects", "--quiet", tip]), &mut |_| {})?;
                if !said.status.success() {
                    return Err(refused(&said));
                }
            }
        }
        Ok(Taken::Work)
    }

    /// Whether the pack contains every object that `tip` has and `base` has not.
    fn all_was_sent(&self, tip: &str, base: &str) -> Result<()> {
        let exclude = format!("^{base}");
        let needed =
            self.run(self.git(&["rev-list", "--objects", "--no-object-names", tip, &exclude]), &mut |_| {})?;
        if !needed.status.success() {
            return Err(refused(&needed));
        }
        let mut check = self.git(&["cat-file", "--buffer", "--batch-check=%(objectname)"]);
        check.lent = None;
        check.input = Some(Box::new(Cursor::new(needed.output.clone())));
        let there = self.finish(check)?;
        let there: HashSet<&[u8]> = there.split(|b| *b == b'\n').collect();
        if needed.output.split(|b| *b == b'\n').all(|id| there.contains(id)) {
            return Ok(());
        }
        Err(GitError::Refused { why: "it refers to objects that the bay did not send".to_owned() })
    }

    /// Writes `tip` as a branch into a new bundle, without the objects that `exclude` has.
    pub fn bundle(&self, tip: &str, branch: &str, exclude: Option<&str>) -> Result<PathBuf> {
        let to = self.place.join("work.bundle");
        let reference = format!("refs/heads/{branch}");
        self.finish(self.git(&["update-ref", &reference, tip]))?;
        self.finish(self.git(&["symbolic-ref", "HEAD", &reference]))?;
        let exclude = exclude.map(|commit| format!("^{commit}"));
        let mut arguments: Vec<&OsStr> = ["bundle", "create", "--quiet"].map(OsStr::new).to_vec();
        arguments.extend([to.as_os_str(), OsStr::new("HEAD"), OsStr::new(&reference)]);
        arguments.extend(exclude.as_deref().map(OsStr::new));
        self.finish(self.git_os(&arguments))?;
        Ok(to)
    }

    /// The output of a git command that only reads.
    pub fn ask(&self, arguments: &[&str]) -> Result<Vec<u8>> {
        self.finish(self.git(arguments))
    }

    /// The output of a git command that only reads, with lines for its standard input.
    pub fn ask_about(&self, arguments: &[&str], input: Vec<u8>) -> Result<Vec<u8>> {
        let mut git = self.git(arguments);
        git.input = Some(Box::new(Cursor::new(input)));
        self.finish(git)
    }

    fn git<'a>(&self, arguments: &[&'a str]) -> Git<'a> {
        let arguments: Vec<&OsStr> = arguments.iter().map(|argument| OsStr::new(*argument)).collect();
        self.git_os(&arguments)
    }

    fn git_os<'a>(&self, arguments: &[&'a OsStr]) -> Git<'a> {
        let lender = self.lender.as_ref();
        Git {
            repository: Some(self.git_dir()),
            arguments: arguments.to_vec(),
            // The verification prints nothing until it is done.
            patience: Some(LONG_SILENCE),
            read: lender.map(|lender| lender.objects.clone()).into_iter().collect(),
            write: vec![self.place.clone()],
            home: self.home(),
            lent: lender.map(|lender| lender.objects.clone()),
            ..Git::default()
        }
    }

    fn run(&self, git: Git<'_>, report: Report<'_>) -> Result<Said> {
        let may_go_on = || self.go_on.load(Ordering::Relaxed);
        let mut git = git;
        git.may_go_on = Some(&may_go_on);
        git.run(report)
    }

    fn finish(&self, git: Git<'_>) -> Result<Vec<u8>> {
        let said = self.run(git, &mut |_| {})?;
        if said.status.success() { Ok(said.output) } else { Err(failed(NAME, &said)) }
    }
}

/// Git refuses the pack, unless the disk was the cause.
fn refused(said: &Said) -> GitError {
    match failed(NAME, said) {
        GitError::Failed { why, .. } => GitError::Refused { why },
        other => other,
    }
}

/// A directory that only its owner can enter. An existing one stays unchanged.
fn make_private_dir(path: &Path) -> Result<()> {
    match rustix::fs::mkdir(path, rustix::fs::Mode::RWXU) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(error) => Err(GitError::system(format!("make the directory {}", path.display()), error)),
    }
}
