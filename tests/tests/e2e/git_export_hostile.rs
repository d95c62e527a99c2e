//! `bay bundle` and `bay branch` if the agent controls the bay's git, its settings and its objects. None of its
//! programs runs on the host, no malformed object leaves the bay, and nothing is left behind.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use bay_tests::repository::git;
use bay_tests::suite::Scratch;
use bay_tests::{CliRun, Daemon, Repository, SMALL, until};
use bay_types::ErrorCode;
use rustix::process::{Pid, Signal, kill_process};

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

    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.daemon.command(args);
        command.current_dir(self.scratch.path()).env("TMPDIR", self.scratch.join("tmp"));
        command
    }

    fn bay(&self, args: &[&str]) -> CliRun {
        let ran = CliRun::new(args.join(" "), self.command(args).output().unwrap());
        self.nothing_is_left_here(&ran.to_string());
        ran
    }

    fn nothing_is_left_here(&self, by: &str) {
        let left: Vec<_> = fs::read_dir(self.scratch.join("tmp")).unwrap().flatten().collect();
        assert!(left.is_empty(), "{left:?} was left by {by}");
    }

    /// Asserts that `bay bundle b` is refused, with nothing on standard output and nothing left in the bay.
    fn refused(&self, what: &str) {
        let ran = self.bay(&["bundle", "b"]);
        let (said, _) = ran.fails_with(ErrorCode::WorkRefused);
        println!("{what}: {said}");
        assert!(ran.stdout.is_empty(), "{what}: {ran}");
        let left = self.daemon.bay(&["exec", "b", "--", "busybox", "sh", "-c", "ls -d /tmp/.bay-leaving-*"]);
        assert_eq!(left.text(), "", "{what} left it in the bay");
    }

    /// Replaces the bay's git, which is renamed to `git.real`, by a script.
    fn as_git(&self, script: &str) {
        let place = "test -e /usr/bin/git.real || mv /usr/bin/git /usr/bin/git.real; cat > /usr/bin/git; chmod +x /usr/bin/git";
        let script = format!("#!/bin/busybox sh\n{script}\n");
        let _placed = self
            .daemon
            .bay_with_input(&["exec", "b", "--", "busybox", "sh", "-c", place], script.as_bytes())
            .ok();
    }

    /// Makes the bay's git return this pack as the work at this commit.
    fn gives_out(&self, pack: &[u8], tip: &str) {
        let put = ["exec", "b", "--", "busybox", "sh", "-c", "cat > /evil.pack"];
        let _put = self.daemon.bay_with_input(&put, pack).ok();
        self.as_git(&format!(
            "case \"$*\" in *pack-objects*) cat >/dev/null; cat /evil.pack ;; *commit-tree*) echo '{tip}' ;; \
             *) exec /usr/bin/git.real \"$@\" ;; esac"
        ));
    }
}

fn raw(dir: &Path, args: &[&str], input: &[u8]) -> Vec<u8> {
    let mut child = Command::new("git")
        .args(["-c", "user.name=Test", "-c", "user.email=test@example.invalid"])
        .args(args)
        .current_dir(dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "git {args:?}");
    output.stdout
}

fn word(dir: &Path, args: &[&str], input: &[u8]) -> String {
    String::from_utf8(raw(dir, args, input)).unwrap().trim_end().to_owned()
}

