//! The changes of an agent: `bay diff` and `bay review` on trees that are as unusual as an agent can make them.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use bay_tests::leaks;
use bay_tests::seeded_random::rounds;
use bay_tests::{Daemon, Repository, until};
use bay_types::ErrorCode;
use serde_json::Value;

/// The lines of `bay diff --json`.
fn lines(daemon: &Daemon, args: &[&str]) -> Vec<Value> {
    let ran = daemon.bay(&[&["diff", "--json"], args].concat()).ok();
    ran.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn entries(daemon: &Daemon, args: &[&str]) -> Vec<Value> {
    lines(daemon, args).into_iter().filter(|line| line["line"] == "entry").collect()
}

fn entry(entries: &[Value], path: &str) -> Value {
    let found = entries.iter().find(|entry| entry["path"] == path);
    found.unwrap_or_else(|| panic!("{path} is not among {entries:#?}")).clone()
}

/// Snapshots for comparisons that still exist.
fn passing(daemon: &Daemon) -> usize {
    let tmp = leaks::corner(&daemon.pool, daemon.id()).join("tmp");
    let names = std::fs::read_dir(tmp).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_string_lossy().starts_with("diff-")).count()
}

#[test]
fn a_patch_with_links_empty_files_and_empty_directories_applies() {
    let daemon = Daemon::start();
    let repo = Repository::sample();
    let link = |to: &str, name: &str| std::os::unix::fs::symlink(to, repo.path().join(name)).unwrap();
    link("old", "changes");
    link("old", "goes");
    link("old", "becomes-a-file");
    repo.write("emptied", "x\n");
    repo.write("empty-goes", "");
    repo.commit("with links");
    let _up = daemon.bay(&["up", &repo.arg(), "--name", "b", "--image", bay_tests::SMALL]).ok();
    let script = "ln -s src/main.txt comes; ln -sfn new changes; rm goes empty-goes becomes-a-file run; \
                  echo text > becomes-a-file; ln -s /etc run; : > emptied; : > nothing; \
                  mkdir -p empty/deep; mkfifo fifo; chmod 600 README.md; chown 1000 src/main.txt";
    let _changed = daemon.sh("b", script).ok();
    let shown = daemon.bay(&["diff", "b"]).ok();
    // The entries in `empty` imply the directory itself.
    assert!(shown.errors().contains("2 directories or special files that git cannot carry"), "{shown}");
    for note in ["# README.md: mode 644 -> 600\n", "# src/main.txt: owner 0:0 -> 1000:0"] {
        assert!(shown.text().contains(note), "{shown}");
    }
    let stat = daemon.bay(&["diff", "b", "--stat"]).ok().text();
    assert!(stat.contains("empty/deep") && stat.contains("fifo"), "{stat}");
    let patch = daemon.data_dir.join("patch");
    std::fs::write(&patch, &shown.stdout).unwrap();
    repo.git(&["apply", "--index", patch.to_str().unwrap()]);
    let leads = |name: &str| std::fs::read_link(repo.path().join(name)).unwrap();
    assert_eq!(leads("comes"), std::path::Path::new("src/main.txt"));
    assert_eq!(leads("changes"), std::path::Path::new("new"));
    assert_eq!(leads("run"), std::path::Path::new("/etc"));
    for gone in ["goes", "empty-goes"] {
        assert!(repo.path().join(gone).symlink_metadata().is_err(), "{gone}");
    }
    for (name, text) in [("becomes-a-file", "text\n"), ("emptied", ""), ("nothing", "")] {
        assert_eq!(std::fs::read_to_string(repo.path().join(name)).unwrap(), text, "{name}");
    }
}

