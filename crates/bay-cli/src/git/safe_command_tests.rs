//! Hostile repositories. Each has a setting that would run a program. The program would leave a file as evidence.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command as Process;

use super::*;
use crate::git::discover;

struct Hostile {
    dir: tempfile::TempDir,
}

impl Hostile {
    /// A repository with two commits. Its file then changes, but keeps its size.
    fn new() -> Self {
        let hostile = Self { dir: tempfile::tempdir().unwrap() };
        let program = hostile.program();
        fs::write(&program, format!("#!/bin/sh\ntouch '{}'\nexit 1\n", hostile.mark().display())).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        fs::create_dir(hostile.top()).unwrap();
        hostile.git(&["init", "-q", "-b", "main"]);
        for text in ["one", "two"] {
            fs::write(hostile.top().join("a.txt"), text).unwrap();
            hostile.git(&["add", "."]);
            hostile.git(&["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", text]);
        }
        fs::write(hostile.top().join("a.txt"), "TWO").unwrap();
        hostile
    }

    fn top(&self) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join("repo")
    }

    fn program(&self) -> PathBuf {
        self.dir.path().join("program")
    }

    fn mark(&self) -> PathBuf {
        self.dir.path().join("it-ran")
    }

    /// Plain git, as somebody would use it to prepare the repository.
    fn git(&self, arguments: &[&str]) {
        let status = Process::new("git").current_dir(self.top()).args(arguments).status().unwrap();
        assert!(status.success(), "git {arguments:?}");
    }

    fn set(&self, name: &str) {
        self.git(&["config", name, self.program().to_str().unwrap()]);
    }

    fn attributes(&self, line: &str) {
        let info = self.top().join(".git/info");
        fs::create_dir_all(&info).unwrap();
        fs::write(info.join("attributes"), line).unwrap();
    }

    /// Deletes the first commit's content, so that git would have to fetch it.
    fn lose_an_object(&self) {
        let output =
            Process::new("git").current_dir(self.top()).args(["rev-parse", "HEAD~1:a.txt"]).output().unwrap();
        let id = String::from_utf8(output.stdout).unwrap();
        let (folder, file) = id.trim().split_at(2);
        fs::remove_file(self.top().join(".git/objects").join(folder).join(file)).unwrap();
    }

    fn make_promisor(&self, url: &str) {
        self.git(&["config", "core.repositoryFormatVersion", "1"]);
        self.git(&["config", "extensions.partialClone", "origin"]);
        self.git(&["config", "remote.origin.promisor", "true"]);
        self.git(&["config", "remote.origin.url", url]);
    }

    /// Everything that `bay up` reads from a local repository.
    fn read_all(&self) -> Result<Vec<PathBuf>, ApiError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let repo = discover(&self.top()).await?.expect("a repository");
            let head = repo.resolve("main").await?;
            let bundle = repo.bundle(&head, std::slice::from_ref(&head.id)).await?;
            bundle.wait_with_output().await.unwrap();
            let whole = repo.bundle(&head, &[]).await?;
            whole.wait_with_output().await.unwrap();
            repo.submodules().await?;
            repo.files_of(Path::new("")).await?;
            Ok(repo.changes().await?.present)
        })
    }

    fn shows_that_nothing_ran(&self, what: &str) {
        let changed = self.read_all().unwrap_or_else(|e| panic!("{what}: {}", e.message));
        assert!(!self.mark().exists(), "{what} ran");
        assert_eq!(changed, [PathBuf::from("a.txt")], "{what}");
    }
}

#[test]
fn no_filter_of_the_repository_runs() {
    for variable in ["clean", "smudge", "process"] {
        let hostile = Hostile::new();
        hostile.attributes("*.txt filter=evil diff=evil merge=evil\n");
        hostile.set(&format!("filter.evil.{variable}"));
        hostile.git(&["config", "filter.evil.required", "true"]);
        hostile.shows_that_nothing_ran(variable);
    }
}

#[test]
fn the_fixture_detects_a_program_that_runs() {
    let hostile = Hostile::new();
    let touch = format!("touch '{}'; cat", hostile.mark().display());
    hostile.attributes("*.txt filter=evil\n");
    hostile.git(&["config", "filter.evil.clean", &touch]);
    hostile.git(&["status", "--porcelain"]);
    assert!(hostile.mark().exists(), "no filter ran");

    let hostile = Hostile::new();
    hostile.lose_an_object();
    hostile.make_promisor("ssh://example.invalid/x");
    let touch = format!("touch '{}'; false", hostile.mark().display());
    hostile.git(&["config", "core.sshCommand", &touch]);
    let bundle = ["bundle", "create", "--quiet", "-", "--all"];
    let output = Process::new("git").current_dir(hostile.top()).args(bundle).output().unwrap();
    assert!(!output.status.success());
    assert!(hostile.mark().exists(), "no fetch was tried");
}

#[test]
fn no_filter_runs_that_an_included_file_or_a_worktrees_configuration_names() {
    let hostile = Hostile::new();
    hostile.attributes("*.txt filter=evil\n");
    let included = hostile.dir.path().join("more");
    fs::write(&included, format!("[filter \"evil\"]\nclean = {}\n", hostile.program().display())).unwrap();
    hostile.git(&["config", "include.path", included.to_str().unwrap()]);
    hostile.shows_that_nothing_ran("an included filter");

    let hostile = Hostile::new();
    hostile.attributes("*.txt filter=ev.il\n");
    hostile.git(&["config", "core.repositoryFormatVersion", "1"]);
    hostile.git(&["config", "extensions.worktreeConfig", "true"]);
    hostile.git(&["config", "--worktree", "filter.ev.il.clean", hostile.program().to_str().unwrap()]);
    hostile.shows_that_nothing_ran("a filter of the worktree");
}