#[test]
fn a_hostile_git_configuration_in_the_bay_runs_nothing_on_the_host() {
    let scene = Scene::new();
    let ran = scene.scratch.join("ran");
    let trap = format!("touch {}", ran.display());
    let script = format!(
        "echo '*.txt filter=evil diff=evil merge=evil' > .gitattributes
         for key in core.fsmonitor core.sshCommand core.pager core.editor core.gitProxy core.askPass diff.external \
             diff.evil.command diff.evil.textconv filter.evil.clean filter.evil.smudge gpg.program \
             uploadpack.packObjectsHook core.alternateRefsCommand; do git config $key '{trap}'; done
         git config commit.gpgSign true; git config credential.helper '!{trap}'
         for name in add bundle pack-objects commit-tree rev-parse fetch push; do git config alias.$name '!{trap}'; done
         printf '[core]\\n\\thooksPath = /workspace/hooks\\n\\tworktree = /workspace\\n' > included
         git config include.path ../included
         mkdir hooks; for hook in pre-push post-checkout reference-transaction post-index-change pre-commit update; do
             printf '#!/bin/sh\\n{trap}\\n' > hooks/$hook; chmod +x hooks/$hook; cp hooks/$hook .git/hooks/ 2>/dev/null; done
         git config remote.origin.url 'ext::{trap}'; git config url.ext::x.insteadOf /
         git config remote.origin.uploadpack '{trap}'
         echo changed > src/main.txt; true"
    );
    let _trap = scene.daemon.sh("b", &script).ok();
    let bundle = scene.bay(&["bundle", "b"]).ok();
    let file = scene.scratch.join("b.bundle");
    fs::write(&file, &bundle.stdout).unwrap();
    git(scene.scratch.path(), &["clone", "-q", "--bare", &scene.repository.arg(), "bare"]);
    let bare = scene.scratch.join("bare");
    let _pushed = scene.bay(&["branch", "b", "--push", bare.to_str().unwrap(), "x"]).ok();
    let mut here = scene.command(&["branch", "b", "x"]);
    let here = CliRun::new("branch".into(), here.current_dir(scene.repository.path()).output().unwrap()).ok();
    assert!(!ran.exists(), "something of the bay's configuration ran here: {here}");
    assert_eq!(scene.repository.git(&["show", "x:hooks/pre-push"]), format!("#!/bin/sh\n{trap}"));
    let config = fs::read_to_string(scene.repository.path().join(".git/config")).unwrap();
    assert!(!config.contains("evil") && !config.contains("ext::"), "{config}");
}

#[test]
fn malformed_objects_do_not_leave() {
    let scene = Scene::new();
    let _work = scene.daemon.sh("b", "echo x > new").ok();
    let there = scene.repository.path();
    let blob = scene.repository.git(&["rev-parse", "HEAD:README.md"]);
    let bytes: Vec<u8> =
        (0..40).step_by(2).map(|at| u8::from_str_radix(&blob[at..at + 2], 16).unwrap()).collect();
    for name in [".git", ".GIT", "..", "git~1", "a/b", ""] {
        let tree = [b"100644 ", name.as_bytes(), b"\0", &bytes].concat();
        let tree = word(&there, &["hash-object", "-t", "tree", "--literally", "-w", "--stdin"], &tree);
        let tip = word(&there, &["commit-tree", &tree, "-m", "odd"], b"");
        let pack =
            raw(&there, &["pack-objects", "--stdout", "-q"], format!("{tip}\n{tree}\n{blob}\n").as_bytes());
        scene.gives_out(&pack, &tip);
        scene.refused(&format!("an entry named {name:?}"));
    }
    // A missing parent, another commit than announced, and no pack at all.
    let parent = "1".repeat(40);
    let tree = scene.repository.git(&["rev-parse", "HEAD^{tree}"]);
    let orphan =
        format!("tree {tree}\nparent {parent}\nauthor A <a@b> 1 +0000\ncommitter A <a@b> 1 +0000\n\nx\n");
    let orphan =
        word(&there, &["hash-object", "-t", "commit", "--literally", "-w", "--stdin"], orphan.as_bytes());
    let pack =
        raw(&there, &["pack-objects", "--stdout", "-q"], format!("{orphan}\n{tree}\n{blob}\n").as_bytes());
    scene.gives_out(&pack, &orphan);
    scene.refused("a commit whose parent is missing");
    scene.gives_out(&pack, &"2".repeat(40));
    scene.refused("a commit that was not sent");
    scene.gives_out(&pack, &blob);
    scene.refused("a file where a commit belongs");
    scene.gives_out(b"no pack", &orphan);
    scene.refused("garbage");
    for name in ["refs/heads/../../x", "-x", "--all", "refs/heads/-x", "HEAD"] {
        scene.gives_out(&pack, name);
        scene.refused(&format!("a commit called {name}"));
    }
    let mut here = scene.command(&["branch", "b", "x"]);
    let here = CliRun::new("branch".into(), here.current_dir(&there).output().unwrap());
    here.fails_with(ErrorCode::WorkRefused);
    assert_eq!(scene.repository.git(&["for-each-ref", "--format=%(refname)"]), "refs/heads/main");
}

