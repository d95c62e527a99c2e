//! Small git repositories to make bays from.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::suite::Scratch;

/// A repository in a scratch directory, with one branch `main`.
#[derive(Debug)]
pub struct Repository {
    scratch: Scratch,
}

impl Repository {
    /// An initialised repository without a commit.
    #[must_use]
    pub fn empty() -> Self {
        let this = Self { scratch: Scratch::new() };
        fs::create_dir(this.path()).unwrap();
        this.git(&["init", "-q", "-b", "main"]);
        this
    }

    /// One commit with `README.md`, `src/main.txt` and an executable `run`.
    #[must_use]
    pub fn sample() -> Self {
        let this = Self::empty();
        this.write("README.md", "# sample\n");
        this.write("src/main.txt", "one\n");
        this.write("run", "#!/bin/sh\necho it runs\n");
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(this.path().join("run"), fs::Permissions::from_mode(0o755)).unwrap();
        this.commit("first");
        this
    }

    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.scratch.join("repo")
    }

    /// The path as an argument.
    #[must_use]
    pub fn arg(&self) -> String {
        self.path().to_str().unwrap().to_owned()
    }

    #[must_use]
    pub fn file_url(&self) -> String {
        format!("file://{}", self.arg())
    }

    pub fn write(&self, path: &str, content: &str) {
        let path = self.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    /// Commits everything, and returns the commit's id.
    pub fn commit(&self, message: &str) -> String {
        self.git(&["add", "-A"]);
        self.git(&["commit", "-q", "--allow-empty", "-m", message]);
        self.head()
    }

    #[must_use]
    pub fn head(&self) -> String {
        self.git(&["rev-parse", "HEAD"])
    }

    /// Runs git here and returns what it printed.
    #[track_caller]
    pub fn git(&self, args: &[&str]) -> String {
        git(&self.path(), args)
    }
}

/// Runs git in a directory, without the caller's own configuration.
///
/// # Panics
/// If git fails.
#[track_caller]
pub fn git(dir: &Path, args: &[&str]) -> String {
    let output = Command::new("git")
        .args([
            "-c",
            "user.name=Test",
            "-c",
            "user.email=test@example.invalid",
            "-c",
            "protocol.file.allow=always",
        ])
        .args(args)
        .current_dir(dir)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "git {args:?} in {}: {}",
        dir.display(),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
}