#[test]
fn a_filter_that_cannot_be_switched_off_is_refused() {
    let hostile = Hostile::new();
    hostile.attributes("*.txt filter=a=b\n");
    let program = hostile.program();
    let mut config = fs::read_to_string(hostile.top().join(".git/config")).unwrap();
    config.push_str(&format!("[filter \"a=b\"]\nclean = {}\n", program.display()));
    fs::write(hostile.top().join(".git/config"), config).unwrap();
    assert_eq!(hostile.read_all().unwrap_err().code, ErrorCode::RepoFetch);
    assert!(!hostile.mark().exists());
}

#[test]
fn no_missing_object_is_fetched_by_a_program_of_the_repository() {
    for variable in ["core.sshCommand", "core.gitProxy", "remote.origin.uploadpack", "credential.helper"] {
        for url in ["ssh://example.invalid/x", "git://127.0.0.1:9/x", "/nonexistent", "https://127.0.0.1:9/x"]
        {
            let hostile = Hostile::new();
            hostile.lose_an_object();
            hostile.make_promisor(url);
            hostile.set(variable);
            hostile.shows_that_nothing_ran(&format!("{variable} for {url}"));
        }
    }
}

#[test]
fn no_missing_object_is_fetched_through_a_transport_helper() {
    let hostile = Hostile::new();
    hostile.lose_an_object();
    hostile.make_promisor(&format!("ext::{}", hostile.program().display()));
    hostile.git(&["config", "protocol.ext.allow", "always"]);
    hostile.shows_that_nothing_ran("ext::");
}

#[test]
fn no_other_program_that_a_setting_names_runs() {
    for variable in [
        "core.fsmonitor",
        "core.pager",
        "core.editor",
        "core.askPass",
        "core.alternateRefsCommand",
        "pager.status",
        "pager.bundle",
        "diff.external",
        "diff.evil.textconv",
        "diff.evil.command",
        "merge.evil.driver",
        "gpg.program",
        "gpg.ssh.program",
        "alias.status",
        "interactive.diffFilter",
        "uploadpack.packObjectsHook",
    ] {
        let hostile = Hostile::new();
        hostile.attributes("*.txt diff=evil merge=evil\n");
        hostile.set(variable);
        hostile.git(&["config", "log.showSignature", "true"]);
        hostile.git(&["config", "core.untrackedCache", "true"]);
        hostile.shows_that_nothing_ran(variable);
    }
}

#[test]
fn no_hook_runs() {
    let hostile = Hostile::new();
    let elsewhere = hostile.dir.path().join("hooks");
    fs::create_dir(&elsewhere).unwrap();
    for hooks in [elsewhere.clone(), hostile.top().join(".git/hooks")] {
        fs::create_dir_all(&hooks).unwrap();
        for hook in ["post-index-change", "fsmonitor-watchman", "reference-transaction", "post-checkout"] {
            fs::copy(hostile.program(), hooks.join(hook)).unwrap();
        }
    }
    hostile.shows_that_nothing_ran("a hook");
    hostile.git(&["config", "core.hooksPath", elsewhere.to_str().unwrap()]);
    hostile.shows_that_nothing_ran("a hook elsewhere");
}

#[test]
fn a_configuration_that_names_another_tree_is_refused() {
    let hostile = Hostile::new();
    let home = hostile.top().parent().unwrap().to_owned();
    hostile.git(&["config", "core.worktree", home.to_str().unwrap()]);
    assert_eq!(hostile.read_all().unwrap_err().code, ErrorCode::PathRefused);
    let status = Process::new("git").args(["init", "-q"]).current_dir(&home).status().unwrap();
    assert!(status.success());
    assert_eq!(hostile.read_all().unwrap_err().code, ErrorCode::PathRefused, "a repository of its own");
}

#[test]
fn a_directory_within_a_repository_and_a_linked_worktree_are_accepted() {
    let honest = Hostile::new();
    let inner = honest.top().join("inner");
    fs::create_dir(&inner).unwrap();
    let linked = honest.dir.path().canonicalize().unwrap().join("linked");
    honest.git(&["worktree", "add", "-q", "--detach", linked.to_str().unwrap()]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for (dir, top) in [(inner, honest.top()), (linked.clone(), linked)] {
        let repo = runtime.block_on(discover(&dir)).unwrap().unwrap();
        assert_eq!(repo.top, top);
    }
}

#[test]
fn names_of_drivers_are_recognised_whatever_they_contain() {
    let names = b"core.bare\0filter.lfs.clean\0filter.a.b c.process\0filter.x.required\0filter.clean\0\
        diff.x.textconv\0filter.lfs.clean\0user.clean\0";
    let settings = switched_off(names, Path::new("/x")).unwrap();
    let expected = [
        "diff.x.textconv=",
        "filter.a.b c.process=",
        "filter.clean=",
        "filter.lfs.clean=",
        "filter.x.required=false",
    ];
    assert_eq!(settings, expected.map(OsString::from));
}
