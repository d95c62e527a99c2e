//! `bay bundle` and `bay branch`: the agent's work leaves its bay as a git bundle, a local branch or a pushed branch.

use std::fs;
use std::path::{Path, PathBuf};

use bay_tests::repository::git;
use bay_tests::suite::Scratch;
use bay_tests::{CliRun, Daemon, Repository, SMALL, remote};
use bay_types::ErrorCode;

/// A daemon with the bay `b` made from a repository, and a directory for the results.
struct Scene {
    daemon: Daemon,
    repository: Repository,
    scratch: Scratch,
}

impl Scene {
    fn new() -> Self {
        let (daemon, repository, scratch) = (Daemon::start(), Repository::sample(), Scratch::new());
        let _up = daemon.bay(&["up", &repository.arg(), "--name", "b", "--image", SMALL]).ok();
        fs::create_dir(scratch.join("tmp")).unwrap();
        Self { daemon, repository, scratch }
    }

    /// Runs `bay` in a directory, with a directory for temporary files in which nothing may remain.
    fn bay_in(&self, dir: &Path, args: &[&str]) -> CliRun {
        let mut command = self.daemon.command(args);
        command.current_dir(dir).env("TMPDIR", self.scratch.join("tmp"));
        let ran = CliRun::new(args.join(" "), command.output().unwrap());
        let left: Vec<_> = fs::read_dir(self.scratch.join("tmp")).unwrap().flatten().collect();
        assert!(left.is_empty(), "{left:?} was left by\n{ran}");
        let left = self.daemon.sh("b", "ls -d /tmp/.bay-leaving-* 2>/dev/null").text();
        assert_eq!(left, "", "left in the bay by\n{ran}");
        ran
    }

    fn bay(&self, args: &[&str]) -> CliRun {
        self.bay_in(self.scratch.path(), args)
    }

    /// Runs `bay bundle b …` into a file.
    fn bundle(&self, args: &[&str]) -> PathBuf {
        let ran = self.bay(&[&["bundle", "b"], args].concat()).ok();
        let path = self.scratch.join("b.bundle");
        fs::write(&path, &ran.stdout).unwrap();
        path
    }

    /// Fetches a bundle into a fresh clone of the repository, and returns the clone with its branch `b`.
    fn taken_in(&self, bundle: &Path) -> PathBuf {
        let clone = self.scratch.join("clone");
        let _ = fs::remove_dir_all(&clone);
        git(self.scratch.path(), &["clone", "-q", &self.repository.arg(), "clone"]);
        git(&clone, &["fetch", "-q", bundle.to_str().unwrap(), "b:b"]);
        clone
    }

    /// A bare clone of the repository.
    fn bare(&self) -> PathBuf {
        git(self.scratch.path(), &["clone", "-q", "--bare", &self.repository.arg(), "project.git"]);
        self.scratch.join("project.git")
    }
}

#[test]
fn commits_leave_on_top_of_the_commit_that_the_bay_began_from() {
    let scene = Scene::new();
    let _work = scene.daemon.sh("b", "echo two > src/main.txt && git commit -qam second && echo x > new && git add new && git commit -qm third").ok();
    let bundle = scene.bundle(&[]);
    let clone = scene.taken_in(&bundle);
    let log = git(&clone, &["log", "--format=%s", "b"]);
    assert_eq!(log, "third\nsecond\nfirst");
    assert_eq!(git(&clone, &["rev-parse", "b"]), scene.daemon.sh("b", "git rev-parse HEAD").text());
    // The bundle contains only the new commits.
    let empty = scene.scratch.join("empty");
    git(scene.scratch.path(), &["init", "-q", "--bare", "empty"]);
    let verified = std::process::Command::new("git")
        .args(["bundle", "verify"])
        .arg(&bundle)
        .current_dir(&empty)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&verified.stderr).into_owned();
    assert!(!verified.status.success() && said.contains(&scene.repository.head()), "{said}");
}