#[test]
fn a_person_sees_what_changed_since_the_repository_as_git_would_show_it() {
    let daemon = Daemon::start();
    let repo = Repository::sample();
    let _up = daemon.bay(&["up", &repo.arg(), "--name", "b", "--image", bay_tests::SMALL]).ok();
    assert!(daemon.bay(&["diff", "b"]).ok().errors().contains("nothing changed"));
    let script = "cd /workspace && printf 'one\\ntwo\\n' > src/main.txt && chmod 644 run && mv README.md READ && echo new > added && \
                  git config core.pager 'touch /tmp/owned' && git config diff.external 'touch /tmp/owned; false' && \
                  echo '* diff=evil' > .gitattributes && git config diff.evil.textconv 'touch /tmp/owned'";
    let _changed = daemon.sh("b", script).ok();
    let shown = daemon.bay(&["diff", "b"]).ok().text();
    for part in [
        "diff --git a/src/main.txt b/src/main.txt\n--- a/src/main.txt\n+++ b/src/main.txt\n@@ -1 +1,2 @@\n one\n+two",
        "diff --git a/run b/run\nold mode 100755\nnew mode 100644",
        "diff --git a/README.md b/READ\nrename from README.md\nrename to READ",
        "diff --git a/added b/added\nnew file mode 100644\n--- /dev/null\n+++ b/added\n@@ -0,0 +1 @@\n+new",
    ] {
        assert!(shown.contains(part), "{part}\n--- is not in\n{shown}");
    }
    assert!(!shown.contains(".git/"), "{shown}");
    assert_eq!(daemon.sh("b", "ls /tmp/owned").code, 1, "settings of the agent's git ran");
    // The patch applies: the host's clean clone becomes equal to the bay's tree.
    let patch = daemon.data_dir.join("patch");
    std::fs::write(&patch, format!("{shown}\n")).unwrap();
    repo.git(&["apply", patch.to_str().unwrap()]);
    assert_eq!(std::fs::read_to_string(repo.path().join("src/main.txt")).unwrap(), "one\ntwo\n");
    assert!(repo.path().join("READ").exists() && !repo.path().join("README.md").exists());
    let stat = daemon.bay(&["diff", "b", "--stat"]).ok().text();
    assert!(stat.contains(" src/main.txt") && stat.contains("| mode 755 -> 644"), "{stat}");
    assert!(stat.ends_with(" 5 files changed, 3 insertions(+) (2 added, 2 modified, 1 renamed)"), "{stat}");
    // A stopped bay is compared in the same way.
    let _stopped = daemon.bay(&["stop", "b"]).ok();
    assert_eq!(daemon.bay(&["diff", "b"]).ok().text(), shown);
    assert_eq!(passing(&daemon), 0);
}

#[test]
fn any_two_moments_can_be_compared_and_the_default_is_the_beginning() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let _one = daemon.sh("b", "echo one > /workspace/f; echo x > /workspace/gone").ok();
    let _v1 = daemon.bay(&["checkpoint", "b", "--files-only"]).ok();
    let _two = daemon.sh("b", "echo two >> /workspace/f; rm /workspace/gone").ok();
    let _v2 = daemon.bay(&["checkpoint", "b", "--files-only"]).ok();
    let _three = daemon.sh("b", "echo three >> /workspace/f").ok();
    let patch =
        |args: &[&str]| entry(&entries(&daemon, args), "f")["content"]["patch"].as_str().unwrap().to_owned();
    assert_eq!(patch(&["b"]), "@@ -0,0 +1,3 @@\n+one\n+two\n+three\n");
    assert_eq!(patch(&["b", "--from", "v2"]), "@@ -1,2 +1,3 @@\n one\n two\n+three\n");
    assert_eq!(patch(&["b", "--from", "v1", "--to", "v2"]), "@@ -1 +1,2 @@\n one\n+two\n");
    assert_eq!(patch(&["b", "--from", "v2", "--to", "v1"]), "@@ -1,2 +1 @@\n one\n-two\n");
    assert_eq!(patch(&["b", "--from", "base", "--to", "v1"]), "@@ -0,0 +1 @@\n+one\n");
    let begin = &lines(&daemon, &["b"])[0];
    assert_eq!(
        (&begin["line"], &begin["from"], &begin["to"]),
        (&"begin".into(), &"beginning".into(), &"now".into())
    );
    daemon.bay(&["diff", "b", "--from", "v9"]).fails_with(ErrorCode::CheckpointNotFound);
    let _refused = daemon.bay(&["diff", "b", "--from", "../v1"]).exits(2);
    daemon.bay(&["diff", "nobody"]).fails_with(ErrorCode::BayNotFound);
    for odd in ["from=v0", "from=", "to=then", "part=state", "patch=perhaps", "ignored=some", "unknown=1"] {
        assert_eq!(daemon.rest("GET", &format!("/v1/bays/b/diff?{odd}"), &Value::Null).status, 400, "{odd}");
    }
}

