//! Repositories: fetched once, shared by bays, never written by them; and local trees with their uncommitted changes.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, symlink};

use bay_tests::suite::Scratch;
use bay_tests::{Daemon, Remote, Repository, SMALL, remote};
use bay_types::ErrorCode;

fn up(daemon: &Daemon, source: &str, name: &str) -> bay_tests::CliRun {
    daemon.bay(&["up", source, "--name", name, "--image", SMALL])
}

#[test]
fn uncommitted_changes_are_copied_including_deletions_and_new_files() {
    let daemon = Daemon::start();
    let repository = Repository::sample();
    repository.write("gone.txt", "soon deleted\n");
    repository.write(".gitignore", "ignored\n");
    repository.write("moved.txt", "moves\n");
    repository.commit("second");
    repository.write("src/main.txt", "changed\n");
    repository.write("new/deep/file.txt", "untracked\n");
    repository.write("staged.txt", "staged\n");
    repository.write("ignored", "not taken\n");
    repository.git(&["add", "staged.txt"]);
    repository.git(&["mv", "moved.txt", "renamed.txt"]);
    fs::remove_file(repository.path().join("gone.txt")).unwrap();
    fs::set_permissions(repository.path().join("README.md"), fs::Permissions::from_mode(0o755)).unwrap();
    symlink("src/main.txt", repository.path().join("link")).unwrap();
    let _up = up(&daemon, &repository.arg(), "b").ok();
    let seen = daemon.sh("b", "cat src/main.txt new/deep/file.txt staged.txt renamed.txt; readlink link; test -x README.md && echo executable; ls gone.txt moved.txt ignored 2>/dev/null").text();
    assert_eq!(seen, "changed\nuntracked\nstaged\nmoves\nsrc/main.txt\nexecutable");
    // Git in the bay sees the same changes, on the same branch and commit.
    assert_eq!(
        daemon.sh("b", "git rev-parse HEAD; git branch --show-current").ok().text(),
        format!("{}\nmain", repository.head())
    );
    let status = daemon.sh("b", "git status --porcelain --no-renames").ok().text();
    for line in [" M src/main.txt", " M README.md"] {
        assert!(status.contains(line.trim()), "{line} is not in\n{status}");
    }
    assert!(status.contains("gone.txt") && status.contains("new/"), "{status}");
    // Changes in the bay stay there.
    let _changed = daemon.sh("b", "echo theirs > src/main.txt; git add -A; git commit -qm theirs").ok();
    assert_eq!(fs::read_to_string(repository.path().join("src/main.txt")).unwrap(), "changed\n");
}

#[test]
fn a_commit_in_a_bay_has_the_callers_name_also_after_a_replace() {
    let daemon = Daemon::start();
    let repository = Repository::sample();
    repository.git(&["config", "user.email", "here@example.invalid"]);
    let _up = up(&daemon, &repository.arg(), "b").ok();
    let last = "git log -1 --format='%an <%ae>|%cn'";
    let commit = |user: &str, script: &str| {
        let script = format!("{script} && git commit -q --allow-empty -m x && {last}");
        daemon.bay(&["exec", "-u", user, "b", "--", "sh", "-c", &script]).ok().text()
    };
    // The name comes from the caller's settings, the address from the repository's.
    assert_eq!(commit("root", "true"), "Test <here@example.invalid>|Test");
    assert_eq!(daemon.sh("b", "git status --porcelain").ok().text(), "");
    let fresh = "cd $(mktemp -d) && git init -q .";
    assert_eq!(commit("user", fresh), "Test <here@example.invalid>|Test");
    let _replaced = daemon.bay(&["replace", "b"]).ok();
    assert_eq!(commit("root", "true"), "Test <here@example.invalid>|Test");
    // The bay's own settings have precedence over the caller's.
    assert_eq!(commit("root", "git config user.name Agent"), "Agent <here@example.invalid>|Agent");
}