#[test]
fn uncommitted_work_leaves_as_one_commit_and_the_bay_stays_unchanged() {
    let scene = Scene::new();
    let _work = scene
        .daemon
        .sh(
            "b",
            "echo two > src/main.txt && git commit -qam second && echo staged > staged && git add staged && \
             echo three > src/main.txt && rm README.md && echo new > \"$(printf 'odd\\nname')\" && \
             echo ignored > ignored && echo ignored > .gitignore && ln -s /etc/passwd link && chmod -x run",
        )
        .ok();
    let state = "sha256sum .git/index .git/HEAD; git rev-parse HEAD; find .git -type f | sort | sha256sum; \
                 find . -not -path './.git/*' | sort; git diff --cached; git stash list";
    let before = scene.daemon.sh("b", state).ok().text();
    let bundle = scene.bundle(&["--message", "All of it\n\nand why"]);
    assert_eq!(scene.daemon.sh("b", state).ok().text(), before);
    let clone = scene.taken_in(&bundle);
    assert_eq!(git(&clone, &["log", "--format=%s", "b"]), "All of it\nsecond\nfirst");
    assert_eq!(
        git(&clone, &["log", "-1", "--format=%b|%an <%ae>", "b"]),
        "and why\n|Test <test@example.invalid>"
    );
    let changed = git(&clone, &["-c", "core.quotePath=true", "diff", "--name-status", "b~", "b"]);
    assert_eq!(
        changed.lines().collect::<Vec<_>>(),
        [
            "A\t.gitignore",
            "D\tREADME.md",
            "A\tlink",
            "A\t\"odd\\nname\"",
            "M\trun",
            "M\tsrc/main.txt",
            "A\tstaged"
        ]
    );
    assert_eq!(git(&clone, &["show", "b:src/main.txt"]), "three");
    // Without it only commits leave; without commits, nothing does.
    let clone = scene.taken_in(&scene.bundle(&["--committed-only"]));
    assert_eq!(git(&clone, &["log", "--format=%s", "b"]), "second\nfirst");
}

#[test]
fn a_bay_without_work_says_so() {
    let scene = Scene::new();
    scene.bay(&["bundle", "b"]).fails_with(ErrorCode::NothingToTake);
    let _work = scene.daemon.sh("b", "echo x > new").ok();
    scene.bay(&["bundle", "b", "--committed-only"]).fails_with(ErrorCode::NothingToTake);
    let bare = scene.bare();
    scene
        .bay(&["branch", "b", "--committed-only", "--push", bare.to_str().unwrap(), "x"])
        .fails_with(ErrorCode::NothingToTake);
    scene.bay(&["bundle", "nobody"]).fails_with(ErrorCode::BayNotFound);
    let _stopped = scene.daemon.bay(&["stop", "b"]).ok();
    scene.daemon.bay(&["bundle", "b"]).fails_with(ErrorCode::BayState);
    let _started = scene.daemon.bay(&["start", "b"]).ok();
    let terminal = scene.daemon.on_a_terminal("bundle b", "");
    assert!(terminal.text().contains("cannot be written to a terminal"), "{terminal}");
}

#[test]
fn a_workspace_that_is_no_repository_leaves_as_one_commit() {
    let scene = Scene::new();
    scene.daemon.empty_bay("plain");
    scene.bay(&["bundle", "plain"]).fails_with(ErrorCode::NothingToTake);
    let _work = scene.daemon.sh("plain", "mkdir d && echo x > d/f && echo y > g").ok();
    scene.bay(&["bundle", "plain", "--committed-only"]).fails_with(ErrorCode::NothingToTake);
    let ran = scene.bay(&["bundle", "plain"]).ok();
    assert!(ran.errors().contains("not a git repository"), "{ran}");
    let bundle = scene.scratch.join("plain.bundle");
    fs::write(&bundle, &ran.stdout).unwrap();
    git(scene.scratch.path(), &["clone", "-q", bundle.to_str().unwrap(), "plain"]);
    assert_eq!(git(&scene.scratch.join("plain"), &["ls-files"]), "d/f\ng");
    assert_eq!(scene.daemon.sh("plain", "ls -A").ok().text(), "d\ng");
    // A repository without a commit.
    let _work = scene.daemon.sh("plain", "git init -q && git add g").ok();
    scene.bay(&["bundle", "plain", "--committed-only"]).fails_with(ErrorCode::NothingToTake);
    let _all = scene.bay(&["bundle", "plain"]).ok();
    assert_eq!(scene.daemon.sh("plain", "git status --porcelain").ok().text(), "A  g\n?? d/");
}

#[test]
fn without_the_repository_at_hand_a_bay_gives_its_whole_history() {
    let scene = Scene::new();
    // The host's repository no longer has the commit.
    let kept = scene.scratch.join("kept");
    git(scene.scratch.path(), &["clone", "-q", "--bare", &scene.repository.arg(), "kept"]);
    fs::remove_dir_all(scene.repository.path()).unwrap();
    let work = "chown -R 1000:1000 /workspace && su user -c 'cd /workspace && echo two > src/main.txt && git commit -qam second && echo x > new'";
    let _work = scene.daemon.sh("b", work).ok();
    let bundle = scene.bundle(&[]);
    git(&kept, &["fetch", "-q", bundle.to_str().unwrap(), "b:b"]);
    assert_eq!(git(&kept, &["log", "--format=%s", "b"]), "Uncommitted work in bay b\nsecond\nfirst");
    // The agent can continue to work.
    let _more = scene.daemon.sh("b", "find /workspace -not -user 1000 | grep . && exit 1; su user -c 'cd /workspace && git add -A && git commit -qm third'").ok();
}