#[test]
fn a_dropped_checkout_is_made_again_for_a_comparison() {
    let daemon = Daemon::start();
    let repo = Repository::sample();
    let _up = daemon.bay(&["up", &repo.arg(), "--name", "b", "--image", bay_tests::SMALL]).ok();
    let _changed = daemon.sh("b", "echo two >> /workspace/src/main.txt").ok();
    let shown = daemon.bay(&["diff", "b", "--from", "base"]).ok().text();
    let repos = leaks::corner(&daemon.pool, daemon.id()).join("repos");
    for repo in std::fs::read_dir(repos).unwrap() {
        for checkout in std::fs::read_dir(repo.unwrap().path().join("checkouts")).unwrap() {
            leaks::delete_tree(&checkout.unwrap().path());
        }
    }
    // The inodes and times differ, but no additional file is reported.
    assert_eq!(daemon.bay(&["diff", "b", "--from", "base"]).ok().text(), shown);
}

#[test]
fn the_base_of_a_fork_is_the_checkpoint_that_it_began_as() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let _parent = daemon.sh("b", "echo parent > /workspace/f").ok();
    let forked = daemon.bay(&["fork", "b", "--name", "child", "--files-only", "--json"]).ok().json();
    let child = forked["bays"][0]["name"].as_str().unwrap().to_owned();
    let _changed = daemon.sh(&child, "echo child >> /workspace/f").ok();
    let base = [child.as_str(), "--from", "base"];
    let patch = entry(&entries(&daemon, &base), "f")["content"]["patch"].clone();
    assert_eq!(patch, "@@ -1 +1,2 @@\n parent\n+child\n");
    let _gone = daemon.bay(&["rm", "b"]).ok();
    let (message, next) =
        daemon.bay(&[&["diff"], &base[..]].concat()).fails_with(ErrorCode::CheckpointNotFound);
    assert!(
        message.contains("what the bay began from is gone") && next.contains("--from"),
        "{message} {next}"
    );
}

/// A write of the same size may fall into the same tick of the filesystem's clock as the write before a checkpoint.
#[test]
fn a_write_right_after_a_checkpoint_is_found() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let counting = "i=1000000; while :; do i=$((i+1)); echo $i 1<>/workspace/n; done";
    let exec = daemon.bay(&["exec", "b", "-d", "--json", "--", "sh", "-c", counting]).ok().json();
    until("it to count", || (daemon.sh("b", "test -s /workspace/n").code == 0).then_some(()));
    for number in 1..=5 {
        let _taken = daemon.bay(&["checkpoint", "b", "--files-only"]).ok();
        let then = daemon.sh("b", &format!("cat /.bay/checkpoints/v{number}/workspace/n")).ok().text();
        let next = |last: &str| {
            let read = || Some(daemon.sh("b", "cat /workspace/n").ok().text()).filter(|now| now != last);
            until("it to go on", read)
        };
        // A write may be visible before the call has returned; if another one follows, it has.
        let _returned = next(&next(&then));
        let found = entries(&daemon, &["b", "--from", &format!("v{number}")]);
        let patch = entry(&found, "n")["content"]["patch"].as_str().unwrap().to_owned();
        assert!(patch.contains(&format!("-{then}\n")), "{then}: {patch}");
    }
    let _killed = daemon.bay(&["kill", "b", exec["id"].as_str().unwrap()]).ok();
}