#[test]
fn with_committed_only_no_uncommitted_change_is_copied() {
    let daemon = Daemon::start();
    let repository = Repository::sample();
    repository.write("src/main.txt", "changed\n");
    repository.write("untracked.txt", "x\n");
    let _up =
        daemon.bay(&["up", &repository.arg(), "--name", "b", "--image", SMALL, "--committed-only"]).ok();
    assert_eq!(daemon.sh("b", "cat src/main.txt; git status --porcelain").ok().text(), "one");
}

#[test]
fn the_callers_working_tree_is_not_touched() {
    let daemon = Daemon::start();
    let repository = Repository::sample();
    repository.write("src/main.txt", "changed\n");
    repository.git(&["add", "-A"]);
    repository.write("src/main.txt", "changed twice\n");
    let before = (
        repository.git(&["status", "--porcelain=v2"]),
        repository.git(&["stash", "list"]),
        repository.git(&["for-each-ref"]),
    );
    let _up = up(&daemon, &repository.arg(), "b").ok();
    let after = (
        repository.git(&["status", "--porcelain=v2"]),
        repository.git(&["stash", "list"]),
        repository.git(&["for-each-ref"]),
    );
    assert_eq!(before, after);
    assert_eq!(daemon.sh("b", "cat src/main.txt").ok().text(), "changed twice");
}

#[test]
fn a_second_bay_on_a_cached_remote_sends_it_no_request() {
    let daemon = Daemon::start();
    let repository = Repository::sample();
    let remote = Remote::of(&repository);
    let url = remote.url();
    let _first = up(&daemon, &url, "one").ok();
    let requests = remote.requests();
    assert!(requests > 0, "the first bay fetches");
    let _second = up(&daemon, &url, "two").ok();
    assert_eq!(remote.requests(), requests, "the second bay asked the remote");
    assert_eq!(daemon.sh("two", "cat src/main.txt; git branch --show-current").ok().text(), "one\nmain");
    // Two bays have two workspaces.
    let _changed = daemon.sh("one", "echo theirs > src/main.txt; git commit -qam theirs").ok();
    assert_eq!(daemon.sh("two", "cat src/main.txt; git log --oneline | wc -l").ok().text(), "one\n1");
    let repos = daemon.bay(&["repos", "ls", "--json"]).ok().json();
    assert_eq!(repos.as_array().map(Vec::len), Some(1), "{repos}");
    assert_eq!(repos[0]["bays"], 2);
}

#[test]
fn a_bay_cannot_write_into_the_cache_that_others_are_made_from() {
    let daemon = Daemon::start();
    let repository = Repository::sample();
    let remote = Remote::of(&repository);
    let url = remote.url();
    let _first = up(&daemon, &url, "one").ok();
    // Ruins every file below .git that git would trust.
    let _ruined = daemon.sh("one", "find .git -type f | while read f; do echo ruined > $f; done; find .git -type f | head -1; chmod -R 777 .git").ok();
    let _second = up(&daemon, &url, "two").ok();
    assert_eq!(
        daemon.sh("two", "git status --porcelain; git fsck 2>&1 | grep -c -i error; cat src/main.txt").text(),
        "0\none"
    );
}

#[test]
fn branches_tags_and_commits_can_be_named() {
    let daemon = Daemon::start();
    let repository = Repository::sample();
    let first = repository.head();
    repository.git(&["tag", "v1"]);
    repository.git(&["checkout", "-q", "-b", "feature/x"]);
    repository.write("feature.txt", "f\n");
    let feature = repository.commit("feature");
    repository.git(&["checkout", "-q", "main"]);
    let remote = Remote::of(&repository);
    let url = remote.url();
    for (reference, commit, branch) in
        [("feature/x", &feature, "feature/x"), ("v1", &first, ""), (feature.as_str(), &feature, "")]
    {
        let _up = daemon.bay(&["up", &url, "--ref", reference, "--name", "b", "--image", SMALL]).ok();
        let seen = daemon.sh("b", "git rev-parse HEAD; git branch --show-current").ok().text();
        assert_eq!(seen.trim_end(), format!("{commit}\n{branch}").trim_end(), "{reference}");
        let _removed = daemon.bay(&["rm", "b", "--yes"]).ok();
    }
    for missing in
        ["no-such-branch", "0123456789012345678901234567890123456789", "--upload-pack=touch /tmp/x", "-x"]
    {
        let reference = format!("--ref={missing}");
        let ran = daemon.bay(&["up", &url, &reference, "--name", "b", "--image", SMALL]);
        assert!(
            ["ref-not-found", "invalid-input"].iter().any(|code| ran.errors().contains(code)),
            "{missing}: {ran}"
        );
    }
    assert_eq!(daemon.list().len(), 0);
}