#[test]
fn a_branch_is_made_in_the_current_repository() {
    let scene = Scene::new();
    let here = scene.repository.path();
    let _work = scene.daemon.sh("b", "echo two > src/main.txt && git commit -qam second").ok();
    let before = scene.repository.git(&["status", "--porcelain", "-b"]);
    let made = scene.bay_in(&here, &["branch", "b", "agent/work", "--json"]).ok().json();
    assert_eq!(made["outcome"], "created", "{made}");
    assert_eq!(made["commits"], 1);
    assert_eq!(scene.repository.git(&["log", "--format=%s", "agent/work"]), "second\nfirst");
    assert_eq!(scene.repository.git(&["status", "--porcelain", "-b"]), before);
    let same = scene.bay_in(&here, &["branch", "b", "agent/work", "--json"]).ok().json();
    assert_eq!(same["outcome"], "unchanged", "{same}");
    // Later commits extend the branch. Another history is refused without --force.
    let _more = scene.daemon.sh("b", "echo three > src/main.txt && git commit -qam third").ok();
    let updated = scene.bay_in(&here, &["branch", "b", "agent/work"]).ok();
    assert!(updated.text().contains("updated"), "{updated}");
    let _other = scene
        .daemon
        .sh("b", "git reset -q --hard HEAD~2 && echo other > src/main.txt && git commit -qam other")
        .ok();
    scene.bay_in(&here, &["branch", "b", "agent/work"]).fails_with(ErrorCode::BranchDiverged);
    assert_eq!(scene.repository.git(&["log", "-1", "--format=%s", "agent/work"]), "third");
    let _forced = scene.bay_in(&here, &["branch", "b", "agent/work", "--force"]).ok();
    assert_eq!(scene.repository.git(&["log", "--format=%s", "agent/work"]), "other\nfirst");
    // The checked-out branch is not moved.
    scene.bay_in(&here, &["branch", "b", "main"]).fails_with(ErrorCode::InvalidInput);
    scene.bay(&["branch", "b", "x"]).fails_with(ErrorCode::RepoNotFound);
    for odd in ["--", "a..b", "refs/heads/x", "HEAD", "x.lock", "a b"] {
        scene.bay_in(&here, &["branch", "b", "--", odd]).fails_with(ErrorCode::InvalidInput);
    }
}

#[test]
fn a_branch_is_pushed_to_a_path_and_no_commit_there_is_lost() {
    let scene = Scene::new();
    let bare = scene.bare();
    let remote = bare.to_str().unwrap();
    let _work =
        scene.daemon.sh("b", "echo two > src/main.txt && git commit -qam second && echo x > new").ok();
    let pushed = scene.bay(&["branch", "b", "--push", remote, "fix"]).ok();
    assert!(pushed.text().contains("pushed"), "{pushed}");
    assert_eq!(git(&bare, &["log", "--format=%s", "fix"]), "Uncommitted work in bay b\nsecond\nfirst");
    assert_eq!(git(&bare, &["for-each-ref", "--format=%(refname)"]), "refs/heads/fix\nrefs/heads/main");
    // Another person has pushed meanwhile.
    let other = scene.scratch.join("other");
    git(scene.scratch.path(), &["clone", "-q", "-b", "fix", remote, "other"]);
    git(&other, &["commit", "-q", "--allow-empty", "-m", "theirs"]);
    git(&other, &["push", "-q", "origin", "fix"]);
    scene.bay(&["branch", "b", "--push", remote, "fix"]).fails_with(ErrorCode::BranchDiverged);
    assert_eq!(git(&bare, &["log", "-1", "--format=%s", "fix"]), "theirs");
    let _forced = scene.bay(&["branch", "b", "--push", remote, "fix", "--force"]).ok();
    assert_eq!(git(&bare, &["log", "-1", "--format=%s", "fix"]), "Uncommitted work in bay b");
    // By the name of a remote, and to invalid remotes.
    scene.repository.git(&["remote", "add", "origin", remote]);
    let _named = scene.bay_in(&scene.repository.path(), &["branch", "b", "--push", "origin", "named"]).ok();
    assert_eq!(git(&bare, &["log", "-1", "--format=%s", "named"]), "Uncommitted work in bay b");
    let nowhere = scene.scratch.join("nowhere");
    scene.bay(&["branch", "b", "--push", nowhere.to_str().unwrap(), "x"]).fails_with(ErrorCode::PushFailed);
    scene.bay(&["branch", "b", "--push", "ext::sh -c touch% x", "x"]).fails_with(ErrorCode::PushFailed);
    scene.bay(&["branch", "b", "--push=--exec=x", "x"]).fails_with(ErrorCode::InvalidInput);
}