#[test]
fn hostile_names_kinds_and_sizes_do_no_harm() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let script = r#"
        cd /workspace
        printf 'x\n' > "$(printf 'new\nline')"; printf 'x\n' > "$(printf '\377\376')"; printf 'x\n' > "$(printf 'esc\033[2J')"
        printf 'a\033]0;owned\007\rb\n' > terminal
        mkfifo pipe; ln -s loop loop; ln -s /etc/passwd outside; ln -s ../../../../../../etc up
        truncate -s 1G sparse; printf x >> sparse
        head -c 3000000 /dev/zero | tr '\0' 'y' > large
        d=deep; for i in $(seq 1 60); do mkdir "$d"; cd "$d"; d=$(printf 'n%.0s' $(seq 1 150)); done; echo found > bottom
        mkdir /workspace/wide; cd /workspace/wide; seq 1 3000 | xargs touch
    "#;
    let _made = daemon.sh("b", script).ok();
    let found = entries(&daemon, &["b"]);
    assert_eq!(entry(&found, "new\nline")["change"], "added");
    assert!(found.iter().any(|entry| entry["path_escaped"] == "%FF%FE"));
    assert_eq!(entry(&found, "pipe")["after"]["kind"], "fifo");
    assert_eq!(entry(&found, "loop")["after"]["target"], "loop");
    assert_eq!(entry(&found, "outside")["content"]["is"], "same");
    assert_eq!(entry(&found, "sparse")["content"]["is"], "too-large");
    assert_eq!(entry(&found, "large")["content"]["is"], "too-large");
    assert!(found.iter().any(|entry| entry["path"].as_str().unwrap().ends_with("/bottom")));
    assert_eq!(
        found.iter().filter(|entry| entry["path"].as_str().unwrap().starts_with("wide/")).count(),
        3000
    );
    // A terminal obeys none of it.
    let shown = daemon.bay(&["diff", "b"]).ok().text();
    assert!(!shown.chars().any(|c| c.is_control() && c != '\n' && c != '\t'), "{shown:?}");
    assert!(shown.contains("+a\\x1b]0;owned\\x07\\rb"), "{shown}");
    let stat = daemon.bay(&["diff", "b", "--stat"]).ok().text();
    assert!(!stat.chars().any(|c| c.is_control() && c != '\n'), "{stat:?}");
    let review = daemon.bay(&["review", "b", "--json"]).ok().json();
    let rules: Vec<&str> =
        review["findings"].as_array().unwrap().iter().map(|one| one["rule"].as_str().unwrap()).collect();
    for rule in ["odd-name", "link-outside", "special-file", "too-large"] {
        assert!(rules.contains(&rule), "{rule}: {rules:?}");
    }
}

/// The walk reads a snapshot: whatever the agent does meanwhile, no link leads to a file of the host.
#[test]
fn a_file_that_is_replaced_by_a_link_leads_nowhere() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let host_only = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let swapping = "cd /workspace; mkdir -p d; while :; do \
                    rm -rf d; ln -s /proc/sys/kernel/random d; rm d; mkdir d; echo inside > d/boot_id; \
                    rm -f f; ln -s /proc/sys/kernel/random/boot_id f; rm -f f; echo inside > f; done";
    let exec = daemon.bay(&["exec", "b", "-d", "--json", "--", "sh", "-c", swapping]).ok().json();
    until("it to begin", || (daemon.sh("b", "test -e /workspace/d").code == 0).then_some(()));
    for _ in 0..10 {
        let shown = daemon.bay(&["diff", "b", "--json"]).ok().text();
        assert!(!shown.contains(host_only.trim()), "{shown}");
    }
    let _killed = daemon.bay(&["kill", "b", exec["id"].as_str().unwrap()]).ok();
}

#[test]
fn a_comparison_of_the_system_shows_packages_and_files() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let script = "mkdir -p /var/lib/dpkg && printf 'Package: tool\\nStatus: install ok installed\\nVersion: 1.0-2\\nArchitecture: all\\n\\n' \
                  > /var/lib/dpkg/status; echo changed >> /etc/small-image; echo x > /workspace/not-this";
    let _changed = daemon.sh("b", script).ok();
    let told = lines(&daemon, &["b", "--root"]);
    let package = told.iter().find(|line| line["line"] == "package").unwrap();
    assert_eq!((&package["name"], &package["after"]), (&"tool:all".into(), &"1.0-2".into()));
    let entries: Vec<Value> = told.into_iter().filter(|line| line["line"] == "entry").collect();
    assert_eq!(entry(&entries, "etc/small-image")["change"], "modified");
    assert!(!entries.iter().any(|entry| entry["path"].as_str().unwrap().contains("not-this")), "{entries:?}");
    let shown = daemon.bay(&["diff", "b", "--root"]).ok().text();
    assert!(shown.starts_with("packages:\n  + tool:all 1.0-2\n\n"), "{shown}");
}