#[test]
fn an_invalid_answer_of_the_bays_git_is_refused() {
    let scene = Scene::new();
    let _work = scene.daemon.sh("b", "echo x > new").ok();
    for (what, script) in [
        ("garbage", "echo garbage; exit 0"),
        ("failure", "echo no >&2; exit 1"),
        ("an endless line", "exec yes | tr -d '\\n'"),
        ("endless lines", "exec yes"),
        ("thousands of refs", "i=0; while [ $i -lt 20000 ]; do echo \"refs/heads/r$i\"; i=$((i+1)); done"),
        ("escapes", "printf '\\033]52;c;eA==\\007\\n' >&2; exit 1"),
    ] {
        scene.as_git(script);
        scene.refused(what);
    }
    // A shell that answers instead of the script, with invalid or endless output.
    let put = "rm /bin/sh; cat > /bin/sh; chmod +x /bin/sh";
    for script in ["echo tip x committed", "yes", "echo; echo tip", "printf 'tip %040d committed\\n' 1"] {
        let script = format!("#!/bin/busybox sh\n{script}\n");
        let put = ["exec", "b", "--", "busybox", "sh", "-c", put];
        let _put = scene.daemon.bay_with_input(&put, script.as_bytes()).ok();
        scene.refused(&script);
    }
}

#[test]
fn a_bay_without_git_says_so() {
    let scene = Scene::new();
    let _gone = scene.daemon.sh("b", "rm /usr/bin/git").ok();
    let (what, _) = scene.bay(&["bundle", "b"]).fails_with(ErrorCode::CommandNotFound);
    assert!(what.contains(SMALL) && what.contains("git"), "{what}");
}

/// A `bay bundle b` that waits in the bay until the test writes to /go.
fn waiting(scene: &Scene) -> Child {
    scene.as_git(
        "case \"$*\" in *pack-objects*) touch /packing; read x < /go ;; esac; exec /usr/bin/git.real \"$@\"",
    );
    let _work = scene.daemon.sh("b", "rm -f /packing /go; mkfifo /go; echo x > new").ok();
    let mut command = scene.command(&["bundle", "b"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    until("the bay to pack", || (scene.daemon.sh("b", "test -e /packing").code == 0).then_some(()));
    child
}

#[test]
fn a_dying_daemon_or_caller_leaves_nothing_behind() {
    let mut scene = Scene::new();
    let left = "ls -d /tmp/.bay-leaving-* 2>/dev/null; pgrep -f '[p]ack-objects'";
    let gone = |scene: &Scene| {
        until("the bay to be as before", || (scene.daemon.sh("b", left).text().is_empty()).then_some(()));
    };
    // The daemon dies and is restarted: the work still comes out.
    let child = waiting(&scene);
    scene.daemon.restart();
    let _go = scene.daemon.sh("b", "echo > /go").ok();
    let ran = CliRun::new("bundle".into(), child.wait_with_output().unwrap()).ok();
    assert!(ran.stdout.starts_with(b"# v2 git bundle"));
    scene.nothing_is_left_here("a dead daemon");
    gone(&scene);
    // The daemon stays down: nothing comes out, and the next run removes what remains in the bay.
    let child = waiting(&scene);
    scene.daemon.kill_9();
    let ran = CliRun::new("bundle".into(), child.wait_with_output().unwrap());
    ran.fails_with(ErrorCode::DaemonUnreachable);
    assert!(ran.stdout.is_empty());
    scene.nothing_is_left_here("a dead daemon");
    scene.daemon.launch();
    let old = "echo > /go; until ls /tmp/.bay-leaving-*/status && ! ls /tmp/.bay-leaving-*/index; do sleep 0.1; done; touch -d '2000-01-01' /tmp/.bay-leaving-*";
    let _old = scene.daemon.sh("b", old).ok();
    // The caller interrupts it.
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let child = waiting(&scene);
        kill_process(Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap(), signal).unwrap();
        let ran = CliRun::new("bundle".into(), child.wait_with_output().unwrap());
        ran.fails_as(ErrorCode::Interrupted, code);
        scene.nothing_is_left_here("a signal");
        gone(&scene);
    }
    // Afterwards it works.
    let child = waiting(&scene);
    let _go = scene.daemon.sh("b", "echo > /go").ok();
    let ran = CliRun::new("bundle".into(), child.wait_with_output().unwrap()).ok();
    assert!(ran.stdout.starts_with(b"# v2 git bundle"));
}