#[test]
fn sync_fetches_new_commits() {
    let daemon = Daemon::start();
    let repository = Repository::sample();
    let remote = Remote::of(&repository);
    let url = remote.url();
    let _first = up(&daemon, &url, "one").ok();
    repository.write("src/main.txt", "two\n");
    let new = repository.commit("second");
    remote.update(&repository);
    let _synced = daemon.bay(&["repos", "sync", &url]).ok();
    let _second = up(&daemon, &url, "two").ok();
    assert_eq!(daemon.sh("two", "git rev-parse HEAD; cat src/main.txt").ok().text(), format!("{new}\ntwo"));
    assert_eq!(daemon.sh("one", "cat src/main.txt").ok().text(), "one", "a workspace is the bay's own");
    // A commit that is missing in the cache is fetched automatically.
    repository.write("src/main.txt", "three\n");
    let newest = repository.commit("third");
    remote.update(&repository);
    let _third = daemon.bay(&["up", &url, "--ref", &newest, "--name", "three", "--image", SMALL]).ok();
    assert_eq!(daemon.sh("three", "cat src/main.txt").ok().text(), "three");
}

#[test]
fn a_repository_in_use_is_not_removed_and_an_unused_one_is() {
    let daemon = Daemon::start();
    let repository = Repository::sample();
    let _up = up(&daemon, &Remote::of(&repository).url(), "b").ok();
    let id = daemon.bay(&["repos", "ls", "--json"]).ok().json()[0]["id"].as_str().unwrap().to_owned();
    daemon.bay(&["repos", "rm", &id]).fails_with(ErrorCode::RepoInUse);
    let _removed = daemon.bay(&["rm", "b", "--yes"]).ok();
    let _gone = daemon.bay(&["repos", "rm", &id]).ok();
    daemon.bay(&["repos", "rm", &id]).fails_with(ErrorCode::RepoNotFound);
    assert_eq!(daemon.bay(&["repos", "ls", "--json"]).ok().json(), serde_json::json!([]));
}