#[test]
fn a_review_finds_secrets_and_other_risks_and_shows_no_secret() {
    let daemon = Daemon::start();
    let repo = Repository::sample();
    repo.write(
        "tests/test_sum.py",
        "def test_sum():\n    assert 1 + 1 == 2\n\ndef test_rest():\n    assert True\n",
    );
    repo.commit("tests");
    let _up = daemon.bay(&["up", &repo.arg(), "--name", "b", "--image", bay_tests::SMALL]).ok();
    let clean = daemon.bay(&["review", "b"]).ok();
    assert_eq!((clean.text().as_str(), clean.errors().contains("no findings")), ("", true));
    // Assembled here, so that no scanner reports this file as a leak.
    let secret = ["glpat", "-", "q7Rz2LmX9vTbK4wYc8Hd"].concat();
    let script = format!(
        "cd /workspace && echo 'token = \"{secret}\"' > settings.py && \
         printf 'import pytest\\n\\n@pytest.mark.skip\\ndef test_sum():\\n    pass\\n' > tests/test_sum.py && \
         mkdir -p .github/workflows && echo 'on: push' > .github/workflows/ci.yml && \
         printf '\\177ELF\\0' > tool && mkdir -p .git/hooks && echo '#!/bin/sh' > .git/hooks/post-checkout && git config core.hooksPath .x"
    );
    let _changed = daemon.sh("b", &script).ok();
    let found = daemon.bay(&["review", "b"]).exits(1);
    let text = found.text();
    assert!(
        text.starts_with("stop  settings.py:1  gitlab-token: a GitLab token: glpa… (26 characters)"),
        "{text}"
    );
    for part in [
        "warn  .github/workflows/ci.yml  ci: added",
        "warn  .git/hooks/post-checkout  hook: added",
        "warn  .git/config",
        "warn  tests/test_sum.py:3  test-skipped",
        "warn  tests/test_sum.py  assertions-removed: 2 assertions removed, 0 added",
        "test-removed: the test \"test_rest\" is gone",
        "warn  tool  binary",
    ] {
        assert!(text.contains(part), "{part}\n--- is not in\n{text}");
    }
    let json = daemon.bay(&["review", "b", "--json"]).exits(1).json();
    assert_eq!((&json["from"], &json["findings"][0]["severity"]), (&"beginning".into(), &"stop".into()));
    assert!(
        !json.to_string().contains(&secret) && !text.contains(&secret) && !found.errors().contains(&secret)
    );
    assert!(!daemon.log().contains(&secret));
    // Since a checkpoint that contains everything there is nothing new.
    let _v1 = daemon.bay(&["checkpoint", "b", "--files-only"]).ok();
    let since = daemon.bay(&["review", "b", "--from", "v1", "--json"]).ok().json();
    assert_eq!(since["findings"], Value::Array(Vec::new()));
}