#[test]
fn a_branch_is_pushed_over_http_with_the_callers_credentials() {
    let scene = Scene::new();
    let bare = scene.bare();
    let url = remote::taking_pushes(scene.scratch.path());
    let _work = scene.daemon.sh("b", "echo two > src/main.txt").ok();
    let (what, _) = scene.bay(&["branch", "b", "--push", &url, "x"]).fails_with(ErrorCode::RepoAuth);
    assert!(what.contains("127.0.0.1"), "{what}");
    let settings = scene.daemon.data_dir.join("home/.gitconfig");
    let known = fs::read_to_string(&settings).unwrap();
    let helper = "[credential]\nhelper = \"!f() { echo username=me; echo password=pw; }; f\"\n";
    fs::write(&settings, format!("{known}{helper}")).unwrap();
    let _pushed = scene.bay(&["branch", "b", "--push", &url, "x", "-m", "Two"]).ok();
    assert_eq!(git(&bare, &["log", "--format=%s", "x"]), "Two\nfirst");
    // A login in the address is used and not shown.
    fs::write(&settings, &known).unwrap();
    let login = url.replace("http://", "http://me:pw@");
    let shown = scene.bay(&["branch", "b", "--push", &login, "y"]).ok();
    assert!(!shown.text().contains("pw"), "{shown}");
    let wrong = url.replace("http://", "http://me:hunter2@");
    let (what, _) = scene.bay(&["branch", "b", "--push", &wrong, "z"]).fails_with(ErrorCode::RepoAuth);
    assert!(!what.contains("hunter2"), "{what}");
}

#[test]
fn under_sudo_a_branch_belongs_to_the_calling_user() {
    let scene = Scene::new();
    let _work = scene.daemon.sh("b", "echo two > src/main.txt").ok();
    let (bare, here) = (scene.bare(), scene.repository.path());
    let nobody = "65534";
    for place in [&bare, &here] {
        let given =
            std::process::Command::new("chown").args(["-R", "65534:65534"]).arg(place).status().unwrap();
        assert!(given.success());
    }
    for args in
        [&["branch", "b", "agent/x"][..], &["branch", "b", "--push", bare.to_str().unwrap(), "agent/x"]]
    {
        let mut command = scene.daemon.command(args);
        command.current_dir(&here).env("TMPDIR", scene.scratch.join("tmp"));
        command.envs([("SUDO_USER", "nobody"), ("SUDO_UID", nobody), ("SUDO_GID", nobody)]);
        let _ran = CliRun::new(args.join(" "), command.output().unwrap()).ok();
    }
    for place in [&bare, &here] {
        let others =
            std::process::Command::new("find").arg(place).args(["!", "-user", nobody]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&others.stdout), "", "files of root in {}", place.display());
    }
    assert_eq!(fs::read_dir(scene.scratch.join("tmp")).unwrap().count(), 0);
}

#[test]
fn a_secret_stops_a_branch_even_if_a_later_commit_removes_it() {
    let scene = Scene::new();
    let (bare, here) = (scene.bare(), scene.repository.path());
    let push = ["branch", "b", "--push", bare.to_str().unwrap(), "x"];
    // Assembled here, so that no scanner reports this file as a leak.
    let token = ["glpat", "x7Kq2LmN9pRsT4vWyZ1a"].join("-");
    let _work = scene
        .daemon
        .sh("b", &format!("echo 'token = \"{token}\"' > settings && git add . && git commit -qm one"))
        .ok();
    let (what, _) = scene.bay(&push).fails_with(ErrorCode::SecretFound);
    assert!(what.contains("settings:1") && !what.contains(&token), "{what}");
    let _gone =
        scene.daemon.sh("b", "git rm -q settings && echo x > fine && git add . && git commit -qm two").ok();
    let (what, _) = scene.bay(&push).fails_with(ErrorCode::SecretFound);
    assert!(what.contains("in an earlier commit"), "{what}");
    scene.bay_in(&here, &["branch", "b", "x"]).fails_with(ErrorCode::SecretFound);
    assert_eq!(git(&bare, &["for-each-ref", "--format=%(refname)"]), "refs/heads/main");
    let _allowed = scene.bay(&[&push[..], &["--allow-secrets"]].concat()).ok();
    // Without those commits it is gone.
    let _clean = scene.daemon.sh("b", "git reset -q --soft HEAD~2 && git commit -qm three").ok();
    let _pushed = scene.bay_in(&here, &["branch", "b", "y"]).ok();
}