#[test]
fn a_hostile_git_configuration_runs_nothing_on_the_host() {
    let daemon = Daemon::start();
    let repository = Repository::sample();
    let scratch = Scratch::new();
    let ran = scratch.join("ran");
    let touch = format!("touch {}", ran.display());
    repository.write(".gitattributes", "*.txt filter=evil diff=evil\n");
    repository.commit("attributes");
    for (key, value) in [
        ("core.fsmonitor", touch.as_str()),
        ("core.sshCommand", &touch),
        ("core.pager", &touch),
        ("core.editor", &touch),
        ("core.gitProxy", &touch),
        ("core.askPass", &touch),
        ("diff.external", &touch),
        ("diff.evil.command", &touch),
        ("diff.evil.textconv", &touch),
        ("gpg.program", &touch),
        ("credential.helper", &format!("!{touch}")),
        ("alias.bundle", &format!("!{touch}")),
        ("uploadpack.packObjectsHook", &touch),
    ] {
        repository.git(&["config", key, value]);
    }
    let hooks = repository.path().join("hooks");
    fs::create_dir(&hooks).unwrap();
    for hook in
        ["post-checkout", "pre-commit", "post-index-change", "reference-transaction", "fsmonitor-watchman"]
    {
        let path = hooks.join(hook);
        fs::write(&path, format!("#!/bin/sh\n{touch}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        fs::copy(&path, repository.path().join(".git/hooks").join(hook)).unwrap();
    }
    repository.git(&["config", "core.hooksPath", hooks.to_str().unwrap()]);
    // Git itself may run some of these while the trap is prepared; only what `bay` runs counts.
    repository.write("src/main.txt", "changed\n");
    let _ = fs::remove_file(&ran);
    let _up = up(&daemon, &repository.arg(), "b").ok();
    assert!(!ran.exists(), "`bay up` of a local path ran something of the repository's configuration");
    assert_eq!(daemon.sh("b", "cat src/main.txt").ok().text(), "changed");
    let config = daemon.sh("b", "cat .git/config").ok().text();
    assert!(!config.contains("touch"), "the configuration came into the bay:\n{config}");
    let _up = up(&daemon, &Remote::of(&repository).url(), "c").ok();
    assert!(!ran.exists(), "`bay up` of a URL ran something of the repository's configuration");
}

#[test]
fn what_a_bay_puts_into_its_git_directory_runs_nothing_on_the_host() {
    let daemon = Daemon::start();
    let repository = Repository::sample();
    let scratch = Scratch::new();
    let ran = scratch.join("ran");
    let remote = Remote::of(&repository);
    let url = remote.url();
    let _up = up(&daemon, &url, "b").ok();
    let trap = format!(
        "git config core.fsmonitor 'touch {r}'; git config core.hooksPath /workspace; \
         printf '#!/bin/sh\\ntouch {r}\\n' > post-checkout; chmod +x post-checkout; mkdir -p .git/hooks; cp post-checkout .git/hooks/",
        r = ran.display()
    );
    let _trap = daemon.sh("b", &trap).ok();
    let _stopped = daemon.bay(&["stop", "b"]).ok();
    let _started = daemon.bay(&["start", "b"]).ok();
    let _replaced = daemon.bay(&["replace", "b"]).ok();
    let _second = up(&daemon, &url, "c").ok();
    let _synced = daemon.bay(&["repos", "sync", &url]).ok();
    let _removed = daemon.bay(&["rm", "b", "--yes", "--keep-workspace"]).ok();
    assert!(!ran.exists());
}

#[test]
fn an_empty_repository_is_reported_as_empty() {
    let daemon = Daemon::start();
    let repository = Repository::empty();
    up(&daemon, &Remote::of(&repository).url(), "b").fails_with(ErrorCode::RepoEmpty);
    let local = up(&daemon, &repository.arg(), "c");
    // A local repository without a commit may still have files. Either a bay is made with them, or the error says why
    // not.
    if local.code != 0 {
        local.fails_with(ErrorCode::RepoEmpty);
    }
}

#[test]
fn a_missing_repository_is_reported_as_missing() {
    let daemon = Daemon::start();
    let scratch = Scratch::new();
    let nowhere = scratch.join("nowhere");
    up(&daemon, &format!("file://{}", nowhere.display()), "b").fails_with(ErrorCode::PathNotFound);
    up(&daemon, nowhere.to_str().unwrap(), "b").fails_with(ErrorCode::PathNotFound);
    // Nothing listens there, so loopback refuses immediately.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    up(&daemon, &format!("http://127.0.0.1:{port}/x.git"), "b").fails_with(ErrorCode::RepoFetch);
    assert_eq!(daemon.list().len(), 0);
    assert_eq!(daemon.orphans(), []);
}

#[test]
fn a_repository_that_needs_a_login_is_reported_without_a_prompt() {
    let daemon = Daemon::start();
    let port = remote::always("401 Unauthorized");
    let (what, _) =
        up(&daemon, &format!("http://127.0.0.1:{port}/private.git"), "b").fails_with(ErrorCode::RepoAuth);
    assert!(what.contains("private.git"), "{what}");
    let (what, next) = up(&daemon, &format!("http://me:hunter2@127.0.0.1:{port}/private.git"), "b")
        .fails_with(ErrorCode::RepoAuth);
    assert!(!what.contains("hunter2") && !next.contains("hunter2"), "a password was printed: {what}");
    let repos = daemon.bay(&["repos", "ls"]).ok().text();
    assert!(!repos.contains("hunter2"), "{repos}");
    assert!(!daemon.log().contains("hunter2"), "a password was logged");
    let port = remote::always("404 Not Found");
    up(&daemon, &format!("http://127.0.0.1:{port}/absent.git"), "b").fails_with(ErrorCode::RepoFetch);
}

#[test]
fn addresses_that_would_run_commands_are_refused() {
    let daemon = Daemon::start();
    let scratch = Scratch::new();
    let ran = scratch.join("ran");
    for url in [
        format!("ext::sh -c 'touch {}'", ran.display()),
        format!("--upload-pack=touch {}", ran.display()),
        format!("ssh://-oProxyCommand=touch {}/x", ran.display()),
        "fd::0".to_owned(),
    ] {
        let refused = daemon.bay(&["up", "--name", "b", "--image", SMALL, &url]);
        assert_ne!(refused.code, 0, "{url}: {refused}");
        assert!(!ran.exists(), "{url} ran a command");
    }
    assert_eq!(daemon.list().len(), 0);
}

#[test]
fn missing_submodules_of_a_repository_are_reported() {
    let daemon = Daemon::start();
    let inner = Repository::sample();
    let outer = Repository::sample();
    outer.git(&["submodule", "--quiet", "add", &inner.file_url(), "parts/inner"]);
    outer.commit("with a submodule");
    let _up = up(&daemon, &Remote::of(&outer).url(), "b").ok();
    assert_eq!(
        daemon.sh("b", "cat src/main.txt; git config -f .gitmodules --get-regexp path").ok().text(),
        "one\nsubmodule.parts/inner.path parts/inner"
    );
    let _local = up(&daemon, &outer.arg(), "c").ok();
    assert_eq!(daemon.sh("c", "cat src/main.txt").ok().text(), "one");
}

#[test]
fn files_in_large_file_storage_are_copied_as_pointers() {
    let daemon = Daemon::start();
    let repository = Repository::sample();
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n";
    repository.write("big.bin", pointer);
    repository.write(".gitattributes", "*.bin filter=lfs diff=lfs merge=lfs -text\n");
    repository.commit("with a large file");
    let _up = up(&daemon, &Remote::of(&repository).url(), "b").ok();
    assert_eq!(daemon.sh("b", "cat big.bin").ok().stdout, pointer.as_bytes());
}

#[test]
fn paths_with_unusual_characters_are_copied_unchanged() {
    let daemon = Daemon::start();
    let repository = Repository::sample();
    let names = ["blank in name", "quote\"'", "new\nline", "umlaut-ä-😀", "-dash", "back\\slash", "*?[glob]"];
    for name in names {
        repository.write(&format!("odd/{name}"), name);
    }
    repository.commit("odd names");
    repository.write("odd/un\ntracked", "x");
    let _up = up(&daemon, &repository.arg(), "b").ok();
    assert_eq!(
        daemon
            .sh("b", "ls -A odd | wc -l; find odd -type f | wc -c > /dev/null; cat 'odd/quote\"'\"'\"")
            .ok()
            .text()
            .lines()
            .last()
            .unwrap(),
        "quote\"'"
    );
    let count = daemon.sh("b", "n=0; for f in odd/* odd/-*; do [ -f \"$f\" ] && n=$((n+1)); done; find odd -type f -print0 | tr -dc '\\0' | wc -c").ok();
    assert_eq!(count.text(), "8");
}

#[test]
fn a_directory_without_a_repository_is_copied_or_refused_with_the_reason() {
    let daemon = Daemon::start();
    let scratch = Scratch::new();
    fs::write(scratch.join("file.txt"), "plain\n").unwrap();
    let ran = up(&daemon, scratch.path().to_str().unwrap(), "b");
    if ran.code == 0 {
        assert_eq!(daemon.sh("b", "cat file.txt").ok().text(), "plain");
    } else {
        assert!(ran.errors().lines().count() == 2, "{ran}");
    }
}