/// Requests a difference with thousands of patches and reads only its beginning.
fn half_read(daemon: &Daemon) -> UnixStream {
    let mut stream = UnixStream::connect(daemon.socket()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream.write_all(b"GET /v1/bays/b/diff HTTP/1.1\r\nhost: bay\r\n\r\n").unwrap();
    let mut begin = [0; 15];
    stream.read_exact(&mut begin).unwrap();
    assert_eq!(&begin, b"HTTP/1.1 200 OK");
    stream
}

#[test]
fn a_caller_that_hangs_up_or_a_killed_daemon_leaves_no_snapshot() {
    let mut daemon = Daemon::start();
    daemon.empty_bay("b");
    let many = "cd /workspace && seq 1 20000 > lines && for i in $(seq 1 400); do cp lines f$i; done";
    let _made = daemon.sh("b", many).ok();
    let reader = half_read(&daemon);
    until("the snapshot to be there", || (passing(&daemon) == 1).then_some(()));
    drop(reader);
    until("it to go with the caller", || (passing(&daemon) == 0).then_some(()));
    let _reader = half_read(&daemon);
    until("the snapshot to be there", || (passing(&daemon) == 1).then_some(()));
    daemon.kill_9();
    daemon.launch();
    assert_eq!(passing(&daemon), 0, "the next daemon sweeps it");
    assert_eq!(entries(&daemon, &["b", "--stat"]).len(), 401);
}

#[test]
fn ten_thousand_changed_files_are_all_listed() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let make = "mkdir /workspace/d && cd /workspace/d && seq 1 10000 | awk '{ print \"line\\nline \" $1 \"\\nend\" > $1; close($1) }'";
    let _made = daemon.sh("b", make).ok();
    let _taken = daemon.bay(&["checkpoint", "b", "--files-only"]).ok();
    let change = "cd /workspace/d && seq 1 10000 | awk '{ print \"changed\" >> $1; close($1) }'";
    let _changed = daemon.sh("b", change).ok();
    let told = lines(&daemon, &["b", "--from", "v1"]);
    assert_eq!(told.len(), 10_002, "begin, entries, done");
    let done = told.last().unwrap();
    assert_eq!((&done["modified"], &done["lines_added"]), (&10_000.into(), &10_000.into()));
}

/// A hundred thousand files, or a million in `./test --soak`. While the comparison takes long, it reports progress. The
/// daemon holds one directory's names in memory, not the tree's.
#[test]
fn a_tree_of_very_many_files_is_compared_in_bounded_memory_with_progress() {
    const FILES_A_ROUND: usize = 2_000;
    const FILES_A_DIRECTORY: usize = 1_000;
    const MORE_MEMORY_KIB: u64 = 128 << 10;
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let files = rounds() * FILES_A_ROUND;
    let directories = files / FILES_A_DIRECTORY;
    let make = format!(
        "mkdir /workspace/d; cd /workspace/d; seq 1 {directories} | xargs mkdir; \
         for i in *; do (cd $i; seq 1 {FILES_A_DIRECTORY} | xargs touch); done"
    );
    let _made = daemon.sh("b", &make).ok();
    let before = memory_peak_kib(daemon.pid());
    let answer = daemon.rest("GET", "/v1/bays/b/diff?patch=false", &Value::Null);
    let told: Vec<Value> = String::from_utf8(answer.body)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let of = |kind: &str| told.iter().filter(|line| line["line"] == kind).count();
    assert_eq!(told.last().unwrap()["added"], files);
    assert_eq!(of("entry"), files + directories + 1);
    assert!(of("progress") > 0, "nothing was said on the way");
    let more = memory_peak_kib(daemon.pid()) - before;
    assert!(more < MORE_MEMORY_KIB, "{more} KiB more for {files} files");
}

fn memory_peak_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn a_review_counts_what_the_repository_ignores_and_an_agents_own_rules_hide_nothing() {
    let daemon = Daemon::start();
    let repo = Repository::sample();
    repo.write(".gitignore", "build/\n*.log\n");
    repo.commit("rules");
    let _up = daemon.bay(&["up", &repo.arg(), "--name", "b", "--image", bay_tests::SMALL]).ok();
    let script = "k='PRIVATE KEY'; printf -- '-----BEGIN %s-----\\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7\\n' \"$k\" > a.log; \
                  mkdir build; cp a.log build/out";
    let _changed = daemon.sh("b", script).ok();
    let clean = daemon.bay(&["review", "b"]).ok();
    assert!(clean.errors().contains("no findings") && clean.errors().contains("2 ignored files"), "{clean}");
    let _changed = daemon.sh("b", "echo hidden >> .gitignore; cp a.log hidden").ok();
    let found = daemon.bay(&["review", "b"]).exits(1);
    assert!(found.text().contains("hidden:1"), "{found}");
}
